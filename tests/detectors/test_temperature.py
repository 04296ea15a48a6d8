import numpy as np
import pytest
from peers import peer
from scipy import special
from scipy.optimize import brentq

from pipeline.detectors import Temperature
from pipeline.detectors.temperature import GRID, ScaledLosses
from pipeline.engine import Job, Trace, rehearse, run_jobs
from pipeline.heads import ABSENT_BIAS, LDAHead
from pipeline.statistics import Sum, Sums
from pipeline.testing import Data, DetectorLaws, StatisticLaws, drive, labelled
from pipeline.views import Logits


def mislabelled(rows=240, share=0.15, seed=0):
    """Rows some of which have another label, so that a finite temperature is best."""
    data = labelled(rows, seed)
    rng = np.random.default_rng(5)
    labels = data.arrays["labels"].copy()
    wrong = (rng.random(rows) < share) & (labels >= 0)
    labels[wrong] = (labels[wrong] + 1) % 5
    return data.with_arrays(labels=labels)


def slope(beta, logits, labels):
    """Return the derivative of the mean loss by 1 / T."""
    p = special.softmax(beta * logits, axis=1)
    return ((p * logits).sum(axis=1) - logits[np.arange(len(labels)), labels]).mean()


def best_temperature(logits, labels):
    logits, labels = logits[labels >= 0], labels[labels >= 0]
    found = brentq(
        lambda log_beta: slope(np.exp(log_beta), logits, labels), -11, 11, xtol=1e-15, rtol=1e-14
    )
    return np.exp(-found)


def fitted(logits, labels):
    logits = np.asarray(logits, np.float64)
    data = Data({"logits": logits, "labels": np.asarray(labels)}, logits.shape[1])
    return drive.outcome(Temperature(), data.cut([[7] * 3, [len(labels) - 21]]))


class TestTemperature(DetectorLaws):
    detector = Temperature()

    def id_train(self):
        return mislabelled()

    def reference(self, train, test):
        temperature = best_temperature(train["logits"], train["labels"])
        return 1 - special.softmax(test["logits"] / temperature, axis=1).max(axis=1)


class TestScaledLosses(StatisticLaws):
    statistic = Sums(ScaledLosses(Logits(), (0.25, 1.0, 3.0)))

    def reference(self, rows):
        kept = rows["labels"] >= 0
        f, y = rows["logits"][kept], rows["labels"][kept]
        own = np.arange(len(y)), y
        columns = []
        for beta in (0.25, 1.0, 3.0):
            log_p = special.log_softmax(beta * f, axis=1)
            p = np.exp(log_p)
            mean = (p * f).sum(axis=1)
            spread = (p * (f - mean[:, None]) ** 2).sum(axis=1)
            columns.append((-log_p[own], mean - f[own], spread))
        kinds = zip(*columns, strict=True)
        return Sum(len(y), np.concatenate([np.sum(kind, axis=1) for kind in kinds]))


@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0, 30.0, 1e3])
@pytest.mark.parametrize(
    ("classes", "rows", "noise"), [(2, 50, 1.0), (5, 3000, 0.6), (100, 400, 2)]
)
def test_temperature_is_that_of_a_root_finder(classes, rows, noise, scale):
    rng = np.random.default_rng(1)
    labels = rng.integers(0, classes, rows)
    logits = noise * rng.standard_normal((rows, classes))
    logits[np.arange(rows), labels] += 2.0
    logits[0, labels[0]] -= 3.0  # one error at least
    scorer = fitted(scale * logits, labels)
    expected = best_temperature(scale * logits, labels)
    np.testing.assert_allclose(scorer.temperature, expected, rtol=1e-11)
    assert scorer.notes[0].startswith("temperature")


def test_one_error_among_many_rows():
    logits = np.tile([3.0, 0.0], (5000, 1))
    labels = np.zeros(5000, np.int64)
    labels[-1] = 1
    scorer = fitted(logits, labels)
    assert scorer.temperature == pytest.approx(3.0 / np.log(4999), rel=1e-10)


@pytest.mark.parametrize(
    ("logits", "labels", "why"),
    [
        ([[4.0, 0.0, -1.0], [0.0, 0.5, 0.0]], [0, 1], "classified without error"),
        ([[4.0, 4.0, 4.0], [-2.0, -2.0, -2.0]], [0, 2], "all alike"),
        ([[4.0, 0.0, -1.0], [0.0, 0.5, 0.0]], [2, 0], "no more likely than by chance"),
        ([[1e4, -1e4, 0.0], [-1e4, 0.0, 1e4]], [0, 2], "classified without error"),
    ],
)
def test_temperature_stays_1_where_none_is_best(logits, labels, why):
    scorer = fitted(np.tile(logits, (30, 1)), np.tile(labels, 30))
    assert scorer.temperature == 1.0
    assert why in scorer.notes[0]


def test_every_fit_takes_three_passes_and_so_does_its_plan():
    for data in (labelled(), mislabelled()):
        for head, more in (({}, 0), ({"head": LDAHead()}, 1)):
            job = Job(Temperature(**head), {"train": (data.cut(),)})
            trace = Trace()
            run_jobs({"it": job}, trace=trace)
            planned, _ = rehearse({"it": job})
            assert len(trace.passes) == len(planned) == Temperature.max_passes + more


def test_labels_that_the_head_cannot_predict_count_at_no_temperature():
    data = mislabelled()
    logits, labels = data.arrays["logits"].astype(np.float64), data.arrays["labels"]
    logits[:, 3] = ABSENT_BIAS
    absent = data.with_arrays(logits=logits)
    known = drive.outcome(Temperature(), absent.take(labels != 3).cut())
    found = drive.outcome(Temperature(), absent.cut())
    assert found.temperature == pytest.approx(known.temperature, rel=1e-9)
    assert found.temperature != 1.0


def test_rows_that_are_certain_keep_their_order():
    data = mislabelled()
    scorer = drive.outcome(Temperature(), data.cut())
    gaps = np.array([60.0, 40.0, 50.0, 700.0]) * scorer.temperature
    test = Data({"logits": np.stack([gaps, np.zeros(4)], axis=1) @ np.eye(2, 5)}, 5)
    found = drive.scores_of(scorer, test.cut())
    np.testing.assert_array_equal(np.argsort(found), np.argsort(gaps)[::-1])


def test_the_grid_holds_1_so_that_the_loss_without_scaling_is_known():
    assert 1.0 in GRID


def test_pytorch_ood_stops_between_its_start_and_the_optimum():
    import torch

    data = mislabelled(2000)
    logits, labels = (torch.from_numpy(data.arrays[name]) for name in ("logits", "labels"))
    theirs = peer("TemperatureScaling")(None).fit_logits(logits, labels)
    ours = drive.outcome(Temperature(), data.cut())
    stopped = float(theirs.t.detach())
    assert min(1.0, ours.temperature) < stopped < max(1.0, ours.temperature)
    known = data.arrays["labels"] >= 0
    at = slope(1 / ours.temperature, data.arrays["logits"][known], data.arrays["labels"][known])
    assert abs(at) < 1e-9
    # At their temperature the scores are theirs.
    moved = type(ours)(ours.logits, stopped)
    found = drive.scores_of(moved, data.cut()) - 1
    np.testing.assert_allclose(found, theirs.predict_logits(logits).detach().numpy(), rtol=1e-5)
