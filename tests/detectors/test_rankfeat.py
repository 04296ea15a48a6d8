import numpy as np
import pytest
import torch
from peers import peer
from scipy.special import logsumexp

from pipeline.content import Const
from pipeline.detectors import RankFeat
from pipeline.errors import ConfigError, DataError
from pipeline.heads import LDAHead, LinearHead
from pipeline.statistics import ClassMeans, fields_of
from pipeline.testing import (
    Data,
    DetectorLaws,
    assert_same,
    drive,
    labelled,
    planted,
)
from pipeline.testing.memory_laws import MemoryLaws
from pipeline.testing.recipes import Shape, regular
from pipeline.views import Tokens
from pipeline.views.rank_one import WithoutRankOne

WEIGHT = 1.5 * np.eye(5, 12) + 0.1
BIAS = 4.0 - 0.5 * np.arange(5)
HEAD = LinearHead(Const(WEIGHT), Const(BIAS))


def rest(tokens):
    """Return the mean of tokens (t, d) without their rank-one part."""
    u, s, v = np.linalg.svd(tokens.astype(np.float64), full_matrices=False)
    return (tokens - s[0] * np.outer(u[:, 0], v[0])).mean(axis=0)


def energies(features):
    means = np.array([rest(tokens) for tokens in features])
    return -logsumexp(means @ WEIGHT.T + BIAS, axis=1)


class TestRankFeat(DetectorLaws):
    detector = RankFeat(HEAD)
    planted_auroc = 0.0  # it looks at what is left of the planted shift, which is noise

    def reference(self, train, test):
        return energies(test["features"])


@pytest.mark.parametrize(
    "shape", [Shape(1, 2, 128, 20), Shape(64, 16, 256, 6), Shape(80, 9, 96, 6, "float16", True)]
)
def test_memory_of_the_view_is_declared(shape):
    laws = MemoryLaws()
    laws.statistic = ClassMeans(of=WithoutRankOne())
    assert not laws.views_undeclared(shape.data)


@pytest.mark.parametrize("shape", [(30, 4, 12), (30, 12, 4), (30, 7, 7), (30, 1, 5)])
def test_tokens_may_be_more_or_fewer_than_features(shape):
    rng = np.random.default_rng(0)
    features = rng.standard_normal(shape) + 1
    head = LinearHead(Const(np.eye(3, shape[2])), Const(np.zeros(3)))
    data = Data({"features": features, "labels": np.zeros(30, int)}, 3)
    scorer = drive.outcome(RankFeat(head), data.cut())
    means = np.array([rest(tokens) for tokens in features])
    expected = -logsumexp(means @ np.eye(3, shape[2]).T, axis=1)
    found = drive.scores_of(scorer, data.cut())
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    for size in (1, 7, 29):
        assert_same(drive.scores_of(scorer, data.cut(regular(30, size))), found)


def test_scores_are_those_of_pytorch_ood():
    tokens, weight, bias = planted().arrays["features"], torch.tensor(WEIGHT), torch.tensor(BIAS)
    maps = torch.tensor(tokens.astype(np.float64)).permute(0, 2, 1)[:, :, None, :]

    def head(x):
        return x.mean(dim=(2, 3)) @ weight.T + bias

    theirs = peer("RankFeat")(backbone=None, head=head).predict_feature_maps(maps).numpy()
    scorer = drive.outcome(RankFeat(HEAD), labelled().cut())
    np.testing.assert_allclose(drive.scores_of(scorer, planted().cut()), theirs, rtol=1e-9)


def test_masked_tokens_are_no_rows():
    data = labelled(rows=40)
    mask = np.arange(4) < 1 + np.arange(40)[:, None] % 4
    mask[11] = False
    features = np.where(mask[:, :, None], data.arrays["features"], np.nan)
    scorer = drive.outcome(RankFeat(HEAD), data.cut())
    found = WithoutRankOne()
    ((chunk,),) = drive.chunks(data.with_arrays(features=features, mask=mask).cut(), ["features"])
    for row, (tokens, there) in enumerate(zip(features, mask, strict=True)):
        expected = rest(tokens[there]) if there.any() else np.full(12, np.nan)
        np.testing.assert_allclose(found(chunk)[row], expected, rtol=1e-8, atol=1e-12)
    assert fields_of(*scorer.views) == {"features"}


def test_rows_of_zeros_score_the_energy_of_the_bias():
    data = labelled(rows=20)
    data.arrays["features"][3] = 0.0
    scorer = drive.outcome(RankFeat(HEAD), data.cut())
    assert drive.scores_of(scorer, data.cut())[3] == pytest.approx(-logsumexp(BIAS), rel=1e-12)


@pytest.mark.parametrize("size", [1e-150, 1e150])
def test_scores_survive_the_size_of_the_features(size):
    tokens = planted().arrays["features"].astype(np.float64)
    test = planted().with_arrays(features=tokens * size)
    head = LinearHead(Const(WEIGHT / size), Const(BIAS))
    scorer = drive.outcome(RankFeat(head), labelled().cut())
    np.testing.assert_allclose(drive.scores_of(scorer, test.cut()), energies(tokens), rtol=1e-8)


def test_an_lda_head_is_fitted_on_the_mean_of_the_tokens():
    scorer = drive.outcome(RankFeat(LDAHead()), labelled().cut())
    assert np.isfinite(drive.scores_of(scorer, planted().cut())).all()


def test_heads_and_features_that_do_not_fit_are_refused_before_anything_is_read():
    with pytest.raises(ConfigError, match="head: lda"):
        next(RankFeat().passes(labelled().schema))
    other = labelled().with_arrays(tap=labelled().arrays["features"])
    with pytest.raises(ConfigError, match="same pool and field"):
        drive.outcome(RankFeat(HEAD, field="tap"), other.cut())
    vectors = labelled().with_arrays(features=labelled().arrays["features"][:, 0])
    with pytest.raises(DataError, match="tokens need"):
        next(RankFeat(HEAD).passes(vectors.schema))
    assert WithoutRankOne().shape(labelled().schema) == (12,)
    assert WithoutRankOne(Tokens("features")) == WithoutRankOne()
