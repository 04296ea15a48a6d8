"""The Python interface, as people type it."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from sklearn.metrics import roc_auc_score

import pipeline as ff
from pipeline.api import Fitted
from pipeline.chunk import ArraySpec
from pipeline.errors import BudgetError, ConfigError, CorruptError, DataError, UnknownNameError
from pipeline.store import ArraySplit

K, T, D = 5, 4, 12
ALL = ("msp", "max_logit", "energy", "mahalanobis", "relative_mahalanobis", "kl_matching", "she",
       "vim")  # fmt: skip


def draw(n, seed, shift=0.0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, K, n)
    x = rng.standard_normal((n, T, D)) + 6 * np.eye(K, D)[y][:, None, :] + shift
    return x.astype("f4"), y


@pytest.fixture(scope="module")
def fitted():
    return ff.fit(ALL, draw(400, 0), workers=2)


def test_one_call_fits_everything_in_two_passes(fitted):
    assert tuple(fitted) == ALL
    assert fitted.passes == 2
    assert {name: fitted[name].passes for name in ("msp", "mahalanobis", "vim")} == {
        "msp": 1, "mahalanobis": 1, "vim": 2,
    }  # fmt: skip


def test_far_rows_score_higher_than_near_ones(fitted):
    inside, outside = draw(200, 1)[0], draw(200, 2, shift=4.0)[0]
    for name in ("mahalanobis", "vim"):
        assert np.median(fitted[name](outside)) > np.quantile(fitted[name](inside), 0.95)


@pytest.mark.parametrize("wrap", [np.asarray, torch.as_tensor])
def test_the_same_numbers_from_numpy_and_torch(fitted, wrap):
    x, y = draw(400, 0)
    again = ff.fit("mahalanobis", (wrap(x), wrap(y)))
    assert again["mahalanobis"].scorer == fitted["mahalanobis"].scorer
    assert np.array_equal(fitted["she"](wrap(x)), fitted["she"](x))


def test_lazy_dask_and_zarr_arrays_are_read_in_place(fitted, tmp_path):
    import dask.array
    import zarr

    x, y = draw(400, 0)
    stored = zarr.create_array(tmp_path / "x.zarr", data=x, chunks=(64, T, D))
    for lazy in (dask.array.from_array(x, chunks=(50, T, D)), stored):
        assert ff.fit("mahalanobis", (lazy, y))["mahalanobis"].scorer == (
            fitted["mahalanobis"].scorer
        )


def test_evaluation_matches_scikit_learn(fitted):
    from sklearn.metrics import average_precision_score

    inside, near, far = draw(150, 3), draw(90, 4, 0.3)[0], draw(80, 5, 2.0)[0]
    found = ff.evaluate(fitted, inside, near={"a": near}, far={"b": far})
    assert {(row["ood"], row["group"]) for row in found.scores} == {
        ("ood/near/a", "near"), ("ood/far/b", "far"),
    }  # fmt: skip
    for name in ALL:
        for ood, rows in (("ood/near/a", near), ("ood/far/b", far)):
            values = np.concatenate([fitted[name](inside[0]), fitted[name](rows)])
            truth = np.repeat([0, 1], [150, len(rows)])
            assert found.value(name, ood, "auroc") == pytest.approx(
                roc_auc_score(truth, values), abs=1e-12
            )
            assert found.value(name, ood, "aupr_out") == pytest.approx(
                average_precision_score(truth, values), abs=1e-12
            )
    assert np.trace(found.classification["confusion"]) > 100
    rows = {"id/test": 150, "ood/near/a": 90, "ood/far/b": 80}
    for record in found.histograms:
        assert {split: sum(counts) for split, counts in record["counts"].items()} == rows
        assert record["beyond"].keys() == rows.keys()
    scales = {record["detector"]: record["scale"] for record in found.histograms}
    assert (scales["msp"], scales["energy"]) == ("log", "linear")


def test_saved_detectors_score_the_same(fitted, tmp_path):
    fitted.save(tmp_path / "fit")
    loaded = ff.load(tmp_path / "fit")
    assert isinstance(loaded, ff.Fitted)
    x = draw(30, 6)[0]
    assert tuple(loaded) == ALL
    for name in ALL:
        assert np.array_equal(loaded[name](x), fitted[name](x))
    assert not list((tmp_path / "fit").glob("**/*.pkl"))
    with pytest.raises(FileExistsError):
        fitted.save(tmp_path / "fit")


@pytest.mark.parametrize("provenance", [{}, {"detectors": ["vim"]}, {"detectors": ["other"]}, None])
def test_a_saved_fit_that_does_not_hold_what_it_names_is_corrupt(fitted, tmp_path, provenance):
    fitted.save(tmp_path / "fit")
    path = tmp_path / "fit" / "artifact.json"
    head = json.loads(path.read_text()) | {"provenance": provenance}
    path.write_text(json.dumps({key: head[key] for key in head if head[key] is not None}))
    with pytest.raises(CorruptError, match="fit again"):
        Fitted.load(tmp_path / "fit")


def test_a_store_and_memory_give_the_same_detector(fitted, tmp_path):
    x, y = draw(400, 0)
    store = ff.Store.create(tmp_path / "f.zarr")
    arrays = {"features": ArraySpec((T, D), "float32", "TD"), "labels": ArraySpec((), "int64")}
    writer = store.create_split("id/train", arrays, classes=K, rows=400)
    for block in writer.missing():
        part = slice(block.start, block.stop)
        writer.write(block.index, {"features": x[part], "labels": y[part]})
    from_store = ff.fit("mahalanobis", store.split("id/train"))
    assert from_store["mahalanobis"].scorer == fitted["mahalanobis"].scorer


def test_stored_logits_are_used_where_there_are_any():
    x, y = draw(300, 0)
    logits = np.eye(K)[y] * 5 + np.random.default_rng(0).standard_normal((300, K))
    fit = ff.fit(["msp", "she"], {"features": x, "labels": y, "logits": logits})
    assert {name: fit[name].passes for name in fit} == {"msp": 0, "she": 1}


def test_options_name_the_row_and_equal_ids_are_refused():
    M = ff.detectors.Mahalanobis
    fit = ff.fit([M(), M(covariance="pinvh")], draw(200, 0))
    assert list(fit) == ["mahalanobis", "mahalanobis(covariance=pinvh)"]
    assert list(ff.fit({"mine": M()}, draw(200, 0))) == ["mine"]
    with pytest.raises(ConfigError, match="two detectors are called mahalanobis"):
        ff.fit(["mahalanobis", M()], draw(200, 0))


def test_sets_that_cannot_be_told_apart_or_are_in_distribution_are_refused(fitted):
    inside, outside = draw(60, 1)[0], draw(60, 2, 4.0)[0]
    named = [ArraySplit(outside, classes=K, name="ood/far/a") for _ in range(2)]
    with pytest.raises(ConfigError, match="two sets of the evaluation are called ood/far/a"):
        ff.evaluate(fitted, inside, far=named)
    with pytest.raises(ConfigError, match="near: id/train is in-distribution by its name"):
        ff.evaluate(fitted, inside, near={"a": ArraySplit(outside, classes=K)})


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: ff.fit("mahalanobi", draw(9, 0)), UnknownNameError, "did you mean 'mahalanobis'"),
        (lambda: ff.fit([], draw(9, 0)), ConfigError, "no detector was named"),
        (lambda: ff.fit(ff.detectors.MSP, draw(9, 0)), ConfigError, "not a detector"),
        (lambda: ff.fit(None, draw(9, 0)), ConfigError, "None is not a detector"),
        (lambda: ff.fit({3: "msp"}, draw(9, 0)), ConfigError, "3 cannot name a detector"),
        (lambda: ff.fit({"head": "msp"}, draw(9, 0)), ConfigError, "'head' cannot name"),
        (lambda: ff.fit("msp", draw(9, 0), head={"lda": {"rigde": 1}}), ConfigError, "'ridge'"),
        (lambda: ff.fit("msp", draw(9, 0), head={"lda": None}), ConfigError, "lda takes"),
        (lambda: ff.fit("msp", draw(9, 0), head={"weights": 3}), ConfigError, "is unknown"),
        (lambda: ff.fit("msp", draw(99, 0), cluster=None), ConfigError, "cluster: None"),
        (lambda: ff.fit("msp", draw(99, 0), workers="a"), ConfigError, "workers: 'a'"),
        (lambda: ff.fit("msp", draw(99, 0), workers=1.5), ConfigError, "workers: 1.5"),
        (lambda: ff.fit("msp", draw(99, 0), memory=None), ConfigError, "None is not a size"),
        (lambda: ff.fit("msp", draw(99, 0), cache=3), ConfigError, "cache: 3"),
        (lambda: ff.fit("msp", draw(99, 0), classes="4"), ConfigError, "classes: '4'"),
        (lambda: ff.score({}, draw(9, 0)[0]), ConfigError, "no fitted detector"),
        (lambda: ff.fit("msp", "features.npy"), ConfigError, "cannot read rows from a str"),
        (lambda: ff.fit("msp", draw(99, 0), head="lsd"), ConfigError, "choose auto, lda, stored"),
        (lambda: ff.fit("msp", draw(99, 0), nonfinite="drop"), ConfigError, "raise or skip"),
        (lambda: ff.fit("msp", draw(99, 0), cluster="slrm"), ConfigError, "cluster: 'slrm'"),
        (lambda: ff.fit("msp", draw(99, 0), memory="8 GiBs"), ConfigError, "is not a size"),
        (lambda: ff.fit("msp", draw(99, 0), workers=0), ConfigError, "at least 1"),
        (lambda: ff.fit("mahalanobis", draw(99, 0), memory="1MiB"), BudgetError, "--memory"),
        (lambda: ff.fit("she", draw(9, 0)[0]), DataError, "labels"),
        (
            lambda: ff.fit("mahalanobis", (draw(9, 0)[0], np.full(9, -1)), classes=K),
            DataError,
            "no usable row",
        ),
        (
            lambda: ff.fit("mahalanobis", (draw(9, 0)[0], np.arange(9)), classes=5),
            DataError,
            "row",
        ),
        (
            lambda: ff.fit("mahalanobis", (draw(9, 0)[0], np.full(9, -1))),
            DataError,
            "none of 9 rows",
        ),
        (
            lambda: ff.fit("mahalanobis", (draw(9, 0)[0], np.zeros((9, 1), int))),
            DataError,
            r"labels have rows of shape \(1,\)",
        ),
        (lambda: ff.fit("mahalanobis", (draw(9, 0)[0], np.zeros(8, int))), DataError, "rows"),
        (lambda: ff.fit("mahalanobis", (np.zeros((0, D)), np.zeros(0, int))), DataError, "row"),
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_error(call, error, says):
    with pytest.raises(error, match=says):
        call()


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        ({"far": np.zeros((9, T, D))}, "far: expected a mapping of names to data"),
        ({"near": "abc"}, "near: expected a mapping"),
        ({"far": [np.zeros((9, T, D))]}, "or a list of splits, got list"),
        ({"far": {"a": {"features": np.zeros((9, T, D))}}, "baselines": ["msp"]}, "another"),
    ],
)
def test_sets_and_baselines_that_cannot_be_taken_are_refused(fitted, sets, says):
    with pytest.raises(ConfigError, match=says):
        ff.evaluate(fitted, draw(60, 1)[0], **sets)


def test_shifted_covariates_are_told_from_the_in_distribution_rows(fitted):
    inside, shifted = draw(60, 1)[0], draw(40, 2, 4.0)[0]
    found = ff.evaluate(fitted, inside, csid={"a": shifted}, far={"a": shifted})
    assert {(row["n_id"], row["n_ood"]) for row in found.scores} == {(60, 40)}
    for name in fitted:
        numbers = [found.value(name, f"{kind}/a", "auroc") for kind in ("id/csid", "ood/far")]
        assert numbers[0] == numbers[1]
        # The same rows once among the in-, once among the out-of-distribution ones.
        full = found.value(name, "ood/far/a", "auroc_full")
        assert full == pytest.approx(0.6 * numbers[1] + 0.4 * 0.5)
    with pytest.raises(UnknownNameError, match="no 'auc' of 'msp' on 'ood/far/a'; there are auroc"):
        found.value("msp", "ood/far/a", "auc")
    with pytest.raises(UnknownNameError, match="msp on ood/far/a"):
        found.value("msp", "a", "auroc")


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "bool"])
def test_integer_features_are_fitted_like_the_floats_they_are(dtype):
    x, y = draw(400, 0)
    x = (20 * x + 60).clip(0, 120) if dtype != "bool" else x > 1
    numbers = x.astype(dtype)
    for name in ("mahalanobis", "vim", "msp"):
        fit = ff.fit(name, (numbers, y), classes=K)
        as_floats = ff.fit(name, (numbers.astype("f8"), y), classes=K)
        assert_array_equal(fit[name](numbers), as_floats[name](numbers.astype("f8")))


def test_features_of_another_shape_are_refused_at_scoring(fitted):
    with pytest.raises(DataError, match=r"she was fitted on features with rows \(4, 12\)"):
        fitted["she"](np.zeros((3, T, D + 1), "f4"))


def test_masked_tokens_are_scored_by_a_fit_without_a_mask():
    x, y = draw(300, 0)
    pooled = ff.fit("mahalanobis", (x, y))
    mask = np.arange(T) < np.array([[T - 1]] * 300)
    scores = pooled["mahalanobis"]({"features": x, "mask": mask})
    np.testing.assert_allclose(
        scores, pooled["mahalanobis"](x[:, :-1].mean(axis=1)[:, None].repeat(T, 1)), rtol=1e-4
    )


def test_a_masked_token_does_not_rank_its_image():
    rng = np.random.default_rng(0)
    y = np.arange(300) % 3
    x = rng.standard_normal((300, 3, 2)) + 4 * rng.standard_normal((3, 2))[y][:, None]
    fit = ff.fit({"m": ff.detectors.RelativeMahalanobis(pool="tokens")}, (x, y))
    tokens, mask = 6 * rng.standard_normal((2000, 3, 2)), np.tile([True, True, False], (2000, 1))
    inside, outside = (
        {"features": tokens[part], "mask": mask[part]} for part in np.split(np.arange(2000), 2)
    )
    each = np.concatenate([fit["m"](part) for part in (inside, outside)])
    best = each[:, :2].max(axis=1)
    assert np.isnan(each[:, 2]).all()  # a masked token has no score
    found = ff.evaluate(fit, inside, far={"a": outside})
    expected = roc_auc_score(np.repeat([0, 1], 1000), best)
    assert found.value("m", "ood/far/a", "auroc") == pytest.approx(expected, abs=1e-12)


def test_features_of_another_model_are_refused(tmp_path):
    store = ff.Store.create(tmp_path / "f.zarr")
    arrays = {"features": ArraySpec((T, D), "float32", "TD"), "labels": ArraySpec((), "int64")}
    for name, model in (("id/train", "a"), ("id/test", "a"), ("ood/far/x", "b")):
        x, y = draw(60, 0)
        writer = store.create_split(name, arrays, classes=K, rows=60, attributes={"model": model})
        writer.write(0, {"features": x, "labels": y})
    fit = ff.fit("mahalanobis", store.split("id/train"))
    fit.save(tmp_path / "fit")
    for known in (fit, Fitted.load(tmp_path / "fit")):
        known["mahalanobis"](store.split("id/test"))
        with pytest.raises(DataError, match="features of model 'a'; those of ood/far/x are of 'b'"):
            known["mahalanobis"](store.split("ood/far/x"))


def test_rows_that_do_not_count_are_told():
    x, y = draw(100, 0)
    y[:7] = -1
    x[50, 0, 0] = np.nan
    fit = ff.fit("mahalanobis", (x, y), classes=K, nonfinite="skip")
    assert fit["mahalanobis"].rows == (92, 100)


def test_importing_loads_nothing_heavy():
    code = (
        "import sys, pipeline; "
        "heavy = {'torch', 'dask', 'distributed', 'zarr', 'matplotlib', 'pydantic', 'numpy'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_fitting_on_threads_loads_no_torch():
    code = (
        "import sys, numpy as np, pipeline as ff\n"
        "if __name__ == '__main__':\n"
        "    x = np.random.default_rng(0).standard_normal((50, 4)); y = np.arange(50) % 2\n"
        "    ff.fit('mahalanobis', (x, y))\n"
        "    print('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_an_evaluation_prints_its_numbers(fitted):
    found = ff.evaluate(fitted, draw(60, 1)[0], far={"a": draw(40, 2, 4.0)[0]})
    lines = repr(found).splitlines()
    assert len(lines) == 1 + len(ALL)
    assert lines[1].startswith("msp on ood/far/a: auroc 0.")


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="a GPU may be there")
def test_rows_for_a_device_that_is_not_there_are_refused():
    rows = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2
    with pytest.raises(ConfigError, match="cluster: cuda"):
        ff.fit("mahalanobis", rows, device="cuda")
    assert ff.fit("mahalanobis", rows, device="cpu")
