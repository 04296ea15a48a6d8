"""The statistic contract, and the one way in which statistics filter rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, TypeVar

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
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
