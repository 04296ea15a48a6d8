"""Class-wise Gaussians: the negative log-likelihood of a mixture with one Gaussian per class."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.linalg import (
    Host,
    Regularised,
    check_covariance,
    check_regularisation,
    regularise,
    squared_norms,
    whiten,
)
from pipeline.procedure import REHEARSING, Passes
from pipeline.statistics import (
    ClassMoments,
    ClassScatters,
    ClassVariances,
    Moments,
    Scatters,
    Variances,
)
from pipeline.views import Pooled, Projected, View, normalized

__all__ = ["GMM"]

COVARIANCES = ("ridge", "oas", "jitter", "tied", "diagonal")


@value
class GMM:
    """Negative log-likelihood of class-wise Gaussians: - log sum_c pi_c N(z; mu_c, S_c).

    z (n, d) are pooled features; pi_c the share of the fit rows that is of class c, mu_c its mean
    and S_c its covariance, scatter / n_c. Sums are formed in log space.

    ``covariance``: ``ridge`` adds ``ridge`` times trace / d of the class to the diagonal of S_c;
    ``oas`` shrinks S_c towards trace / d by as much as n_c asks for, which suits classes of few
    rows; ``jitter`` adds ``ridge`` itself; ``tied`` takes the within-class covariance for all
    classes, with the relative ridge; ``diagonal`` takes the variance of each feature in each class,
    with the relative ridge. A ridge is raised ten times, and again, until a float64 Cholesky factor
    exists. A class of one row, or whose rows are all alike, has the covariance within all classes;
    classes without rows are left out. The notes say how many classes were which. ``normalize`` is
    that of mahalanobis.

    Fit: one pass. State k x d x d, cut into ranges of classes where a worker cannot hold it, with
    one pass for each; ``tied`` k x d + d x d, shared with mahalanobis; ``diagonal`` k x d. The
    scorer holds k matrices (d, d), float64, and multiplies each row by all of them: for 1,000
    classes of 1,024 features 8.4 GB on every worker, three times that on the client while it fits,
    and 2.1 GFLOP a row. Beside them it takes the memory of one tile of rows, whatever their number.
    ``tied`` and ``diagonal`` hold k x d and take k x d operations a row.

    Raises :class:`ConfigError` for unknown options, :class:`DataError` for features that vary in no
    class.

    Reference: Mukhoti, Kirsch, van Amersfoort, Torr and Gal 2023, "Deep deterministic uncertainty:
    a new simple baseline", arXiv 2102.11582, and its code. ``oas``: Chen, Wiesel, Eldar and Hero
    2010, "Shrinkage algorithms for MMSE covariance estimation", arXiv 0907.4698.
    Differs from the reference code: covariance divided by n_c, not n_c - 1; a ridge relative to
    trace / d of each class, where it adds the same least power of ten to all; the likelihood with
    the shares of the classes, where it leaves them out.
    """

    pool: str = "mean"
    field: str = "features"
    covariance: str = "ridge"
    ridge: float = 1e-6
    normalize: float = 0.0

    paper: ClassVar[str] = "Mukhoti et al. 2023"
    formula: ClassVar[str] = "- log sum_c pi_c N(z; mu_c, S_c)"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "pytorch-ood-0.4": {"covariance": "jitter"}
    }

    def __post_init__(self) -> None:
        check_regularisation(self.covariance, self.ridge, COVARIANCES)
        self._features()

    def _features(self) -> View:
        return normalized(Pooled(self.pool, self.field), self.normalize)

    def passes(self, schema: Schema) -> Passes[GMMScorer | DiagonalGMMScorer]:
        of = self._features()
        asked = {"tied": ClassMoments, "diagonal": ClassVariances}.get(
            self.covariance, ClassScatters
        )
        results = yield {"moments": asked(of=of)}
        if self.covariance == "tied":
            return self._tied(of, results["moments"])
        if self.covariance == "diagonal":
            return self._diagonal(of, results["moments"])
        return self._full(of, results["moments"])

    def _full(self, of: View, scatters: Scatters) -> GMMScorer:
        classes, d = scatters.mean.shape
        if REHEARSING.get():
            # As large as the one of the fit on paper, and one matrix in memory.
            one = Const(np.eye(d))
            matrices = tuple(one.renamed(f"of class {c}") for c in range(classes))
            return GMMScorer(of, matrices, Const(scatters.mean), Const(np.zeros(classes)))
        present = np.flatnonzero(scatters.count)
        count, means = scatters.count[present], scatters.mean[present]
        varies = _varies(count, means, np.trace(scatters.scatter, axis1=1, axis2=2)[present])
        few = 0 if self.covariance == "oas" else d
        within = scatters.scatter.sum(axis=0) / count.sum()
        check_covariance(within * varies.any())
        tied = None if varies.all() else self._regularised(within, int(count.sum()))
        fits = []
        for c, n, own in zip(present, count, varies, strict=True):
            fit = self._regularised(scatters.scatter[c] / n, int(n)) if own or not tied else tied
            fits.append(fit)
        return GMMScorer(
            of,
            tuple(fit.whitening for fit in fits),
            Const(means),
            Const(np.log(count / count.sum()) - [fit.half_log_norm for fit in fits]),
            (_of(classes, count), _range(fits), *_warnings(count, few, varies)),
        )

    def _regularised(self, covariance: Host, rows: int) -> Fit:
        return Fit.of(regularise(covariance, self.covariance, self.ridge, rows))

    def _tied(self, of: View, moments: Moments) -> DiagonalGMMScorer:
        present = moments.count > 0
        count, origin = moments.count[present], moments.overall_mean
        white = whiten(moments.covariance, "ridge", self.ridge)
        means = (moments.mean[present] - origin) @ white.matrix
        half_log_norm = _half_log_norm(-2.0 * np.log(np.diag(white.matrix)).sum(), len(origin))
        return DiagonalGMMScorer(
            Projected(of, Const(white.matrix), Const(origin)),
            Const(means),
            Const(np.ones_like(means)),
            Const(np.log(count / count.sum()) - half_log_norm),
            (_of(len(present), count), f"one covariance for all; {white.note}"),
        )

    def _diagonal(self, of: View, moments: Variances) -> DiagonalGMMScorer:
        present = np.flatnonzero(moments.count)
        count, means = moments.count[present], moments.mean[present]
        scatter = moments.scatter[present]
        within = scatter.sum(axis=0) / count.sum()
        varies = _varies(count, means, scatter.sum(axis=1))
        check_covariance(np.diag(within * varies.any()))
        variance = np.where(varies[:, None], scatter / count[:, None], within)
        variance += self.ridge * variance.mean(axis=1, keepdims=True)
        d = variance.shape[1]
        half_log_norm = _half_log_norm(np.log(variance).sum(axis=1), d)
        return DiagonalGMMScorer(
            of,
            Const(means),
            Const(1.0 / np.sqrt(variance)),
            Const(np.log(count / count.sum()) - half_log_norm),
            (
                _of(len(moments.count), count),
                f"variances; ridge {self.ridge:.0e} of their mean",
                *_warnings(count, 0, varies),
            ),
        )


@dataclass(frozen=True)
class Fit:
    """What is kept of the covariance of a class."""

    whitening: Const
    half_log_norm: float
    """Half of log((2 pi)^d |S|)."""
    ridge: float
    shrinkage: float | None
    unit: str

    @classmethod
    def of(cls, made: Regularised) -> Fit:
        """Keep the whitening of a regularised covariance, not its factor."""
        half = float(_half_log_norm(made.log_determinant, len(made.factor)))
        return cls(Const(made.whitening), half, made.ridge, made.shrinkage, made.unit)


def _half_log_norm(log_determinant: Any, d: int) -> Any:
    return (log_determinant + d * math.log(2 * math.pi)) / 2


def _varies(count: Host, means: Host, traces: Host) -> Host:
    """Tell which classes (c,) have rows that differ by more than the rounding of their features."""
    d = means.shape[1]
    rounding = d * (4 * np.finfo(np.float64).eps * np.abs(means).max(axis=1)) ** 2
    varies: Host = (count > 1) & (traces > rounding * count)
    return varies


def _of(classes: int, count: Host) -> str:
    return f"Gaussians of {len(count)} of {classes} classes"


def _range(fits: Sequence[Fit]) -> str:
    """Say what was done to the covariances: from the least to the most."""
    shrinkages = [fit.shrinkage for fit in fits if fit.shrinkage is not None]
    ridges = [fit.ridge for fit in fits]
    said = f"OAS shrinkage {_from_to(shrinkages, '.1e')}" if shrinkages else ""
    if max(ridges) > 0:
        added = f"ridge {_from_to(ridges, '.0e')} {fits[0].unit}"
        said = f"{said} and {added}" if said else added
    return f"a covariance each; {said}"


def _from_to(numbers: Sequence[float], form: str) -> str:
    least, most = format(min(numbers), form), format(max(numbers), form)
    return least if least == most else f"{least} to {most}"


def _warnings(count: Host, enough: int, varies: Host) -> Iterator[str]:
    """Say how many classes have the covariance of all, or too few rows for one of their own."""
    alike, few = int((~varies).sum()), int((count[varies] <= enough).sum())
    if alike:
        yield (
            f"{alike} classes of one row, or of rows that are all alike, have the covariance "
            "within all classes"
        )
    if few:
        yield (
            f"{few} classes have no more rows than the {enough} features: their covariances are "
            "singular but for what was added; covariance: oas, tied or diagonal suit few rows"
        )


@value
class GMMScorer:
    """Negative log-likelihood under Gaussians with a covariance each, whitened one by one."""

    of: View
    matrices: tuple[Const, ...]
    """A whitening matrix (d, d) for each of the classes that had rows."""
    means: Const
    """(c, d)."""
    constants: Const
    """Log of the share of each class over the norm of its Gaussian: (c,)."""
    notes: tuple[str, ...] = ()

    @property
    def views(self) -> tuple[View, ...]:
        return (self.of,)

    def score(self, chunk: Chunk) -> Array:
        x = self.of(chunk)
        means, constants = self.means.like(x), self.constants.like(x)
        # One class will do for rows that are made up: the others would only take time.
        matrices = self.matrices[:1] if REHEARSING.get() else self.matrices

        def surprise(rows: Array) -> Array:
            densities = _densities(rows, len(matrices))
            for c, matrix in enumerate(matrices):
                white = arrays.row_products(rows, matrix.like(rows), means[c, :])
                densities[:, c] = constants[c] - squared_norms(white) / 2
            return _negative_log_sum_exp(densities)

        return arrays.by_tiles(surprise, x)


@value
class DiagonalGMMScorer:
    """Negative log-likelihood under Gaussians whose coordinates are independent."""

    coordinates: View
    means: Const
    """Means (c, r) of the classes that had rows."""
    scales: Const
    """One over the standard deviation of each coordinate in each class: (c, r)."""
    constants: Const
    """Log of the share of each class over the norm of its Gaussian: (c,)."""
    notes: tuple[str, ...] = ()

    @property
    def views(self) -> tuple[View, ...]:
        return (self.coordinates,)

    def score(self, chunk: Chunk) -> Array:
        x = self.coordinates(chunk)
        means, scales, constants = (c.like(x) for c in (self.means, self.scales, self.constants))

        def surprise(rows: Array) -> Array:
            densities = _densities(rows, means.shape[0])
            for c in range(means.shape[0]):
                white = rows - means[c, :]
                white *= scales[c, :]
                densities[:, c] = constants[c] - squared_norms(white) / 2
            return _negative_log_sum_exp(densities)

        return arrays.by_tiles(surprise, x)


def _densities(rows: Array, classes: int) -> Array:
    xp = arrays.namespace(rows)
    shape = (rows.shape[0], classes)
    return xp.empty(shape, dtype=xp.float64, device=arrays.device_of(rows))


def _negative_log_sum_exp(densities: Array) -> Array:
    """Return -log sum exp (n,) of logarithms (n, c)."""
    xp = arrays.namespace(densities)
    largest = xp.max(densities, axis=1)
    return -largest - xp.log(xp.sum(xp.exp(densities - largest[:, None]), axis=1))
