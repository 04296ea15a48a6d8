"""Random Fourier features: vectors whose inner products approximate a Gaussian kernel."""

from __future__ import annotations

from math import pi, sqrt

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.errors import DataError
from pipeline.views.base import View, floats_nbytes, memoised


@value
class RandomFourier:
    """sqrt(2 / m) cos(x frequencies + phases) (m,) of a vector view.

    Inner products approximate exp(-gamma |x - y|^2) where the frequencies are normal with variance
    2 gamma and the phases uniform over a turn (Rahimi and Recht 2007, "Random features for
    large-scale kernel machines").
    """

    of: View
    frequencies: Const
    """(d, m)."""
    phases: Const
    """(m,), in radians."""

    @classmethod
    def drawn(cls, of: View, d: int, m: int, gamma: float, seed: int) -> RandomFourier:
        """Return ``m`` features of a view of ``d``, drawn from a seed."""
        rng = np.random.default_rng(seed)
        frequencies = sqrt(2 * gamma) * rng.standard_normal((d, m))
        return cls(of, Const(frequencies), Const(2 * pi * rng.random(m)))

    @property
    def fields(self) -> frozenset[str]:
        return self.of.fields

    def shape(self, schema: Schema) -> tuple[int, ...]:
        d, m = self.frequencies.shape
        if self.of.shape(schema) != (d,):
            raise DataError(
                f"{schema.split}: frequencies over ({d},) features do not fit features of shape "
                f"{self.of.shape(schema)}"
            )
        return (m,)

    def nbytes(self, schema: Schema, rows: int) -> int:
        d, m = self.frequencies.shape
        tile = floats_nbytes((3 * m,), min(rows, arrays.TILE_ROWS))
        return floats_nbytes((m,), rows) + arrays.products_nbytes(d, m) + tile

    @memoised
    def __call__(self, chunk: Chunk) -> Array:
        x = self.of(chunk)
        xp = arrays.namespace(x)
        frequencies, phases = self.frequencies.like(x), self.phases.like(x)
        size = sqrt(2 / phases.shape[0])

        def waves(rows: Array) -> Array:
            angles = arrays.row_products(rows, frequencies)
            angles += phases
            return size * xp.cos(angles)

        return arrays.by_tiles(waves, x)
