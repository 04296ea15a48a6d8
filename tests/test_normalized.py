"""Features divided by a power of their length, and their class moments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from pipeline import detectors
from pipeline.arrays import to_host
from pipeline.engine import Job, Trace, run_jobs
from pipeline.errors import ConfigError
from pipeline.statistics import ClassMoments, Moments
from pipeline.testing import Data, StatisticLaws, assert_same, drive, labelled, recipes
from pipeline.views import Normalized, Pooled, TokenMeans, Tokens, normalized, token_means

CLASSES = 5


def scaled(x: Any, beta: float) -> Any:
    length = np.linalg.norm(x, axis=-1, keepdims=True)
    return x / np.where(length == 0, 1.0, length) ** beta


def moments(x: Any, y: Any) -> Moments:
    d = x.shape[1]
    count, mean, scatter = np.zeros(CLASSES, int), np.zeros((CLASSES, d)), np.zeros((d, d))
    for c in np.unique(y):
        rows = x[y == c]
        count[c], mean[c] = len(rows), rows.mean(axis=0)
        scatter += (rows - mean[c]).T @ (rows - mean[c])
    return Moments(count, mean, scatter)


class TestUnitVectors(StatisticLaws):
    statistic = ClassMoments(of=Normalized(Pooled()))
    tolerance = 1e-8  # far from zero all directions are alike

    def reference(self, rows: Mapping[str, Any]) -> Moments:
        kept = rows["labels"] >= 0
        x = scaled(rows["features"].mean(axis=1), 1.0)
        return moments(x[kept], rows["labels"][kept])


def masked(data: Data) -> Data:
    """Leave a varying number of valid tokens per row; the others hold NaN."""
    n, t, _ = data.arrays["features"].shape
    mask = np.arange(t) < 1 + np.arange(n)[:, None] % t
    mask[11] = False  # a void row
    features = np.where(mask[:, :, None], data.arrays["features"], np.nan)
    return data.with_arrays(features=features, mask=mask)


class TestMaskedTokens(StatisticLaws):
    statistic = ClassMoments(of=Normalized(Tokens(), 0.5), precision="float64")
    tolerance = 1e-6  # tokens stay float32 once they are scaled

    def rows(self) -> Data:
        return masked(labelled(rows=80))

    def reference(self, rows: Mapping[str, Any]) -> Moments:
        kept = (rows["labels"] >= 0) & (rows["mask"] != 0).any(axis=1)
        x, y, mask = (rows[name][kept] for name in ("features", "labels", "mask"))
        flat = mask.reshape(-1) != 0
        y = np.repeat(y, x.shape[1])[flat]
        return moments(scaled(x.reshape(-1, x.shape[2])[flat], 0.5), y)


def chunk_of(data: Data, library: str = "numpy") -> Any:
    ((chunk,),) = drive.chunks(data.cut(), data.arrays, drive.PLACES[library])
    return chunk


def vectors(x: Any) -> Data:
    return Data({"features": x, "labels": np.zeros(len(x), int)}, 1)


@pytest.mark.parametrize("library", drive.PLACES)
@pytest.mark.parametrize("beta", [-0.5, 0.3, 1.0, 2.0])
def test_directions_are_kept_and_lengths_are_powers(library: str, beta: float) -> None:
    data = labelled(rows=150)
    for of, x in ((Pooled(), data.arrays["features"].mean(axis=1, dtype=np.float64)),
                  (Tokens(), data.arrays["features"])):  # fmt: skip
        found = to_host(Normalized(of, beta)(chunk_of(data, library)))
        assert found.dtype == x.dtype
        assert found.shape == x.shape == (150, *Normalized(of, beta).shape(data.schema))
        np.testing.assert_allclose(found, scaled(x.astype(np.float64), beta), rtol=2e-6)


@pytest.mark.parametrize("beta", [-3.0, 0.5, 1.0, 4.0])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_no_length_is_too_small_or_too_large(beta: float, dtype: str) -> None:
    x = np.zeros((5, 3), dtype)
    limits = np.finfo(dtype)
    x[1], x[2, 1], x[3], x[4, 0] = 1.0, limits.max, -limits.max, limits.smallest_subnormal
    found = Normalized(Pooled(), beta)(chunk_of(vectors(x)))
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found[0], 0.0)
    if beta == 1.0:
        np.testing.assert_allclose(np.linalg.norm(found[1:], axis=1), 1.0, rtol=1e-15)


def test_masked_tokens_hold_the_mean_of_the_scaled_ones() -> None:
    data = masked(labelled(rows=80))
    view, chunk = Normalized(Tokens()), chunk_of(masked(labelled(rows=80)))
    tokens, means = view(chunk), TokenMeans(view)(chunk)
    assert token_means(view) == TokenMeans(view)
    assert token_means(Tokens()) == Pooled()
    for row, mask in enumerate(data.arrays["mask"]):
        if not mask.any():
            assert np.isnan(means[row]).all()
            continue
        units = scaled(data.arrays["features"][row, mask].astype(np.float64), 1.0)
        np.testing.assert_allclose(means[row], units.mean(axis=0), rtol=1e-6, atol=1e-8)
        assert_same(tokens[row, ~mask], np.tile(means[row].astype("f4"), ((~mask).sum(), 1)))


@pytest.mark.parametrize("of", [Pooled(), Tokens()])
def test_the_bits_of_a_row_do_not_depend_on_the_rows_beside_it(of: Any) -> None:
    for data in (labelled(rows=150), masked(labelled(rows=150))):
        view = Normalized(of)
        every = view(chunk_of(data))
        for size in (1, 7, 149):
            cut = data.cut(recipes.regular(150, size))
            parts = [c for block in drive.chunks(cut, data.arrays) for c in block]
            assert_same(np.concatenate([view(part) for part in parts]), every)
            if of == Tokens():
                means = [TokenMeans(view)(part) for part in parts]
                assert_same(np.concatenate(means), TokenMeans(view)(chunk_of(data)))


def test_views_of_no_rows_are_empty() -> None:
    chunk = chunk_of(labelled(rows=9).take(slice(0, 0)))
    for view in (Normalized(Pooled()), Normalized(Tokens()), TokenMeans(Normalized(Tokens()))):
        assert view(chunk).shape[0] == 0


def test_an_exponent_of_zero_is_the_same_statistic() -> None:
    assert normalized(Pooled(), 0.0) == Pooled()
    with pytest.raises(ConfigError, match="normalize: nan"):
        normalized(Pooled(), float("nan"))
    split = labelled().cut()
    names = ("mahalanobis", "relative_mahalanobis")
    jobs = {
        f"{name} {beta}": Job(detectors.load(name)(normalize=beta), {"train": (split,)})
        for name in names
        for beta in (0.0, -0.0, 0.5, 1.0)
    }
    trace = Trace()
    run_jobs(jobs, trace=trace)
    (only,) = trace.passes
    asked = only.works[0].statistics
    assert len(asked) == 3
    assert ClassMoments() in asked
    assert ClassMoments(of=Normalized(Pooled(), 0.5)) in asked
