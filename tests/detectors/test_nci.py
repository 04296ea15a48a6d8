import numpy as np
import pytest
import reference_formulas as reference
from peers import peer

from pipeline.content import Const
from pipeline.detectors import DICE, FDBD, NCI
from pipeline.engine import Job, Trace, run_jobs
from pipeline.errors import ConfigError
from pipeline.heads import LDAHead, LinearHead
from pipeline.testing import Data, DetectorLaws, drive, labelled

WEIGHT = 1.5 * np.eye(5, 12) + 0.1
BIAS = 4.0 - 0.5 * np.arange(5)
HEAD = LinearHead(Const(WEIGHT), Const(BIAS))


def nearness(x, weight, bias, test, alpha):
    scores = []
    for z in test:
        centred = z - x.mean(axis=0)
        chosen = weight[(weight @ z + bias).argmax()]
        scores.append(-centred @ chosen / np.linalg.norm(centred) - alpha * np.abs(z).sum())
    return np.array(scores)


class TestNCI(DetectorLaws):
    detector = NCI(head=HEAD)

    def reference(self, train, test):
        x, _, _ = reference.fit_rows(train)
        return nearness(x, WEIGHT, BIAS, reference.pooled(test), 1e-4)


def rows(features, seed=0, classes=5):
    labels = np.random.default_rng(seed).integers(0, classes, len(features))
    return Data({"features": np.asarray(features), "labels": labels}, classes)


def noise(n, d=12, seed=0):
    return np.random.default_rng(seed).standard_normal((n, d))


@pytest.mark.parametrize("alpha", [0.0, 0.05])
def test_the_score_of_pytorch_ood(alpha):
    import torch

    weight, bias = noise(7, 12, seed=3), noise(1, 7, seed=4)[0]
    train, test = noise(400, seed=1) + 1.0, noise(80, seed=2)
    linear = torch.nn.Linear(12, 7)
    linear.load_state_dict({"weight": torch.tensor(weight), "bias": torch.tensor(bias)})
    theirs = peer("NCI")(None, linear, alpha=alpha).fit_features(torch.tensor(train))
    expected = theirs.predict_features(torch.tensor(test)).numpy()
    preset = {**NCI.presets["pytorch-ood-0.4"], **({"alpha": alpha} if alpha else {})}
    detector = NCI(LinearHead(Const(weight), Const(bias)), **preset)
    scorer = drive.outcome(detector, rows(train, classes=7).cut())
    found = drive.scores_of(scorer, rows(test, classes=7).cut())
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_an_lda_head_may_lack_classes():
    data = rows(noise(200) + 3 * np.eye(5, 12)[np.random.default_rng(0).integers(0, 5, 200)])
    data = data.take(data.arrays["labels"] != 2)
    x, y = data.arrays["features"], data.arrays["labels"]
    scorer = drive.outcome(NCI(LDAHead(), alpha=0.1), data.cut([[7] * 10, [len(x) - 70]]))
    weight, bias = reference.linear_discriminant(x, y, 5)
    found = drive.scores_of(scorer, data.cut())
    np.testing.assert_allclose(found, nearness(x, weight, bias, x, 0.1), rtol=1e-8)


@pytest.mark.parametrize(("head", "passes"), [(HEAD, [1]), (LDAHead(), [2])])
def test_detectors_of_the_mean_share_it_in_the_pass_of_the_head(head, passes):
    split = labelled().cut([[7] * 20, [100]])
    chosen = {
        "nci": NCI(head),
        "fdbd": FDBD(head),
        "dice": DICE(head),
        "fdbd-l": FDBD(head, "length"),
    }
    trace = Trace()
    run_jobs({name: Job(one, {"train": (split,)}) for name, one in chosen.items()}, trace=trace)
    assert [len(work.statistics) for pass_ in trace.passes for work in pass_.works] == passes


def test_a_row_at_the_mean_has_no_direction():
    train = np.array([[1.0] * 12, [-1.0] * 12])
    scorer = drive.outcome(NCI(HEAD, alpha=0.5), rows(train).cut())
    found = drive.scores_of(scorer, rows(np.zeros((2, 12))).cut())
    np.testing.assert_array_equal(found, [0.0, 0.0])


@pytest.mark.parametrize("alpha", [-1e-3, np.inf, np.nan])
def test_alpha_is_finite_and_not_negative(alpha):
    with pytest.raises(ConfigError, match="alpha"):
        NCI(HEAD, alpha=alpha)


def test_stored_logits_are_refused_before_anything_is_read():
    with pytest.raises(ConfigError, match="head: lda"):
        next(NCI().passes(rows(noise(9)).schema))
