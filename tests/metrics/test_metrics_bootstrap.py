"""Intervals over images: against drawing images one by one, and against the normal interval."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import pipeline as ff
from pipeline.errors import ConfigError
from pipeline.metrics import bootstrap, image_intervals

KINDS = ("iou", "dice", "precision", "recall")
AVERAGES = ("macro", "none", "images", "classes", "pairs")


def table(images: int, classes: int = 4, seed: int = 0) -> Any:
    """Return right, true and predicted pixels; the last class is in few images."""
    random = np.random.default_rng(seed)
    right = random.integers(0, 50, (images, classes))
    missed, raised = random.integers(0, 30, (2, images, classes))
    made = np.stack([right, right + missed, right + raised], axis=2)
    made[random.random((images, classes)) < 0.3] = 0
    made[1:, -1], made[:1, -1] = 0, (5, 9, 8)
    return made.astype(np.int32)


def numbers_of(drawn: Any) -> dict[str, float]:
    """Return the numbers of some images from their definition."""
    found: dict[str, float] = {}
    with np.errstate(invalid="ignore"):
        for kind in KINDS:

            def ratio(x: Any, kind: str = kind) -> Any:
                tp, t, p = np.moveaxis(x.astype(float), -1, 0)
                top = 2 * tp if kind == "dice" else tp
                bottom = {"iou": t + p - tp, "dice": t + p, "precision": p, "recall": t}[kind]
                return np.where(bottom > 0, top / np.where(bottom > 0, bottom, 1), np.nan)

            pooled, each = ratio(drawn.sum(axis=0)), ratio(drawn)
            found[f"{kind}_mean"] = mean(pooled)
            found |= {f"{kind}_{c}": x for c, x in enumerate(pooled)}
            found[f"image_{kind}_image_mean"] = mean(np.array([mean(row) for row in each]))
            found[f"image_{kind}_class_mean"] = mean(np.array([mean(row) for row in each.T]))
            found[f"image_{kind}_pair_mean"] = mean(each)
    return found


def mean(x: Any) -> float:
    known = x[~np.isnan(x)]
    return float(known.mean()) if known.size else math.nan


def test_numbers_are_those_of_their_definition() -> None:
    made = table(40)
    found = image_intervals([made[:7], made[7:7], made[7:]], KINDS, AVERAGES, replicates=5)
    expected = numbers_of(made[(made[:, :, 1] > 0).any(axis=1)])
    assert set(found) == {f"{k}{end}" for k in expected for end in ("", "_lower", "_upper")}
    for key, number in expected.items():
        assert float(found[key]) == pytest.approx(number, abs=1e-12, nan_ok=True), key


def test_replicates_are_what_the_images_drawn_give(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every replicate is recomputed from the images that it drew, which are noted on the way."""
    made = table(60)
    drawn: list[Any] = []
    original = bootstrap._times_drawn

    def noted(random: Any, draws: Any, images: int) -> Any:
        drawn.append(original(random, draws, images))
        return drawn[-1]

    monkeypatch.setattr(bootstrap, "_times_drawn", noted)
    monkeypatch.setattr(bootstrap, "TILE_IMAGES", 16)
    level, replicates = 0.8, 200
    found = image_intervals([made], KINDS, AVERAGES, replicates=replicates, level=level, seed=3)
    counted = made[(made[:, :, 1] > 0).any(axis=1)]
    times = np.concatenate(drawn, axis=1).astype(int)
    assert times.shape == (replicates, len(counted))
    assert (times.sum(axis=1) == len(counted)).all()
    every = [numbers_of(np.repeat(counted, row, axis=0)) for row in times]
    for key in every[0]:
        known = np.sort([one[key] for one in every if not math.isnan(one[key])])
        for end, share in (("lower", 0.1), ("upper", 0.9)):
            place = math.ceil(share * len(known) - 1e-9) - 1
            assert float(found[f"{key}_{end}"]) == pytest.approx(known[place], abs=1e-8), key


