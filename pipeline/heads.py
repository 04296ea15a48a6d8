"""Heads: where the logits of a detector come from, as one more procedure.

``logits = yield from head.passes(schema)`` gives a view, whether logits are stored, computed from
saved weights, or fitted in closed form first; detectors make no case distinction.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol

import numpy as np

from pipeline.chunk import Schema
from pipeline.content import Const, value
from pipeline.errors import DataError
from pipeline.linalg import whiten
from pipeline.statistics import ClassMoments, Moments
from pipeline.views import Linear, Logits, Pooled, View

ABSENT_BIAS = -1e30
"""Bias of a class without rows: never predicted, and still finite in log space."""


class Head(Protocol):
    """A value whose passes end in a view of logits (k,)."""

    def passes(self, schema: Schema) -> Generator[Any, Any, View]:
        """Yield what the head must know of the data; return its logits."""
        ...


@value
class StoredHead:
    """The logits that the split stores."""

    field: str = "logits"

    def passes(self, schema: Schema) -> Generator[Any, Any, View]:
        Logits(self.field).shape(schema)
        return Logits(self.field)
        yield  # a generator that asks for nothing


@value
class LinearHead:
    """A linear head with known weights: W (k, d), b (k,)."""

    weight: Const
    bias: Const
    of: View = Pooled()

    def passes(self, schema: Schema) -> Generator[Any, Any, View]:
        logits = Linear(self.of, self.weight, self.bias)
        logits.shape(schema)
        return logits
        yield  # a generator that asks for nothing


@value
class LDAHead:
    """Linear discriminant analysis in closed form from the class moments.

    W = S^-1 mu, b = -mu' S^-1 mu / 2 + log prior, with the within-class covariance S (Fisher
    1936; Hastie, Tibshirani and Friedman 2009, section 4.3). Features are taken about the overall
    mean, which changes no difference of logits and keeps the bias small.
    """

    of: View = Pooled()
    ridge: float = 1e-6

    def passes(self, schema: Schema) -> Generator[Any, Any, View]:
        results = yield {"moments": ClassMoments(of=self.of)}
        moments: Moments = results["moments"]
        present = moments.count > 0
        if int(present.sum()) < 2:
            raise DataError(
                f"{schema.split}: an lda head needs rows of at least 2 classes, found "
                f"{int(present.sum())} of {schema.classes}"
            )
        centre = moments.overall_mean
        white = whiten(moments.covariance, "ridge", self.ridge).matrix
        means = np.where(present[:, None], moments.mean - centre, 0.0) @ white
        weight = means @ white.T
        prior = np.log(np.where(present, moments.count, 1) / moments.rows)
        bias = prior - (means**2).sum(axis=1) / 2 - weight @ centre
        return Linear(self.of, Const(weight), Const(np.where(present, bias, ABSENT_BIAS)))
