"""KL matching: divergence of the softmax from the typical softmax of the nearest class."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.heads import Head, StoredHead
from pipeline.linalg import Host
from pipeline.procedure import Passes
from pipeline.statistics import MeanProbabilities, Means
from pipeline.views import LogSoftmax, Predicted, View

__all__ = ["KLMatching"]

NEGLIGIBLE = 2.0**-52
"""Probability that may fall on classes a template excludes before the divergence is infinite."""


@value
class KLMatching:
    """Smallest divergence from the mean softmax of a class: min_c sum_j p_j log(p_j / d_cj).

    p (n, k) is the softmax of the logits; d_c its mean over the fit rows that are predicted as c.
    Classes that are never predicted are left out. Fit: one pass, after that of the head if it is
    fitted; state k x k.

    d_cj is 0 where it underflows: no row predicted as c has p_j above 1e-323. A row that puts more
    than 2^-52 on such classes is infinitely far from c; less than that is left out, since it adds
    at most 2^-52 times the spread of the logits. A row far from every class scores +inf, which
    ranks above every finite score. Never NaN.

    Reference: Hendrycks, Basart, Mazeika, Zou, Kwon, Mostajabi, Steinhardt and Song 2022, "Scaling
    out-of-distribution detection for real-world settings", arXiv 1911.11132.
    Differs from the reference code: fitted on the fit split, in float64 from log probabilities.
    """

    head: Head = StoredHead()
    paper: ClassVar[str] = "Hendrycks et al. 2022"
    formula: ClassVar[str] = "smallest KL to a class's mean softmax"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pytorch-ood-0.4": {},
        "openood-1.5": {"fit_split": "val"},
    }

    def passes(self, schema: Schema) -> Passes[KLMatchingScorer]:
        logits = yield from self.head.passes(schema)
        log_p = LogSoftmax(logits)
        results = yield {"means": MeanProbabilities(of=log_p, by=Predicted(logits))}
        means: Means = results["means"]
        templates = means.mean[means.count > 0]
        largest, surprise = largest_of(templates)
        others = templates.copy()
        others[np.arange(len(templates)), largest] = 0.0
        return KLMatchingScorer(
            log_p,
            Const(np.log(np.where(others > 0, others, 1.0))),
            Const(np.where(templates > 0, 0.0, 1.0)),
            Const(largest),
            Const(surprise),
        )


def largest_of(templates: Host) -> tuple[Host, Host]:
    """Return where each template (c, k) is largest, and minus the logarithm there: (c,) each.

    The largest entry is one minus the others: near 1 its logarithm is taken from those, or the
    divergences of confident rows would all round to 0.
    """
    largest = templates.argmax(axis=1)
    top = np.take_along_axis(templates, largest[:, None], axis=1)[:, 0]
    rest = templates.sum(axis=1, where=np.arange(templates.shape[1]) != largest[:, None])
    near_one = rest < 0.5
    return largest, np.where(near_one, -np.log1p(-np.where(near_one, rest, 0.0)), -np.log(top))


@value
class KLMatchingScorer:
    """Smallest KL divergence from the templates of c classes."""

    log_p: View
    log_others: Const
    """log d (c, k); 0 where d is 0 or the largest of its template."""
    excluded: Const
    """1 where d is 0, else 0: (c, k)."""
    largest: Const
    """Class with the largest d of each template (c,), int64."""
    surprise: Const
    """- log of the largest d of each template (c,)."""

    @property
    def views(self) -> tuple[View, ...]:
        return (self.log_p,)

    def score(self, chunk: Chunk) -> Array:
        return arrays.by_tiles(self._nearest, self.log_p(chunk))

    def _nearest(self, log_p: Array) -> Array:
        xp = arrays.namespace(log_p)
        p = xp.exp(log_p)
        zero = xp.zeros_like(p)
        negative_entropy = xp.sum(p * xp.where(p > 0, log_p, zero), axis=1)
        cross = arrays.row_products(p, xp.matrix_transpose(self.log_others.like(p)))
        outside = arrays.row_products(p, xp.matrix_transpose(self.excluded.like(p)))
        # The term of the largest class comes last: rows that differ by less than its last digit
        # are then equal, whatever the rounding of the others.
        main = xp.take(p, self.largest.like(p), axis=1) * self.surprise.like(p)[None, :]
        divergence = (negative_entropy[:, None] - cross) + main
        infinite = xp.full_like(divergence, xp.inf)
        nearest = xp.min(xp.where(outside > NEGLIGIBLE, infinite, divergence), axis=1)
        # Rounding may leave a divergence of 0 just below it.
        return xp.where(nearest < 0, xp.zeros_like(nearest), nearest)
