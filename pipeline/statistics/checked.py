"""Elements whose classes were looked at: tiles of true and predicted classes, with weights.

For statistics that have no kernel of their own. Temporaries do not grow with the rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array, OutsideClassError
from pipeline.chunk import Chunk, Schema
from pipeline.errors import DataError
from pipeline.statistics.base import fields_of, kept, rows_named
from pipeline.statistics.elements import (
    check_integers,
    check_shapes,
    elements_of,
    kept_nbytes,
    outside,
)
from pipeline.views import View

TILE_ELEMENTS = 2**15
ELEMENT_NBYTES = 96
"""Temporaries for each element of a tile."""
SHOWN = 5


class Tile(NamedTuple):
    """Some rows (m, ...) of a chunk."""

    truth: Array
    """int64"""
    predicted: Array
    """int64"""
    counts: Array
    """Elements whose true class is not ignored: booleans."""
    weights: Array
    """Weight (m,) float64 of each row; 1 where there are none."""


class OfElements(Protocol):
    """A statistic of elements."""

    @property
    def of(self) -> View:
        """Predicted classes."""
        ...

    @property
    def by(self) -> View:
        """True classes, of the same shape."""
        ...

    @property
    def where(self) -> View:
        """Row filter."""
        ...

    @property
    def ignore(self) -> tuple[int, ...]:
        """True classes whose elements do not count."""
        ...

    @property
    def weights(self) -> View | None:
        """Weights () of rows, floats."""
        ...


class Checked:
    """What statistics of :func:`checked_tiles` have alike: their state is the sum of its parts."""

    @property
    def additive(self: OfElements) -> bool:
        """Whether states are whole numbers whose sums merge them."""
        return self.weights is None

    @property
    def views(self: OfElements) -> tuple[View, ...]:
        return views_of(self)

    @property
    def fields(self: OfElements) -> frozenset[str]:
        return fields_of(*views_of(self))

    def close(self, state: Any) -> Any:
        return state

    def merge(self, a: Any, b: Any) -> Any:
        if not isinstance(a, tuple):
            return a + b
        return type(a)(*(x + y for x, y in zip(a, b, strict=True)))

    def finalize(self, state: Any) -> Any:
        return arrays.map_arrays(arrays.to_host, state)

    def stripes(self, schema: Schema, n: int) -> None:
        return None

    def join(self, results: Any) -> Any:
        return results


def views_of(statistic: OfElements) -> tuple[View, ...]:
    """Return the views that a statistic looks at."""
    views = (statistic.of, statistic.by, statistic.where)
    return views if statistic.weights is None else (*views, statistic.weights)


def checked_nbytes(statistic: OfElements, schema: Schema, rows: int) -> int:
    """Return what :func:`checked_tiles`, and a few sums of a tile, hold."""
    row = max(1, elements_of(statistic.by, schema))
    tile = row * min(rows, max(1, TILE_ELEMENTS // row))
    kept = kept_nbytes(statistic.of, statistic.by, statistic.where, schema, rows)
    weights = 0 if statistic.weights is None else 16 * rows
    return ELEMENT_NBYTES * tile + kept + weights


def checked_tiles(statistic: OfElements, chunk: Chunk, classes: int) -> Iterator[Tile]:
    """Yield all rows that are kept.

    Raises :class:`DataError` for an element that counts and whose class is none of 0 to
    ``classes`` - 1, and for a weight that is not finite, or below 0. A value of ``ignore`` outside
    the range may be predicted.
    """
    of, by, where, *more = views_of(statistic)
    predicted, truth, *given = kept(chunk, where, of, by, *more)
    for view, ids in ((by, truth), (of, predicted)):
        check_integers(chunk, view, ids)
    check_shapes(chunk, truth, predicted)
    xp = arrays.namespace(truth)
    weights = _weights(chunk, where, given[0]) if given else None
    row = max(1, int(np.prod(truth.shape[1:], dtype=np.int64)))
    for tile in arrays.tiles(truth.shape[0], max(1, TILE_ELEMENTS // row)):
        t, p = (xp.astype(ids[tile, ...], xp.int64) for ids in (truth, predicted))
        counts = ~arrays.among(t, statistic.ignore)
        for side, ids, allowed in (("truth", t, ()), ("predicted", p, statistic.ignore)):
            bad = counts & ((ids < 0) | (ids >= classes)) & ~arrays.among(ids, allowed)
            if bool(xp.any(bad)):
                error = _error(side, ids, bad, tile.start * row)
                raise outside(chunk, of, where, truth, classes, error)
        if weights is None:
            ones = xp.ones((t.shape[0],), dtype=xp.float64, device=arrays.device_of(t))
        yield Tile(t, p, counts, ones if weights is None else weights[tile])


def _weights(chunk: Chunk, where: View, weights: Array) -> Array:
    """Return the weights (n,) of the kept rows in float64."""
    xp = arrays.namespace(weights)
    if weights.ndim != 1:
        raise DataError(
            f"{chunk.split}: weights have rows of shape {tuple(weights.shape[1:])}; expected one "
            "number for each row, so an array of shape (n,)"
        )
    weights = xp.astype(weights, xp.float64)
    bad = ~(xp.isfinite(weights) & (weights >= 0))
    if bool(xp.any(bad)):
        raise DataError(
            f"{chunk.split}: the weights of {rows_named(chunk, where, bad)} are below 0 or not "
            "finite; give rows the weight 0 to leave them out"
        )
    return weights


def _error(side: str, ids: Array, bad: Array, start: int) -> OutsideClassError:
    marked = arrays.to_host(bad).reshape(-1)
    values = np.unique(arrays.to_host(ids).reshape(-1)[marked])[:SHOWN].tolist()
    return OutsideClassError(
        side, int(marked.sum()), start + int(np.flatnonzero(marked)[0]), tuple(values)
    )
