"""Count, mean and scatter of several groups of rows: states that are large by nature.

Groups never mix, so a state can be cut into stripes of groups that are folded one after the other,
with the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array
from pipeline.chunk import Schema
from pipeline.errors import ConfigError

PIECE_ROWS = 1024
"""Rows of a group that are multiplied at a time."""
Stripe = tuple[int, ...]
"""First group and the one after the last; empty for all groups."""


class Scatters(NamedTuple):
    """Moments of g groups over d features: the result, and the state of closed blocks."""

    count: Array
    """Rows per group: (g,) int64."""
    mean: Array
    """Means (g, d); zero for a group without rows."""
    scatter: Array
    """Sum over the rows of a group of (x - mean)(x - mean)': (g, d, d)."""

    @property
    def covariance(self) -> Array:
        """scatter / count (g, d, d); zero for a group without rows."""
        return self.scatter / np.maximum(self.count, 1)[:, None, None]


class OpenScatters(NamedTuple):
    """State inside a block: sums about the mean of the first rows of each group."""

    count: Array
    centre: Array
    total: Array
    """Sum of (x - centre): (g, d)."""
    scatter: Array
    """Sum of (x - centre)(x - centre)': (g, d, d)."""


State = Scatters | OpenScatters


def no_rows(groups: int, d: int) -> OpenScatters:
    """Return the state of no rows."""
    zeros = np.zeros((groups, d))
    return OpenScatters(np.zeros(groups, np.int64), zeros, zeros.copy(), np.zeros((groups, d, d)))


def add_rows(state: OpenScatters, group: int, rows: Array, products: Any) -> None:
    """Add at most a piece of rows (n, d) to one group, multiplied in the dtype ``products``."""
    if rows.shape[0] == 0:
        return
    xp = arrays.namespace(rows)
    rows = xp.astype(rows, xp.float64, copy=False)
    if int(state.count[group]) == 0:
        state.centre[group, ...] = xp.mean(rows, axis=0)
    deviation = rows - state.centre[group, ...][None, :]
    state.count[group] = state.count[group] + rows.shape[0]
    state.total[group, ...] = state.total[group, ...] + xp.sum(deviation, axis=0)
    factors = xp.astype(deviation, products, copy=False)
    state.scatter[group, ...] = arrays.syrk_into(state.scatter[group, ...], factors)


def closed(state: State) -> Scatters:
    """Return the partial of an open state, whose memory it takes over."""
    assert isinstance(state, OpenScatters)
    xp = arrays.namespace(state.count)
    size = xp.astype(xp.where(state.count > 0, state.count, 1), xp.float64)[:, None]
    offset = state.total / xp.sqrt(size)
    # Groups without rows are left alone: the memory behind their zeros is never asked for.
    for group in _present(state.count):
        state.scatter[group, ...] -= _square(offset[group, ...])
    return Scatters(state.count, state.centre + state.total / size, state.scatter)


def merged(a: State, b: State) -> Scatters:
    """Return the partial of both, by the pairwise update of Chan, Golub and LeVeque (1983)."""
    assert isinstance(a, Scatters)
    assert isinstance(b, Scatters)
    xp = arrays.namespace(a.count)
    count = a.count + b.count
    size = xp.astype(xp.where(count > 0, count, 1), xp.float64)
    share_a, share_b = (xp.astype(s.count, xp.float64) / size for s in (a, b))
    delta = b.mean - a.mean
    between = delta * xp.sqrt(share_a * share_b * size)[:, None]
    scatter = a.scatter + b.scatter
    for group in _present((a.count > 0) & (b.count > 0)):
        scatter[group, ...] += _square(between[group, ...])
    return Scatters(count, a.mean + share_b[:, None] * delta, scatter)


def _present(count: Array) -> list[int]:
    return [int(group) for group in np.flatnonzero(arrays.to_host(count))]


def _square(x: Array) -> Array:
    return x[:, None] * x[None, :]


def on_host(state: State) -> Scatters:
    """Return the result of a closed state."""
    assert isinstance(state, Scatters)
    return Scatters(*(arrays.to_host(x) for x in state))


def joined(results: Sequence[Scatters]) -> Scatters:
    """Return the result of all groups from those of the stripes."""
    count, mean = (np.concatenate([part[i] for part in results]) for i in range(2))
    scatter = np.zeros((*mean.shape, mean.shape[1]))
    start = 0
    for part in results:
        for group in _present(part.count):  # as above
            scatter[start + group] = part.scatter[group]
        start += len(part.count)
    return Scatters(count, mean, scatter)


def stripe_of(groups: int, stripe: Stripe, what: str) -> range:
    """Return the groups of a stripe; :class:`ConfigError` where there are none such."""
    ends = stripe or (0, groups)
    if len(ends) != 2 or not 0 <= ends[0] < ends[1] <= groups:
        raise ConfigError(f"stripe: {stripe}; expected a range within {groups} {what}")
    return range(*ends)


def cut(groups: range, n: int) -> list[Stripe]:
    """Return at most ``n`` stripes of nearly equal length, in order."""
    n = max(1, min(n, len(groups)))
    ends = [groups.start + i * len(groups) // n for i in range(n + 1)]
    return list(pairwise(ends))


def state_nbytes(groups: int, d: int) -> int:
    """Bytes of the state of ``groups`` groups, in either form."""
    return 8 * groups * (1 + 2 * d + d * d)


def absorb_nbytes(rows: int, d: int, kept_nbytes: int) -> int:
    """Bytes of temporaries while rows are added, of which ``kept_nbytes`` each are kept.

    A piece of the rows, its float64 form, their deviations and the factors; a product.
    """
    return rows * (kept_nbytes + 64) + 28 * min(rows, PIECE_ROWS) * d + 16 * d * d


def merge_nbytes(groups: int, d: int) -> int:
    """Bytes of temporaries of :func:`closed`, and of :func:`merged` beside its result."""
    return 8 * (3 * groups * d + 3 * d * d + 8 * groups)


def vector_width(shape: tuple[int, ...], schema: Schema) -> int:
    """Return d of a view of vectors (d,); :class:`ConfigError` for others."""
    if len(shape) != 1:
        raise ConfigError(f"{schema.split}: rows of shape {shape}; expected vectors (d,)")
    return shape[0]
