"""Monte Carlo dropout: what several runs with dropout say together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pipeline.chunk import Schema
from pipeline.content import value
from pipeline.disagreement import DisagreementScorer, check_measure
from pipeline.procedure import Passes
from pipeline.views.probed import SampledLogits

__all__ = ["MCDropout"]


@value
class MCDropout:
    """Uncertainty of s runs with dropout, whose logits (s k,) the probe ``dropout`` writes.

    ``measure``, with p_s the softmax of run s and q the mean of p_s: ``confidence`` is 1 - max_c
    q_c, of the predictive mean; ``entropy`` that of q; ``mutual_information`` that of q less the
    mean of those of p_s; ``variance`` the mean over classes of the variance over runs of p_sc,
    divided by s - 1; ``mean_logits`` 1 - max softmax of the mean of the logits. Nothing is fitted.

    Raises :class:`MissingInputError` where no probe wrote the array, :class:`ConfigError` for a
    measure that is not known, :class:`DataError` for an array of another shape, or of one run.

    Reference: Gal and Ghahramani 2016, "Dropout as a Bayesian approximation: representing model
    uncertainty in deep learning", arXiv 1506.02142. ``variance``: Kendall, Badrinarayanan and
    Cipolla 2017, "Bayesian SegNet", arXiv 1511.02680. ``mutual_information``: Houlsby et al. 2011,
    "Bayesian active learning for classification and preference learning", arXiv 1112.5745.
    Differs from the reference code: float64, in log space, so that confident rows keep their order.
    """

    measure: str = "confidence"
    field: str = "dropout_logits"
    paper: ClassVar[str] = "Gal and Ghahramani 2016"
    formula: ClassVar[str] = "1 - max of the mean softmax of s runs with dropout"
    probed: ClassVar[Mapping[str, str]] = {"dropout_logits": "SK"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pytorch-ood-0.4": {"measure": "variance"},
        "openood-1.5": {"measure": "mean_logits"},
    }

    def __post_init__(self) -> None:
        check_measure(self.measure)

    def passes(self, schema: Schema) -> Passes[DisagreementScorer]:
        sampled = SampledLogits(self.field, "dropout")
        runs = sampled.runs(schema)
        return DisagreementScorer(sampled, runs, self.measure, (f"{runs} runs with dropout",))
        yield  # a generator that asks for nothing
