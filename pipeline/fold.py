"""The fold: read a block once, hand every chunk to every statistic, return one small partial.

This is all that a worker does. Floats are accumulated in grains, runs of a fixed number of rows
counted from the start of the block, so the size of the chunks on disk does not change the order of
any sum; views give the same bits for a row whatever rows come with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import arrays
from pipeline.arrays import HOST, Array, Place
from pipeline.bank import group_rows, held, streamed, waiting
from pipeline.chunk import IS_OOD, Arena, Block, Chunk, Schema, Split
from pipeline.errors import DataError, FeatfoldError
from pipeline.feeding import fed
from pipeline.gather import gathers
from pipeline.procedure import Rows
from pipeline.statistics import Statistic
from pipeline.views import Both, Every, Finite, Stored, View, tokens_of
from pipeline.views.sizes import row_nbytes as row_nbytes

AnyStatistic = Statistic[Any, Any]
Output = np.ndarray[Any, Any] | Path
"""One output row per row of a block: an array, or the partial that holds it."""

GRAIN_NBYTES = 16 * 2**20
"""Bytes of views that a grain aims at: large enough for fast products, small beside a block."""
TOKENS_GRAIN_NBYTES = 32 * 2**20
"""The same for tokens, whose grains are multiplied where they were read."""
GRAIN_ROWS_LIMIT = 65_536


@dataclass(frozen=True)
class Partial:
    """What a block, or several merged ones, left behind: a closed state per statistic."""

    states: tuple[Any, ...]
    used: tuple[int, ...]
    """Rows that each statistic's filter kept."""
    rows: int
    read_nbytes: int
    outputs: tuple[tuple[Output, ...], ...] = ()
    """Per :class:`~pipeline.procedure.Rows` request its output of each block, in order."""

    def without_outputs(self) -> Partial:
        """Return the partial alone, once its outputs are kept elsewhere."""
        return replace(self, outputs=())


