"""Plans of streams: what can be folded while its rows are made, and what needs them again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.cluster import settle
from pipeline.engine import Job, Streaming, rehearse
from pipeline.engine.streaming import Stream
from pipeline.errors import BudgetError, ConfigError, DataError, FeatfoldError
from pipeline.inputs import HEAD
from pipeline.plan import Pass, Projection, check_client, describe, human, parts_of
from pipeline.workplace import Workplace, client_of, projected

FILES = "stream=False: its rows then go through temporary files"
IN_PROCESS = ("auto", "threads")
"""Clusters that are this process: the model is here, and so are its rows."""


class Asked(NamedTuple):
    """Who asks for rows of a stream that was read before, and who does not."""

    again: tuple[str, ...]
    once: tuple[str, ...]
    striped: bool
    """Whether memory is the reason: states that are cut into stripes take a pass for each."""
    split: str


def second_reads(passes: Sequence[Pass], names: Sequence[str]) -> Asked | None:
    """Return who asks for a stream again; None where every stream is read once.

    ``names`` are those who may be left out.
    """
    read: set[Any] = set()
    again: dict[str, None] = {}
    striped, split = False, ""
    for pass_ in passes:
        streams = [work for work in pass_.works if isinstance(work.split, Stream)]
        for work in streams:
            if work.split in read:
                split = split or work.split.name
                striped = striped or pass_.turn[0] > 1
                requests: tuple[Any, ...] = (*work.statistics, *work.rows)
                for request in requests:
                    again |= dict.fromkeys(pass_.asked_by.get(request, ()))
        read.update(work.split for work in streams)
    if not split:
        return None
    return Asked(tuple(again), tuple(n for n in names if n not in again), striped, split)


def refusal_of(asked: Asked, remedy: str = FILES) -> FeatfoldError:
    """Return the error that names who needs a stream again, and who does not."""
    least = f"one pass is enough for {', '.join(asked.once)}" if asked.once else "so do all others"
    who = f"{asked.split} is a stream, which is read once, and {', '.join(asked.again)} would need"
    if asked.striped:
        return BudgetError(
            f"{who} several passes, as their states do not fit at once; {least}; give more "
            f"memory=, or {remedy}"
        )
    return ConfigError(
        f"{who} a second pass over it; {least}: leave out the former, or give {remedy}"
    )


def streaming(
    prepared: Mapping[str, Job],
    few: Mapping[str, Job] | None,
    *,
    cluster: str = "auto",
    workers: int | None = None,
    memory: str | int = "auto",
    stage: str = "fit",
) -> Workplace:
    """Plan jobs over streams, and return what runs them: nothing is read for it.

    ``few`` are the same jobs over streams of few rows, where nobody knows how many there will be.
    Unless ``workers`` is 1, rows are folded on a thread beside the model.

    Raises
    ------
    ConfigError
        Where a stream would be read twice, naming who needs that and who does not.
    BudgetError
        Where memory is too small; that of the model is not counted.
    """
    if cluster not in IN_PROCESS:
        raise ConfigError(
            f"cluster: {cluster!r}; a stream is folded in the process of its model: choose auto or "
            f"threads, or give {FILES}"
        )
    planned = prepared
    if few is not None and _tables_or_refusal(prepared, few, stage):
        planned = few
    passes, outcomes = rehearse(planned, stage=stage)
    names = [name for name in prepared if name != HEAD]
    if asked := second_reads(passes, names):
        raise refusal_of(asked)
    resources = settle("threads", 1, memory)  # one thread folds, and has all memory
    projections, shrink = projected(passes, resources)
    for pass_, projection in zip(passes, projections, strict=True):
        if projection.nbytes > resources.allowed_nbytes:
            raise _too_large(pass_, projection, resources.allowed_nbytes)
    check_client(*client_of(passes, projections, resources, outcomes))
    beside = settle("threads", workers, memory).workers > 1
    return Workplace(Streaming(beside, shrink), None)


def _too_large(pass_: Pass, projection: Projection, allowed_nbytes: int) -> BudgetError:
    lines = [
        f"refused before reading: {pass_.name} over a stream needs {human(projection.nbytes)} "
        f"beside its model, {human(allowed_nbytes)} are allowed",
        f"  {parts_of(projection)}",
    ]
    if projection.worst is not None:
        asked_by = ", ".join(projection.asked_by)
        lines.append(f"  worst statistic: {describe(projection.worst)}, asked for by {asked_by}")
    lines.append(f"  what fixes it: more memory=, or {FILES}, and large states in stripes")
    return BudgetError("\n".join(lines))


def _tables_or_refusal(prepared: Mapping[str, Job], few: Mapping[str, Job], stage: str) -> bool:
    """Tell whether scores are all that grows with the rows; refuse what depends on their number."""
    try:
        of_few, _ = rehearse(few, stage=stage)
    except (ConfigError, DataError):  # of so few rows
        raise _depends(few) from None
    tables = {name for p in of_few for w in p.works for r in w.rows for name in p.asked_by[r]}
    if tables:
        if stage == "fit":
            raise _depends(tables)
        return True
    of_many, _ = rehearse(prepared, stage=stage)
    if list(map(_requests, of_few)) != list(map(_requests, of_many)):
        raise _depends({name for p in of_many for names in p.asked_by.values() for name in names})
    return False


def _depends(names: Iterable[str]) -> ConfigError:
    return ConfigError(
        f"what {', '.join(sorted(names))} ask of the data depends on how many rows there are, and "
        "the loader does not say: pass a DataLoader of a dataset with a length and torch's own "
        f"collate_fn, or give {FILES}"
    )


def _requests(pass_: Pass) -> list[Any]:
    return [(work.split.name, work.statistics, work.rows) for work in pass_.works]
