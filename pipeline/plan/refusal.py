"""Refusal: what does not fit is told before anything is read, with remedies that are enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pipeline.content import replaced
from pipeline.errors import BudgetError
from pipeline.fold import AnyStatistic
from pipeline.plan.memory import Projection, project, project_device
from pipeline.plan.passes import Pass, describe, human
from pipeline.plan.stripes import narrowed
from pipeline.plan.table import parts_of
from pipeline.procedure import Rows
from pipeline.statistics import ClassMoments
from pipeline.views import Pooled, tokens_of

KNOBS = 3


@dataclass(frozen=True)
class _Side:
    """The memory of a worker that is checked: that of its host, or of its device."""

    where: str
    option: str
    project: Callable[[Pass], Projection]
    allowed_nbytes: int
    on_device: bool = False


def check(
    passes: Sequence[Pass],
    projections: Sequence[Projection],
    allowed_nbytes: int,
    device_nbytes: int | None = None,
) -> None:
    """Raise :class:`BudgetError` for the heaviest pass if a worker, or its device, cannot hold it.

    The message names the worst statistic, who asked for it, and up to three knobs that fix it.
    """
    if not projections:
        return
    first = projections[0]
    reserved, shrink = first.parts[0].nbytes, first.shrink

    def of_host(pass_: Pass) -> Projection:
        return project(pass_, reserved, shrink, on_device=first.device is not None)

    _check(passes, projections, _Side("per worker", "--memory", of_host, allowed_nbytes))
    devices = [projection.device for projection in projections if projection.device is not None]
    if devices and device_nbytes is not None:
        where = "on the device of each worker"
        of_device = partial(project_device, shrink=shrink)
        _check(passes, devices, _Side(where, "--device-memory", of_device, device_nbytes, True))


def _check(passes: Sequence[Pass], projections: Sequence[Projection], side: _Side) -> None:
    heaviest = max(zip(passes, projections, strict=True), key=lambda pair: pair[1].nbytes)
    pass_, projection = heaviest
    if projection.nbytes <= side.allowed_nbytes:
        return
    narrow = narrowed(pass_)
    if narrow.works != pass_.works:  # what must fit is the narrowest stripe
        pass_, projection = narrow, side.project(narrow)
    raise BudgetError(_refusal(pass_, projection, side))


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


def _refusal(pass_: Pass, projection: Projection, side: _Side) -> str:
    lines = [
        f"refused before reading: {pass_.name} needs {human(projection.nbytes)} {side.where}, "
        f"{human(side.allowed_nbytes)} are allowed",
        *_parts(projection),
    ]
    knobs = _knobs(pass_, projection, side)[:KNOBS]
    lines.append("  any of these fixes it:" if len(knobs) > 1 else "  what fixes it:")
    lines += [f"    {knob}" for knob in knobs]
    return "\n".join(lines)


def _knobs(pass_: Pass, projection: Projection, side: _Side) -> list[str]:
    """Return remedies that are enough by the same projection, the cheapest first."""
    knobs = []
    if leave := _leaving_out(pass_, projection, side):
        knobs.append(f"leave out {', '.join(leave)}")
    chunk = next((part.nbytes for part in projection.parts if part.name == "chunk"), 0)
    excess = projection.nbytes - side.allowed_nbytes
    if excess < chunk:
        rows = max(1, pass_.works[0].split.chunk_rows * (chunk - excess) // (2 * chunk))
        knobs.append(f"store the features in chunks of {rows} rows")
    if side.on_device and (names := _pooling(pass_, side)):
        knobs.append(f"pool: mean for {', '.join(names)}")
    step = 50 * 2**20
    return [*knobs, f"{side.option} {math.ceil(projection.nbytes / step) * step // 2**20}MiB"]


def _leaving_out(pass_: Pass, projection: Projection, side: _Side) -> list[str]:
    """Return whom the pass would fit without, worst first; nobody if that leaves nobody."""
    everybody = {name for names in pass_.asked_by.values() for name in names}
    left: dict[str, None] = {}
    while projection.nbytes > side.allowed_nbytes and projection.asked_by:
        left |= dict.fromkeys(projection.asked_by)
        pass_ = _without(pass_, left)
        projection = side.project(pass_)
    enough = projection.nbytes <= side.allowed_nbytes and left.keys() < everybody
    return list(left) if enough else []


def _pooling(pass_: Pass, side: _Side) -> list[str]:
    """Return whose tokens would fit pooled; nobody where that is not enough."""
    names: dict[str, None] = {}

    def pooled(statistic: AnyStatistic) -> AnyStatistic:
        tokens = tokens_of(statistic.of) if isinstance(statistic, ClassMoments) else None
        if tokens is None:
            return statistic
        names.update(dict.fromkeys(pass_.asked_by.get(statistic, ())))
        return replaced(statistic, of=Pooled("mean", tokens.field))

    works = [replace(w, statistics=tuple(map(pooled, w.statistics))) for w in pass_.works]
    fits = side.project(replace(pass_, works=tuple(works))).nbytes <= side.allowed_nbytes
    return list(names) if fits else []


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
