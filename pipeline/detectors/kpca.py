"""Kernel PCA: error of reconstruction from principal components of features on the sphere."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any, ClassVar

from pipeline.chunk import Schema
from pipeline.content import Const, value
from pipeline.errors import ConfigError
from pipeline.procedure import Passes
from pipeline.statistics import ClassMoments, Moments, SecondMoment, Spread
from pipeline.subspace import (
    DistanceScorer,
    Host,
    as_components,
    principal_space,
    refuse_components,
)
from pipeline.views import Pooled, RandomFourier, ReconstructionError, normalized

__all__ = ["KPCA"]

KERNELS = {"cosine": 0.85, "cosine-gaussian": 0.8}
"""Kernels, and the share of the variance that their components hold by default."""
OF_GAUSSIAN = ("gamma", "fourier", "seed")
"""Options of the other kernel alone."""
FOURIER_PER_FEATURE, FOURIER_LIMIT = 4, 4096


@value
class KPCA:
    """Error of reconstruction |x - V V'x| in the space of a kernel: CoP and CoRP of the paper.

    x = phi(z) less its mean over the fit rows, V its first q principal directions. ``kernel:
    cosine`` (CoP) has phi(z) = z / |z| of the pooled features z (n, d); ``kernel: cosine-gaussian``
    (CoRP) takes ``fourier`` = m random Fourier features of that, whose inner products approximate
    exp(-gamma |a - b|^2). They are drawn from ``seed`` and saved with the scorer. A zero vector
    has the direction zero.

    ``components`` below 1 is the share of the variance that the fewest components must hold (the
    last direction that the fit rows span is always left out), from 1 on their number; by default
    0.85 for cosine, 0.8 for cosine-gaussian. ``fourier`` defaults to 4 d, at most 4096. These and
    ``gamma`` are the settings of the reference code for a ResNet-18 on CIFAR-10; for a ResNet-50 on
    ImageNet it has 0.99, or 0.5 with gamma 3 and 4096. Fit: one pass; state k x d + d x d for
    cosine, shared with mahalanobis of ``normalize: 1``, m x m for cosine-gaussian. A sweep over
    ``components`` reads nothing more.

    Raises :class:`ConfigError` for unknown options, a ``gamma`` that is not above 0, and as many
    components as dimensions or fit rows; :class:`DataError` for as many as the fit rows span.

    Reference: Fang, Tao, Lv, He, Huang and Yang 2024, "Kernel PCA for out-of-distribution
    detection", NeurIPS 2024, arXiv 2402.02949.
    Differs from the reference code: float64; nothing is added to the norm of a row; other random
    numbers for the same seed.
    """

    paper: ClassVar[str] = "Fang et al. 2024"
    formula: ClassVar[str] = "error of reconstruction of z / |z|, or of its Fourier features"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    kernel: str = "cosine"
    components: int | float | None = None
    gamma: float = 2.0
    fourier: int | None = None
    seed: int = 0
    pool: str = "mean"
    field: str = "features"

    def __post_init__(self) -> None:
        if self.kernel not in KERNELS:
            raise ConfigError(f"kernel: {self.kernel!r} is unknown; choose {' or '.join(KERNELS)}")
        if not 0 < self.gamma < inf:
            raise ConfigError(f"gamma: {self.gamma!r}; expected a finite number above 0, such as 2")
        if self.fourier is not None and self.fourier < 2:
            raise ConfigError(f"fourier: {self.fourier}; expected at least 2 random features")
        if self.seed < 0:
            raise ConfigError(f"seed: {self.seed}; expected an integer from 0 on")
        if self.components is not None:
            object.__setattr__(self, "components", as_components(self.components))

    @property
    def unused(self) -> dict[str, str]:
        setting = f"kernel: {self.kernel}"
        return dict.fromkeys(OF_GAUSSIAN, setting) if self.kernel == "cosine" else {}

    def passes(self, schema: Schema) -> Passes[DistanceScorer]:
        statistic = self._statistic(schema)
        (width,) = statistic.of.shape(schema)
        wanted = self.components or KERNELS[self.kernel]
        refuse_components(wanted if wanted >= 1 else None, width, schema.rows)
        results = yield {"moments": statistic}
        mean, covariance = _mean_and_covariance(results["moments"])
        space = principal_space(covariance)
        q = space.components(wanted, "kpca")
        error = ReconstructionError(statistic.of, Const(space.axes[:, :q]), Const(mean))
        note = (
            f"{q} of {width} components, the fit rows span {space.rank}; {space.held(q):.2%} held"
        )
        return DistanceScorer(error, notes=(note,))

    def _statistic(self, schema: Schema) -> ClassMoments | SecondMoment:
        """Return the moments of the mapped features; those of directions are shared."""
        directions = normalized(Pooled(self.pool, self.field), 1.0)
        if self.kernel == "cosine":
            return ClassMoments(of=directions)
        (d,) = directions.shape(schema)
        m = self.fourier or min(FOURIER_PER_FEATURE * d, FOURIER_LIMIT)
        return SecondMoment(of=RandomFourier.drawn(directions, d, m, self.gamma, self.seed))


def _mean_and_covariance(moments: Moments | Spread) -> tuple[Host, Host]:
    if isinstance(moments, Moments):
        return moments.overall_mean, moments.overall_covariance
    return moments.mean, moments.covariance
