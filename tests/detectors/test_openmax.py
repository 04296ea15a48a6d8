import numpy as np
import pytest
from peers import peer
from scipy import special, stats
from scipy.optimize import brentq

from pipeline.content import Const
from pipeline.detectors import OpenMax
from pipeline.detectors.openmax import OwnDistances, fit_weibull
from pipeline.engine import Job, Trace, rehearse, run_jobs
from pipeline.errors import ConfigError, DataError
from pipeline.heads import LDAHead
from pipeline.statistics import Sum, Sums
from pipeline.testing import (
    Data,
    DetectorLaws,
    StatisticLaws,
    assert_close,
    drive,
    labelled,
    planted,
    recipes,
)
from pipeline.testing.memory_laws import MemoryLaws
from pipeline.testing.recipes import Shape
from pipeline.views import Logits


def distance(x, centre, weight):
    cosine = 1 - x @ centre / (np.linalg.norm(x) * np.linalg.norm(centre))
    return weight * np.linalg.norm(x - centre) + (1 - weight) * cosine


def weibull(tail):
    """Return the distribution function that LibMR fits to a tail: shape by a root finder."""
    moved = np.asarray(tail) - min(tail) + 1e4
    logs = np.log(moved / moved.max())

    def equation(c):
        weights = np.exp(c * logs)
        return weights @ logs / weights.sum() - 1 / c - logs.mean()

    shape = brentq(equation, 1.0, 1e9, xtol=1e-9, rtol=1e-14)
    scale = moved.max() * np.mean(np.exp(shape * logs)) ** (1 / shape)
    return lambda d: -np.expm1(-(((d - min(tail) + 1e4) / scale) ** shape))


def openmax(f, y, test, tail=20, alpha=10, weight=1.0):
    """Return log odds of the unknown class, row by row; f and y are the rows that are fitted on."""
    k = f.shape[1]
    centres, cdfs = {}, {}
    for c in np.unique(y):
        rows = f[y == c]
        centres[c] = rows.mean(axis=0)
        found = sorted(distance(row, centres[c], weight) for row in rows)
        cdfs[c] = weibull(found[-tail:])
    alpha = min(alpha, k)
    scores = []
    for row in test:
        revised, unknown = row.copy(), 0.0
        for rank, c in enumerate(np.argsort(-row, kind="stable")[:alpha]):
            extreme = cdfs[c](distance(row, centres[c], weight)) if c in cdfs else 1.0
            lost = row[c] * extreme * (alpha - rank) / alpha
            revised[c] -= lost
            unknown += lost
        scores.append(unknown - special.logsumexp(revised))
    return np.array(scores)


def rows(n=400, k=6, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, k, n)
    logits = rng.standard_normal((n, k))
    logits[np.arange(n), labels] += 4.0
    return Data({"logits": logits, "labels": labels}, k)


def scores(data, test, **options):
    scorer = drive.outcome(OpenMax(**options), data.cut())
    return drive.scores_of(scorer, Data({"logits": np.asarray(test, float)}, data.classes).cut())


class TestOpenMax(DetectorLaws):
    detector = OpenMax(tail=5, alpha=3)
    tolerance = 1e-8

    def far_ood(self):
        # Rows that every class claims: what OpenMax is for.
        data = planted()
        return data.with_arrays(logits=data.arrays["logits"] + 8.0)

    def reference(self, train, test):
        f, y = train["logits"], train["labels"]
        correct = (y >= 0) & (f.argmax(axis=1) == y)
        return openmax(f[correct], y[correct], test["logits"], 5, 3)


class TestProbabilityOfAllRows(TestOpenMax):
    detector = OpenMax(tail=8, rows="all", euclid_weight=0.5, score="probability")

    def reference(self, train, test):
        f, y = train["logits"], train["labels"]
        return special.expit(openmax(f[y >= 0], y[y >= 0], test["logits"], 8, weight=0.5))


class TestOwnDistances(StatisticLaws):
    centres = np.arange(25.0).reshape(5, 5) - 7.0
    memory_shapes = (Shape(1, 1, 8, 5), Shape(512, 1, 8, 5))
    statistic = Sums(OwnDistances(Logits(), Const(centres), 0.25))

    def reference(self, rows):
        kept = rows["labels"] >= 0
        f, y = rows["logits"][kept], rows["labels"][kept]
        return Sum(
            len(y), sum(distance(x, self.centres[c], 0.25) for x, c in zip(f, y, strict=True))
        )


