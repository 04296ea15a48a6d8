"""Deep feature modelling: error of reconstruction from principal components, or likelihood."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, ClassVar

import numpy as np

from pipeline.chunk import Schema
from pipeline.content import Const, value
from pipeline.errors import ConfigError
from pipeline.procedure import Passes, check_image, unused_image
from pipeline.statistics import ClassMoments, Moments
from pipeline.subspace import (
    DistanceScorer,
    as_components,
    principal_space,
    refuse_components,
)
from pipeline.views import Projected, ReconstructionError, SquaredLength, features

__all__ = ["DFM"]

SCORES = ("reconstruction", "likelihood")


@value
class DFM:
    """Reconstruction error |x - V V'x|^2 from principal components, or minus log-likelihood.

    x (n, d) are pooled features less the mean of the fit rows, V (d, q) the first q eigenvectors
    of their covariance and l its eigenvalues. ``score: reconstruction`` is the squared length of
    what the components leave; ``score: likelihood`` is sum_i (V_i'x)^2 / l_i + log l_i, minus twice
    the log-likelihood in the principal space up to q log 2 pi.

    ``components`` below 1 is the share of the variance that the fewest components must hold, from
    1 on their number. A reconstruction from a share always leaves out the last direction that the
    fit rows span. Fit: one pass, shared with mahalanobis; state k x d + d x d; a sweep over
    ``components`` and ``score`` reads nothing more. ``pool: tokens`` fits on tokens and scores
    (n, t), of which ``image`` makes one: max, mean, or top1, the mean of the highest 1 %.

    Raises :class:`ConfigError` for unknown options, and as many components as features or fit rows;
    :class:`DataError` for more than the fit rows span.

    Reference: Ahuja, Ndiour, Kalyanpur and Tickoo 2019, "Probabilistic modeling of deep features
    for out-of-distribution and adversarial detection", arXiv 1909.11786; the reconstruction error:
    Ndiour, Ahuja and Tickoo 2020, "Out-of-distribution detection with subspace techniques and
    probabilistic modeling of features", arXiv 2012.04250. One Gaussian for all rows, as in
    anomalib, not one for each class.
    Differs from anomalib 2: eigenvectors of a streamed float64 covariance, not singular vectors of
    all rows; the fewest components that reach the share, where it keeps one fewer; nothing is
    centred in place, which there moves the rows that it is given and centres them twice before the
    likelihood, whose fit fails there.
    """

    paper: ClassVar[str] = "Ahuja et al. 2019"
    formula: ClassVar[str] = "squared error of reconstruction from principal components"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    score: str = "reconstruction"
    components: int | float = 0.97
    pool: str = "mean"
    field: str = "features"
    precision: str = "auto"
    image: str = "max"

    def __post_init__(self) -> None:
        if self.score not in SCORES:
            raise ConfigError(f"score: {self.score!r} is unknown; choose {' or '.join(SCORES)}")
        object.__setattr__(self, "components", as_components(self.components))
        check_image(self.image)
        self._moments()

    @property
    def unused(self) -> dict[str, str]:
        return unused_image(self.pool)

    def _moments(self) -> ClassMoments:
        return ClassMoments(of=features(self.pool, self.field), precision=self.precision)

    def passes(self, schema: Schema) -> Passes[DistanceScorer]:
        statistic = self._moments()
        *tokens, d = statistic.of.shape(schema)
        left_out = 1 if self.score == "reconstruction" else 0
        number = self.components if self.components >= 1 else None
        refuse_components(number, d, schema.rows * prod(tokens), left_out=left_out)
        results = yield {"moments": statistic}
        moments: Moments = results["moments"]
        space = principal_space(moments.overall_covariance, statistic.products)
        q = space.components(self.components, "dfm", left_out)
        axes, origin = space.axes[:, :q], Const(moments.overall_mean)
        note = f"{q} of {d} components, the fit rows span {space.rank}; {space.held(q):.2%} held"
        if self.score == "reconstruction":
            squared = ReconstructionError(statistic.of, Const(axes), origin)
            return DistanceScorer(squared, root=False, notes=(note,), image=self.image)
        white = Projected(statistic.of, Const(axes / np.sqrt(space.variances[:q])), origin)
        offset = float(np.log(space.variances[:q]).sum())
        return DistanceScorer(SquaredLength(white), False, offset, (note,), self.image)
