"""Tiny versions of every bench, end to end: the numbers are there, and agree with one another."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from pipeline.__main__ import main

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bench(capsys, monkeypatch, tmp_path_factory):
    """Run a bench here with --json; return its exit code, its object, and what it told people."""
    home = tmp_path_factory.getbasetemp() / "bench-home"
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))

    def run(*arguments):
        capsys.readouterr()
        code = main(["bench", *(str(argument) for argument in arguments), "--json"])
        out, err = capsys.readouterr()
        return code, json.loads(out) if out else None, err

    run.home = home / "featfold"
    return run


@pytest.fixture
def store(tmp_path, bench):
    path = tmp_path / "made.zarr"
    code, told, err = bench(
        "make-tokens", path, "--rows", 40, "--tokens", 3, "--features", 8, "--classes", 4
    )
    assert code == 0
    assert told["blocks_written"] == 1
    assert "write id/train" in err
    return path


def test_make_tokens_again_says_that_it_is_complete(bench, store):
    code, told, err = bench(
        "make-tokens", store, "--rows", 40, "--tokens", 3, "--features", 8, "--classes", 4
    )
    assert (code, told["blocks_written"]) == (0, 0)
    assert "it was complete already" in err
    code, told, _ = bench("make-tokens", store, "--rows", 41)
    assert (code, told["exit_code"]) == (2, 2)


@pytest.mark.parametrize(("state", "repeat"), [("warm", 2), ("cold", 1)])
def test_fit_stands_beside_its_floor(bench, store, tmp_path, state, repeat):
    out = tmp_path / "out" / "fit.json"
    cold = ["--cold"] if state == "cold" else []
    options = ["--workers", 1, "--repeat", repeat, "--out", out, *cold]
    code, found, err = bench("fit", store, *options)
    assert code == 0
    assert json.loads(out.read_text()) == found
    middle = found["median_seconds"]
    assert set(middle) == {"raw read", "products", "pass"}
    assert found["floor_seconds"] == max(middle["raw read"], middle["products"])
    assert found["ratio"] == pytest.approx(middle["pass"] / found["floor_seconds"])
    assert found["pass_over_raw_read"] == pytest.approx(middle["pass"] / middle["raw read"])
    assert all(len(seconds) == repeat for seconds in found["seconds"].values())
    assert found["fit_seconds"] < found["total_seconds"]
    assert found["cache_state"] == state
    assert (found["rows"], found["passes"]) == (40, 1)
    assert [p["rows"] for p in found["products"]] == [120]
    assert len(found["statistics"]) == 3
    assert found["peak_nbytes"] > 2**20
    assert found["projected_nbytes"] > 2**20
    assert "pass / floor" in err
    saved = json.loads((bench.home / "calibration.json").read_text())
    assert saved == found["calibration"]
    left = {path.name for path in tmp_path.iterdir() if not path.name.startswith(".")}
    assert left == {"made.zarr", "out"}


def test_fit_of_nothing_that_exists(bench, tmp_path):
    code, told, _ = bench("fit", tmp_path / "none.zarr")
    assert (code, told["exit_code"]) == (4, 4)


def test_fit_suggests_a_detector(bench, store):
    code, told, _ = bench("fit", store, "--detectors", "mahalanobi")
    assert code == 2
    assert "did you mean 'mahalanobis'" in told["error"]


def test_scheduler_extrapolates(bench, tmp_path):
    code, found, err = bench("scheduler", "--tasks", 120, "--workers", 1, "--scratch", tmp_path)
    assert code == 0
    assert [count["blocks"] for count in found["counts"]] == [100, 120]
    assert all(count["merges"] >= 14 for count in found["counts"])
    assert all(count["pass_seconds"] > 0 for count in found["counts"])
    assert all(0 <= count["worker_growth_nbytes"] < 2**26 for count in found["counts"])
    far = found["seconds_at_no_task"] + 10_000 * found["seconds_per_task"]
    assert found["seconds_far"] == pytest.approx(far)
    assert "No-op blocks on 1 workers" in err
    assert list(tmp_path.iterdir()) == []


def test_small_without_a_peer(bench, tmp_path):
    code, found, _ = bench(
        "small", "--rows", 60, "--features", 8, "--classes", 3, "--repeat", 1,
        "--scratch", tmp_path,
    )  # fmt: skip
    assert code == 0
    assert set(found["median_seconds"]) == {
        "score",
        *(f"fit, {p}, {w}" for p in ("float64", "float32") for w in ("memory", "store")),
    }
    assert (found["peer"], found["fit_ratios"], found["score_speedup"]) == (None, None, None)
    assert list(tmp_path.iterdir()) == []


def test_small_with_an_interpreter_that_lacks_the_peer(bench, tmp_path):
    code, told, _ = bench(
        "small", "--rows", 60, "--features", 8, "--classes", 3, "--repeat", 1,
        "--scratch", tmp_path, "--peer", sys.executable,
    )  # fmt: skip
    assert code == 1
    assert "cannot run the peer" in told["error"]
    assert "pytorch" in told["error"]


def test_story_fits_on_a_loader_and_leaves_nothing(bench, tmp_path):
    code, found, err = bench(
        "story", "--rows", 150, "--tokens", 3, "--features", 8, "--classes", 4,
        "--batch-rows", 32, "--workers", 1, "--scratch", tmp_path,
    )  # fmt: skip
    assert code == 0
    assert found["detectors"] == ["mahalanobis", "relative_mahalanobis", "she", "kl_matching"]
    assert (found["passes"], found["features_nbytes"]) == (1, 150 * 3 * 8 * 4)
    assert found["held_nbytes"] <= found["peak_nbytes"] <= found["projected_nbytes"]
    assert found["within_projection"]
    assert found["total_seconds"] == found["loader_seconds"] + found["after_seconds"]
    assert (found["streamed"], found["disk_nbytes"]) == (True, 0)
    assert "no features on the disk" in err
    assert "projected for it" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_memory_compares_two_sizes(bench, tmp_path):
    code, found, err = bench(
        "memory", "--rows", 20, "--tokens", 2, "--features", 4, "--classes", 2,
        "--detectors", "mahalanobis", "--workers", 1, "--scratch", tmp_path,
    )  # fmt: skip
    assert code == 0
    assert [row["name"] for row in found["measured"]] == [
        "ClassMoments(features, labels)", "the whole pass",
    ]  # fmt: skip
    for row in found["measured"]:
        small, large = row["peak_nbytes"]
        assert row["growth"] == pytest.approx(large / small - 1)
        shares = [p / q for p, q in zip(row["peak_nbytes"], row["projected_nbytes"], strict=True)]
        assert row["measured_over_projected"] == pytest.approx(max(shares))
    assert found["within_projection"], found["measured"]
    assert found["largest_growth"] == max(row["growth"] for row in found["measured"])
    assert "Peak memory of a worker" in err
    assert list(tmp_path.iterdir()) == []


def test_help_lists_the_benches(capsys):
    assert main(["bench", "-h"]) == 0
    out = capsys.readouterr().out
    for name in ("make-tokens", "fit", "scheduler", "small", "memory", "story"):
        assert f"\n  {name} " in out


def test_benches_need_no_torch():
    code = (
        "import sys, pipeline.bench.fit, pipeline.bench.memory, pipeline.bench.small, "
        "pipeline.bench.scheduler; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_masks_stand_beside_their_floor_and_the_peer(bench, tmp_path):
    pytest.importorskip("torchmetrics", reason="needs featfold[test]")
    options = ["--images", 6, "--side", 40, "--classes", 5, "--batch", 4, "--repeat", 1]
    code, found, err = bench("masks", *options, "--stored", 900, "--scratch", tmp_path)
    assert code == 0
    assert set(found["times_faster"]) == {
        "torchmetrics: collection",
        "torchmetrics: collection, unchecked",
        "torchmetrics: confusion matrix, unchecked",
    }
    middle, ours = found["median_seconds"], "featfold, int64"
    for name, ratios in found["times_faster"].items():
        assert ratios[ours] == pytest.approx(middle[name] / middle[ours])
    assert set(found["peer"]) == {"torchmetrics", "torch"}
    stored = found["stored"]
    assert (stored["pixels"], stored["read_nbytes"]) == (900 * 1600, stored["nbytes"])
    assert stored["integers_equal_one_process"]
    assert stored["openings_of_each_chunk"] == 1
    assert "torchmetrics: collection" in err
    assert list(tmp_path.iterdir()) == []


def test_masks_alone(bench, tmp_path):
    options = ["--images", 3, "--side", 20, "--no-peer", "--repeat", 1]
    code, found, _ = bench("masks", *options, "--scratch", tmp_path)
    assert code == 0
    assert found["peer"] is None
    assert found["times_faster"] == {}
    assert "stored" not in found


def test_ranks_stand_beside_a_sort_and_scores_that_do_not_fit(bench):
    options = ["--peer-rows", 3000, "--exact-rows", 5000, "--bounded-rows", 4000, "--repeat", 2]
    code, found, err = bench("ranks", *options)
    assert code == 0
    beside = found["beside"]
    assert beside["auroc"]["ours"] == pytest.approx(beside["auroc"]["peer"], abs=1e-14)
    assert {len(seconds) for seconds in beside["seconds"].values()} == {2}
    assert beside["times_faster"] > 0
    exact, *bounded = found["large"]
    assert set(exact["numbers"]) == {"auroc", "aupr_in", "aupr_out", "fpr95"}
    assert all(number["exact"] for number in exact["numbers"].values())
    assert [one["kind"] for one in bounded] == ["energy", "msp", "rounded"]
    assert all(one["rows"] == 4000 and one["passes"] >= 1 for one in bounded)
    assert "energy, 5,000 rows" in err


@pytest.mark.parametrize(("kind", "exact"), [("energy", True), ("msp", False), ("rounded", False)])
def test_made_up_scores_are_ranked_in_several_passes(monkeypatch, kind, exact):
    from pipeline.bench import ranks
    from pipeline.bench.scores import halves

    monkeypatch.setattr(ranks, "EXACT_BUDGET_NBYTES", 2**16)
    monkeypatch.setattr(ranks, "BOUNDED_BUDGET_NBYTES", 2**14)
    found = ranks.answer(kind, 50_000, exact)
    negatives, positives = (ranks._all_of(split) for split in halves(kind, 50_000))
    is_ood = np.repeat([0, 1], [len(negatives), len(positives)])
    area = roc_auc_score(is_ood, np.concatenate((negatives, positives)))
    number = found["numbers"]["auroc"]
    assert number["lower"] - 1e-13 <= area <= number["upper"] + 1e-13
    assert number["exact"] == exact
    assert found["passes"] == (5 if exact else 2)
    assert found["peak_nbytes"] >= found["before_nbytes"] > 0
