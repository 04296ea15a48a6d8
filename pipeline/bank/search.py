"""Search in a bank, tile by tile: memory is linear in the queries, whatever the bank's size.

Tiles of the bank and of the queries have fixed sizes, so the bits of a query's score do not depend
on the queries beside it.
"""

from __future__ import annotations

from collections.abc import Callable

from pipeline import arrays
from pipeline.arrays import TILE_ROWS, Array
from pipeline.bank.rows import Bank
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import DataError
from pipeline.linalg import squared_norms, unit
from pipeline.procedure import REHEARSING
from pipeline.views import View, memoised

KEPT = (1, 16, 64, 256, 1024)
"""Numbers of neighbours that are searched for: those of several k are searched for once."""
CLOSE = 1e-6
"""Squared distances below this share of both squared norms are taken directly: the expanded square
has lost their digits."""
LARGEST_REHEARSED = 1e6
"""What is beyond the neighbours that a rehearsal looks at: statistics of scores stay finite."""
DIRECT_ENTRIES = 2**18
"""Entries of the differences that are formed at a time."""

Prepare = Callable[[Array], tuple[Array, ...]]
Compare = Callable[[tuple[Array, ...], tuple[Array, ...]], Array]


def largest(
    bank: Bank, queries: Array, k: int, of_bank: Prepare, of_query: Prepare, compare: Compare
) -> Array:
    """Return the ``k`` largest values (n, k) of ``compare`` of each query with a bank, in order.

    ``queries`` (n, d) are float64, or cast tile by tile. ``compare`` takes what ``of_query`` made
    of a tile of queries and ``of_bank`` of one of the bank, and gives (queries, entries). Where
    the bank has fewer entries than k, the last values are minus infinity; in a rehearsal, which
    looks at few entries, they are finite.
    """
    xp = arrays.namespace(queries)
    device = arrays.device_of(queries)
    nothing = -LARGEST_REHEARSED if REHEARSING.get() else -xp.inf
    best = xp.full((queries.shape[0], k), nothing, dtype=xp.float64, device=device)
    for tile in bank.tiles(queries):
        prepared = of_bank(tile)
        for rows in arrays.tiles(queries.shape[0]):
            found = compare(of_query(_wide(queries[rows, ...])), prepared)
            best[rows, ...] = arrays.top_k(xp.concat((best[rows, ...], found), axis=1), k)
    return best


def nearest_rows(bank: Bank, queries: Array, k: int) -> tuple[Array, Array]:
    """Return squared distances (n, k), nearest first, and which entries they are to, (n, k) int64.

    Of equal distances that to the entry of the lowest number comes first.
    """
    xp = arrays.namespace(queries)
    n, device = queries.shape[0], arrays.device_of(queries)
    best = xp.full((n, k), xp.inf, dtype=xp.float64, device=device)
    places = xp.full((n, k), -1, dtype=xp.int64, device=device)
    start = 0
    for tile in bank.tiles(queries):
        prepared = _normed(tile)
        number = xp.arange(start, start + tile.shape[0], dtype=xp.int64, device=device)
        for rows in arrays.tiles(n):
            found = _squared_distances(_normed(_wide(queries[rows, ...])), prepared)
            if k == 1:
                first = xp.argmin(found, axis=1, keepdims=True)
                found = xp.take_along_axis(found, first, axis=1)
                numbers = xp.take(number, first[:, 0])[:, None]
            else:
                numbers = xp.broadcast_to(number[None, :], found.shape)
            distances = xp.concat((best[rows, ...], found), axis=1)
            numbers = xp.concat((places[rows, ...], numbers), axis=1)
            order = xp.argsort(distances, axis=1, stable=True)[:, :k]
            best[rows, ...] = xp.take_along_axis(distances, order, axis=1)
            places[rows, ...] = xp.take_along_axis(numbers, order, axis=1)
        start += tile.shape[0]
    return best, places


def search_nbytes(bank: Bank, rows: int, k: int) -> int:
    """Return the bytes of a search for ``k`` neighbours of ``rows`` queries.

    The best of every query, a tile of the bank with what is made of it, a tile of queries, and the
    values of these tiles.
    """
    width, tile = bank.width, min(bank.tile_rows, bank.entries)
    best = 2 * 8 * rows * k
    values = 8 * 8 * TILE_ROWS * (tile + 2 * k)
    queries = 8 * 6 * TILE_ROWS * width
    direct = 4 * 8 * (DIRECT_ENTRIES + width)
    return best + bank.reading_nbytes + 3 * 8 * tile * width + values + queries + direct


@value
class Nearest:
    """Squared distances to the nearest entries of a bank, nearest first: (m,), or (t, m).

    Float64, between vectors or, with ``unit``, between their directions. m is ``k`` or the next
    number in ``KEPT``, so that several k share one search. Distances that the expanded square loses
    are taken from the differences: that of equal vectors is 0.
    """

    of: View
    bank: Bank
    k: int
    unit: bool = False

    def __post_init__(self) -> None:
        kept = next((most for most in KEPT if most >= self.k), self.k)
        object.__setattr__(self, "k", kept)

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        shape = self.of.shape(schema)
        if shape[-1] != self.bank.width:
            raise DataError(
                f"{schema.split}: features of width {shape[-1]} do not fit a bank of "
                f"{self.bank.split} of width {self.bank.width}"
            )
        return (*shape[:-1], self.k)

    def nbytes(self, schema: Schema, rows: int) -> int:
        tokens = self.of.shape(schema)[:-1]
        return search_nbytes(self.bank, rows * (tokens[0] if tokens else 1), self.k)

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        x = self.of(chunk)
        xp = arrays.namespace(x)
        prepare = _unit_normed if self.unit else _normed
        flat = xp.reshape(x, (-1, x.shape[-1]))
        closeness = largest(self.bank, flat, self.k, prepare, prepare, _closeness)
        return xp.reshape(-closeness, (*x.shape[:-1], self.k))


def _wide(x: Array) -> Array:
    xp = arrays.namespace(x)
    return xp.astype(x, xp.float64, copy=False)


def _normed(x: Array) -> tuple[Array, Array]:
    return x, squared_norms(x)


def _unit_normed(x: Array) -> tuple[Array, Array]:
    return _normed(unit(x))


def _closeness(queries: tuple[Array, ...], entries: tuple[Array, ...]) -> Array:
    return -_squared_distances(queries, entries)


def _squared_distances(queries: tuple[Array, ...], entries: tuple[Array, ...]) -> Array:
    """Return the squared distances (n, m) of vectors that come with their squared norms."""
    (x, x_norms), (y, y_norms) = queries, entries
    xp = arrays.namespace(x)
    norms = x_norms[:, None] + y_norms[None, :]
    squared = norms - 2 * arrays.row_products(x, xp.matrix_transpose(y))
    close = ~(squared > CLOSE * norms)
    if bool(xp.any(close)):
        squared[close] = _direct(x, y, close)
    return squared


def _direct(x: Array, y: Array, pairs: Array) -> Array:
    """Return the squared lengths of the differences of the pairs that are marked (n, m)."""
    xp = arrays.namespace(x)
    left, right = xp.nonzero(pairs)
    found = xp.empty(left.shape, dtype=xp.float64, device=arrays.device_of(x))
    for some in arrays.tiles(left.shape[0], max(1, DIRECT_ENTRIES // x.shape[1])):
        difference = xp.take(x, left[some], axis=0) - xp.take(y, right[some], axis=0)
        found[some] = xp.sum(difference * difference, axis=1)
    return found
