"""A collection of metrics in distributed training, whose numbers are those of all ranks.

``update`` leaves out the samples that a sampler repeats; ``compute`` adds the states of all ranks
up after a handshake, and never writes the sum back: nothing can count twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from pipeline.choice import Metrics, declared
from pipeline.chunk import Schema
from pipeline.collection import Collection as OneProcess
from pipeline.ddp import live
from pipeline.ddp.claims import Claims, names_of
from pipeline.ddp.files import Moment, Partial, Run
from pipeline.ddp.kept import MATRIX, METRICS, arrays_of, definition, part_of
from pipeline.ddp.matrix import MATRIX_CLASSES, KeptMatrix
from pipeline.ddp.numbers import Numbers
from pipeline.ddp.own import Own, of_one_process
from pipeline.ddp.rows import Expected, leading, picked
from pipeline.ddp.sampler import WITHOUT_SAMPLER, share_of
from pipeline.errors import ConfigError, DataError

__all__ = ["Collection"]

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
        classes: int | Sequence[str] | None = None,
        task: str = "multiclass",
        ignore: int | Sequence[int] = (),
        top_k: int = 1,
        threshold: float = 0.5,
        prefix: str = "",
        repeats: str = "refuse",
        timeout_seconds: float | None = None,
        group: Any = None,
        **others: Any,
    ) -> None:
        super().__init__(
            metrics, classes=classes, task=task, ignore=ignore, top_k=top_k, threshold=threshold,
            prefix=prefix, **others,
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
        self._matrix: KeptMatrix | None = None
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
        own: Expected | None = None
        try:
            for number, batch in enumerate(loader):
                own = (
                    Expected.everything()
                    if share is None
                    else Expected(share.rows_of_batch(number), share.counted_rows(number))
                )
                self.expect(own)
                yield batch
            self.expect(None)
        finally:  # a loop that ended early says nothing of the batches of another
            if self._expected is own:
                self.drop()

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
        merged, meeting = live.reduced(self, here, self._record())
        self._claims.synced()
        rows = sum(int(other["rows"]) for other in meeting.records)
        return self._alone(merged), f"all {here.size} ranks", rows

    def meet(self) -> int:
        """Wait until all ranks have come with this collection; return how many they are.

        Nothing is added up. Raises as :meth:`compute` where a rank does not come, or with another.
        """
        here = self._here()
        self.refuse_unknown_repeats()
        if here is None:
            return 1
        live.meet_alike(here, {"declaration": self.declaration, "way": "files", **self._record()})
        self._claims.synced()
        return here.size

    def begun(self, schema: Schema) -> Self:
        """Return an empty copy whose states are those of batches of a schema."""
        made = self.clone()
        made.reset()
        made._running = made._started(schema)
        return made

    def reset(self) -> None:
        """Forget every batch, and the one that was told of."""
        super().reset()
        self._rows, self._unchecked = 0, False
        self.drop()
        self._claims.reset()
        if self._matrix is not None:
            self._matrix.reset()

    def clone(self, prefix: str | None = None) -> Self:
        """Return an independent copy, with what was taken in, and another prefix if given.

        A copy of samples that several ranks counted by id takes no further ids until ``reset``.
        """
        made = super().clone(prefix)
        made._expected, made._claims = None, self._claims.copied()
        made._matrix = None if self._matrix is None else self._matrix.clone()
        return made

    def merge(self, *others: OneProcess) -> None:
        """Add what other collections of the same declaration have taken in.

        Further ids are refused until ``reset``, for those of the others are not known here. Raises
        :class:`ConfigError` for other declarations, and for collections of one process.
        """
        ours = [one for one in others if isinstance(one, Collection)]
        strangers = [one for one in others if not isinstance(one, OneProcess)]
        if not strangers and len(ours) < len(others):
            raise of_one_process()
        super().merge(*strangers, *ours)
        for other in ours:
            if self._matrix is not None:
                self._matrix.add(other._counts)
            self._rows += other._rows
            self._unchecked |= other._unchecked
        if any(other._rows for other in ours):
            self._claims.close()

    def state_dict(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return all that this rank has taken in as arrays by key, for :meth:`load_state_dict`.

        Another rank has taken in something else: each saves what it has.
        """
        about = Own(self._rows, self._unchecked, *_place(self._here())).arrays()
        counts = {} if self._counts is None else {MATRIX: self._counts.state_dict()}
        return {**super().state_dict(), **about, **arrays_of(counts)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take the place of what was taken in by the contents of :meth:`state_dict`.

        Further ids are refused until ``reset``. Raises :class:`ConfigError` where the contents are
        of other metrics, classes or options, of a collection of one process, or of another rank,
        whose rows would count twice. Warns where one process loads what is a part.
        """
        own = Own.read(state_dict)
        own.check_place(*_place(self._here()), self.prefix)
        super().load_state_dict(state_dict)
        self._rows, self._unchecked = own.rows, own.unchecked
        if self._matrix is not None:
            self._matrix.load(part_of(state_dict, MATRIX))
        if self._rows:
            self._claims.close()

    def keep_matrix(self) -> bool:
        """Keep a confusion matrix too, for metrics after the fact; return whether there is one.

        There is none for labels that are not exclusive, nor for more than 1,024 classes. It counts
        every element with a class, ignored classes included, without weights. After an update it
        begins with the next ``reset``.
        """
        if self.choice.task == "multilabel" or self.choice.classes > MATRIX_CLASSES:
            return False
        if self._matrix is None:
            each = (getattr(one, "ignored", ()) for _, one in self.items())
            self._matrix = KeptMatrix(self.choice, self._threshold, self._ignore.union(*each))
            if self._rows:
                self._matrix.drop()
        return True

    @property
    def _counts(self) -> OneProcess | None:
        return None if self._matrix is None else self._matrix.counts

    def partial(self, run: str, attempt: int, moment: Moment, **about: Any) -> Partial:
        """Return all that this rank has taken in, to be written to a run."""
        self.refuse_unknown_repeats()
        here = self._here()
        choices, arrays = {METRICS: self.choice}, {METRICS: super().state_dict()}
        if self._counts is not None:
            choices[MATRIX], arrays[MATRIX] = self._counts.choice, self._counts.state_dict()
        return Partial(
            run=run,
            attempt=attempt,
            moment=moment,
            rank=_place(here)[0],
            world_size=_place(here)[1],
            declaration=self.declaration,
            group=() if here is None else here.members,
            about={
                "rows": self._rows,
                "prefix": self.prefix,
                "declared": declared(self.choice),
                "definitions": {name: definition(one) for name, one in choices.items()},
                **about,
            },
            arrays=arrays_of(arrays),
        )

    def write(self, run: Run, attempt: int, moment: Moment, **about: Any) -> Path:
        """Write all that this rank has taken in to a partial file; return its path."""
        return run.write(self.partial(run.id, attempt, moment, **about))

    def restore(self, collections: Mapping[str, OneProcess | None], rows: int) -> None:
        """Take the place of what was taken in by states that were merged from partials.

        Samples that come again, as after a checkpoint within an epoch, count again.
        """
        self.reset()
        own = collections[METRICS]
        if own is not None:
            super().merge(own)
        if self._matrix is not None:
            self._matrix.add(collections.get(MATRIX))
        self._rows = rows

    def refuse_unknown_repeats(self) -> None:
        """Raise :class:`ConfigError` if some update may have held rows that repeat others."""
        here = self._here()
        if self._unchecked and self.repeats == "refuse" and here is not None and here.size > 1:
            raise ConfigError(
                f"{self.prefix}metrics: nothing says which rows repeat those of other ranks, as "
                "DistributedSampler makes them; iterate with collection.follow(loader), which "
                "knows that sampler; or, with Lightning, add ff.ddp.callback(); or "
                f"{WITHOUT_SAMPLER}"
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

    def _record(self) -> dict[str, Any]:
        """Return what other ranks are to know of this one."""
        return {
            "prefix": self.prefix, "rows": self._rows, "declared": declared(self.choice),
            "ids": self._claims.place,
        }  # fmt: skip

    def _here(self, timeout_seconds: float | None = None) -> live.Ranks | None:
        seconds = self.timeout_seconds if timeout_seconds is None else timeout_seconds
        return live.ranks(self.group, timeout_seconds=seconds)

    def _update_claimed(self, preds: Any, target: Any, weights: Any, ids: Any) -> None:
        names = names_of(ids)
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
            self._matrix.update(preds, target)


def _place(here: live.Ranks | None) -> tuple[int, int]:
    """Return the rank of this process, and how many there are."""
    return (0, 1) if here is None else (here.rank, here.size)
