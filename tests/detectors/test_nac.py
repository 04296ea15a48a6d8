import numpy as np
import pytest
import reference_formulas as reference
from peers import peer
from scipy import special

from pipeline.content import Const
from pipeline.detectors import NAC
from pipeline.detectors.nac import thresholds
from pipeline.engine import Job, Trace, run_jobs
from pipeline.errors import ConfigError
from pipeline.heads import LDAHead, LinearHead
from pipeline.testing import Data, DetectorLaws, drive, labelled

WEIGHT = 1.5 * np.eye(5, 12) + 0.1
BIAS = 4.0 - 0.5 * np.arange(5)
HEAD = LinearHead(Const(WEIGHT), Const(BIAS))


def states(z, weight, bias, alpha):
    excess = special.softmax(z @ weight.T + bias, axis=1) - 1 / len(bias)
    # The entries of ``excess`` add up to 0: what all classes share drops out, exactly.
    return special.expit(alpha * z * (excess @ (weight - weight[0])))


def coverage(x, test, weight, bias, alpha, edges, o_star):
    """Compare every state with every threshold (e,), as the reference code does."""

    def inside(z):
        found = states(z, weight, bias, alpha)[:, None, :]
        low, high = edges[:-1, None], edges[1:, None]
        return (found >= low) & (found < high)

    covered = np.minimum(inside(x).sum(axis=0) / o_star, 1)
    return -(inside(test) * covered).sum(axis=1).mean(axis=1)


def edges_of_the_paper(bins=50):
    low = np.log(np.linspace(1, 1e3**0.5, bins // 2)) / np.log(1e3)
    edges = np.concatenate([low[:-1], 1 - low[::-1]])
    edges[-1] += 0.01
    return edges


class TestNAC(DetectorLaws):
    detector = NAC(head=HEAD, alpha=3.0, o_star=4)
    planted_auroc = 0.8

    def reference(self, train, test):
        x, _, _ = reference.fit_rows(train)
        z = reference.pooled(test)
        return coverage(x, z, WEIGHT, BIAS, 3.0, edges_of_the_paper(), 4)


def rows(features, seed=0, classes=5):
    labels = np.random.default_rng(seed).integers(0, classes, len(features))
    return Data({"features": np.asarray(features), "labels": labels}, classes)


def noise(n, d=12, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


def test_thresholds_are_those_of_the_reference_code():
    found = special.expit(thresholds(50, "logarithmic"))
    np.testing.assert_allclose(found, edges_of_the_paper()[1:-1], rtol=1e-13)


def test_thresholds_are_those_of_pytorch_ood():
    half = np.logspace(-6, np.log10(0.5), 26)
    expected = np.concatenate([half, 1 - half[::-1][1:]])[1:-1]
    np.testing.assert_allclose(special.expit(thresholds(50, "geometric")), expected, rtol=1e-12)


@pytest.fixture
def wide_torch():
    """Floats of torch are float64, so that no state rounds across a threshold."""
    import torch

    torch.set_default_dtype(torch.float64)
    yield torch
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("size", [0.3, 3.0])
def test_the_score_of_pytorch_ood(wide_torch, size):
    """Weights of size 3 make probabilities below 1e-12, where its gradient is cut off."""
    torch = wide_torch
    weight, bias = size * noise(7, 24, seed=3), noise(1, 7, seed=4)[0]
    train, test = noise(400, 24, seed=1), noise(80, 24, seed=2)
    linear = torch.nn.Linear(24, 7)
    linear.load_state_dict({"weight": torch.tensor(weight), "bias": torch.tensor(bias)})
    encoder = torch.nn.Linear(24, 24)
    encoder.load_state_dict({"weight": torch.eye(24), "bias": torch.zeros(24)})
    theirs = peer("NACUE")(torch.nn.Sequential(encoder, linear), [encoder], alpha=20.0, o_star=20)
    theirs.fit([torch.tensor(train)])
    expected = theirs.predict(torch.tensor(test)).numpy()
    detector = NAC(
        LinearHead(Const(weight), Const(bias)),
        alpha=20.0, o_star=20, **NAC.presets["pytorch-ood-0.4"],
    )  # fmt: skip
    scorer = drive.outcome(detector, rows(train, classes=7).cut())
    found = drive.scores_of(scorer, rows(test, classes=7).cut())
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_sweep_over_o_star_asks_for_the_same_statistics():
    data = rows(noise(60))
    jobs = {f"nac-{o}": Job(NAC(HEAD, o_star=o), {"train": (data.cut(),)}) for o in (1, 5, 50)}
    trace = Trace()
    run_jobs(jobs, trace=trace)
    assert [len(pass_.works[0].statistics) for pass_ in trace.passes] == [1]


def test_an_lda_head_may_lack_classes():
    data = labelled()
    data = data.take(data.arrays["labels"] != 3)
    x, y, _ = reference.fit_rows(data.upcast())
    weight, bias = reference.linear_discriminant(x, y, 5)
    weight, bias = weight[np.unique(y)], bias[np.unique(y)]
    scorer = drive.outcome(NAC(LDAHead(), alpha=1.0, o_star=5), data.cut())
    z = reference.pooled(data.upcast())
    expected = coverage(x, z, weight, bias, 1.0, edges_of_the_paper(), 5)
    np.testing.assert_allclose(drive.scores_of(scorer, data.cut()), expected, rtol=1e-8)


def test_huge_logits_and_rows_of_zeros_have_scores():
    head = LinearHead(Const(1e4 * WEIGHT), Const(BIAS))
    train = np.concatenate([np.zeros((60, 12)), noise(60)])
    scorer = drive.outcome(NAC(head), rows(train).cut())
    found = drive.scores_of(scorer, rows([np.zeros(12), np.full(12, 1e3)]).cut())
    assert found[0] == -1.0
    assert -1.0 <= found[1] <= 0.0


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"bins": 3}, "bins: 3"),
        ({"o_star": 0}, "o_star: 0"),
        ({"alpha": 0.0}, "alpha: 0.0"),
        ({"spacing": "linear"}, "spacing: 'linear'"),
        ({"cutoff": -1e-12}, "cutoff: -1e-12"),
        ({"cutoff": float("inf")}, "cutoff: inf"),
    ],
)
def test_options_that_cannot_be_are_refused(options, complaint):
    with pytest.raises(ConfigError, match=complaint):
        NAC(HEAD, **options)


def test_stored_logits_are_refused_before_anything_is_read():
    with pytest.raises(ConfigError, match="head: lda"):
        next(NAC().passes(rows(noise(9)).schema))
