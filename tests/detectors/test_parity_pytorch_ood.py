"""Parity: with ``preset: pytorch-ood-0.4`` a detector gives the scores of pytorch-ood 0.4.0.

The real classes are fitted on the same well-conditioned arrays, as float32, which is what they
compute in; ours get the same values. Ranks are the same, and each score agrees to 1e-5 of the
larger of itself and the median. Where more cannot be asked of a float32 peer, its own code runs in
float64 (``IN_FLOAT64`` says why).
"""

import contextlib
import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from peers import peer, pytorch_ood

import pipeline as ff
from pipeline import detectors
from pipeline.content import Const
from pipeline.heads import LinearHead

PRESET = "pytorch-ood-0.4"
TRAIN, TEST, D, K = 600, 120, 16, 5
TOLERANCE = 1e-5


class Arrays(NamedTuple):
    """Positive features of K classes, as after a ReLU, and a head that gets most of them right."""

    z: np.ndarray
    labels: np.ndarray
    test: np.ndarray
    weight: np.ndarray
    bias: np.ndarray


@pytest.fixture(scope="module")
def arrays() -> Arrays:
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
    return Arrays(*(a if a is labels else a.astype("f4").astype("f8") for a in found))


class Tensors:
    """The same arrays as the peer takes them, in the dtype that it runs in."""

    def __init__(self, arrays: Arrays) -> None:
        self.z, self.test = (torch.tensor(x, dtype=torch.get_default_dtype())
                             for x in (arrays.z, arrays.test))  # fmt: skip
        self.labels = torch.tensor(arrays.labels)
        self.weight, self.bias = (torch.tensor(x, dtype=torch.get_default_dtype())
                                  for x in (arrays.weight, arrays.bias))  # fmt: skip
        self.linear = torch.nn.Linear(D, K)
        with torch.no_grad():
            self.linear.weight.copy_(self.weight)
            self.linear.bias.copy_(self.bias)
        self.logits, self.test_logits = self.head(self.z), self.head(self.test)

    def head(self, z: torch.Tensor) -> torch.Tensor:
        return z.flatten(1) @ self.weight.T + self.bias

    @property
    def maps(self) -> torch.Tensor:
        """Features as maps of one position, which pooling leaves as they are."""
        return self.z[:, :, None, None]

    @property
    def test_maps(self) -> torch.Tensor:
        return self.test[:, :, None, None]


Call = Callable[[Tensors], Any]


def on_logits(name: str, *arguments: Any) -> Call:
    def call(t: Tensors) -> Any:
        made = peer(name)(None, *arguments)
        if made.requires_fit:
            made.fit_logits(t.logits, t.labels)
        return made.predict_logits(t.test_logits)

    return call


def on_features(name: str, *extra: Callable[[Tensors], Any]) -> Call:
    def call(t: Tensors) -> Any:
        made = peer(name)(None, *(argument(t) for argument in extra))
        if made.requires_fit:
            made.fit_features(t.z, t.labels)
        return made.predict_features(t.test)

    return call


def on_maps(name: str, **options: Any) -> Call:
    def call(t: Tensors) -> Any:
        made = peer(name)(None, t.head, **options)
        if made.requires_fit:
            made.fit_feature_maps(t.maps, t.labels)
        return made.predict_feature_maps(t.test_maps)

    return call


def of_last_layer(name: str, of: str = "") -> Call:
    """Return the call of a detector of gradients by what is called ``of`` in the last layer."""

    def call(t: Tensors) -> Any:
        made = peer(name)(t.linear, lambda parameter: of in parameter)
        made.to("cpu")
        return made.predict(t.test)

    return call


def nac(t: Tensors) -> Any:
    features = torch.nn.Identity()
    model = torch.nn.Sequential(features, t.linear)
    made = peer("NACUE")(model, [features])
    made.fit([(t.z.clone().requires_grad_(), t.labels)])
    return made.predict(t.test.clone().requires_grad_())


