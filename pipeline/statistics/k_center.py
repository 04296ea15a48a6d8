"""Greedy k-center: the entries that are farthest from all that were chosen before.

Each entry may stand for others already, which lie within its reach. Then the entry that is chosen
is the one farthest away with half its reach added: the bound on how far those others end up does
not grow much, and the guarantee below stays.

Guarantee: let the best k centres, chosen knowing all of the data, lie within r of all of it. Then
the entries of any part of the data are within 2 r of the k chosen of them, and what these stand
for within 2 r and their largest reach: k + 1 entries that are farther apart than that would be two
in one of the best balls (Gonzalez 1985, "Clustering to minimize the maximum intercluster
distance"). So the k chosen of the union of what was chosen of several parts lie within 4 r of all
of the data (Malkomes, Kusner, Chen, Weinberger and Moseley 2015, "Fast distributed k-center
clustering with outliers on massive data"), and each further union on the way adds 2 r.
"""

from __future__ import annotations

import numpy as np

from pipeline import arrays
from pipeline.arrays import Array

PROJECTED = 128
"""Random directions in which distances are compared, as in the reference code of PatchCore."""
STARTS = 10
"""Random entries; the one farthest from them on average is chosen first."""


def k_center(
    entries: Array, count: int, seed: int, reach: Array | None = None
) -> tuple[Array, Array]:
    """Return which ``count`` of the entries (m, d) are chosen, and which of these each is near.

    Both are int64, (count,) in the order of the choice, and (m,) positions in it. Of entries that
    are equally far the first is chosen. ``count`` is at most m.
    """
    xp, device = arrays.namespace(entries), arrays.device_of(entries)
    m = entries.shape[0]
    # An offset would cost the distances their digits.
    points = entries - xp.mean(entries, axis=0, keepdims=True)
    norms = xp.sum(points * points, axis=1)

    def distances(centre: int) -> Array:
        squared = norms + norms[centre] - 2 * xp.matmul(points, points[centre, :])
        return xp.sqrt(xp.where(squared > 0, squared, xp.zeros_like(squared)))

    starts = np.random.default_rng(seed).permutation(m)[:STARTS]
    far = xp.zeros((m,), dtype=xp.float64, device=device)
    for start in starts:
        far = far + distances(int(start))
    beyond = xp.zeros_like(far) if reach is None else reach / 2
    nearest = xp.full_like(far, xp.inf)
    owner = xp.zeros((m,), dtype=xp.int64, device=device)
    chosen: list[int] = []
    for place in range(count):
        chosen.append(int(xp.argmax(far)))
        found = distances(chosen[-1])
        closer = found < nearest
        nearest = xp.where(closer, found, nearest)
        owner = xp.where(closer, xp.full_like(owner, place), owner)
        owner[chosen[-1]] = place
        beyond[chosen[-1]] = -xp.inf  # it is not chosen again, whatever twins it has
        far = nearest + beyond
    return xp.asarray(chosen, dtype=xp.int64, device=device), owner


def reaches(entries: Array, reach: Array, chosen: Array, owner: Array) -> Array:
    """Return how far what each of the chosen entries stands for is from it at most, (count,)."""
    xp, device = arrays.namespace(entries), arrays.device_of(entries)
    centres = xp.take(entries, chosen, axis=0)

    def of_tile(rows: Array, owners: Array) -> Array:
        difference = rows - xp.take(centres, owners, axis=0)
        return xp.sqrt(xp.sum(difference * difference, axis=1))

    far = arrays.by_tiles(of_tile, entries, owner) + reach
    order = xp.argsort(far, stable=True)
    order = xp.take(order, xp.argsort(xp.take(owner, order), stable=True))
    places = xp.arange(chosen.shape[0], dtype=xp.int64, device=device)
    ends = xp.searchsorted(xp.take(owner, order), places, side="right")
    return xp.take(far, xp.take(order, ends - 1))


def projected(entries: Array, seed: int) -> Array:
    """Return the entries (m, d) in random directions, where there are fewer of these."""
    d = entries.shape[1]
    if d <= PROJECTED:
        return entries
    directions = np.random.default_rng(seed).standard_normal((d, PROJECTED)) / PROJECTED**0.5
    return arrays.row_products(entries, arrays.like(directions, entries))
