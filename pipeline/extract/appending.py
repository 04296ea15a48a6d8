"""Filling a split from a stream: blocks are appended in its order, and it ends when it ends.

Rows that are there already are read past, and compared; the split counts as unfinished until the
stream has ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.chunk import Block
from pipeline.errors import CorruptError, DataError, ExistsRefusedError
from pipeline.extract.blocks import damaged, place
from pipeline.extract.model import bits, declare
from pipeline.extract.passing import Contents, Pass, Progress, pieces
from pipeline.extract.resuming import committed_blocks, first_row, refuse_other_row
from pipeline.extract.sources import Batch, Stream
from pipeline.store import Store, StoredSplit
from pipeline.store.layout import UNFINISHED

BATCH_ROWS = "batch_rows"
"""Attribute of a split: rows of the batches that it was begun with."""


def append_rows(
    store: Store,
    run: Pass,
    stream: Stream,
    *,
    classes: int,
    attributes: Mapping[str, Any],
    then: Mapping[str, Any] | None,
    verify: bool,
    progress: Progress | None,
    options: Mapping[str, Any],
) -> tuple[int, int, int, int]:
    """Append the rows of a stream that a split lacks; return its rows, blocks, and those written.

    ``then`` are the attributes of the split where it is there; the last number is that of damaged
    blocks that were written again. Raises :class:`DataError` for an id that comes twice, for rows
    that are not those of before, and for a stream without rows.
    """
    name, before = run.split, 0
    if then is None or then.get(UNFINISHED):
        known = _Known(store, run, verify)
        told = {**attributes, UNFINISHED: True}
        appended = _Appended(store, run, known, classes, told, options)
        before = len(known.ids)
        blocks = len(store.writer(name).blocks) if then else 0
        _append(run, stream, appended, progress)
        store.finish(name)
        written = len(store.writer(name).blocks) - blocks
    else:
        _refuse_other(store, name, then, attributes)
        written = 0
    wrong = damaged(store, name) if verify and (before or not written) else []
    _write_again(store, run, stream, wrong)
    made = store.writer(name).blocks
    return made[-1].stop, len(made), written, len(wrong)


def _append(run: Pass, stream: Stream, appended: _Appended, progress: Progress | None) -> None:
    seen, position = _Seen(run), 0
    if progress is not None:
        progress(0, 0)
    for batch in _batches(run, stream):
        seen.add(batch.ids, position)
        appended.known.compare(batch, position)
        appended.take(batch, position)
        position += len(batch.ids)
        if progress is not None:
            progress(position, 0)
    if not position:
        raise DataError(f"split {run.split}: {stream.name} gave no rows")
    if position < len(appended.known.ids):
        raise DataError(
            f"split {run.split}: {stream.name} ended after {position} rows, of which the store has "
            f"{len(appended.known.ids)} from before; name another split, or delete the old one"
        )
    appended.flush()


def _batches(run: Pass, stream: Stream) -> Iterator[Batch]:
    """Yield the batches of a stream that have rows; whatever fails names the split and the row."""
    position = 0
    batches = iter(stream.batches(run.batch_rows))
    while True:
        try:
            given = next(batches)
        except StopIteration:
            return
        except DataError as error:
            raise type(error)(f"split {run.split} from row {position}: {error}") from error
        batch = run.checked(given, position)
        if len(batch.ids):
            yield batch
            position += len(batch.ids)


class _Appended:
    """A split to which rows are appended, a block of them at a time."""

    def __init__(
        self,
        store: Store,
        run: Pass,
        known: _Known,
        classes: int,
        attributes: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> None:
        self.known = known
        self._store, self._run, self._classes = store, run, classes
        self._attributes, self._options = dict(attributes), options
        self._writer: Any = None
        self._block_rows = 0
        self._start, self._rows = len(self.known.ids), 0
        self._contents: Contents = {}

    def take(self, batch: Batch, position: int) -> None:
        """Run the model over a batch, and keep its rows that are not in the store yet."""
        skipped = max(0, self._start + self._rows - position)
        if skipped >= len(batch.ids):
            return
        outputs = self._run.tensors(batch, position)
        if self._writer is None:
            self._create(outputs)
        found = {name: bits(output) for name, output in outputs.items()}
        found |= {"labels": batch.labels, "ids": batch.ids}
        while skipped < len(batch.ids):
            room = self._block_rows - self._rows
            part = {name: rows[skipped : skipped + room] for name, rows in found.items()}
            block = Block(0, self._start, self._start + self._block_rows)
            place(self._contents, part, block, self._start + self._rows, self._run.split)
            taken = len(part["ids"])
            self._rows, skipped = self._rows + taken, skipped + taken
            if self._rows == self._block_rows:
                self.flush()

    def _create(self, outputs: Mapping[str, Any]) -> None:
        self._attributes.setdefault(BATCH_ROWS, self._run.batch_rows)
        specs = declare(outputs, self._run.extractor.description.layouts)
        self._writer = self._store.create_split(
            self._run.split, specs, classes=self._classes, attributes=self._attributes,
            exist_ok=True, **self._options,
        )  # fmt: skip
        self._block_rows = self._writer.declared.block_rows

    def flush(self) -> None:
        """Append what is kept as one block."""
        if self._rows:
            self._run.check_held()
            self._writer.append({name: rows[: self._rows] for name, rows in self._contents.items()})
        self._start, self._rows = self._start + self._rows, 0


class _Known:
    """Ids and labels of the rows that are in a store already, and the first of these rows.

    Where ``mending``, those of damaged blocks are unknown, else they are a CorruptError.
    """

    def __init__(self, store: Store, run: Pass, mending: bool) -> None:
        self._store, self._run = store, run
        blocks = committed_blocks(store, run.split) if store.has(run.split) else []
        rows = blocks[-1].stop if blocks else 0
        self.ids, self.labels = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
        self._read = np.zeros(rows, bool)
        self._first = blocks[0] if blocks else None
        if blocks:
            self._read_all(store.split(run.split, allow_partial=True), mending)

    def _read_all(self, split: StoredSplit, mending: bool) -> None:
        for block in split.blocks:
            try:
                for chunk in split.read(block, frozenset({"ids", "labels"})):
                    own = slice(chunk.start, chunk.start + chunk.rows)
                    self.ids[own], self.labels[own] = chunk["ids"], chunk["labels"]
            except CorruptError:
                if not mending:
                    raise
            else:
                self._read[block.start : block.stop] = True

    def compare(self, batch: Batch, position: int) -> None:
        """Raise :class:`DataError` where a stream gives other rows than those that are there.

        Raises :class:`ExistsRefusedError` where the first of them has other outputs.
        """
        for what, before, now in (
            ("id", self.ids, batch.ids),
            ("label", self.labels, batch.labels),
        ):
            then = before[position : position + len(now)]
            read = self._read[position : position + len(now)]
            wrong = np.flatnonzero(read & (then != now[: len(then)]))
            if wrong.size:
                row = int(wrong[0])
                raise DataError(
                    f"split {self._run.split}: row {position + row} had {what} {then[row]} when it "
                    f"was written, the stream now gives {now[row]}: to go on, it must come in the "
                    "same order; mend its order, or name another split"
                )
        if position == 0 and self._first is not None:
            self._compare_first(batch, self._first)

    def _compare_first(self, batch: Batch, block: Block) -> None:
        stored = first_row(self._store, self._run.split, block)
        if stored is None:
            return
        alone = next(pieces(batch.inputs, len(batch.ids), 1))
        one = Batch(alone, batch.labels[:1], batch.ids[:1])
        where = f"{self._store.path}: split {self._run.split} row 0"
        again = partial(self._run.tensors, batch, 0)
        refuse_other_row(where, self._run, stored, one, self._run.tensors(one, 0), again)


class _Seen:
    """The ids of a stream so far, as sorted runs: 8 bytes a row."""

    def __init__(self, run: Pass) -> None:
        self._split, self._source = run.split, run.source
        self._runs: list[NDArray[np.int64]] = []

    def add(self, ids: NDArray[np.int64], position: int) -> None:
        """Remember ids; raises :class:`DataError` for one that came before."""
        order = np.argsort(ids, kind="stable")
        own = ids[order]
        again = order[1:][own[1:] == own[:-1]]
        for run in self._runs:
            places = np.searchsorted(run, ids)
            found = run[np.minimum(places, len(run) - 1)] == ids
            again = np.concatenate([again, np.flatnonzero(found)])
        if again.size:
            row = int(again.min())
            raise DataError(
                f"split {self._split} row {position + row}: id {ids[row]} came before, so "
                f"{self._source} gives rows more than once; an iterable dataset is copied to every "
                "worker of its loader: share its rows out by torch.utils.data.get_worker_info(), "
                "or choose num_workers=0"
            )
        self._runs.append(own)
        while len(self._runs) > 1 and len(self._runs[-2]) <= 2 * len(self._runs[-1]):
            self._runs[-2:] = [np.sort(np.concatenate(self._runs[-2:]), kind="stable")]


def _refuse_other(store: Store, name: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    unlike = [f"{key}: stored {then.get(key)!r}, asked for {now.get(key)!r}"
              for key in (*now, "autocast") if then.get(key) != now.get(key)]  # fmt: skip
    if unlike:
        raise ExistsRefusedError(
            f"{store.path} has a split {name} already: {'; '.join(unlike)}; name another split or "
            "store, or delete the old one"
        )


def _write_again(store: Store, run: Pass, stream: Stream, wrong: list[Block]) -> None:
    """Write blocks anew, in one more pass over the stream; only their rows go through the model."""
    if not wrong:
        return
    writer, position = store.writer(run.split), 0
    open_: dict[int, Contents] = {}
    known = _Known(store, run, mending=True)
    for batch in _batches(run, stream):
        known.compare(batch, position)
        stop = position + len(batch.ids)
        touched = [block for block in wrong if block.start < stop and position < block.stop]
        found = run.arrays(batch, position) if touched else {}
        for block in touched:
            first, last = max(block.start, position), min(block.stop, stop)
            part = {name: rows[first - position : last - position] for name, rows in found.items()}
            place(open_.setdefault(block.index, {}), part, block, first, run.split)
            if last == block.stop:
                run.check_held()
                writer.write(block.index, open_.pop(block.index), overwrite=True)
        position = stop
    if position < wrong[-1].stop:
        raise DataError(
            f"split {run.split}: {stream.name} ended after {position} rows, before the damaged "
            f"ones up to {wrong[-1].stop}"
        )
