"""Scores of images from scores of tokens."""

import numpy as np
import pytest

from pipeline.content import value
from pipeline.detectors import Mahalanobis
from pipeline.errors import ConfigError
from pipeline.procedure import IMAGE_SCORES, Scored, check_image
from pipeline.statistics import fields_of
from pipeline.testing import assert_same, drive, labelled
from pipeline.testing.recipes import Data, regular
from pipeline.views import Stored


@value
class MapScorer:
    """The stored features (t, 1) are the scores."""

    image: str = "max"

    views = (Stored("features"),)
    fields = frozenset({"features"})
    bank = None

    def score(self, chunk):
        return chunk["features"][:, :, 0]


def maps(n=40, t=250, masked=False, seed=0):
    rng = np.random.default_rng(seed)
    arrays = {"features": rng.standard_normal((n, t, 1))}
    if masked:
        arrays["mask"] = np.arange(t) < rng.integers(0, t + 1, n)[:, None]
        arrays["mask"][3] = False
        arrays["mask"][4] = True
    return Data(arrays, 2)


def image_scores(data, image, partition=None):
    chunks = drive.chunks(data.cut(partition), frozenset({"features"}))
    return np.concatenate([Scored(MapScorer(image))(c) for block in chunks for c in block])


def reference(scores, valid, image):
    kept = np.sort(scores[valid])[::-1]
    if not len(kept):
        return np.nan
    if image == "top1":
        return kept[: -(-len(kept) // 100)].mean()
    return kept.max() if image == "max" else kept.mean()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("image", IMAGE_SCORES)
def test_image_scores_are_those_of_the_valid_tokens(image, masked):
    data = maps(masked=masked)
    scores = data.arrays["features"][:, :, 0]
    valid = data.arrays.get("mask", np.ones(scores.shape, bool))
    expected = [reference(*row, image) for row in zip(scores, valid, strict=True)]
    found = image_scores(data, image)
    np.testing.assert_allclose(found, expected, rtol=1e-13)
    assert np.isnan(found).sum() == (0 if not masked else (~valid.any(axis=1)).sum())
    for size in (1, 7, 39):
        assert_same(image_scores(data, image, regular(40, size)), found)


def test_a_scorer_that_names_no_image_score_gives_the_largest():
    scorer = drive.outcome(Mahalanobis(pool="tokens"), labelled().cut())
    (((chunk,)),) = drive.chunks(labelled(rows=30, seed=3).cut(), fields_of(*scorer.views))
    np.testing.assert_array_equal(Scored(scorer)(chunk), scorer.score(chunk).max(axis=1))


def test_an_unknown_image_score_is_refused():
    with pytest.raises(ConfigError, match="image: 'median' is unknown; choose max, mean, top1"):
        check_image("median")
    with pytest.raises(ConfigError, match="image: 'median'"):
        image_scores(maps(), "median")
