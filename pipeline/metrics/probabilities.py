"""Scores of probabilities that reward honesty: Brier score and negative log-likelihood.

Terms are float64 numbers of each element; their sum is exact, so no cut of the rows and no order
changes a bit of the mean.
"""

from __future__ import annotations

import math

from pipeline.chunk import Schema
from pipeline.content import value
from pipeline.metrics.estimates import exactly, undefined
from pipeline.metrics.judging import NO_ELEMENTS, Judging, Sided, check_classes, check_side
from pipeline.procedure import Estimate, MetricResult, Passes
from pipeline.statistics.exact_sums import UNITS, ExactSums, Sum

__all__ = ["NLL", "Brier", "MeanConfidence", "mean_of"]


def mean_of(found: Sum) -> Estimate:
    """Return the mean of summed numbers, infinite where one of them is; undefined of none."""
    if not found.numbers:
        return undefined(NO_ELEMENTS)
    if found.infinite:
        return exactly(math.inf)
    return exactly(found.units / (found.numbers * UNITS))


@value
class Brier(Judging):
    """Brier score: ``brier``, the mean over elements of sum_k (p_k - [k is the label])², in [0, 2].

    ``of="positive"``: ``brier_positive``, the mean of (p_1 - [the label is 1])², in [0, 1]; the
    only one of multilabel tasks, over all labels of all rows.

    Reference: Brier 1950, "Verification of forecasts expressed in terms of probability".
    Differs from scikit-learn for two classes, whose ``brier_score_loss`` is ``brier_positive``.
    """

    of: str = "all"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_side(self.of, self.task, ("all", "positive"))

    def passes(self, schema: Schema) -> Passes[MetricResult]:
        check_classes(self.of, self.task, schema)
        name = "brier" if self.of == "all" else "brier_positive"
        results = yield {"sum": self.summed(schema, name)}
        return {name: mean_of(results["sum"])}


@value
class NLL(Judging):
    """Negative log-likelihood, the log loss: ``nll``, the mean of -log p of the label, in nats.

    From logits it is computed in log space, so no confidence is too high for it. A probability of
    0 for a label makes it infinite. For multilabel tasks it is the mean over all labels of all
    rows.

    Differs from scikit-learn, whose ``log_loss`` clips probabilities and scales rows to sum 1.
    """

    def passes(self, schema: Schema) -> Passes[MetricResult]:
        results = yield {"sum": self.summed(schema, "nll")}
        return {"nll": mean_of(results["sum"])}


@value
class MeanConfidence(Sided):
    """Mean probability of the predicted class: ``mean_confidence``.

    Above the accuracy, a model is too sure of itself. ``of="positive"``:
    ``mean_confidence_positive``, the mean probability of class 1, beside how often it occurs.
    """

    def passes(self, schema: Schema) -> Passes[MetricResult]:
        probability, _ = self.sides(schema)
        asked = ExactSums(probability, self.rows(schema), self.among(schema))
        results = yield {"sum": asked}
        return {f"mean_confidence{self.suffix}": mean_of(results["sum"])}
