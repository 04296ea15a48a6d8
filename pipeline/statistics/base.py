"""The statistic contract, and the one way in which statistics filter rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, TypeVar

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.errors import DataError
from pipeline.views import View

S = TypeVar("S")
R_co = TypeVar("R_co", covariant=True)


class Statistic(Protocol[S, R_co]):
    """A value that folds chunks of rows into a small state; equality is identity of computation.

    States are (named) tuples of float64 and int64 arrays whose size does not depend on the number
    of rows. The life of a state: ``empty``, ``absorb`` once per chunk of a block, ``close`` once,
    then ``merge`` with the states of other blocks, at last ``finalize``.
    """

    version: ClassVar[int]
    """Raised by hand when the numbers change."""

    @property
    def views(self) -> tuple[View, ...]:
        """Every view it looks at, the row filter included: evaluated before it is called."""
        ...

    @property
    def fields(self) -> frozenset[str]:
        """Stored arrays behind its views."""
        ...

    @property
    def where(self) -> View:
        """Row filter."""
        ...

    def empty(self, schema: Schema) -> S:
        """Return the state of no rows: host arrays, shapes from views and classes, not rows."""
        ...

    def absorb(self, state: S, chunk: Chunk) -> S:
        """Fold a chunk in. It owns ``state`` and may change it; keeps no memory of the chunk."""
        ...

    def close(self, state: S) -> S:
        """Turn the state of a finished block into a partial that can be merged."""
        ...

    def merge(self, a: S, b: S) -> S:
        """Return the partial of both; pure; associative and commutative up to rounding."""
        ...

    def finalize(self, state: S) -> R_co:
        """Return the result that the procedure which asked receives."""
        ...

    def state_nbytes(self, schema: Schema) -> int:
        """Bytes of the state, in either form."""
        ...

    def work_nbytes(self, schema: Schema, rows: int) -> int:
        """Bytes of temporaries while absorbing ``rows`` rows, closing or merging."""
        ...

    def stripes(self, schema: Schema, n: int) -> Sequence[Statistic[Any, Any]] | None:
        """Return ``n`` statistics whose joined results equal this one's; None if it cannot."""
        ...

    def join(self, results: Sequence[Any]) -> Any:
        """Put the results of the stripes together."""
        ...


def fields_of(*views: View) -> frozenset[str]:
    """Return the stored arrays behind several views."""
    return frozenset[str]().union(*(view.fields for view in views))


def kept(chunk: Chunk, where: View, *views: View) -> tuple[Array, ...]:
    """Return the views of the rows of a chunk that ``where`` keeps."""
    mask = where(chunk)
    if bool(arrays.namespace(mask).all(mask)):
        return tuple(view(chunk) for view in views)
    return tuple(view(chunk)[mask] for view in views)


def class_ids(chunk: Chunk, where: View, ids: Array) -> Array:
    """Return the classes (n,) of the kept rows as int64; outside 0 to k-1 is an error.

    They are widened before anyone calculates with them: an index formed in uint8 wraps silently.
    """
    xp = arrays.namespace(ids)
    if not xp.isdtype(ids.dtype, ("integral", "bool")):
        raise DataError(
            f"{chunk.split}: classes of rows {chunk.start}-{chunk.stop - 1} have dtype "
            f"{ids.dtype}; expected integers"
        )
    wide = xp.astype(ids, xp.int64)
    outside = (wide < 0) | (wide >= chunk.schema.classes)
    if bool(xp.any(outside)):
        found = arrays.to_host(wide[outside])
        raise DataError(
            f"{chunk.split}: {rows_named(chunk, where, outside)} hold classes "
            f"{', '.join(map(str, np.unique(found)[:5]))}; expected 0 to "
            f"{chunk.schema.classes - 1}, since the split declares {chunk.schema.classes} classes"
        )
    return wide


def refuse_nan(chunk: Chunk, where: View, scores: Array) -> None:
    """Raise :class:`DataError` that names the rows whose scores (n,), kept ones, are NaN."""
    xp = arrays.namespace(scores)
    missing = xp.isnan(scores)
    if bool(xp.any(missing)):
        raise DataError(
            f"{chunk.split}: the scores of {rows_named(chunk, where, missing)} are NaN "
            "and have no rank; look for non-finite features there, or masks without a valid token"
        )


def rows_named(chunk: Chunk, where: View, bad: Array) -> str:
    """Say which rows of the split the kept rows marked ``bad`` are: "2 rows (row 7, row 9)".

    Where the filter keeps elements of rows, so does ``bad`` mark them.
    """
    mask = arrays.to_host(where(chunk))
    elements = np.flatnonzero(mask)[arrays.to_host(bad)]
    rows = chunk.start + np.unique(elements // (mask.size // len(mask)))
    shown = ", ".join(f"row {row}" for row in rows[:3])
    more = ", ..." if len(rows) > 3 else ""
    return f"{len(rows)} {'row' if len(rows) == 1 else 'rows'} ({shown}{more})"