class TestMemoryOfOwnDistances(MemoryLaws):
    statistic = Sums(OwnDistances(Logits(), Const(np.ones((1000, 1000))), 0.25))
    memory_shapes = (Shape(1, 1, 8, 1000), Shape(512, 1, 8, 1000))

    def rows(self):
        return Shape(80, 1, 8, 1000).data


def test_weibull_is_the_maximum_likelihood():
    tails = np.sort(np.random.default_rng(0).gamma(3, 1, (6, 25)), axis=1)[:, ::-1]
    found = fit_weibull(tails)
    for i, tail in enumerate(tails):
        moved = tail - tail.min() + 1e4
        shape, _, scale = stats.weibull_min.fit(moved, floc=0)
        ours = (found.shape[i], 0.0, 1e4 * np.exp(found.log_scale[i]))
        np.testing.assert_allclose(ours, (shape, 0.0, scale), rtol=1e-5)
        assert stats.weibull_min.nnlf(ours, moved) <= stats.weibull_min.nnlf(
            (shape, 0.0, scale), moved
        ) * (1 + 1e-12)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_shape_solves_its_equation_at_any_scale(scale):
    tails = scale * np.sort(np.random.default_rng(0).gamma(3, 1, (6, 20)), axis=1)[:, ::-1]
    found = fit_weibull(tails)
    for tail, c in zip(tails, found.shape, strict=True):
        logs = np.log1p((tail - tail.min()) / 1e4)
        weights = np.exp(c * (logs - logs.max()))
        excess = weights @ logs / weights.sum() - logs.mean() - 1 / c
        assert abs(excess) < 1e-12 / c


def test_score_is_the_log_odds_of_the_probability():
    data, test = rows(), rows(50, seed=1).arrays["logits"]
    odds, p = (scores(data, test, score=score) for score in ("log_odds", "probability"))
    np.testing.assert_allclose(p, special.expit(odds), rtol=1e-14)


def test_log_odds_keep_the_order_that_probabilities_lose():
    test = np.full((3, 6), 1.0) * [[50.0], [30.0], [40.0]]
    assert len(set(scores(rows(), test, score="probability"))) == 1
    np.testing.assert_array_equal(np.argsort(scores(rows(), test)), [1, 2, 0])


def test_extreme_logits_overflow_nowhere():
    test = np.array([[1e4] * 6, [-1e4] * 6, [0.0] * 6, [1e4, -1e4, 0, 0, 0, 0], [1e300] * 6])
    for options in ({}, {"score": "probability"}, {"euclid_weight": 0.0}):
        with np.errstate(over="ignore"):  # of squares, which are then far away
            assert not np.isnan(scores(rows(), test, **options)).any()


def test_a_vector_of_zeros_has_the_cosine_distance_one():
    data = rows()
    found = scores(data, np.zeros((1, 6)), euclid_weight=0.0)
    assert found == pytest.approx(-np.log(6))


def test_short_tails_use_what_there_is():
    data = rows(60)
    scorer = drive.outcome(OpenMax(tail=50), data.cut())
    assert "6 of them have fewer than 50 correct rows" in scorer.notes[0]
    test = rows(30, seed=1).arrays["logits"]
    f, y = data.arrays["logits"], data.arrays["labels"]
    correct = f.argmax(axis=1) == y
    expected = openmax(f[correct], y[correct], test, 50)
    np.testing.assert_allclose(scores(data, test, tail=50), expected, rtol=1e-8)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_equal_distances_and_single_rows_are_a_step(scale):
    logits = [[5.0, 0, 0], [5.0, 2, 0], [0, 5.0, 0]]
    data = Data({"logits": scale * np.array(logits), "labels": np.array([0, 0, 1])}, 3)
    # Class 0 has its mean at (5, 1, 0) and two rows at distance 1, class 1 one row at its mean.
    near = scale * np.array([[5.5, 1, 0], [5.0, 2, 0], [5.0, 0, 0], [0, 5.0, 0]])
    found = scores(data, near, alpha=1)
    np.testing.assert_allclose(found, -special.logsumexp(near, axis=1), rtol=1e-14)
    far = scale * np.array([[6.001, 1, 0], [0, 5.001, 0]])
    found = scores(data, far, alpha=1)
    known = scale * np.array([[0, 1.0, 0], [0, 0, 0]])
    np.testing.assert_allclose(found, far.max(axis=1) - special.logsumexp(known, axis=1))
    notes = drive.outcome(OpenMax(), data.cut()).notes
    assert "in 2 all are equally far: farther rows are extreme" in notes[0]


