"""Parity: with ``preset: pytorch-ood-0.4`` a detector gives the scores of pytorch-ood 0.4.0.

The real classes are fitted on the same well-conditioned arrays, as float32, which is what they
compute in; ours get the same values. Ranks are the same, and each score agrees to 1e-5 of the
larger of itself and the median. Where more cannot be asked of a float32 peer, its own code runs in
float64 (``peers.IN_FLOAT64`` says why).
"""

import re
from pathlib import Path

import numpy as np
import peers
import pytest
from peers import PEERS, PRESET, Arrays, ours, pytorch_ood, theirs

from pipeline import detectors

TRAIN, TEST, D, K = 600, 120, 16, 5
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def arrays() -> Arrays:
    """Positive features of K classes, as after a ReLU, and a head that gets most of them right."""
    random = np.random.default_rng(11)
    labels = np.arange(TRAIN) % K
    centres = 1 + 1.5 * random.random((K, D))

    def drawn(classes, spread):
        noise = random.standard_normal((len(classes), D)) * spread
        return np.exp(0.25 * noise) * centres[classes]

    z = drawn(labels, 1.0)
    test = np.concatenate([drawn(np.arange(TEST) % K, 1.0)[: TEST // 2],
                           drawn(np.arange(TEST) % K, 3.0)[: TEST // 2]])  # fmt: skip
    weight = centres - centres.mean(axis=0) + 0.2 * random.standard_normal((K, D))
    weight /= 3
    bias = 0.3 * random.standard_normal(K) - weight @ centres.mean(axis=0)
    found = Arrays(z, labels, test, weight, bias)
    return found._replace(
        **{name: getattr(found, name).astype("f4").astype("f8")
           for name in ("z", "test", "weight", "bias")}
    )  # fmt: skip


DEFAULTS_DIFFER = {
    "entropy": "probabilities are not clipped at 1e-7, so that confident rows keep their order",
    "gen": "the sum over the 100 largest classes, not clipped: the paper's score and OpenOOD's",
    "mahalanobis": "the covariance is divided by n, the ridge relative to trace / d, no factor 1/2",
    "relative_mahalanobis": "both covariances divided by n, ridges relative to trace / d",
    "openmax": "fitted on correctly classified rows, tail 20, as in the paper; log score",
    "nci": "alpha 1e-4 keeps the norm term of the paper, which alpha 0 drops",
    "nac": "logarithmic bins of the authors' code, and the gradient as it is; pytorch-ood has "
    "geometric bins, and adds 1e-12 to the probabilities whose logarithms it differentiates",
    "pnml": "a ridge that is reported, and probabilities as they are; pytorch-ood takes a float32 "
    "pseudo-inverse, and clamps them at 1e-12",
    "grad_uncertainty": "the gradient as it is; torch's binary cross entropy, which pytorch-ood "
    "calls, cuts it off where p (1 - p) is below 1e-12",
    "mcm": "the logits as they are, as OpenOOD; pytorch-ood takes cosines with the rows of W",
    "gmm": "a ridge relative to trace / d, where pytorch-ood adds 1e-6",
    "vra": "zero below the 60th percentile, as the authors; pytorch-ood clips at the 1st and 99th",
    "ash": "the variant is to be chosen, at 90 %; pytorch-ood takes s at 65 %",
    "mc_dropout": "the predictive mean of the paper; pytorch-ood takes the variance over the runs",
    "mahalanobis_odin": "as mahalanobis",
    "scale": "85 %, as the paper and OpenOOD; pytorch-ood takes 65 %",
}
"""Why the defaults are not what the preset sets, for each detector whose preset sets something."""

WITHOUT = {
    "odin_preprocessing": "a step of ODIN: what the probe `odin` does",
    "MultiMahalanobis": "an ensemble of `mahalanobis` over `field:`, with weights of one's own",
    "Gram": "Gram matrices of the maps of many layers",
}
"""Classes of pytorch-ood that have no counterpart here, and why."""

TOLERANCES: dict[str, tuple[float, str]] = {}
"""Larger tolerances, and why."""


def shared() -> list[str]:
    return [n for n in detectors.names() if PRESET in detectors.presets_of(detectors.load(n))]


@pytest.mark.parametrize("name", shared())
def test_scores_and_ranks_are_those_of_pytorch_ood(name, arrays):
    expected, found = theirs(name, arrays), ours(name, arrays)
    assert found.shape == expected.shape == (TEST,)
    scale = np.maximum(np.abs(expected), np.median(np.abs(expected)))
    difference = float(np.max(np.abs(found - expected) / scale))
    tolerance = TOLERANCES.get(name, (TOLERANCE, ""))[0]
    assert difference <= tolerance, f"{name}: {difference:.2g} of the score"
    order = np.argsort(found, kind="stable")
    # The peer's float32 scores may tie, or cross, within their rounding.
    falls = np.diff(expected[order])
    assert falls.min() >= -1e-6 * scale.max(), f"{name}: ranks differ"


def test_every_shared_detector_is_compared():
    assert set(shared()) == set(PEERS), "say in tests/peers.py how the peer is called"


def test_every_class_of_pytorch_ood_is_compared_or_explained():
    source = Path(peers.__file__).read_text()
    called = {n for n in pytorch_ood("detector").__all__ if re.search(rf'\("{n}"[,)]', source)}
    assert called | set(WITHOUT) == set(pytorch_ood("detector").__all__)


def test_every_intended_difference_has_a_reason():
    for name in shared():
        options = detectors.presets_of(detectors.load(name))[PRESET]
        assert bool(options) == (name in DEFAULTS_DIFFER), f"{name}: {options}"
