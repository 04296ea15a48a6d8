import numpy as np
import pytest
import reference_formulas as reference

from pipeline.detectors.knn import KNN
from pipeline.errors import ConfigError
from pipeline.testing import Data, DetectorLaws, drive, recipes


def directions(x):
    lengths = np.linalg.norm(x, axis=-1, keepdims=True)
    return np.divide(x, lengths, out=np.zeros_like(x), where=lengths > 0)


def kth_distances(bank, x, k, prepare=directions):
    """The k-th smallest of all distances, each from the difference of two rows."""
    bank, x = prepare(bank), prepare(x)
    each = [np.sort(np.sqrt(((bank - row) ** 2).sum(axis=1)))[k - 1] for row in x]
    return np.array(each)


class TestKNN(DetectorLaws):
    detector = KNN(k=5)

    def reference(self, train, test):
        bank, _, _ = reference.fit_rows(train)
        return kth_distances(bank, reference.pooled(test), 5)


class TestKNNOfTokens(DetectorLaws):
    detector = KNN(k=3, pool="tokens", normalize=False, squared=True)
    planted_auroc = 0.9

    def id_train(self):
        return recipes.labelled(rows=80)

    def reference(self, train, test):
        bank = train["features"][train["labels"] >= 0].reshape(-1, 12)
        tokens = test["features"].reshape(-1, 12)
        return kth_distances(bank, tokens, 3, lambda x: x).reshape(-1, 4) ** 2


def rows(features, seed=0, classes=5):
    labels = np.random.default_rng(seed).integers(0, classes, len(features))
    return Data({"features": np.asarray(features), "labels": labels}, classes)


def noise(n, d=12, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


def scores(detector, fitted_on, scored, cut=None):
    scorer = drive.outcome(detector, fitted_on.cut())
    return drive.scores_of(scorer, rows(scored).cut(cut))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"k": 0}, "k: 0"),
        ({"max_bank": 0}, "max_bank: 0"),
        ({"image": "median"}, "image: 'median'"),
    ],
)
def test_options_are_checked_at_once(options, match):
    with pytest.raises(ConfigError, match=match):
        KNN(**options)
