"""Statistics on a real GPU, by both libraries: the numbers of the host, twice the same bits."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

from pipeline import arrays
from pipeline.arrays import Place, devices
from pipeline.fold import fold
from pipeline.statistics import ClassMeans, ClassMoments, ConfusionMatrix, Sums
from pipeline.testing import recipes
from pipeline.testing.compare import assert_close, assert_same

STATISTICS = (ClassMoments(), ClassMeans(), ConfusionMatrix(), Sums())
PLACES = [Place("torch", "cuda"), *([Place("cupy")] if find_spec("cupy") else [])]

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("size", [7, 100])
def test_a_gpu_finds_what_the_host_finds(place: Place, size: int) -> None:
    split = recipes.labelled(1000).cut([[size] * (1000 // size) + [1000 % size]])
    expected = fold(STATISTICS, split, split.blocks[0]).states
    once, again = (fold(STATISTICS, split, split.blocks[0], place=place).states for _ in range(2))
    assert_same(once, again)
    for statistic, ours, theirs in zip(STATISTICS, once, expected, strict=True):
        assert_close(statistic.finalize(ours), statistic.finalize(theirs), 1e-9)
    device = devices.of(place)
    assert device is not None
    assert device.peak_nbytes() > 0


@pytest.mark.parametrize("place", PLACES)
def test_kernels_find_what_those_of_the_host_find(place: Place) -> None:
    rng = np.random.default_rng(0)
    x, ids, w = rng.standard_normal((5000, 40)), rng.integers(0, 300, 5000), rng.random(5000)
    wide = rng.integers(0, 70_000, 5000)
    cases: list[tuple[Any, ...]] = [
        (arrays.sum_by_id, x, ids),
        (arrays.bincount, wide, 70_000),
        (arrays.sum_in_bins, ids, w, 300),
        (arrays.sum_integers_in_bins, ids, wide - 35_000, 300),
        (arrays.top_k, x, 7),
        (arrays.syrk_into, np.zeros((40, 40)), x),
        (arrays.scatter_rows, np.ones((300, 40)), np.arange(10), x[:10]),
        (arrays.add_rows_into, np.ones((300, 40)), np.arange(10), x[:10]),
        (arrays.clear_at, x[:40], np.arange(40)),
        (arrays.sort_keys, w),
        (arrays.solve_lower, np.tri(40) + np.eye(40), x[:40]),
    ]
    for kernel, *arguments in cases:
        expected = kernel(*(a.copy() if isinstance(a, np.ndarray) else a for a in arguments))
        placed = [place.put(a) if isinstance(a, np.ndarray) else a for a in arguments]
        found = arrays.map_arrays(arrays.to_host, kernel(*placed))
        assert_close(found, expected, 1e-11)
