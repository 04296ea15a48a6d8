import numpy as np
import pytest

from pipeline.detectors.anomaly_dino import AnomalyDINO
from pipeline.errors import ConfigError, DataError
from pipeline.procedure import Rows, Scored
from pipeline.testing import DetectorLaws, drive, recipes


def directions(x):
    lengths = np.linalg.norm(x, axis=-1, keepdims=True)
    return np.divide(x, lengths, out=np.zeros_like(x), where=lengths > 0)


def cosine_distances(train, test, k):
    bank = directions(train["features"][train["labels"] >= 0].reshape(-1, 12))
    each = np.sort(1 - directions(test["features"]) @ bank.T, axis=-1)
    return each[..., :k].mean(axis=-1)


class TestAnomalyDINO(DetectorLaws):
    detector = AnomalyDINO()

    def reference(self, train, test):
        return cosine_distances(train, test, 1)


class TestAnomalyDINOOfAllTokens(DetectorLaws):
    detector = AnomalyDINO(k=3, max_bank=None)

    def id_train(self):
        return recipes.labelled(rows=80)

    def reference(self, train, test):
        return cosine_distances(train, test, 3)


@pytest.mark.parametrize(
    ("options", "match"),
    [({"k": 0}, "k: 0"), ({"max_bank": 0}, "max_bank: 0"), ({"image": "min"}, "image: 'min'")],
)
def test_options_are_checked_at_once(options, match):
    with pytest.raises(ConfigError, match=match):
        AnomalyDINO(**options)


def test_features_without_tokens_are_refused():
    rows = recipes.labelled()
    pooled = rows.with_arrays(features=rows.arrays["features"].mean(axis=1))
    with pytest.raises(DataError, match="tokens need"):
        drive.outcome(AnomalyDINO(), pooled.cut())


def test_more_neighbours_than_tokens_are_refused():
    with pytest.raises(DataError, match="k: 99"):
        drive.outcome(AnomalyDINO(k=99, max_bank=50), recipes.labelled().cut())


def test_masked_tokens_neither_count_nor_score():
    rows, test = recipes.labelled(), recipes.labelled(rows=30, seed=3)
    mask = np.ones((240, 4), bool)
    mask[:, 2:] = False
    spoilt = rows.arrays["features"].copy()
    spoilt[:, 2:] = test.arrays["features"][0, 0]
    masked = rows.with_arrays(features=spoilt, mask=mask)
    scorer = drive.outcome(AnomalyDINO(), masked.cut())
    kept = rows.with_arrays(features=rows.arrays["features"][:, :2])
    expected = cosine_distances(kept.upcast(), test.upcast(), 1)
    np.testing.assert_allclose(drive.scores_of(scorer, test.cut()), expected, rtol=1e-9, atol=1e-12)
    images = drive.outcome(drive.Ask(Rows(Scored(scorer))), test.cut()).array()
    np.testing.assert_allclose(images, expected.max(axis=1), rtol=1e-9)
