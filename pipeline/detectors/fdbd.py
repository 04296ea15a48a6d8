"""Fast decision boundary detector: distances to the boundaries of the predicted class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.errors import ConfigError
from pipeline.heads import (
    Head,
    StoredHead,
    beside_head,
    logits_present,
    refuse_without_weights,
    weights_present,
    with_weights,
)
from pipeline.linalg import Host
from pipeline.procedure import Passes
from pipeline.statistics import Sums
from pipeline.views import Pooled, View

__all__ = ["FDBD"]

NORMALISERS = ("deviation", "length")
SHORTEST = 1e-8
"""What a row is divided by at least, as in pytorch-ood: a row at the mean has a finite score."""
CANCELLED = 1e-6
"""Share of the squared lengths below which a distance is taken from the difference itself."""
EQUAL = 1e-24
"""Share of the squared lengths below which points are equal, but for rounding."""


@value
class FDBD:
    """Minus the mean distance to decision boundaries: - mean_c (f_y - f_c) / |w_y - w_c| / |z - m|.

    z (n, d) are the pooled features that the head reads, f = W z + b (n, k) its logits, y the class
    with the largest and c each other class; m (d,) is the mean of the fit rows. With
    ``normaliser: length`` the distances are divided by |z| instead of the ``deviation`` |z - m|;
    ``reduce: sum`` adds them up over the classes instead of taking their mean.

    Classes with the weights of the predicted one have no boundary with it and are left out of the
    mean, as are classes that an lda head has no rows of. Fit: one pass, beside that of an lda head;
    state d; none but that of the head for ``normaliser: length``. The scorer holds a k x k table.

    Raises :class:`ConfigError` for a head without weights, one over other features, one with fewer
    than 2 classes or with equal weights for all, and for an unknown ``normaliser`` or ``reduce``.

    Reference: Liu and Qin 2024, "Fast decision boundary based out-of-distribution detector", ICML
    2024, arXiv 2312.11536.
    Differs from the reference code: float64; distances of weights by their inner products, and by
    differences only where those cancel, never k x k x d; OpenOOD sums over the classes, and chooses
    the normaliser on a validation set.
    """

    paper: ClassVar[str] = "Liu and Qin 2024"
    formula: ClassVar[str] = "- mean distance to decision boundaries / distance to the mean"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pytorch-ood-0.4": {},
        "openood-1.5": {"reduce": "sum"},
    }

    head: Head = StoredHead()
    normaliser: str = "deviation"
    reduce: str = "mean"
    pool: str = "mean"
    field: str = "features"

    def __post_init__(self) -> None:
        if self.normaliser not in NORMALISERS:
            raise ConfigError(
                f"normaliser: {self.normaliser!r} is unknown; choose {' or '.join(NORMALISERS)}"
            )
        if self.reduce not in ("mean", "sum"):
            raise ConfigError(f"reduce: {self.reduce!r} is unknown; choose mean or sum")

    def passes(self, schema: Schema) -> Passes[FDBDScorer]:
        refuse_without_weights(self.head, "fdbd")
        if schema.classes < 2:
            raise ConfigError(
                f"fdbd needs boundaries between classes, but {schema.split or 'the split'} "
                f"declares {schema.classes}"
            )
        features = Pooled(self.pool, self.field)
        origin = np.zeros(features.shape(schema))
        if self.normaliser == "deviation":
            given, sums = yield from beside_head(self.head, schema, Sums(of=features))
            origin = sums.mean
        else:
            given = yield from self.head.passes(schema)
        logits = with_weights(given, features, "fdbd")
        distances = pairwise_distances(weights_present(logits)[0])
        if not distances.any():
            raise ConfigError("fdbd: the head has the same weights for every class: no boundaries")
        inverse = np.divide(1.0, distances, out=np.zeros_like(distances), where=distances > 0)
        if self.reduce == "mean":
            inverse /= np.maximum((distances > 0).sum(axis=1), 1)[:, None]
        pairs = int(np.count_nonzero(distances)) // 2
        note = f"{pairs} boundaries between {len(distances)} of {schema.classes} classes"
        return FDBDScorer(features, logits_present(logits), Const(inverse), Const(origin), (note,))


def pairwise_distances(points: Host) -> Host:
    """Return the distances (k, k) between points (k, d).

    Exactly 0 between points that are equal but for rounding, 1e-12 of their distance to the mean.
    """
    points = points - points.mean(axis=0)
    products = points @ points.T
    lengths = np.diag(products)
    sizes = lengths[:, None] + lengths
    squares = sizes - 2 * products
    for i, near in enumerate(squares <= CANCELLED * sizes):
        squares[i, near] = ((points[near] - points[i]) ** 2).sum(axis=1)
    distances: Host = np.sqrt(np.where(squares > EQUAL * sizes, squares, 0.0))
    return distances


@value
class FDBDScorer:
    """Minus the distances to the boundaries of the predicted class, weighted and normalised."""

    features: View
    logits: View
    """Of the classes that can be predicted (c,)."""
    weights: Const
    """Weight (c, c) of the difference of two logits: one over the distance of their weights."""
    origin: Const
    """(d,)."""
    notes: tuple[str, ...] = ()

    @property
    def views(self) -> tuple[View, ...]:
        return (self.features, self.logits)

    def score(self, chunk: Chunk) -> Array:
        return arrays.by_tiles(self._scores, self.features(chunk), self.logits(chunk))

    def _scores(self, z: Array, f: Array) -> Array:
        xp = arrays.namespace(z)
        weights = xp.take(self.weights.like(z), xp.argmax(f, axis=1), axis=0)
        distances = xp.sum((xp.max(f, axis=1, keepdims=True) - f) * weights, axis=1)
        lengths = xp.sqrt(xp.sum((z - self.origin.like(z)) ** 2, axis=1))
        return -distances / xp.where(lengths > SHORTEST, lengths, xp.full_like(lengths, SHORTEST))
