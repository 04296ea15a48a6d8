"""Views of logits, in log space so that nothing saturates."""

from __future__ import annotations

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import DataError
from pipeline.views.base import View, floats_nbytes, memoised


@value
class Logits:
    """Stored logits (k,) as float64."""

    field: str = "logits"

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({self.field})

    def shape(self, schema: Schema) -> tuple[int, ...]:
        shape = schema.spec(self.field).shape
        if shape != (schema.classes,):
            raise DataError(
                f"{schema.split}: {self.field} has rows of shape {shape}, but the split declares "
                f"{schema.classes} classes; expected ({schema.classes},)"
            )
        return shape

    def nbytes(self, schema: Schema, rows: int) -> int:
        return floats_nbytes(self.shape(schema), rows)

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        x = chunk[self.field]
        xp = arrays.namespace(x)
        return xp.astype(x, xp.float64)


@value
class LogSoftmax:
    """log softmax (k,) of a logits view; finite where the logits are."""

    of: View = Logits()

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return self.of.shape(schema)

    def nbytes(self, schema: Schema, rows: int) -> int:
        tile = 3 * floats_nbytes(self.shape(schema), min(rows, arrays.TILE_ROWS))
        return floats_nbytes(self.shape(schema), rows) + tile

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        return arrays.by_tiles(_log_softmax, self.of(chunk))


def _log_softmax(f: Array) -> Array:
    # About the largest logit: its own size would cost the probabilities near 1 their digits.
    xp = arrays.namespace(f)
    below = f - xp.max(f, axis=1, keepdims=True)
    below -= xp.log1p(sum_of_others(below))[:, None]
    return below


def sum_of_others(below: Array) -> Array:
    """Return sum exp (n,) of logits about their largest (n, k), without the 1 of the largest.

    Where one class takes nearly all probability this is what the others have, to every digit.
    """
    xp = arrays.namespace(below)
    return xp.sum(arrays.clear_at(xp.exp(below), xp.argmax(below, axis=1)), axis=1)


def softmax_outside_largest(f: Array, temperature: float = 1.0) -> Array:
    """Return one minus the largest probability (n,) of the softmax of f / T, logits f (n, k).

    Summed from the other classes: rows whose largest probability rounds to 1 keep their order.
    """
    xp = arrays.namespace(f)
    rest = sum_of_others((f - xp.max(f, axis=1, keepdims=True)) / temperature)
    return rest / (1.0 + rest)


@value
class LogSumExp:
    """log sum exp () of a logits view, without overflow."""

    of: View = Logits()

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return ()

    def nbytes(self, schema: Schema, rows: int) -> int:
        tile = 2 * floats_nbytes(self.of.shape(schema), min(rows, arrays.TILE_ROWS))
        return 8 * rows + tile

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        return arrays.by_tiles(_log_sum_exp, self.of(chunk))


def _log_sum_exp(f: Array) -> Array:
    xp = arrays.namespace(f)
    top = xp.max(f, axis=1)
    return top + xp.log(xp.sum(xp.exp(f - top[:, None]), axis=1))


@value
class Predicted:
    """Predicted class () int64: the first largest logit."""

    of: View = Logits()

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        self.of.shape(schema)
        return ()

    def nbytes(self, schema: Schema, rows: int) -> int:
        return rows * 16

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        f = self.of(chunk)
        xp = arrays.namespace(f)
        return xp.astype(xp.argmax(f, axis=1), xp.int64)
