"""A collection of metrics in distributed training, whose numbers are those of all ranks.

``update`` leaves out the samples that a sampler repeats; ``compute`` adds the states of all ranks
up after a handshake, and never writes the sum back: nothing can count twice.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pipeline import metrics as known_metrics
from pipeline.choice import Metrics
from pipeline.collection import Collection as OneProcess
from pipeline.ddp import live
from pipeline.ddp.claims import Claims
from pipeline.ddp.files import Moment, Partial, Run
from pipeline.ddp.kept import MATRIX, METRICS, arrays_of, declared, definition
from pipeline.ddp.numbers import Numbers
from pipeline.ddp.rows import Expected, leading, picked
from pipeline.ddp.sampler import REMEDY, share_of
from pipeline.errors import ConfigError, DataError

__all__ = ["MATRIX_CLASSES", "Collection"]

MATRIX_CLASSES = 1024
"""Most classes of which a confusion matrix is kept: 8 MiB of integers."""
REPEATS = ("refuse", "none")


class Collection(OneProcess):
    """Metrics over the batches of all ranks; made and used as :class:`ff.metrics.Collection`.

    ``repeats``: what holds of rows that nothing is known of. ``refuse`` makes ``compute`` raise
    rather than count a sample twice; ``none`` declares that each sample reaches one rank only.
    ``timeout_seconds`` is how long ``compute`` waits for the other ranks, by default as long as
    the process group would; ``group`` is that group, by default all ranks.
    """

    def __init__(
        self,
        metrics: Metrics,
        *,
        classes: int | Sequence[str] = 2,
        task: str = "multiclass",
        ignore: int | Sequence[int] = (),
        top_k: int = 1,
        threshold: float = 0.5,
        prefix: str = "",
        repeats: str = "refuse",
        timeout_seconds: float | None = None,
        group: Any = None,
    ) -> None:
        super().__init__(
            metrics, classes=classes, task=task, ignore=ignore, top_k=top_k, threshold=threshold,
            prefix=prefix,
        )  # fmt: skip
        if repeats not in REPEATS:
            raise ConfigError(f"repeats: {repeats!r} is unknown; choose {', '.join(REPEATS)}")
        self.repeats, self.timeout_seconds, self.group = repeats, timeout_seconds, group
        self._ignore = {ignore} if isinstance(ignore, int) else set(ignore)
        self._threshold = threshold
        self._rows = 0
        self._unchecked = False
        self._expected: Expected | None = None
        self._claims = Claims()
        self._matrix: OneProcess | None = None
        self.remembers = False
        """Whether :attr:`latest` is to be known."""
        self.latest: tuple[Any, Any] | None = None
        """Predictions and targets of the last update."""

    @property
    def rows(self) -> int:
        """Rows that count on this rank: samples, without repeated ones."""
        return self._rows

    def update(self, preds: Any, target: Any, *, weights: Any = None, ids: Any = None) -> None:
        """Take in a batch without the rows that repeat others.

        ``ids``: numbers or strings of the samples, of which each counts once over all ranks; they
        take memory in proportion to the rows until the next but one ``reset``. Without them the
        batch must be one that :meth:`follow` or the Lightning callback told of.
        """
        if self.remembers:
            self.latest = preds, target
        if ids is not None:
            self._update_claimed(preds, target, weights, ids)
            return
        rows = len(target)
        if self._expected is not None:
            counted = self._expected.counted(rows)
            if counted < rows:
                preds, target, weights = leading(counted, preds, target, weights)
            self._take(preds, target, weights, counted)
            self._expected.given_rows += rows
            return
        self._take(preds, target, weights, rows)
        self._unchecked = True

    def follow(self, loader: Any) -> Iterator[Any]:
        """Yield the batches of a DataLoader, so that updates know which of their rows repeat.

        Raises :class:`ConfigError` for a sampler whose order is not known, unless ``repeats`` is
        ``none``.
        """
        here = self._here()
        share = None
        if here is not None and self.repeats == "refuse":
            share = share_of(loader, here.rank, here.size)
        for number, batch in enumerate(loader):
            self.expect(
                Expected.everything()
                if share is None
                else Expected(share.rows_of_batch(number), share.counted_rows(number))
            )
            yield batch
        self.expect(None)

    def expect(self, batch: Expected | None) -> None:
        """Say of which batch the next updates are; None after the last."""
        if self._expected is not None:
            self._expected.check()
        self._expected = batch

    def drop(self) -> None:
        """Forget the batch that was told of, whatever became of it."""
        self._expected = None

    def compute(self, *, sync: bool = True, timeout_seconds: float | None = None) -> Numbers:
        """Return the numbers of all ranks by key, the same on every one.

        Every rank must call it. Where one does not, :class:`NotJoinedError` names it within
        ``timeout_seconds``, with nothing exchanged and no state changed. ``sync=False`` returns
        the numbers of this rank alone, and their ``scope`` says so. Raises :class:`ConfigError`
        where it is not known which rows repeat others, and for states that grow with their rows:
        those merge through partial files.
        """
        here = self._here(timeout_seconds)
        if not sync and here is not None and here.size > 1:
            return Numbers(super().numbers(), f"{here} alone", self._rows)
        total, scope, rows = self.total(timeout_seconds=timeout_seconds)
        return Numbers(total.numbers(), scope, rows)

    def total(self, *, timeout_seconds: float | None = None) -> tuple[OneProcess, str, int]:
        """Return the states of all ranks added up, whose they are, and their rows.

        As :meth:`compute`, which gives the numbers of these.
        """
        here = self._here(timeout_seconds)
        if here is None or here.size == 1:
            return self._alone(self), "one process", self._rows
        self.refuse_unknown_repeats()
        record = {
            "prefix": self.prefix, "rows": self._rows, "declared": declared(self.choice),
            "ids": self._claims.place,
        }  # fmt: skip
        merged, meeting = live.reduced(self, here, record)
        self._claims.synced()
        rows = sum(int(other["rows"]) for other in meeting.records)
        return self._alone(merged), f"all {here.size} ranks", rows

    def reset(self) -> None:
        """Forget every batch."""
        super().reset()
        self._rows, self._unchecked = 0, False
        self._claims.reset()
        if self._matrix is not None:
            self._matrix.reset()

    def clone(self, prefix: str | None = None) -> Self:
        """Return an independent copy, with what was taken in, and another prefix if given."""
        made = super().clone(prefix)
        made._expected, made._claims = None, Claims()
        made._matrix = None if self._matrix is None else self._matrix.clone()
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.clone()

    def merge(self, *others: OneProcess) -> None:
        """Add what other collections of the same declaration have taken in."""
        super().merge(*others)
        for other in others:
            matrix = getattr(other, "_matrix", None)
            if self._matrix is not None and matrix is not None:
                self._matrix.merge(matrix)
            else:
                self._matrix = None
            self._rows += getattr(other, "rows", 0)
            self._unchecked |= getattr(other, "_unchecked", False)

    def keep_matrix(self) -> bool:
        """Keep a confusion matrix too, for metrics after the fact; return whether there is one.

        There is none for labels that are not exclusive, nor for more than 1,024 classes. It counts
        every element with a class, ignored classes included, without weights.
        """
        if self.choice.task == "multilabel" or self.choice.classes > MATRIX_CLASSES:
            return False
        if self._matrix is None:
            if self._rows:
                raise ConfigError("keep the matrix before the first update, or after a reset")
            self._matrix = OneProcess(
                [self._matrix_metric()], classes=self.choice.classes, task=self.choice.task
            )
        return True

    def partial(self, run: str, attempt: int, moment: Moment, **about: Any) -> Partial:
        """Return all that this rank has taken in, to be written to a run."""
        self.refuse_unknown_repeats()
        here = self._here()
        kept = {METRICS: self} if self._matrix is None else {METRICS: self, MATRIX: self._matrix}
        return Partial(
            run=run,
            attempt=attempt,
            moment=moment,
            rank=0 if here is None else here.rank,
            world_size=1 if here is None else here.size,
            declaration=self.declaration,
            about={
                "rows": self._rows,
                "prefix": self.prefix,
                "declared": declared(self.choice),
                "definitions": {name: definition(one.choice) for name, one in kept.items()},
                **about,
            },
            arrays=arrays_of(kept),
        )

    def write(self, run: Run, attempt: int, moment: Moment, **about: Any) -> Path:
        """Write all that this rank has taken in to a partial file; return its path."""
        return run.write(self.partial(run.id, attempt, moment, **about))

    def restore(self, collections: Mapping[str, OneProcess | None], rows: int) -> None:
        """Take the place of what was taken in by states that were merged from partials."""
        self.reset()
        own = collections[METRICS]
        if own is not None:
            super().merge(own)
        matrix = collections.get(MATRIX)
        if self._matrix is not None and matrix is not None:
            self._matrix.merge(matrix)
        self._rows = rows

    def refuse_unknown_repeats(self) -> None:
        """Raise :class:`ConfigError` if some update may have held rows that repeat others."""
        here = self._here()
        if self._unchecked and self.repeats == "refuse" and here is not None and here.size > 1:
            raise ConfigError(
                f"{self.prefix}metrics: nothing says which rows repeat those of other ranks, as "
                "DistributedSampler makes them; iterate with collection.follow(loader), add "
                f"ff.ddp.callback() to the Lightning trainer, or {REMEDY}"
            )

    def _alone(self, states: OneProcess) -> OneProcess:
        """Return a collection of one process with the states of another."""
        made = OneProcess(
            dict(self.items()),
            classes=self.choice.class_names or self.choice.classes,
            task=self.choice.task,
            prefix=self.prefix,
        )
        made.merge(states)
        return made

    def _here(self, timeout_seconds: float | None = None) -> live.Ranks | None:
        seconds = self.timeout_seconds if timeout_seconds is None else timeout_seconds
        return live.ranks(self.group, timeout_seconds=seconds)

    def _update_claimed(self, preds: Any, target: Any, weights: Any, ids: Any) -> None:
        names = _names(ids)
        if len(names) != len(target):
            raise DataError(f"{len(names)} ids beside {len(target)} rows; give one for each row")
        fresh = self._claims.claim(f"{self.prefix}{self.declaration[:16]}", names, self._here())
        if len(fresh) < len(names):
            preds, target, weights = picked(fresh, preds, target, weights)
        try:
            self._take(preds, target, weights, len(fresh))
        except DataError:
            self._claims.release([names[place] for place in fresh])
            raise

    def _take(self, preds: Any, target: Any, weights: Any, rows: int) -> None:
        if not rows:
            return
        super().update(preds, target, weights=weights)
        self._rows += rows
        if self._matrix is not None:
            self._count_pairs(preds, target)

    def _count_pairs(self, preds: Any, target: Any) -> None:
        assert self._matrix is not None
        try:
            self._matrix.update(preds, target)
        except DataError as error:  # an ignored value that was predicted: a miss, but of no column
            self._matrix = None
            warnings.warn(f"no confusion matrix is kept any more: {error}", stacklevel=4)

    def _matrix_metric(self) -> Any:
        """Return the metric of a confusion matrix that leaves out only what has no class."""
        ignored = self._ignore.union(*(getattr(one, "ignored", ()) for _, one in self.items()))
        return known_metrics.ConfusionMatrix(
            task=self.choice.task,
            threshold=self._threshold,
            ignore=tuple(one for one in ignored if not 0 <= one < self.choice.classes),
        )


def _names(ids: Any) -> list[str]:
    plain = ids.tolist() if hasattr(ids, "tolist") else list(ids)
    return [str(one) for one in plain]