def test_draws_are_those_of_a_multinomial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mean 1, variance 1 - 1/n, covariance -1/n, within and across tiles."""
    drawn: list[Any] = []
    original = bootstrap._times_drawn
    monkeypatch.setattr(
        bootstrap, "_times_drawn", lambda *a: drawn.append(original(*a)) or drawn[-1]
    )
    monkeypatch.setattr(bootstrap, "TILE_IMAGES", 4)
    made = np.full((9, 1, 3), 5, np.int32)
    image_intervals([made], replicates=40_000)
    times = np.concatenate([np.concatenate(drawn[i * 40 : i * 40 + 40]) for i in range(3)], axis=1)
    covariance = np.cov(times, rowvar=False)
    np.testing.assert_allclose(times.mean(axis=0), 1.0, atol=0.03)
    np.testing.assert_allclose(covariance, np.eye(9) - 1 / 9, atol=0.03)


def test_intervals_of_many_images_are_near_those_of_the_normal_distribution() -> None:
    random = np.random.default_rng(0)
    quotients = random.beta(6, 3, 3000)
    right = (quotients * 1000).astype(np.int32)
    made = np.stack([right, np.full(3000, 1000), np.full(3000, 1000)], axis=1)[:, None, :]
    found = image_intervals([made.astype(np.int32)], ("recall",), ("images",), replicates=2000)
    own = right / 1000
    error = 1.96 * own.std() / math.sqrt(len(own))
    for end, sign in (("lower", -1), ("upper", 1)):
        expected = own.mean() + sign * error
        assert float(found[f"image_recall_image_mean_{end}"]) == pytest.approx(expected, abs=5e-4)


def test_intervals_depend_on_images_and_seed_alone() -> None:
    made = table(3000)
    blocks = [[made], np.split(made, [1, 2, 700, 700, 2999]), np.split(made, 30)]
    found = [{k: repr(v) for k, v in image_intervals(b, replicates=60).items()} for b in blocks]
    assert found[0] == found[1] == found[2]
    other = image_intervals([made], replicates=60, seed=1)
    assert other["iou_mean"] == image_intervals([made], replicates=60)["iou_mean"]
    assert (
        other["iou_mean_lower"].value
        != image_intervals([made], replicates=60)["iou_mean_lower"].value
    )


def test_memory_does_not_grow_with_the_images() -> None:
    import tracemalloc

    made = table(500, 21)
    peaks = []
    for times in (8, 64):
        tracemalloc.start()
        image_intervals([made] * times, KINDS, replicates=100)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.05 * peaks[0] < 40e6


def test_few_images() -> None:
    one = image_intervals([table(1)])
    assert not math.isnan(one["iou_mean"].value)
    assert one["iou_mean_lower"].reason == "one image cannot be drawn anew"
    for nothing in ([table(4) * 0], [table(0)]):
        none = image_intervals(nothing)
        assert math.isnan(none["iou_mean"].value)
        assert none["iou_mean_upper"].reason


def test_absent_and_ignored_classes() -> None:
    made = table(50)
    found = image_intervals([made], absent="one", averages=AVERAGES, ignore=(0, 255), replicates=20)
    assert "iou_0" not in found
    lacking = image_intervals([made[1:]], absent="one", averages=AVERAGES, replicates=20)
    assert float(lacking["iou_3"]) == float(lacking["iou_3_lower"]) == 1.0
    unlabelled = image_intervals(
        [made], absent="nan_unlabelled", averages=("pairs",), replicates=20
    )
    kept = made[:, :, 1] > 0
    tp, t, p = (made[kept][:, i].astype(float) for i in range(3))
    assert float(unlabelled["image_iou_pair_mean"]) == pytest.approx((tp / (t + p - tp)).mean())


def test_options_are_checked() -> None:
    for options, message in (
        ({"kinds": ("f2",)}, "kinds: 'f2' is unknown; choose iou"),
        ({"averages": ("micro",)}, "averages: 'micro' is unknown"),
        ({"absent": "?"}, "absent: '\\?' is unknown"),
        ({"replicates": 0}, "replicates: 0 with seed 0; expected 1"),
        ({"seed": -1}, "seed -1"),
        ({"level": 1.0}, "level: 1.0; expected a share"),
    ):
        with pytest.raises(ConfigError, match=message):
            ff.metrics.ImageIntervals(**options)
    with pytest.raises(ConfigError, match="choose at most"):
        image_intervals([table(3)], replicates=10**8)