def grain_rows(statistic: AnyStatistic, schema: Schema) -> int:
    """Return the rows of a grain of a statistic: the power of two nearest the bytes aimed at."""
    tokens = any(tokens_of(view) is not None for view in statistic.views)
    nbytes = sum(row_nbytes(view, schema) for view in statistic.views)
    rows = max(1, (TOKENS_GRAIN_NBYTES if tokens else GRAIN_NBYTES) // max(1, nbytes))
    return min(GRAIN_ROWS_LIMIT, 1 << round(math.log2(rows)))


def fold(
    statistics: Sequence[AnyStatistic],
    split: Split,
    block: Block,
    rows: Sequence[Rows] = (),
    place: Place = HOST,
    *,
    shrink: int = 0,
) -> Partial:
    """Fold one block into a partial: every array is read once, whatever asks for it.

    Chunks are read in 2^``shrink`` steps, which changes what is held at a time but no result. What
    searches banks in files waits for a group of rows, and reads the banks once for it.

    Raises :class:`DataError` for values that are not finite in rows that count, naming split,
    rows and columns; wraps whatever else a statistic raises with the block and the statistic.
    """
    arena = Arena()
    folds = [_Fold(statistic, split.schema, place) for statistic in statistics]
    outputs = [_Output(request, block) for request in rows]
    members: list[_Fold | _Output] = [*folds, *outputs]
    checked = [] if by_element(split) else members
    late = [member for member in members if member.waits and block.rows]
    takers = _Takers([m for m in members if m not in late], split.schema, arena, block)
    group = _Group(late, split.schema, arena, block)
    group.grain = group_of(split, statistics, rows, shrink)
    groups = gathers([group] if late else [], split.schema, arena, block)
    read_nbytes = read_rows = 0
    step = step_of(split, statistics, shrink)
    step_rows = None if step == split.chunk_rows else step
    fields = fields_read(split, statistics, rows)
    in_turn = getattr(split, "in_turn", False)
    # No name here for what reads: it ends, and closes its files, with what feeds.
    feeding = fed(split.read(block, fields, step_rows), place, arena, ahead=not in_turn)
    with closing(feeding) as chunks:
        for chunk in chunks:
            read_nbytes += arrays.nbytes(chunk.arrays)
            read_rows += chunk.rows
            with _quietly(chunk):
                for member in checked:
                    member.check(chunk)
                takers.take(chunk)
                for gather in groups:
                    gather.push(chunk)
            del chunk  # and with it its rows and views, before the next is read
    takers.flush()
    for gather in groups:
        gather.flush()
    group.flush()
    return Partial(
        tuple(member.close() for member in folds),
        tuple(member.used for member in folds),
        read_rows,  # fewer than in the block where a stream ended within it
        read_nbytes,
        tuple((output.array[:read_rows],) for output in outputs),
    )


def by_element(split: Split) -> bool:
    """Tell whether rows of a split count element by element, as metrics of predictions say.

    They refuse elements that count and are not finite; the rest of a row may be anything, and there
    may be no element that counts.
    """
    return bool(getattr(split, "by_element", False))


class _Output:
    """The rows of a table on their way through a block."""

    def __init__(self, request: Rows, block: Block) -> None:
        self.request, self.block = request, block
        self.waits = any(map(streamed, request.views))
        self.array: np.ndarray[Any, Any] = np.empty(0)
        self.started = False

    def check(self, chunk: Chunk) -> None:
        """Refuse values that are not finite."""
        if self.request.strict:
            _refuse_nonfinite(self.request.fields, chunk)

    def take(self, chunk: Chunk) -> None:
        """Compute the rows of a chunk, and copy them to their place."""
        rows = arrays.to_host(self.request.view(chunk))
        if not self.started:
            self.started = True
            self.array = np.empty((self.block.rows, *rows.shape[1:]), rows.dtype)
        start = chunk.start - self.block.start
        self.array[start : start + chunk.rows] = rows


class _Takers:
    """Those who take the same chunks, as they are read or a group of rows at a time."""

    def __init__(
        self, members: Sequence[_Fold | _Output], schema: Schema, arena: Arena, block: Block
    ) -> None:
        self.members = members
        folds = [member for member in members if isinstance(member, _Fold)]
        self.gathered = gathers(folds, schema, arena, block)

    def take(self, chunk: Chunk) -> None:
        """Hand a chunk to everybody."""
        for member in self.members:
            member.take(chunk)
        for gather in self.gathered:
            gather.push(chunk)

    def flush(self) -> None:
        """Hand on what waits for a grain to fill."""
        for gather in self.gathered:
            gather.flush()


class _Group(_Takers):
    """Those who wait for a group of rows, that is gathered from the views that they need."""

    grain = 0
    """Rows of a group; 0 where nobody waits."""

    def __init__(
        self, members: Sequence[_Fold | _Output], schema: Schema, arena: Arena, block: Block
    ) -> None:
        super().__init__(members, schema, arena, block)
        self.views = held(waiting(member.request for member in members), schema)

    def absorb(self, chunk: Chunk) -> None:
        """Take a group of rows."""
        chunk.arrays |= {view.field: view(chunk) for view in self.views if isinstance(view, Stored)}
        with np.errstate(all="ignore"):  # in rows that are not finite, which filters leave out
            self.take(chunk)


def group_of(
    split: Split, statistics: Sequence[AnyStatistic], rows: Sequence[Rows], shrink: int
) -> int:
    """Return the rows for which banks in files are read once; 0 where nobody searches in any."""
    views = waiting((*statistics, *rows))
    step_rows = step_of(split, statistics, shrink)
    return group_rows(views, split.schema, step_rows, shrink) if views else 0


def step_of(split: Split, statistics: Sequence[AnyStatistic], shrink: int) -> int:
    """Return the rows that are read at once: about a chunk, halved ``shrink`` times.

    Where a grain is not much longer than a chunk, whole grains are read: nothing waits in a copy.
    """
    rows = split.chunk_rows
    grain = min((grain_rows(statistic, split.schema) for statistic in statistics), default=rows)
    if grain <= 2 * rows:
        rows = max(grain, rows - rows % grain)
    return max(1, rows >> shrink)


def fields_read(
    split: Split, statistics: Sequence[AnyStatistic], rows: Sequence[Rows] = ()
) -> frozenset[str]:
    """Return the stored arrays that a pass reads of a split; OOD splits may have no labels."""
    fields = frozenset[str]()
    for asked in statistics:
        fields |= asked.fields
    for request in rows:
        fields |= request.fields
    if split.is_ood and "labels" not in split.schema.arrays:
        fields -= {"labels"}
    return split.schema.touched(fields)


def closure(views: Iterable[View]) -> Iterator[View]:
    """Yield views and the views they are made of."""
    for view in views:
        yield view
        parts = vars(view).values()
        yield from closure(p for p in parts if hasattr(p, "nbytes") and callable(p))
        scorer = getattr(view, "scorer", None)
        if scorer is not None:
            yield from closure((*scorer.views, Finite(tuple(sorted(view.fields)))))


def merge(statistics: Sequence[AnyStatistic], partials: Iterable[Partial]) -> Partial:
    """Merge partials from left to right, holding two at a time."""
    stream = iter(partials)
    total = next(stream)
    for partial in stream:
        total = Partial(
            tuple(
                statistic.merge(a, b)
                for statistic, a, b in zip(statistics, total.states, partial.states, strict=True)
            ),
            tuple(a + b for a, b in zip(total.used, partial.used, strict=True)),
            total.rows + partial.rows,
            total.read_nbytes + partial.read_nbytes,
            tuple(a + b for a, b in zip(total.outputs, partial.outputs, strict=True)),
        )
    return total


class _Fold:
    """One statistic on its way through a block."""

    def __init__(self, statistic: AnyStatistic, schema: Schema, place: Place) -> None:
        self.statistic = self.request = statistic
        self.waits = any(map(streamed, statistic.views))
        self.state = arrays.map_arrays(place.put, statistic.empty(schema))
        self.used = 0
        self.grain = grain_rows(statistic, schema)
        self.views = tuple(statistic.views)
        self.checks = not _skips_nonfinite(statistic.where)

    def check(self, chunk: Chunk) -> None:
        """Refuse values that are not finite."""
        with _blamed(self.statistic, chunk):
            if self.checks:
                _refuse_nonfinite(self.statistic.fields, chunk)

    def take(self, chunk: Chunk) -> None:
        """Count the rows of a chunk that are used: it is absorbed grain by grain."""
        with _blamed(self.statistic, chunk):
            kept = self.statistic.where(chunk)
            self.used += int(arrays.namespace(kept).count_nonzero(kept))

    def absorb(self, chunk: Chunk) -> None:
        with _blamed(self.statistic, chunk):
            self.state = self.statistic.absorb(self.state, chunk)

    def close(self) -> Any:
        return arrays.map_arrays(arrays.to_host, self.statistic.close(self.state))


def _skips_nonfinite(where: View) -> bool:
    if isinstance(where, Both):
        return _skips_nonfinite(where.left) or _skips_nonfinite(where.right)
    return isinstance(where, Finite)


def _refuse_nonfinite(fields: frozenset[str], chunk: Chunk) -> None:
    """Raise if a labelled row (any row, where labels do not matter) holds NaN or infinity.

    Looked for in the stored arrays: a filter such as "predicted right" would otherwise drop the
    row without a word.
    """
    names = tuple(sorted(fields - {IS_OOD}))
    finite = Finite(names)(chunk)
    xp = arrays.namespace(finite)
    if bool(xp.all(finite)):
        return
    bad = ~finite & (_labelled(chunk) if "labels" in names else Every()(chunk))
    if not bool(xp.any(bad)):
        return
    rows = np.flatnonzero(arrays.to_host(bad))
    for name in names:
        host = arrays.to_host(chunk[name]) if name in chunk.arrays else np.zeros(0)
        if host.dtype.kind == "f" and not np.isfinite(host[rows]).all():
            entries = np.atleast_1d(host[rows[0]])
            columns = np.unique(np.argwhere(~np.isfinite(entries))[:, -1])[:5].tolist()
            raise DataError(
                f"{chunk.split}: {len(rows)} rows within rows {chunk.start}-{chunk.stop - 1} of "
                f"{name} are not finite, first row {chunk.start + rows[0]}, columns {columns}; "
                "mend the data, or leave such rows out with nonfinite: skip"
            )


@contextmanager
def _quietly(chunk: Chunk) -> Iterator[None]:
    """Let arithmetic pass without warnings where rows are not finite: filters leave them out."""
    finite = Finite(tuple(sorted(chunk.arrays)))(chunk)
    if bool(arrays.namespace(finite).all(finite)):
        yield
        return
    with np.errstate(all="ignore"):
        yield


def _labelled(chunk: Chunk) -> Array:
    """Return which rows have a label of a class and, where tokens are masked, a valid token.

    Labels >= k are void here: the statistic has refused them, or else ignores them. A row of many
    labels counts where one of them does.
    """
    if "labels" not in chunk.arrays:
        return ~Every()(chunk)
    labels = chunk["labels"]
    xp = arrays.namespace(labels)
    wide = xp.astype(labels, xp.int64)
    counts = (wide >= 0) & (wide < chunk.schema.classes)
    counts = xp.any(xp.reshape(counts, (chunk.rows, -1)), axis=1) if counts.ndim > 1 else counts
    mask = chunk.arrays.get("mask")
    return counts if mask is None else counts & xp.any(mask != 0, axis=1)


class _blamed:  # noqa: N801 - a context manager reads as a verb
    """Add statistic, split and rows to an unexpected error."""

    def __init__(self, statistic: AnyStatistic, chunk: Chunk) -> None:
        self.statistic, self.chunk = statistic, chunk

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, Exception) and not isinstance(error, FeatfoldError):
            raise FeatfoldError(
                f"{self.statistic} failed on rows {self.chunk.start}-{self.chunk.stop - 1} of "
                f"{self.chunk.split}: {type(error).__name__}: {error}"
            ) from error
