import numpy as np
import pytest
import reference_formulas as reference
from shaping_formulas import (
    HEAD,
    ShapingLaws,
    energy_of,
    largest,
    ratio,
    rectified,
    rows,
    scores,
    signed,
)
from shaping_peers import scores_of_peer

from pipeline import detectors
from pipeline.content import Const
from pipeline.detectors import ASH
from pipeline.errors import ConfigError
from pipeline.heads import LDAHead, LinearHead
from pipeline.testing import drive


def shaped(z, variant, kept):
    mask = largest(z, kept)
    if variant == "b":
        return mask * z.sum(axis=1, keepdims=True) / kept
    pruned = np.where(mask, z, 0.0)
    return pruned if variant == "p" else pruned * np.exp(ratio(z, kept))[:, None]


class TestASHP(ShapingLaws):
    detector = ASH("p", LDAHead(), percentile=75)
    tolerance = 1e-8

    def reference(self, train, test):
        x, y, _ = reference.fit_rows(train)
        weight, bias = reference.linear_discriminant(x, y, 5)
        present = np.unique(y)
        return energy_of(shaped(reference.pooled(test), "p", 3), weight[present], bias[present])


class TestASHB(ShapingLaws):
    detector = ASH("b", HEAD, percentile=65)  # keeps 4 of 12
    planted_auroc = 0.8  # sums of features of both signs say little

    def reference(self, train, test):
        return energy_of(shaped(reference.pooled(test), "b", 4))


class TestASHS(ShapingLaws):
    detector = ASH("s", HEAD, percentile=65)

    def reference(self, train, test):
        return energy_of(shaped(reference.pooled(test), "s", 4))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("variant", ["p", "b", "s"])
@pytest.mark.parametrize("percentile", [65, 80, 90, 95])
def test_scores_are_those_of_pytorch_ood(variant, percentile, dtype):
    # Of equal features, zeros, pytorch-ood keeps any: there are as many others as are kept.
    z, weight, bias = (x.astype(dtype) for x in rectified())
    z = z[(z > 0).sum(axis=1) >= 23]
    theirs = scores_of_peer(
        "ASH", z, weight, bias, variant=f"ash-{variant}", percentile=percentile / 100
    )
    head = LinearHead(Const(weight.astype(float)), Const(bias.astype(float)))
    ours = scores(ASH(variant, head, percentile=percentile), rows(z, classes=10))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5 if dtype == np.float32 else 1e-12)
    if dtype == np.float64:
        np.testing.assert_array_equal(np.argsort(ours), np.argsort(theirs))


def test_the_presets_are_those_of_the_libraries():
    assert detectors.make("ash", preset="pytorch-ood-0.4").detector == ASH("s", percentile=65)
    assert detectors.make("ash", preset="openood-1.5").detector == ASH("b", percentile=90)


@pytest.mark.parametrize("variant", ["p", "b", "s"])
@pytest.mark.parametrize("percentile", [0, 50, 99.9, 100])
def test_features_of_both_signs_have_finite_scores(variant, percentile):
    z = signed(60, 12)
    z[0], z[1], z[2] = 0.0, -1.0, np.where(np.arange(12) < 6, 1e-300, -1.0)
    z[3] *= 1e30
    detector = ASH(variant, HEAD, percentile=percentile)
    kept = max(1, 12 - round(12 * percentile / 100))
    found = scores(detector, rows(z))
    assert np.isfinite(found).all()
    expected = energy_of(shaped(z, variant, kept))
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_a_row_of_zeros_scores_the_energy_of_the_bias():
    for variant in ("p", "b", "s"):
        found = scores(ASH(variant, HEAD), rows(np.zeros((2, 12))))
        np.testing.assert_allclose(found, energy_of(np.zeros((2, 12))))


@pytest.mark.parametrize("library", drive.PLACES)
def test_of_equal_features_the_first_are_kept(library):
    z = np.random.default_rng(0).integers(0, 3, (200, 12)).astype(float)
    scorer = drive.outcome(ASH("b", HEAD, percentile=50), rows(z).cut())
    found = drive.scores_of(scorer, rows(z).cut(), drive.at(drive.PLACES[library]))
    np.testing.assert_allclose(found, energy_of(shaped(z, "b", 6)), rtol=1e-12)


def test_a_ratio_that_would_overflow_is_bounded():
    z = np.ones((3, 1024))
    weight, bias = np.ones((5, 1024)) / 1024, np.zeros(5)
    found = scores(ASH("s", LinearHead(Const(weight), Const(bias)), percentile=100), rows(z))
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, energy_of(shaped(z, "p", 1) * np.exp(500.0), weight, bias))


def test_classes_without_rows_stay_out_however_large_the_features():
    # Their bias of -1e30 would be the largest logit once others are below it.
    x = signed(300, 1024)
    data = rows(x)
    data = data.take(data.arrays["labels"] != 2)
    far = rows(-np.abs(signed(4, 1024, seed=1)) + 2.0)
    found = scores(ASH("s", LDAHead(), percentile=100), data, far)
    assert np.isfinite(found).all()
    assert len(np.unique(found)) == 4


@pytest.mark.parametrize("variant", ["", "S", "ash-s", "rand"])
def test_an_unknown_variant_is_refused_at_once(variant):
    with pytest.raises(ConfigError, match="choose p, b or s"):
        ASH(variant)


def test_the_variant_is_needed():
    with pytest.raises(ConfigError, match="variant: ash needs"):
        detectors.make("ash")


def test_stored_logits_are_refused_before_anything_is_read():
    with pytest.raises(ConfigError, match="head: lda"):
        next(ASH("p").passes(rows(signed(9, 12)).schema))
    with pytest.raises(ConfigError, match="percentile: -5"):
        ASH("p", percentile=-5)