def temperature(t: Tensors) -> Any:
    """Let LBFGS find the minimum: 50 steps at a rate of 0.01 do not."""
    converging = functools.partial(torch.optim.LBFGS, line_search_fn="strong_wolfe",
                                   tolerance_grad=1e-12, tolerance_change=1e-15)  # fmt: skip
    module = pytorch_ood("detector.tscaling")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LBFGS", lambda p, lr, max_iter: converging(p, lr=1, max_iter=200))
        return on_logits("TemperatureScaling")(t)


def linear(t: Tensors) -> Any:
    return t.linear


DIM = 6
WEIGHTS = tuple(0.5 + 0.25 * c for c in range(K))
P = 0.7
PEERS: dict[str, Call] = {
    "msp": on_logits("MaxSoftmax"),
    "max_logit": on_logits("MaxLogit"),
    "energy": on_logits("EnergyBased"),
    "entropy": on_logits("Entropy"),
    "gen": on_logits("GEN"),
    "weighted_energy": on_logits("WeightedEBO", torch.tensor(WEIGHTS)),
    "temperature": temperature,
    "kl_matching": on_logits("KLMatching"),
    "openmax": on_logits("OpenMax"),
    "mcm": on_features("MCM", lambda t: t.weight),
    "mahalanobis": on_features("Mahalanobis"),
    "relative_mahalanobis": on_features("RMD"),
    "gmm": on_features("GMM"),
    "vim": on_features("ViM", lambda t: DIM, lambda t: t.weight, lambda t: t.bias),
    "pnml": on_features("PNML", lambda t: t.head),
    "she": on_features("SHE", lambda t: t.head),
    "fdbd": on_features("fDBD", linear),
    "nci": on_features("NCI", linear),
    "dice": on_features("DICE", lambda t: t.weight, lambda t: t.bias, lambda t: P),
    "gradnorm": of_last_layer("GradNorm", "weight"),
    "grad_uncertainty": of_last_layer("GradUncertainty"),
    "react": on_maps("ReAct"),
    "vra": on_maps("VRA"),
    "ash": on_maps("ASH"),
    "scale": on_maps("SCALE"),
    "lts": on_features("LTS", lambda t: t.head),
    "knn": on_features("KNN"),
    "nnguide": on_features("NNGuide", lambda t: t.head),
    "nac": nac,
}
"""How the peer of each detector is fitted and asked."""

OPTIONS: dict[str, dict[str, Any]] = {
    "vim": {"dim": DIM},
    "dice": {"p": P},
    "weighted_energy": {"weights": WEIGHTS},
}
"""What pytorch-ood asks of whoever uses it: it has no default for these."""

HEADS: dict[str, Callable[[Arrays], Any]] = {
    "mcm": lambda a: LinearHead(Const(a.weight), Const(np.zeros(K))),
}
"""Heads other than W, b: text embeddings have no bias."""

OFFSETS = {
    "temperature": (1.0, "1 - p instead of - p, as msp"),
    "msp": (1.0, "1 - p instead of - p, which keeps the order of rows whose p rounds to 1"),
    "mcm": (1.0, "1 - p instead of - p, as msp"),
}
"""A constant that is added to the peer's scores, and why: it moves no rank."""

DEFAULTS_DIFFER = {
    "entropy": "probabilities are not clipped at 1e-7, so that confident rows keep their order",
    "gen": "the sum over the 100 largest classes, not clipped: the paper's score and OpenOOD's",
    "mahalanobis": "the covariance is divided by n, the ridge relative to trace / d, no factor 1/2",
    "relative_mahalanobis": "both covariances divided by n, ridges relative to trace / d",
    "openmax": "fitted on correctly classified rows, tail 20, as in the paper; log score",
    "nci": "alpha 1e-4 keeps the norm term of the paper, which alpha 0 drops",
    "nac": "logarithmic bins of the authors' code; geometric ones are pytorch-ood's",
    "pnml": "a ridge that is reported, where pytorch-ood takes a float32 pseudo-inverse",
    "mcm": "the logits as they are, as OpenOOD; pytorch-ood takes cosines with the rows of W",
    "gmm": "a ridge relative to trace / d, where pytorch-ood adds 1e-6",
    "vra": "zero below the 60th percentile, as the authors; pytorch-ood clips at the 1st and 99th",
    "ash": "the variant is to be chosen, at 90 %; pytorch-ood takes s at 65 %",
    "scale": "85 %, as the paper and OpenOOD; pytorch-ood takes 65 %",
}
"""Why the defaults are not what the preset sets, for each detector whose preset sets something."""

