import numpy as np
import pytest
from scipy import spatial, special

from pipeline.detectors.patchcore import PatchCore, k_center
from pipeline.errors import ConfigError
from pipeline.testing import DetectorLaws, drive, recipes


def tokens(train):
    return train["features"][train["labels"] >= 0].reshape(-1, 12)


def weighted(bank, test, neighbours):
    """The score of the paper, image by image and over whole distance matrices."""
    scores = []
    for image in test["features"]:
        far = spatial.distance.cdist(image, bank)
        worst = far.min(axis=1).argmax()
        nearest = far[worst].argmin()
        around = spatial.distance.cdist(bank[[nearest]], bank)[0].argsort(kind="stable")
        shares = special.softmax(far[worst][around[:neighbours]])
        scores.append((1 - shares[0]) * far[worst].min())
    return np.array(scores)


class TestPatchCore(DetectorLaws):
    detector = PatchCore(ratio=1.0)

    def reference(self, train, test):
        return weighted(tokens(train), test, 9)


class TestPatchCoreOfTokens(DetectorLaws):
    detector = PatchCore(ratio=1.0, image="max")

    def reference(self, train, test):
        far = spatial.distance.cdist(test["features"].reshape(-1, 12), tokens(train))
        return far.min(axis=1).reshape(-1, 4)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"ratio": 0.0}, "ratio: 0"),
        ({"neighbours": 0}, "neighbours: 0"),
        ({"max_bank": 0}, "max_bank: 0"),
        ({"seed": -1}, "seed: -1"),
        ({"image": "median"}, "image: 'median'"),
    ],
)
def test_options_are_checked_at_once(options, match):
    with pytest.raises(ConfigError, match=match):
        PatchCore(**options)


def test_greedy_centres_cover_at_most_twice_as_far_as_the_best():
    rng = np.random.default_rng(0)
    centres = 100.0 * rng.standard_normal((7, 3))
    entries = np.concatenate([centre + rng.uniform(-1, 1, (20, 3)) for centre in centres])
    chosen = k_center(entries, 7, seed=1)
    assert len(set(chosen // 20)) == 7
    radius = spatial.distance.cdist(entries, entries[chosen]).min(axis=1).max()
    assert radius <= 2 * np.sqrt(12)


def test_an_offset_of_the_tokens_moves_no_centre():
    entries = np.random.default_rng(0).standard_normal((200, 12))
    entries = np.round(entries * 2**10) / 2**10  # of which an offset rounds nothing
    np.testing.assert_array_equal(k_center(entries + 2.0**30, 40, 1), k_center(entries, 40, 1))


def test_a_coreset_is_a_share_of_the_tokens_and_says_how_far_it_reaches():
    train, test = recipes.labelled(), recipes.labelled(rows=40, seed=3)
    scorer = drive.outcome(PatchCore(ratio=0.05), train.cut())
    every, bank = tokens(train.upcast()), scorer.bank.held.array
    assert len(bank) == int(0.05 * len(every))
    radius = spatial.distance.cdist(every, bank).min(axis=1).max()
    assert f"covering radius {radius:.4g}" in scorer.notes[0]
    np.testing.assert_allclose(
        drive.scores_of(scorer, test.cut()), weighted(bank, test.upcast(), 9), rtol=1e-9
    )


def test_equal_tokens_make_a_coreset_of_equal_entries():
    train = recipes.labelled().with_arrays(features=np.ones((240, 4, 12), np.float32))
    scorer = drive.outcome(PatchCore(), train.cut())
    scores = drive.scores_of(scorer, recipes.labelled(rows=20).cut())
    assert np.isfinite(scores).all()
    assert "covering radius 0" in scorer.notes[0]


def test_one_entry_weighs_one():
    train, test = recipes.labelled(), recipes.labelled(rows=20, seed=3)
    scorer = drive.outcome(PatchCore(max_bank=1), train.cut())
    far = np.linalg.norm(test.upcast()["features"] - scorer.bank.held.array[0], axis=2)
    np.testing.assert_allclose(drive.scores_of(scorer, test.cut()), far.max(axis=1), rtol=1e-12)
