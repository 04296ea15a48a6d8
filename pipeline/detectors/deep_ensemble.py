"""Deep ensembles: what the checkpoints of several trainings say together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pipeline.chunk import Schema
from pipeline.content import value
from pipeline.disagreement import DisagreementScorer, check_measure
from pipeline.procedure import Passes
from pipeline.views.probed import SampledLogits

__all__ = ["DeepEnsemble"]


@value
class DeepEnsemble:
    """Uncertainty of m members, whose logits (m k,) the probe ``checkpoints`` writes.

    ``measure``, with p_m the softmax of member m and q the mean of p_m: ``entropy`` is that of q;
    ``confidence`` 1 - max_c q_c; ``mutual_information`` the entropy of q less the mean of those of
    p_m, which is the mean of KL(p_m | q); ``variance`` the mean over classes of the variance over
    members of p_mc, divided by m - 1; ``mean_logits`` 1 - max softmax of the mean of the logits.
    Nothing is fitted.

    Raises :class:`MissingInputError` where no probe wrote the array, :class:`ConfigError` for a
    measure that is not known, :class:`DataError` for an array of another shape, or of one member.

    Reference: Lakshminarayanan, Pritzel and Blundell 2017, "Simple and scalable predictive
    uncertainty estimation using deep ensembles", arXiv 1612.01474.
    Differs from the reference code: OpenOOD averages logits, which is ``mean_logits``.
    """

    measure: str = "entropy"
    field: str = "checkpoint_logits"
    paper: ClassVar[str] = "Lakshminarayanan et al. 2017"
    formula: ClassVar[str] = "entropy of the mean softmax of m checkpoints"
    probed: ClassVar[Mapping[str, str]] = {"checkpoint_logits": "SK"}
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "openood-1.5": {"measure": "mean_logits"},
    }

    def __post_init__(self) -> None:
        check_measure(self.measure)

    def passes(self, schema: Schema) -> Passes[DisagreementScorer]:
        sampled = SampledLogits(self.field, "checkpoints")
        members = sampled.runs(schema)
        return DisagreementScorer(sampled, members, self.measure, (f"{members} checkpoints",))
        yield  # a generator that asks for nothing
