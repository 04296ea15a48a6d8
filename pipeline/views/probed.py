"""Arrays that a probe of the model has to write: logits of further runs, and perturbed features."""

from __future__ import annotations

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import value
from pipeline.errors import DataError, MissingInputError
from pipeline.views.base import floats_nbytes, memoised


def refuse_unprobed(schema: Schema, field: str, probe: str) -> None:
    """Raise :class:`MissingInputError`, which names the probe, where a split lacks its array."""
    if field not in schema.arrays:
        raise MissingInputError(
            f"split {schema.split or '(in memory)'} stores no {field!r} (it has "
            f"{', '.join(sorted(schema.arrays))}); the probe {probe} writes it at extraction: "
            f"model: {{..., probes: [{{name: {probe}}}]}} in a job, or "
            f"pipeline.extract.probes.{probe}(model)"
        )


@value
class ProbedLogits:
    """Logits (k,) that a probe wrote, float64."""

    field: str
    probe: str

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({self.field})

    def shape(self, schema: Schema) -> tuple[int, ...]:
        refuse_unprobed(schema, self.field, self.probe)
        shape = schema.spec(self.field).shape
        if shape != (schema.classes,):
            raise _unlike(schema, self.field, f"({schema.classes},)")
        return shape

    def nbytes(self, schema: Schema, rows: int) -> int:
        return floats_nbytes(self.shape(schema), rows)

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        return _widened(chunk[self.field])


@value
class SampledLogits:
    """Logits (s k,) of s runs of a model, one after the other, as they are stored."""

    field: str
    probe: str

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({self.field})

    def shape(self, schema: Schema) -> tuple[int, ...]:
        refuse_unprobed(schema, self.field, self.probe)
        shape = schema.spec(self.field).shape
        if len(shape) != 1 or shape[0] % max(1, schema.classes) or self._runs(schema) < 2:
            expected = f"(s x {schema.classes},), the logits of s runs, two or more"
            raise _unlike(schema, self.field, expected)
        return shape

    def runs(self, schema: Schema) -> int:
        """Return s; raises where the schema does not fit."""
        self.shape(schema)
        return self._runs(schema)

    def _runs(self, schema: Schema) -> int:
        return schema.spec(self.field).shape[0] // max(1, schema.classes)

    def nbytes(self, schema: Schema, rows: int) -> int:
        return 0

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        return chunk[self.field]


@value
class ProbedFeatures:
    """Features (d,) of perturbed inputs, which a probe wrote, float64."""

    field: str
    probe: str

    @property
    def fields(self) -> frozenset[str]:
        return frozenset({self.field})

    def shape(self, schema: Schema) -> tuple[int, ...]:
        refuse_unprobed(schema, self.field, self.probe)
        shape = schema.spec(self.field).shape
        if len(shape) != 1:
            raise _unlike(schema, self.field, "(d,)")
        return shape

    def nbytes(self, schema: Schema, rows: int) -> int:
        return floats_nbytes(self.shape(schema), rows)

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        return _widened(chunk[self.field])


def _widened(x: Array) -> Array:
    xp = arrays.namespace(x)
    return xp.astype(x, xp.float64)


def _unlike(schema: Schema, field: str, expected: str) -> DataError:
    return DataError(
        f"{schema.split}: {field} has rows of shape {schema.spec(field).shape}, and the split "
        f"declares {schema.classes} classes; expected {expected}"
    )
