import numpy as np
import pytest
from scipy import linalg

from pipeline.detectors import TiedPositions
from pipeline.errors import ConfigError, DataError
from pipeline.procedure import Scored
from pipeline.statistics import fields_of
from pipeline.testing import Data, DetectorLaws, drive, labelled, planted
from pipeline.testing.recipes import regular


def distances(train, test):
    """Return squared distances (n, t) to the mean of the position; NaN where masked."""
    valid = train.get("mask", np.ones(train["features"].shape[:2], bool))
    valid = valid & (train["labels"] >= 0)[:, None]
    x, t = train["features"], valid.shape[1]
    overall = x[valid].mean(axis=0)
    means = [x[valid[:, i], i].mean(axis=0) if valid[:, i].any() else overall for i in range(t)]
    rest = np.concatenate([x[valid[:, i], i] - means[i] for i in range(t)])
    covariance = rest.T @ rest / len(rest)
    covariance += 1e-6 * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    deviation = test["features"] - np.array(means)
    found = np.einsum("ntd,de,nte->nt", deviation, linalg.inv(covariance), deviation)
    return np.where(test.get("mask", np.ones(found.shape, bool)), found, np.nan)


def masked(data, last=0):
    """Return rows of which some tokens are masked, the last position always if ``last``."""
    n, t, _ = data.arrays["features"].shape
    mask = np.arange(t) < 1 + np.arange(n)[:, None] % (t - last)
    mask[11] = False
    features = np.where(mask[:, :, None], data.arrays["features"], 1e30)
    return data.with_arrays(features=features, mask=mask)


class TestTiedPositions(DetectorLaws):
    detector = TiedPositions(precision="float64")

    def reference(self, train, test):
        return distances(train, test)


@pytest.mark.parametrize("last", [0, 1])
def test_masked_tokens_neither_count_nor_score(last):
    train, test = masked(labelled(), last), masked(labelled(rows=50, seed=7))
    scorer = drive.outcome(TiedPositions(precision="float64"), train.cut(regular(240, 50)))
    found = drive.scores_of(scorer, test.cut(regular(50, 7)))
    expected = distances(train.upcast(), test.upcast())
    np.testing.assert_allclose(found, expected, rtol=1e-8)
    assert np.isnan(found[11]).all()


def test_float32_products_are_close_to_float64_ones():
    fast, exact = (
        drive.scores_of(
            drive.outcome(TiedPositions(precision=p), labelled().cut()), planted().cut()
        )
        for p in ("auto", "float64")
    )
    np.testing.assert_allclose(fast, exact, rtol=1e-5)


@pytest.mark.parametrize("image", ["max", "mean", "top1"])
def test_an_image_scores_as_it_says(image):
    scorer = drive.outcome(TiedPositions(image=image), labelled().cut())
    ((chunk,),) = drive.chunks(planted().cut(), fields_of(*scorer.views))
    maps = scorer.score(chunk)
    expected = maps.mean(axis=1) if image == "mean" else maps.max(axis=1)
    np.testing.assert_allclose(Scored(scorer)(chunk), expected, rtol=1e-14)


@pytest.mark.parametrize(
    "options", [{"image": "min"}, {"ridge": 0}, {"covariance": "lasso"}, {"precision": "half"}]
)
def test_options_are_refused_before_anything_is_read(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        TiedPositions(**options)


def test_vectors_are_refused_before_anything_is_read():
    data = Data({"features": np.zeros((9, 3)), "labels": np.zeros(9, int)}, 1)
    with pytest.raises(DataError, match="tokens need"):
        next(TiedPositions().passes(data.schema))
