"""Parity: with ``preset: openood-1.5`` a detector gives the scores of OpenOOD 1.5.

Its postprocessors need a network, so each score is written here from their code, on whole arrays,
in float64 and with the sign turned: there larger means in-distribution.
"""

from collections.abc import Callable

import numpy as np
import pytest
from scipy import linalg, special, stats

from pipeline import detectors
from pipeline.content import Const
from pipeline.heads import LinearHead
from pipeline.testing import Data, drive

PRESET = "openood-1.5"
TRAIN, TEST, D, K = 400, 80, 24, 6
Host = np.ndarray


class Arrays:
    """Features of K classes as after a ReLU, the rows that are scored, and a head."""

    def __init__(self) -> None:
        random = np.random.default_rng(3)
        centres = 1 + 2 * random.random((K, D))
        self.labels = np.arange(TRAIN) % K
        self.z = np.maximum(centres[self.labels] + random.standard_normal((TRAIN, D)), 0)
        spread = np.repeat([1.0, 2.5], TEST // 2)[:, None]
        self.test = np.maximum(
            centres[np.arange(TEST) % K] + spread * random.standard_normal((TEST, D)), 0
        )
        self.weight = (centres - centres.mean(axis=0)) / 4
        self.bias = -self.weight @ centres.mean(axis=0) + 0.1 * random.standard_normal(K)
        self.f = self.z @ self.weight.T + self.bias
        self.g = self.test @ self.weight.T + self.bias


def covariance(x: Host) -> Host:
    return (x - x.mean(axis=0)).T @ (x - x.mean(axis=0)) / len(x)


def squared(x: Host, mean: Host, precision: Host) -> Host:
    return np.einsum("ni,ij,nj->n", x - mean, precision, x - mean)


def distances(a: Arrays) -> Host:
    means = np.stack([a.z[a.labels == c].mean(axis=0) for c in range(K)])
    about = a.z - means[a.labels]
    precision = linalg.pinvh(about.T @ about / TRAIN)
    return np.stack([squared(a.test, mean, precision) for mean in means], axis=1)


def mahalanobis(a: Arrays) -> Host:
    return distances(a).min(axis=1)


def relative_mahalanobis(a: Arrays) -> Host:
    background = squared(a.test, a.z.mean(axis=0), linalg.pinvh(covariance(a.z)))
    return distances(a).min(axis=1) - background


def kl_matching(a: Arrays) -> Host:
    p, q = special.softmax(a.f, axis=1), special.softmax(a.g, axis=1)
    means = np.stack([p[a.f.argmax(axis=1) == c].mean(axis=0) for c in range(K)])
    return np.array([min(stats.entropy(row, mean) for mean in means) for row in q])


def energy_of(logits: Host) -> Host:
    return -special.logsumexp(logits, axis=1)


def react(a: Arrays) -> Host:
    return energy_of(np.minimum(a.test, np.percentile(a.z, 90)) @ a.weight.T + a.bias)


def pruned(z: Host, percentile: float) -> Host:
    kept = D - int(np.round(D * percentile / 100))
    return z >= np.sort(z, axis=1)[:, D - kept, None]


def scale(a: Arrays) -> Host:
    ratio = a.test.sum(axis=1) / (a.test * pruned(a.test, 85)).sum(axis=1)
    return energy_of(np.exp(ratio)[:, None] * a.test @ a.weight.T + a.bias)


def ash(a: Arrays) -> Host:
    kept = pruned(a.test, 90)
    fill = a.test.sum(axis=1, keepdims=True) / kept.sum(axis=1, keepdims=True)
    return energy_of(kept * fill @ a.weight.T + a.bias)


def dice(a: Arrays) -> Host:
    worth = a.z.mean(axis=0) * a.weight
    masked = a.weight * (worth > np.percentile(worth, 90))
    return energy_of(a.test @ masked.T + a.bias)


def gen(a: Arrays) -> Host:
    p = np.sort(special.softmax(a.g, axis=1), axis=1)[:, -100:]
    return (p**0.1 * (1 - p) ** 0.1).sum(axis=1)


def mcm(a: Arrays) -> Host:
    return 1 - special.softmax(a.g, axis=1).max(axis=1)


def she(a: Arrays) -> Host:
    right = a.f.argmax(axis=1) == a.labels
    patterns = np.stack([a.z[right & (a.labels == c)].mean(axis=0) for c in range(K)])
    return -(a.test * patterns[a.g.argmax(axis=1)]).sum(axis=1)


def nci(a: Arrays) -> Host:
    about = a.test - a.z.mean(axis=0)
    nearness = (a.weight[a.g.argmax(axis=1)] * about).sum(axis=1) / np.linalg.norm(about, axis=1)
    return -nearness - 1e-4 * np.abs(a.test).sum(axis=1)


def openmax(a: Arrays) -> Host:
    right = a.f.argmax(axis=1) == a.labels
    unknown = np.zeros(TEST)
    left = a.g.copy()
    order = np.argsort(-a.g, axis=1)
    for c in range(K):
        own = a.f[right & (a.labels == c)]
        tail = np.sort(np.linalg.norm(own - own.mean(axis=0), axis=1))[-20:]
        # LibMR moves the tail so that it begins at 10,000; in float64 its digits suffice.
        shape, _, size = stats.weibull_min.fit(tail - tail[0] + 1e4, floc=0)
        far = np.linalg.norm(a.g - own.mean(axis=0), axis=1)
        extreme = stats.weibull_min.cdf(far - tail[0] + 1e4, shape, scale=size)
        rank = (order == c).argmax(axis=1)
        lost = a.g[:, c] * extreme * np.where(rank < 3, (3 - rank) / 3, 0)
        unknown, left[:, c] = unknown + lost, a.g[:, c] - lost
    return np.exp(unknown) / (np.exp(unknown) + np.exp(left).sum(axis=1))


SCORES: dict[str, Callable[[Arrays], Host]] = {
    f.__name__: f
    for f in (mahalanobis, relative_mahalanobis, kl_matching, react, scale, ash, dice, gen, mcm,
              she, nci, openmax)
}  # fmt: skip
ELSEWHERE = {
    "adascale", "deep_ensemble", "fdbd", "gradnorm", "knn", "mc_dropout", "nnguide", "odin",
    "relation", "residual", "vim", "vra",
}  # fmt: skip
"""Presets that the tests of the detector itself compare."""
NOTHING = {"energy", "max_logit", "msp", "temperature"}
"""Scores that have but one formula: the laws of the detector hold it."""
TOLERANCES = {"openmax": 1e-5}
"""SciPy finds the shape of a tail near 10,000 to fewer digits."""


@pytest.fixture(scope="module")
def arrays() -> Arrays:
    return Arrays()


@pytest.mark.parametrize("name", SCORES)
def test_scores_and_ranks_are_those_of_openood(name, arrays):
    head = LinearHead(Const(arrays.weight), Const(arrays.bias))
    made = detectors.plain(detectors.make(name, preset=PRESET))
    if hasattr(made, "head"):
        made = type(made)(**{**vars(made), "head": head})
    train = Data({"features": arrays.z, "labels": arrays.labels}, K)
    test = Data({"features": arrays.test, "labels": np.zeros(TEST, np.int64)}, K, "id/test")
    found = drive.scores_of(drive.outcome(made, train.cut()), test.cut())
    expected = SCORES[name](arrays)
    tolerance = TOLERANCES.get(name, 1e-8)
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * 1e-2)
    assert (np.diff(expected[np.argsort(found)]) >= -tolerance * np.abs(expected).max()).all()


def test_every_preset_of_openood_is_compared():
    known = [n for n in detectors.names() if PRESET in detectors.presets_of(detectors.load(n))]
    assert set(known) <= set(SCORES) | ELSEWHERE | NOTHING
