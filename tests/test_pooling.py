"""Ways to make one vector of the tokens of an image, and what each is refused or kept for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from engine.durable_store import make

import pipeline as ff
from pipeline import detectors
from pipeline.arrays import to_host
from pipeline.chunk import ArraySpec, Schema
from pipeline.engine import Job, Threads, run_jobs, run_serial
from pipeline.errors import BudgetError, ConfigError
from pipeline.statistics import ClassMeans
from pipeline.store import reader
from pipeline.testing import Data, StatisticLaws, assert_same, drive, labelled, recipes
from pipeline.testing.recipes import Host, regular
from pipeline.views import POOLS, Pooled

REDUCED = ("max", "gem", "topk")


def rows(n: int = 40, t: int = 25, d: int = 6, *, masked: bool = False) -> Data:
    rng = np.random.default_rng(0)
    arrays: dict[str, Host] = {
        "features": rng.standard_normal((n, t, d)).astype("f4"),
        "labels": rng.integers(0, 3, n),
    }
    if masked:
        arrays["mask"] = np.arange(t) < rng.integers(1, t + 1, n)[:, None]
        arrays["mask"][7], arrays["mask"][8] = False, True
        arrays["features"][~arrays["mask"]] = np.nan
    return Data(arrays, 3)


def seen(view: Pooled, data: Data, library: str = "numpy", size: int = 0) -> Host:
    cut = data.cut(regular(data.rows, size) if size else None)
    blocks = drive.chunks(cut, view.fields, drive.PLACES[library])
    return np.concatenate([to_host(view(chunk)) for block in blocks for chunk in block])


def pooled(tokens: Host, how: str) -> Host:
    """Pool the valid tokens (t, d) of one row."""
    tokens = tokens.astype(np.float64)
    if how == "max":
        return tokens.max(axis=0)
    if how == "topk":
        return np.sort(tokens, axis=0)[::-1][: -(-len(tokens) // 10)].mean(axis=0)
    return np.cbrt((np.maximum(tokens, 1e-6) ** 3).mean(axis=0))


@pytest.mark.parametrize("library", drive.PLACES)
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("how", REDUCED)
def test_each_way_counts_the_valid_tokens(how: str, masked: bool, library: str) -> None:
    data = rows(masked=masked)
    tokens = data.arrays["features"]
    valid = data.arrays.get("mask", np.ones(tokens.shape[:2], bool))
    found = seen(Pooled(how), data, library)
    assert found.dtype == np.float64
    for row, (x, kept) in enumerate(zip(tokens, valid, strict=True)):
        expected = pooled(x[kept], how) if kept.any() else np.full(6, np.nan)
        np.testing.assert_allclose(found[row], expected, rtol=1e-13)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("how", [*REDUCED, "force_flatten"])
def test_bits_do_not_depend_on_the_rows_beside(how: str, masked: bool) -> None:
    data = rows(masked=masked)
    whole = seen(Pooled(how), data)
    for size in (1, 7, 39):
        assert_same(seen(Pooled(how), data, size=size), whole)


@pytest.mark.parametrize("how", REDUCED)
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_no_way_hides_a_token_that_is_not_finite(how: str, odd: float) -> None:
    data = rows()
    data.arrays["features"][3, 4, 2] = odd
    found = np.argwhere(~np.isfinite(seen(Pooled(how), data)))
    np.testing.assert_array_equal(found, [[3, 2]])


@pytest.mark.parametrize("how", [*POOLS, "flatten", "force_flatten"])
def test_vectors_pass_through(how: str) -> None:
    vectors = np.random.default_rng(0).standard_normal((9, 5)).astype("f2")
    data = Data({"features": vectors, "cls": vectors, "labels": np.zeros(9, int)}, 1)
    assert Pooled(how).shape(data.schema) == (5,)
    np.testing.assert_array_equal(seen(Pooled(how), data), vectors)


def test_one_token_is_itself() -> None:
    data = rows(t=1)
    data.arrays["features"][:] = np.abs(data.arrays["features"]) + 1
    for how in REDUCED:
        np.testing.assert_allclose(seen(Pooled(how), data), data.arrays["features"][:, 0], 1e-15)


class PoolLaws(StatisticLaws):
    how: str

    def reference(self, rows: Mapping[str, Any]) -> Any:
        means = ClassMeans(of=Pooled("mean", "features"))
        kept = np.stack([pooled(x, self.how) for x in rows["features"]])
        data = Data({"features": kept, "labels": rows["labels"]}, 5)
        return drive.fold_all(means, data.cut())


class TestMax(PoolLaws):
    how, statistic = "max", ClassMeans(of=Pooled("max"))


class TestGeM(PoolLaws):
    how, statistic = "gem", ClassMeans(of=Pooled("gem"))


class TestTopK(PoolLaws):
    how, statistic = "topk", ClassMeans(of=Pooled("topk"))


class TestForcedFlatten(StatisticLaws):
    statistic = ClassMeans(of=Pooled("force_flatten"))
    memory_shapes = (recipes.Shape(1, 2, 128, 20), recipes.Shape(500, 4, 64, 20, "float16", True))

    def reference(self, rows: Mapping[str, Any]) -> Any:
        flat = rows["features"].reshape(len(rows["features"]), -1)
        data = Data({"features": flat, "labels": rows["labels"]}, 5)
        return drive.fold_all(ClassMeans(), data.cut())


# Flattening

STORY = Schema(
    50_000,
    1000,
    {"features": ArraySpec((49, 1024), "float32"), "labels": ArraySpec((), "int64")},
    "id/train",
)


@pytest.mark.parametrize(
    "part", ["50,176 features", "20.1 GB", "294 TFLOP", "rank 49,000", "matrix_normal"]
)
def test_flattening_is_refused_with_what_it_would_cost(part: str) -> None:
    with pytest.raises(BudgetError, match=part):
        Pooled("flatten").shape(STORY)


def test_flattening_is_refused_before_anything_is_read() -> None:
    data = labelled()
    x, y = data.arrays["features"], data.arrays["labels"]
    with pytest.raises(BudgetError, match="48 features of 4 x 12 tokens"):
        ff.fit(ff.detectors.Mahalanobis(pool="flatten"), (x, y))
    forced = ff.fit(ff.detectors.Mahalanobis(pool="force_flatten"), (x, y))
    flat = ff.fit("mahalanobis", (x.reshape(len(x), -1), y))
    test = labelled(rows=9, seed=3).arrays["features"]
    (found,) = (member(test) for member in forced.values())
    np.testing.assert_allclose(found, flat["mahalanobis"](test.reshape(9, -1)), rtol=1e-9)


def test_masked_tokens_are_flattened_as_the_mean_of_the_others() -> None:
    data = rows(masked=True)
    mask, tokens = data.arrays["mask"], data.arrays["features"].astype(np.float64)
    found = seen(Pooled("force_flatten"), data).reshape(tokens.shape)
    np.testing.assert_array_equal(found[mask], tokens[mask])
    others = np.broadcast_to(tokens[0][mask[0]].mean(axis=0), (25, 6))
    np.testing.assert_allclose(found[0][~mask[0]], others[~mask[0]], rtol=1e-6)
    assert np.isnan(found[7]).all()


# Options


def test_unknown_words_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"pool: 'median'.*mean, cls, max, gem, topk"):
        Pooled("median")
    with pytest.raises(ConfigError, match="pool: cls is the stored array cls, not part of tap"):
        Pooled("cls", "tap")


# Copies


@pytest.mark.parametrize("how", REDUCED)
def test_a_pass_leaves_a_copy_that_later_fits_read(how: str, tmp_path: Any) -> None:
    store = make(tmp_path / "feats.zarr", 5)

    def jobs(*names: str, how: str = how) -> dict[str, Job]:
        role = {"train": (store.split("id/train"),)}
        return {name: Job(detectors.load(name)(pool=how), role) for name in names}

    execute = Threads(2, tmp_path / "cache")
    run_jobs(jobs("mahalanobis"), execute)
    reader.reset_reads()
    asked = jobs("she", "relative_mahalanobis")
    found = run_jobs(asked, execute)
    assert {name for _, name, _ in reader.READS} <= {"labels", "logits"}
    assert found == run_jobs(asked, run_serial)
    reader.reset_reads()
    other = jobs("she", how="mean")  # the copy is of another kind
    assert run_jobs(other, execute) == run_jobs(other, run_serial)
    assert "features" in {name for _, name, _ in reader.READS}


def test_two_kinds_in_one_pass_are_both_kept(tmp_path: Any) -> None:
    store = make(tmp_path / "feats.zarr", 5)
    role = {"train": (store.split("id/train"),)}
    execute = Threads(1, tmp_path / "cache")
    both = {how: Job(ff.detectors.Mahalanobis(pool=how), role) for how in ("mean", "max")}
    run_jobs(both, execute)
    for how in both:
        job = {how: Job(ff.detectors.SHE(pool=how), role)}
        expected = run_jobs(job, run_serial)
        reader.reset_reads()
        assert run_jobs(job, execute) == expected
        assert "features" not in {name for _, name, _ in reader.READS}
