"""The table of a plan: what every pass reads, takes and holds, and for whom."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

from pipeline.fold import AnyStatistic
from pipeline.plan.hours import Span
from pipeline.plan.memory import Projection
from pipeline.plan.passes import Pass, Pending, describe, human

WIDTH = 80
_TIED = "\N{NO-BREAK SPACE}"


def explain(
    passes: Sequence[Pass],
    projections: Sequence[Projection],
    pending: Sequence[Pending],
    allowed_nbytes: int,
    spans: Sequence[Span | None] = (),
    device_nbytes: int | None = None,
) -> str:
    """Return what ``featfold plan`` prints of every pass."""
    lines: list[str] = []
    times = spans or [None] * len(passes)
    for pass_, projection, left, span in zip(passes, projections, pending, times, strict=True):
        lines += [f"{pass_.name}{_turn(pass_)}: {_reads(pass_, left, span)}"]
        if left.groups:
            lines += [f"  banks: {_groups(left.groups)}, reads {human(left.banks_nbytes)} of them"]
        if disk := _disk(left):
            lines += [f"  disk: {disk}"]
        lines += [
            f"  memory: projected {human(projection.nbytes)} per worker of "
            f"{human(allowed_nbytes)} allowed: {parts_of(projection)}"
        ]
        if projection.device is not None and device_nbytes is not None:
            lines += [
                f"  device: projected {human(projection.device.nbytes)} of "
                f"{human(device_nbytes)} allowed: {parts_of(projection.device)}"
            ]
        lines += [f"  {w.split.name}: {', '.join(sorted(w.fields)) or 'nothing'}"
                  for w in pass_.works]  # fmt: skip
        lines += _statistic_lines(pass_)
    return "\n".join(lines)


def summary(passes: Sequence[Pass], pending: Sequence[Pending], spans: Sequence[Span]) -> str:
    """Return the totals of all passes, and what stripes cost."""
    count = f"{len(passes)} {'pass' if len(passes) == 1 else 'passes'}"
    lines = [f"total: {count}, {_bytes_to_read(pending)} to read"]
    if banks := sum(left.banks_nbytes for left in pending):
        lines[0] += f" and {human(banks)} of banks"
    if spans:
        lines[0] += f", {sum(spans[1:], spans[0])} by the rates of this machine"
    lines[0] += f", {human(sum(left.disk_nbytes for left in pending))} of new files in the cache"
    again = [pair for pair in zip(passes, pending, strict=True) if pair[0].turn[0] > 1]
    if again:
        cut = {
            describe(s).partition("[")[0] for p, _ in again for w in p.works for s in w.statistics
        }
        left = [left for _, left in again]
        further = "1 further pass" if len(again) == 1 else f"{len(again)} further passes"
        lines.append(
            f"stripes: {further} for {', '.join(sorted(cut))}, too large for a worker as a whole: "
            f"{_bytes_to_read(left)} to read"
        )
    return "\n".join(lines)


def _groups(count: int) -> str:
    return f"{count:,} groups of rows" if count > 1 else "1 group of rows"


def _bytes_to_read(pending: Sequence[Pending]) -> str:
    return human(sum(left.read_nbytes for left in pending))


def wrapped(blocks: Sequence[str]) -> str:
    """Return lines that are cut at 80 columns, and go on under their beginning."""
    lines = [line for block in blocks for line in block.split("\n")]
    return "\n".join(map(_wrapped, lines)).replace(_TIED, " ")


def _wrapped(line: str) -> str:
    return textwrap.fill(
        re.sub(r"(?<=\d) (?=[A-Za-z])", _TIED, line),
        WIDTH,
        subsequent_indent=" " * (len(line) - len(line.lstrip()) + 4),
        break_long_words=False,
        break_on_hyphens=False,
    )


def parts_of(projection: Projection) -> str:
    """Return the parts of a projection that count for something."""
    return ", ".join(f"{p.name} {human(p.nbytes)}" for p in projection.parts if p.nbytes)


def _turn(pass_: Pass) -> str:
    turn, turns = pass_.turn
    return f" (stripe {turn} of {turns})" if turns > 1 else ""


def _reads(pass_: Pass, left: Pending, span: Span | None) -> str:
    if not left.blocks:
        return f"nothing to read: the partials of all {pass_.blocks:,} blocks are there"
    whole = f"{pass_.blocks:,} {'block' if pass_.blocks == 1 else 'blocks'}"
    blocks = whole if left.blocks == pass_.blocks else f"{left.blocks:,} of {whole}"
    tasks = f" in {pass_.tasks:,} tasks" if left.blocks == pass_.blocks else ""
    return f"{blocks}{tasks}, reads {human(left.read_nbytes)}{f', {span}' if span else ''}"


def _disk(left: Pending) -> str:
    each = {
        "partials": left.partials_nbytes,
        "pooled copies": left.copies_nbytes,
        "scores": left.outputs_nbytes,
    }
    return ", ".join(f"{name} {human(nbytes)}" for name, nbytes in each.items() if nbytes)


def _statistic_lines(pass_: Pass) -> Iterator[str]:
    """Yield a line for each kind of statistic of a pass; of fits, with the splits they fold."""
    splits: dict[AnyStatistic, list[str]] = {}
    states: dict[AnyStatistic, int] = {}
    for work in pass_.works:
        for statistic in work.statistics:
            states[statistic] = statistic.state_nbytes(work.split.schema)
            splits.setdefault(statistic, []).append(work.split.name)
    fits_apart = pass_.stage == "fit" and len(pass_.works) > 1
    kinds: dict[tuple[str, str], list[AnyStatistic]] = {}
    for statistic, names in splits.items():
        over = f"  over {', '.join(names)}" if fits_apart else ""
        kinds.setdefault((describe(statistic), over), []).append(statistic)
    for (kind, over), alike in kinds.items():
        asked_by = dict.fromkeys(name for s in alike for name in pass_.asked_by.get(s, ()))
        count, state = (f"{len(alike)} ", "states") if len(alike) > 1 else ("", "state")
        nbytes = human(sum(states[statistic] for statistic in alike))
        yield f"    {count}{kind}  {state} {nbytes}{over}  for {', '.join(asked_by)}"
