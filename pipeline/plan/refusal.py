"""Refusal: what does not fit is told before anything is read, with remedies that are enough."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from pipeline.errors import BudgetError
from pipeline.fold import AnyStatistic
from pipeline.plan.memory import Projection, project
from pipeline.plan.passes import Pass, describe, human
from pipeline.plan.stripes import narrowed
from pipeline.plan.table import parts_of
from pipeline.procedure import Rows

KNOBS = 3


def check(passes: Sequence[Pass], projections: Sequence[Projection], allowed_nbytes: int) -> None:
    """Raise :class:`BudgetError` for the heaviest pass if a worker could not hold it.

    The message names the worst statistic, who asked for it, and up to three knobs that fix it.
    """
    pairs = zip(passes, projections, strict=True)
    heaviest = max(pairs, key=lambda pair: pair[1].nbytes, default=None)
    if heaviest is None or heaviest[1].nbytes <= allowed_nbytes:
        return
    pass_, projection = heaviest
    narrow = narrowed(pass_)
    if narrow.works != pass_.works:  # what must fit is the narrowest stripe
        pass_, projection = narrow, project(narrow, projection.parts[0].nbytes)
    raise BudgetError(_refusal(pass_, projection, allowed_nbytes))


def check_client(client: Projection, allowed_nbytes: int) -> None:
    """Raise :class:`BudgetError` if the process that drives a job could not hold its results."""
    if client.nbytes <= allowed_nbytes:
        return
    lines = [
        f"refused before reading: the client needs {human(client.nbytes)} for what the workers "
        f"bring together, {human(allowed_nbytes)} are left to it",
        *_parts(client),
        "  what fixes it: leave out who asked for it; with threads a larger --memory, with "
        "processes fewer --workers; or start the job where there is more memory",
    ]
    raise BudgetError("\n".join(lines))


def _parts(projection: Projection) -> list[str]:
    lines = [f"  {parts_of(projection)}"]
    if projection.worst is not None:
        lines.append(
            f"  worst statistic: {describe(projection.worst)} with {human(projection.worst_nbytes)}"
            f", asked for by {', '.join(projection.asked_by) or 'a metric'}"
        )
    return lines


def _refusal(pass_: Pass, projection: Projection, allowed_nbytes: int) -> str:
    lines = [
        f"refused before reading: {pass_.name} needs {human(projection.nbytes)} per worker, "
        f"{human(allowed_nbytes)} are allowed",
        *_parts(projection),
    ]
    knobs = _knobs(pass_, projection, allowed_nbytes)[:KNOBS]
    lines.append("  any of these fixes it:" if len(knobs) > 1 else "  what fixes it:")
    lines += [f"    {knob}" for knob in knobs]
    return "\n".join(lines)


def _knobs(pass_: Pass, projection: Projection, allowed_nbytes: int) -> list[str]:
    """Return remedies that are enough by the same projection, the cheapest first."""
    knobs = []
    if leave := _leaving_out(pass_, projection, allowed_nbytes):
        knobs.append(f"leave out {', '.join(leave)}")
    chunk = next((part.nbytes for part in projection.parts if part.name == "chunk"), 0)
    excess = projection.nbytes - allowed_nbytes
    if excess < chunk:
        rows = max(1, pass_.works[0].split.chunk_rows * (chunk - excess) // (2 * chunk))
        knobs.append(f"store the features in chunks of {rows} rows")
    step = 50 * 2**20
    return [*knobs, f"--memory {math.ceil(projection.nbytes / step) * step // 2**20}MiB"]


def _leaving_out(pass_: Pass, projection: Projection, allowed_nbytes: int) -> list[str]:
    """Return whom the pass would fit without, worst first; nobody if that leaves nobody."""
    everybody = {name for names in pass_.asked_by.values() for name in names}
    reserved = projection.parts[0].nbytes
    left: dict[str, None] = {}
    while projection.nbytes > allowed_nbytes and projection.asked_by:
        left |= dict.fromkeys(projection.asked_by)
        pass_ = _without(pass_, left)
        projection = project(pass_, reserved)
    enough = projection.nbytes <= allowed_nbytes and left.keys() < everybody
    return list(left) if enough else []


def _without(pass_: Pass, names: Collection[str]) -> Pass:
    """Return the pass without what nobody else than ``names`` asked for."""

    def wanted(asked: AnyStatistic | Rows) -> bool:
        return any(name not in names for name in pass_.asked_by.get(asked, ("",)))

    works = [
        replace(
            work,
            statistics=tuple(filter(wanted, work.statistics)),
            rows=tuple(filter(wanted, work.rows)),
        )
        for work in pass_.works
    ]
    return replace(pass_, works=tuple(works))
