"""Principal spaces of features: what the detectors share that tell them from what is left over.

A space is all of its directions, largest variance first, so that a detector that keeps more or
fewer of them needs no other statistic.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from pipeline.arrays import Array
from pipeline.chunk import Chunk, Schema
from pipeline.content import Const, value
from pipeline.errors import ConfigError, DataError
from pipeline.heads import Head, beside_head, weights_present, with_weights
from pipeline.linalg import least_norm_root, principal_axes
from pipeline.procedure import REHEARSING, Passes
from pipeline.statistics import ClassMoments, Moments
from pipeline.views import Linear, View

Host = np.ndarray[Any, Any]

MADE_UP_ROWS = 64
"""Most dimensions that vectors of a rehearsal span."""
LARGE = 256
"""Features from which on a decomposition takes longer than to look whether rows are made up."""
ROUNDING = 1e-12
"""Share of the largest variance that counts as none where ranks are bounded."""


@dataclass(frozen=True)
class PrincipalSpace:
    """The principal directions of a second moment over d features."""

    axes: Host
    """(d, d), orthonormal columns, largest variance first."""
    variances: Host
    """Mean square of the rows along each axis: (d,)."""
    rank: int
    """Directions that the rows span, as far as their moment can tell from rounding."""

    def components(self, wanted: float, detector: str, left_out: int = 1) -> int:
        """Return how many axes to keep: ``wanted`` from 1 on, else so that they hold that share.

        A share never takes the last ``left_out`` of the directions that the rows span. Raises
        :class:`DataError` for a number that does, and for rows that span too few.
        """
        most = self.rank - left_out
        if wanted >= 1:
            number = int(wanted)
        else:
            held = np.cumsum(self.variances)
            number = int(np.searchsorted(held, wanted * held[-1])) + 1
            number = max(1, min(number, most))
        if number > most and not REHEARSING.get():
            raise DataError(
                f"{detector}: the fit rows span {self.rank} dimensions, and {number} components "
                f"{'leave nothing but rounding' if left_out else 'are more'}; choose fewer "
                "components or fit on more rows"
            )
        return number

    def held(self, number: int) -> float:
        """Return the share of the variance along the first axes."""
        total = self.variances.sum()
        return float(self.variances[:number].sum() / total) if total else 0.0


def principal_space(moment: Host, products: str = "float64") -> PrincipalSpace:
    """Return the principal directions of a second moment (d, d).

    ``products`` is the dtype in which the products of the moment were formed: it bounds the rank.
    The last one is remembered, since a sweep shares it. In a rehearsal, whose few rows span little,
    every direction counts as spanned. Its axes are those of the moment, which may be a real one;
    only where it is large, and plainly of made-up rows, those of the features spare the time.
    Raises :class:`DataError` for a moment that is not finite.
    """
    if not np.isfinite(moment).all():
        raise DataError("the second moment of the fit rows is not finite; look for huge features")
    d = len(moment)
    if REHEARSING.get() and d > LARGE and _spans_at_most(moment, MADE_UP_ROWS):
        return PrincipalSpace(np.eye(d), np.ones(d), d)
    key = (Const(moment).digest, products)
    space = _LAST.get(key)
    if space is None:
        _LAST.clear()  # before the next is made: matrices of thousands of rows are large
        space = _LAST[key] = _decomposed(moment, products)
    if not REHEARSING.get():
        return space
    # Directions that no made-up row varies along may still have to divide.
    return replace(space, rank=d, variances=np.where(space.variances > 0, space.variances, 1.0))


_LAST: dict[tuple[str, str], PrincipalSpace] = {}


def _decomposed(moment: Host, products: str) -> PrincipalSpace:
    axes, rank = principal_axes(moment, products)
    variances = np.maximum(np.einsum("ij,ij->j", axes, moment @ axes), 0.0)
    return PrincipalSpace(axes, variances, rank)


def _spans_at_most(moment: Host, most: int) -> bool:
    """Tell whether a second moment (d, d) has at most such a rank: pivoted Cholesky, d most^2."""
    rest = np.diag(moment).copy()
    rounding = ROUNDING * rest.max()
    factor = np.zeros((most, len(rest)))
    for step in range(most):
        pivot = int(rest.argmax())
        if rest[pivot] <= rounding:
            return True
        row = moment[pivot] - factor[:step, pivot] @ factor[:step]
        factor[step] = row / np.sqrt(rest[pivot])
        rest -= factor[step] ** 2
    return bool(rest.max() <= rounding)


def as_components(wanted: float) -> int | float:
    """Return a number of components, or the share of the variance that they must hold, below 1.

    Raises :class:`ConfigError` for anything else.
    """
    if isinstance(wanted, bool) or not (0 < wanted < 1 or (wanted >= 1 and wanted % 1 == 0)):
        raise ConfigError(
            f"components: {wanted!r}; expected a number of them, such as 64, or the share of the "
            "variance that they hold, such as 0.97"
        )
    return wanted if wanted < 1 else int(wanted)


def refuse_components(
    wanted: float | None, d: int, rows: int, name: str = "components", left_out: int = 1
) -> None:
    """Raise :class:`ConfigError` where components leave out less of d features, or of the rows."""
    if d < 2:
        raise ConfigError(f"{name}: one feature has no principal directions; at least 2 are needed")
    if wanted is None:
        return
    if wanted > d - left_out:
        what = "leaves no residual; choose it below" if left_out else "are too many; choose up to"
        raise ConfigError(f"{name}: {wanted} of {d} features {what} {d}")
    if 0 < rows <= wanted:
        raise ConfigError(
            f"{name}: {wanted} leaves no residual of {rows} fit rows; choose it well below {rows} "
            "or fit on more rows"
        )


def usual_dim(d: int) -> int:
    """Return the dimension of a principal space of d features that ViM defaults to."""
    return 1000 if d >= 1500 else 512 if d >= 768 else d // 2


def dim_within(dim: int | None, usual: int, rank: int, rows: int) -> int:
    """Return ``dim``, else the usual one; half the rank where the rows span no more than that."""
    chosen = dim or usual
    too_few = chosen >= rank and (dim is None or rows <= chosen)
    return max(1, rank // 2) if too_few else chosen


def refuse_no_residual(dim: int, rank: int, detector: str) -> None:
    """Raise :class:`DataError` where a principal space takes all that the fit rows span."""
    if dim >= rank and not REHEARSING.get():
        raise DataError(
            f"{detector}: the fit rows span {rank} dimensions, so nothing but rounding is left "
            f"outside {dim} principal ones; choose dim below {rank} or fit on more rows"
        )


class AboutRoot(NamedTuple):
    """A head, the point where its logits vanish, and the principal space of the rows about it."""

    logits: Linear
    root: Host
    """u (d,), of least norm."""
    space: PrincipalSpace
    rows: int
    """Rows that were fitted on."""


def about_root(
    head: Head, statistic: ClassMoments, schema: Schema, detector: str
) -> Passes[AboutRoot]:
    """Ask for the class moments beside what the head needs; return the space about its root."""
    moments: Moments
    given, moments = yield from beside_head(head, schema, statistic)
    logits = with_weights(given, statistic.of, detector)
    root = least_norm_root(*weights_present(logits))
    moment = moment_about(moments, root)
    return AboutRoot(logits, root, principal_space(moment, statistic.products), moments.rows)


def moment_about(moments: Moments, point: Host) -> Host:
    """Return the second moment about a point: both terms are positive, so nothing cancels."""
    offset = moments.overall_mean - point
    moment: Host = moments.overall_covariance + np.outer(offset, offset)
    return moment


@value
class DistanceScorer:
    """Squared length of what a view leaves of a row, or its root; plus a constant."""

    squared: View
    """() or, of tokens, (t,)."""
    root: bool = True
    offset: float = 0.0
    notes: tuple[str, ...] = ()
    image: str = "max"

    @property
    def views(self) -> tuple[View, ...]:
        return (self.squared,)

    def score(self, chunk: Chunk) -> Array:
        squared = self.squared(chunk)
        return (squared**0.5 if self.root else squared) + self.offset