@pytest.mark.parametrize("rows", [6, 9, 12, 14, 20])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_chunks_do_not_matter_to_an_lda_head_of_fewer_rows_than_features(rows, seed):
    # Classes of two rows, scored themselves: they lie where their own tail ends.
    train = labelled(rows=rows, seed=seed)
    for options in ({}, {"rows": "all", "euclid_weight": 0.5}):
        found = [
            drive.scores_of(drive.outcome(OpenMax(LDAHead(), **options), split), train.cut())
            for split in (train.cut(recipes.regular(rows, size, 1)) for size in (rows, 1, 2, 3))
        ]
        for other in found[1:]:
            assert_close(other, found[0], 1e-8)


def test_a_class_without_correct_rows_is_unknown_itself():
    data = rows()
    labels = np.where(data.arrays["labels"] == 2, 3, data.arrays["labels"])
    scorer = drive.outcome(OpenMax(), data.with_arrays(labels=labels).cut())
    assert "5 of 6 classes" in scorer.notes[0]
    assert "1 classes without correct rows" in scorer.notes[0]
    test = Data({"logits": 9.0 * np.eye(6)[2:3]}, 6)
    found = drive.scores_of(scorer, test.cut())
    assert found == pytest.approx(9.0 - np.log(6))


def test_classes_that_a_head_cannot_predict_change_nothing():
    data = labelled()
    kept = data.take(data.arrays["labels"] != 4)
    without = Data(dict(kept.arrays, logits=kept.arrays["logits"][:, :4]), 4)
    options = {"head": LDAHead(), "alpha": 3}
    found = [
        drive.scores_of(drive.outcome(OpenMax(**options), train.cut()), train.cut())
        for train in (kept, without)
    ]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-10)
    many = drive.outcome(OpenMax(LDAHead()), kept.cut())
    assert np.abs(drive.scores_of(many, kept.cut())).max() < 1e3


def test_nothing_classified_correctly_is_an_error():
    data = rows()
    wrong = data.with_arrays(labels=(data.arrays["logits"].argmax(axis=1) + 1) % 6)
    with pytest.raises(DataError, match="no usable row"):
        drive.outcome(OpenMax(), wrong.cut())


def test_passes_and_what_a_sweep_shares():
    split = labelled().cut()
    trace = Trace()
    swept = [OpenMax(tail=tail, alpha=alpha) for tail in (2, 20, 64) for alpha in (1, 10)]
    run_jobs({str(i): Job(d, {"train": (split,)}) for i, d in enumerate(swept)}, trace=trace)
    assert [len(pass_.works[0].statistics) for pass_ in trace.passes] == [1, 1]
    for head, passes in (({}, 2), ({"head": LDAHead()}, 3)):
        planned, _ = rehearse({"it": Job(OpenMax(**head), {"train": (split,)})})
        assert len(planned) == passes


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        ("tail", 1),
        ("alpha", 0),
        ("euclid_weight", 1.5),
        ("euclid_weight", float("nan")),
        ("rows", "some"),
        ("score", "odds"),
    ],
)
def test_options_are_checked(option, wrong):
    with pytest.raises(ConfigError, match=f"^{option}: "):
        OpenMax(**{option: wrong})


@pytest.mark.parametrize("options", [{}, {"tail": 10, "alpha": 3}, {"euclid_weight": 0.5}])
def test_pytorch_ood(options):
    import torch

    data, test = rows(800, 8), 3 * np.random.default_rng(1).standard_normal((300, 8))
    names = {"tail": "tailsize"}
    theirs = peer("OpenMax")(None, **{names.get(key, key): options[key] for key in options})
    theirs.fit_logits(*(torch.from_numpy(data.arrays[name]) for name in ("logits", "labels")))
    expected = theirs.predict_logits(torch.from_numpy(test)).numpy()
    ours = scores(data, test, **{**OpenMax.presets["pytorch-ood-0.4"], **options})
    np.testing.assert_allclose(ours, expected, rtol=1e-5)
    np.testing.assert_array_equal(np.argsort(ours), np.argsort(expected))
