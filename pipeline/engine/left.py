"""What is left of a job: what earlier runs answer already, and what its passes must still read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline.engine.schedule import Schedule
from pipeline.engine.settings import PARTIALS, Settings, mended
from pipeline.engine.tasks import root_of
from pipeline.fold import Partial
from pipeline.partials import Partials
from pipeline.plan import Pass, Pending, Work


def known(settings: Settings, cache: Path) -> Callable[[Work], Partial | None]:
    """Return what answers a work from the files of earlier runs, where they hold all of it."""

    def found(work: Work) -> Partial | None:
        schedule = settings.schedule(work, cache)
        return root_of(schedule, 0) if schedule.done else None

    return lambda work: mended(lambda: found(work))


def pending(pass_: Pass, settings: Settings, cache: Path) -> Pending:
    """Return what is left to do of a pass; of a part of an array job, its share."""
    return _pending(pass_, settings, Partials(cache / PARTIALS))


def pending_in_turn(passes: Sequence[Pass], settings: Settings, cache: Path) -> list[Pending]:
    """Return what is left to do of passes, each with the files that those before it will leave."""
    partials = _Expected(cache / PARTIALS)
    return [_pending(pass_, settings, partials) for pass_ in passes]


def _pending(pass_: Pass, settings: Settings, partials: Partials) -> Pending:
    left = Pending(0, 0, 0)
    for work in pass_.works:
        schedule = Schedule(work, partials, settings.thin, settings.part)
        folds = schedule.folds
        searched = [schedule.banks_read(step, settings.shrink) for step in folds]
        left = Pending(
            left.blocks + sum(len(step.blocks) for step in folds),
            left.read_nbytes + sum(schedule.step_nbytes(step) for step in folds),
            left.partials_nbytes + schedule.partials_nbytes,
            left.copies_nbytes + sum(schedule.tables_nbytes(s, wanted=False) for s in folds),
            left.outputs_nbytes + sum(schedule.tables_nbytes(s, wanted=True) for s in folds),
            left.groups + sum(groups for groups, _ in searched),
            left.banks_nbytes + sum(nbytes for _, nbytes in searched),
        )
        if isinstance(partials, _Expected):
            partials.expect(schedule)
    return left


class _Expected(Partials):
    """The partials that are there, and those that are to come."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.coming: dict[str, set[str]] = defaultdict(set)

    def expect(self, schedule: Schedule) -> None:
        """Count on what the steps of a schedule will leave."""
        if schedule.durable:
            for step in schedule.steps:
                for key, node in step.outputs:
                    self.coming[key].add(node)
            for step in schedule.folds:
                for table in step.tables:
                    self.coming[table.key].update(table.leaves)

    def has(self, key: str, node: str) -> bool:
        """Tell whether a partial will be there."""
        return node in self.coming.get(key, ()) or super().has(key, node)

    def nodes(self, key: str) -> frozenset[str]:
        """Return the nodes that will be there for a key."""
        return super().nodes(key) | self.coming.get(key, set())