WITHOUT = {
    "ODIN": "gradients with respect to the input of the network: it needs the model at test time",
    "odin_preprocessing": "a step of ODIN",
    "MahalanobisODIN": "gradients with respect to the input, as ODIN",
    "MCD": "several forward passes with dropout through the network",
    "MultiMahalanobis": "an ensemble of `mahalanobis` over `field:`, with weights of one's own",
    "Gram": "Gram matrices of the maps of many layers",
    "RankFeat": "a singular value of a map before the rest of the network runs on it",
}
"""Classes of pytorch-ood that have no counterpart here, and why."""

IN_FLOAT64 = {
    "mahalanobis": "a float32 inverse of the scatter is off by more than 1e-5 of a distance",
    "relative_mahalanobis": "a small difference of two distances of the float32 inverses",
    "gen": "1 - p of a confident row, of which float32 keeps few digits",
    "temperature": "its loss in float32 is flat about the minimum",
    "openmax": "distances to which it adds 10,000 before it fits their tail",
    "nac": "features at the edge of a bin",
    "vim": "float32 eigenvectors of the smaller eigenvalues",
    "pnml": "a float32 pseudo-inverse",
}
"""Peers whose own code runs in float64 here, and why float32 cannot agree to 1e-5."""

TOLERANCES: dict[str, tuple[float, str]] = {}
"""Larger tolerances, and why."""


def shared() -> list[str]:
    return [n for n in detectors.names() if PRESET in detectors.presets_of(detectors.load(n))]


@contextlib.contextmanager
def running_in(dtype: torch.dtype):
    """Let torch, and the casts to float32 in the peer's code, work in ``dtype``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "float", lambda self: self.to(dtype))
        torch.set_default_dtype(dtype)
        try:
            yield
        finally:
            torch.set_default_dtype(torch.float32)


def theirs(name: str, arrays: Arrays) -> np.ndarray:
    pytorch_ood("detector")
    with running_in(torch.float64 if name in IN_FLOAT64 else torch.float32):
        scores = PEERS[name](Tensors(arrays)).detach().numpy().astype("f8")
    return scores + OFFSETS.get(name, (0.0, ""))[0]


def ours(name: str, arrays: Arrays) -> np.ndarray:
    made = detectors.make(name, preset=PRESET, **OPTIONS.get(name, {}))
    head = HEADS.get(name, lambda a: LinearHead(Const(a.weight), Const(a.bias)))(arrays)
    fitted = ff.fit({"it": made}, (arrays.z, arrays.labels), head=head, cluster="threads")
    return fitted["it"](arrays.test)


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
    assert set(shared()) <= set(PEERS), "say in PEERS how the peer is called"
    assert set(PEERS) - set(shared()) == set()


def test_every_class_of_pytorch_ood_is_compared_or_explained():
    source = Path(__file__).read_text()
    called = {n for n in pytorch_ood("detector").__all__ if re.search(rf'\("{n}"[,)]', source)}
    assert called | set(WITHOUT) == set(pytorch_ood("detector").__all__)


def test_every_intended_difference_has_a_reason():
    for name in shared():
        options = detectors.presets_of(detectors.load(name))[PRESET]
        assert bool(options) == (name in DEFAULTS_DIFFER), f"{name}: {options}"
