import numpy as np
import pytest
import reference_formulas as reference
from peers import peer

from pipeline.content import Const
from pipeline.detectors import FDBD
from pipeline.detectors.fdbd import pairwise_distances
from pipeline.errors import ConfigError
from pipeline.heads import LDAHead, LinearHead
from pipeline.testing import Data, DetectorLaws, drive
from pipeline.views import Pooled

WEIGHT = 1.5 * np.eye(5, 12) + 0.1
BIAS = 4.0 - 0.5 * np.arange(5)
HEAD = LinearHead(Const(WEIGHT), Const(BIAS))


def boundary_distances(test, weight, bias, lengths):
    scores = []
    for z, length in zip(test, lengths, strict=True):
        f = weight @ z + bias
        y = f.argmax()
        others = [c for c in range(len(bias)) if c != y]
        to_boundary = [(f[y] - f[c]) / np.linalg.norm(weight[y] - weight[c]) for c in others]
        scores.append(-np.mean(to_boundary) / length)
    return np.array(scores)


class TestFDBD(DetectorLaws):
    detector = FDBD(head=HEAD)

    def reference(self, train, test):
        x, _, _ = reference.fit_rows(train)
        z = reference.pooled(test)
        return boundary_distances(z, WEIGHT, BIAS, np.linalg.norm(z - x.mean(axis=0), axis=1))


class TestFDBDOnLDA(DetectorLaws):
    detector = FDBD(head=LDAHead(), normaliser="length")
    tolerance = 1e-8

    def reference(self, train, test):
        x, y, _ = reference.fit_rows(train)
        weight, bias = reference.linear_discriminant(x, y, 5)
        present, z = np.unique(y), reference.pooled(test)
        lengths = np.linalg.norm(z, axis=1)
        return boundary_distances(z, weight[present], bias[present], lengths)


def rows(features, seed=0, classes=5):
    labels = np.random.default_rng(seed).integers(0, classes, len(features))
    return Data({"features": np.asarray(features), "labels": labels}, classes)


def noise(n, d=12, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


def scores(detector, test, train=None):
    scorer = drive.outcome(detector, rows(noise(60) if train is None else train).cut())
    return drive.scores_of(scorer, rows(test).cut())


def test_the_score_of_pytorch_ood():
    import torch

    weight, bias = noise(7, 12, seed=3), noise(1, 7, seed=4)[0]
    train, test = noise(400, seed=1) + 1.0, noise(80, seed=2)
    linear = torch.nn.Linear(12, 7)
    linear.load_state_dict({"weight": torch.tensor(weight), "bias": torch.tensor(bias)})
    theirs = peer("fDBD")(None, linear).fit_features(torch.tensor(train))
    expected = theirs.predict_features(torch.tensor(test)).detach().numpy()
    head = LinearHead(Const(weight), Const(bias))
    detector = FDBD(head, **FDBD.presets["pytorch-ood-0.4"])
    scorer = drive.outcome(detector, rows(train, classes=7).cut())
    found = drive.scores_of(scorer, rows(test, classes=7).cut())
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("normaliser", ["deviation", "length"])
def test_the_preset_of_openood_sums_over_the_classes(normaliser):
    test = noise(9, seed=1)
    mean = scores(FDBD(HEAD, normaliser), test)
    total = scores(FDBD(HEAD, normaliser, **FDBD.presets["openood-1.5"]), test)
    np.testing.assert_allclose(total, 4 * mean, rtol=1e-12)


def test_classes_with_equal_weights_have_no_boundary():
    weight = np.concatenate([WEIGHT[:4], WEIGHT[:1]])
    bias, test = np.array([1.0, 0.0, 0.0, 0.0, 0.5]), noise(20, seed=1)
    scorer = drive.outcome(FDBD(LinearHead(Const(weight), Const(bias))), rows(noise(60)).cut())
    assert scorer.notes == ("9 boundaries between 5 of 5 classes",)
    found = drive.scores_of(scorer, rows(test).cut())
    # Classes 0 and 4 differ by their bias alone: no boundary parts them.
    lengths = np.linalg.norm(test - noise(60).mean(axis=0), axis=1)
    f = test @ weight.T + bias
    expected = []
    for row, y, length in zip(f, f.argmax(axis=1), lengths, strict=True):
        gaps = np.linalg.norm(weight - weight[y], axis=1)
        expected.append(-np.mean((row[y] - row[gaps > 0]) / gaps[gaps > 0]) / length)
    assert 0 in f.argmax(axis=1)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_distances_of_near_points_do_not_cancel():
    points = 1e3 + noise(6, 40)
    points[1] = points[0] + 1e-9 * noise(1, 40, seed=1)[0]
    points[2] = points[0]
    expected = np.linalg.norm(points[:, None] - points, axis=2)
    found = pairwise_distances(points)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-15)
    assert found[0, 2] == found[0, 0] == 0.0
    assert pairwise_distances(np.array([[1.0, 1.0], [1 + 1e-15, 1.0], [2.0, 0.0]]))[0, 1] == 0.0
    np.testing.assert_allclose(found[0, 1], 1e-9 * np.linalg.norm(noise(1, 40, seed=1)), rtol=1e-3)


def test_a_row_at_the_mean_or_of_zeros_has_a_finite_score():
    train = noise(60)
    train[:, :] -= train.mean(axis=0)
    for normaliser in ("deviation", "length"):
        found = scores(FDBD(HEAD, normaliser), np.stack([train.mean(axis=0), np.zeros(12)]), train)
        assert np.isfinite(found).all()
        assert (found < -1e6).all()


def test_huge_logits_are_fine():
    test = noise(20, seed=1)
    head = LinearHead(Const(1e4 * WEIGHT), Const(1e4 * BIAS))
    np.testing.assert_allclose(scores(FDBD(head), test), scores(FDBD(HEAD), test), rtol=1e-12)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [({"normaliser": "norm"}, "normaliser: 'norm'"), ({"reduce": "max"}, "reduce: 'max'")],
)
def test_unknown_options_are_refused(options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        FDBD(HEAD, **options)


def test_heads_without_boundaries_are_refused():
    schema = rows(noise(9)).schema
    with pytest.raises(ConfigError, match="head: lda"):
        next(FDBD().passes(schema))
    one = LinearHead(Const(WEIGHT[:1]), Const(BIAS[:1]))
    with pytest.raises(ConfigError, match="declares 1"):
        next(FDBD(one).passes(rows(noise(9), classes=1).schema))
    same = LinearHead(Const(np.ones((5, 12))), Const(BIAS))
    with pytest.raises(ConfigError, match="same weights for every class"):
        drive.outcome(FDBD(same), rows(noise(9)).cut())


def test_a_head_over_other_features_is_refused():
    head = LinearHead(Const(WEIGHT), Const(BIAS), of=Pooled("mean", "other"))
    data = rows(noise(30)).with_arrays(other=noise(30))
    with pytest.raises(ConfigError, match="same pool and field"):
        drive.outcome(FDBD(head), data.cut())
