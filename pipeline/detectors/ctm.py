"""Class typical matching: cosine distance to the nearest class mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.errors import DataError
from pipeline.linalg import nearest_squared
from pipeline.procedure import Passes
from pipeline.statistics import ClassMeans, Means
from pipeline.views import Pooled, View

__all__ = ["CTM"]


@value
class CTM:
    """One minus the largest cosine with a class mean: 1 - max_c z . mu_c / (|z| |mu_c|).

    z (n, d) are pooled features; mu_c the mean feature of the fit rows of class c. Classes without
    rows, or with a mean of zero, have no direction and are left out; a row of zeros scores 1, as if
    it were orthogonal to every class. Fit: one pass, state k x d, which an lda head does not need.

    Raises :class:`DataError` where every class mean is zero.

    Reference: Ngoc-Hieu, Hung-Quang, Ta, Nguyen-Tang, Doan and Thanh-Tung 2023, "A cosine
    similarity-based method for out-of-distribution detection", arXiv 2306.14920.
    Differs from the reference code: float64; 1 - cosine, taken as half the squared distance of unit
    vectors, which keeps the order of rows whose cosine rounds to 1; means over all rows of a class,
    where the code also has a version over correctly classified ones.
    """

    paper: ClassVar[str] = "Ngoc-Hieu et al. 2023"
    formula: ClassVar[str] = "1 - largest cosine with a class mean"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    pool: str = "mean"
    field: str = "features"

    def passes(self, schema: Schema) -> Passes[CTMScorer]:
        features = Pooled(self.pool, self.field)
        results = yield {"means": ClassMeans(of=features)}
        means: Means = results["means"]
        lengths = np.linalg.norm(means.mean, axis=1)
        directed = (means.count > 0) & (lengths > 0)
        if not directed.any():
            raise DataError(
                f"{schema.split}: the mean of the features is zero in every class, so none has a "
                "direction; look for features that are all zero"
            )
        directions = means.mean[directed] / lengths[directed, None]
        note = f"{directed.sum()} of {schema.classes} classes have a direction"
        return CTMScorer(features, Const(directions), (note,))


@value
class CTMScorer:
    """Half the squared distance of unit vectors, to the nearest class direction."""

    features: View
    directions: Const
    """Unit vectors (c, d)."""
    notes: tuple[str, ...] = ()

    @property
    def views(self) -> tuple[View, ...]:
        return (self.features,)

    def score(self, chunk: Chunk) -> Array:
        return arrays.by_tiles(self._distances, self.features(chunk))

    def _distances(self, z: Array) -> Array:
        xp = arrays.namespace(z)
        lengths = xp.sqrt(xp.sum(z * z, axis=1))
        directed = lengths > 0
        unit = z / xp.where(directed, lengths, xp.ones_like(lengths))[:, None]
        distances = nearest_squared(unit, self.directions.like(z)) / 2
        return xp.where(directed, distances, xp.ones_like(distances))
