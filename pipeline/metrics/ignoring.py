"""Labels that do not count: void ones everywhere, and the classes that a metric ignores."""

from __future__ import annotations

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import ConfigError
from pipeline.views import Labels, Valid, View, memoised


@value
class Ignoring:
    """A view of the same rows with the labels of ignored classes made void (-1).

    Ignored classes may lie inside or outside 0..k-1; any other label >= k stays an error.
    """

    of: View
    classes: tuple[int, ...]

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields | {"labels"}

    def shape(self, schema: Schema) -> tuple[int, ...]:
        return self.of.shape(schema)

    def nbytes(self, schema: Schema, rows: int) -> int:
        return 8 * rows + self.of.nbytes(schema, rows)

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        if "labels" not in chunk.arrays:
            return self.of(chunk)
        labels = chunk["labels"]
        xp = arrays.namespace(labels)
        labels = xp.astype(labels, xp.int64)
        for ignored in self.classes:
            labels = xp.where(labels == ignored, xp.full_like(labels, -1), labels)
        contents = {**chunk.arrays, "labels": labels}
        return self.of(Chunk(chunk.schema, chunk.start, chunk.rows, contents, is_ood=chunk.is_ood))


def labelled_rows(ignore: tuple[int, ...]) -> tuple[View, View]:
    """Return the labels view and the row filter of metrics that ignore some classes.

    Negative classes are void anyway, so metrics that ignore only those share one statistic with
    metrics that ignore none.
    """
    if not isinstance(ignore, tuple) or not all(isinstance(c, int) for c in ignore):
        raise ConfigError(f"ignore: expected a sequence of classes such as (255,), got {ignore!r}")
    classes = tuple(sorted({c for c in ignore if c >= 0}))
    if not classes:
        return Labels(), Valid()
    return Ignoring(Labels(), classes), Ignoring(Valid(), classes)
