"""Detectors of pytorch-ood, for comparison: how each is imported, fitted and asked.

``peer("ViM")`` is the class of ``pytorch_ood.detector``. The package's own ``__init__`` imports
data sets, and with them torchvision, which is not installed: a module object with the package's
``__path__`` stands for it, so that ``__init__`` does not run.
"""

import contextlib
import functools
import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import pipeline as ff
from pipeline import detectors
from pipeline.content import Const
from pipeline.extract import probes
from pipeline.heads import LinearHead

PACKAGE = "pytorch_ood"
PRESET = "pytorch-ood-0.4"
RUNS = 30
"""Runs with dropout."""


@functools.cache
def pytorch_ood(module: str) -> ModuleType:
    """Return ``pytorch_ood.MODULE``, such as ``detector``, ``detector.vim`` or ``api``."""
    if PACKAGE not in sys.modules:
        spec = importlib.util.find_spec(PACKAGE)  # finds the package without running it
        if spec is None:
            raise ModuleNotFoundError(
                f"{PACKAGE} is not installed; `bash workflows/test.sh` does, or "
                f"`pip install --no-deps {PACKAGE}==0.4.0`"
            )
        sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings():  # theirs, of syntax and of what they import
        warnings.simplefilter("ignore")
        return importlib.import_module(f"{PACKAGE}.{module}")


def peer(name: str) -> Any:
    """Return a detector class of pytorch-ood 0.4.0 by its own name."""
    return getattr(pytorch_ood("detector"), name)


class Arrays(NamedTuple):
    """Pooled features of the fit and of the test, and the head that reads them."""

    z: np.ndarray
    labels: np.ndarray
    test: np.ndarray
    weight: np.ndarray
    bias: np.ndarray
    tokens: tuple[np.ndarray, np.ndarray] | None = None
    """What the features were pooled from, (n, t, d) of the fit and of the test, if known."""

    @property
    def head(self) -> LinearHead:
        return LinearHead(Const(self.weight), Const(self.bias))


class Tensors:
    """The same arrays as the peer takes them, in the dtype that it runs in."""

    def __init__(self, arrays: Arrays) -> None:
        self.z, self.test = (torch.tensor(x, dtype=torch.get_default_dtype())
                             for x in (arrays.z, arrays.test))  # fmt: skip
        self.labels = torch.tensor(arrays.labels)
        self.weight, self.bias = (torch.tensor(x, dtype=torch.get_default_dtype())
                                  for x in (arrays.weight, arrays.bias))  # fmt: skip
        self.linear = torch.nn.Linear(*reversed(arrays.weight.shape))
        with torch.no_grad():
            self.linear.weight.copy_(self.weight)
            self.linear.bias.copy_(self.bias)
        self.logits, self.test_logits = self.head(self.z), self.head(self.test)
        self.arrays = arrays

    def head(self, z: torch.Tensor) -> torch.Tensor:
        return z.flatten(1) @ self.weight.T + self.bias

    @property
    def maps(self) -> torch.Tensor:
        """Features as maps (n, d, 1, 1) of one position, which pooling leaves as they are."""
        return self.z[:, :, None, None]

    @property
    def test_maps(self) -> torch.Tensor:
        return self.test[:, :, None, None]

    @property
    def unpooled_maps(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Maps (n, d, t, 1) of the fit and of the test that are still to be pooled."""
        made = (torch.tensor(x, dtype=self.z.dtype) for x in tokens_of(self.arrays))
        fit, test = (tokens.mT[..., None].contiguous() for tokens in made)
        return fit, test


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


def on_maps(name: str) -> Call:
    def call(t: Tensors) -> Any:
        made = peer(name)(None, t.head)
        if made.requires_fit:
            made.fit_feature_maps(t.maps, t.labels)
        return made.predict_feature_maps(t.test_maps)

    return call


def before_pooling(name: str) -> Call:
    """Return the call of a detector of maps by those that are still to be pooled."""

    def call(t: Tensors) -> Any:
        made = peer(name)(None, lambda maps: t.head(maps.mean(dim=(2, 3))))
        fit, test = t.unpooled_maps
        if made.requires_fit:
            made.fit_feature_maps(fit, t.labels)
        return made.predict_feature_maps(test)

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
    logspace = torch.logspace

    def below_middle(*ends: Any, **options: Any) -> torch.Tensor:
        """Leave the state of a zero, 1/2, above the edge there, as the edges in float32 do."""
        edges = logspace(*ends, **options)
        edges[-1] = torch.nextafter(edges[-1], torch.zeros_like(edges[-1]))
        return edges

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "logspace", below_middle)
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


def tokens_of(arrays: Arrays) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens of the fit and of the test.

    Where there are none, four (n, 4, d) made of features (n, d): the same ones, each further along.
    """

    def made(x: np.ndarray) -> np.ndarray:
        return np.stack([np.roll(x, 3 * place, 1) for place in range(4)], 1)

    return arrays.tokens or (made(arrays.z), made(arrays.test))


def linear(t: Tensors) -> Any:
    return t.linear


def dim_of(z: Any) -> int:
    n, d = z.shape
    return int(min(3 * d // 8, n // 4))


def weights_of(weight: Any) -> tuple[float, ...]:
    return tuple(0.5 + 0.25 * c for c in range(weight.shape[0]))


P = 0.7


def odin(t: Tensors) -> Any:
    made = peer("ODIN")(t.linear)
    made.to("cpu")
    return made.predict(t.test)


def with_odin(arrays: Arrays) -> tuple[Any, Any]:
    """Return what the probe writes of a model that is the head, whose inputs are the features."""
    t = Tensors(arrays)
    model = probes.odin(t.linear, logits="features")
    fit, test = ({"odin_logits": model(x)["odin_logits"].numpy()} for x in (t.z, t.test))
    return fit, test


def with_dropout(t: Tensors) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Dropout(0.3), t.linear).eval()


def mc_dropout(t: Tensors) -> Any:
    made = peer("MCD")(with_dropout(t), samples=RUNS)
    made.to("cpu")
    return made.predict(t.test)


def with_runs(arrays: Arrays) -> tuple[Any, Any]:
    """Return the logits that the peer had: the same runs, drawn from the same seed."""
    t = Tensors(arrays)
    model = with_dropout(t).train()
    with torch.no_grad():
        runs = torch.cat([model(t.test) for _ in range(RUNS)], dim=1).numpy()
        fit = t.logits.repeat(1, RUNS).numpy()
    return {"dropout_logits": fit}, {"dropout_logits": runs}


ENCODER = torch.nn.Softplus()
EPSILON = 0.002


def mahalanobis_odin(t: Tensors) -> Any:
    made = peer("MahalanobisODIN")(ENCODER, eps=EPSILON)
    made.fit_features(ENCODER(t.z), t.labels)
    return made.predict(t.test)


def with_perturbed(arrays: Arrays) -> tuple[Any, Any]:
    """Return what the probe writes of a detector that was fitted on clean features."""
    with running_in(torch.float64):
        t = Tensors(arrays)
        fit = ENCODER(t.z).numpy()
        made = detectors.make("mahalanobis_odin", preset=PRESET)
        fitted = ff.fit({"it": made}, (fit, arrays.labels), cluster="threads")
        model = probes.mahalanobis(ENCODER, fitted, EPSILON)
        found = {name: each.numpy() for name, each in model(t.test).items()}
    return {"features": fit}, found


PEERS: dict[str, Call] = {
    "msp": on_logits("MaxSoftmax"),
    "max_logit": on_logits("MaxLogit"),
    "energy": on_logits("EnergyBased"),
    "entropy": on_logits("Entropy"),
    "gen": on_logits("GEN"),
    "weighted_energy": lambda t: on_logits("WeightedEBO", torch.tensor(weights_of(t.weight)))(t),
    "temperature": temperature,
    "kl_matching": on_logits("KLMatching"),
    "openmax": on_logits("OpenMax"),
    "mcm": on_features("MCM", lambda t: t.weight),
    "mahalanobis": on_features("Mahalanobis"),
    "relative_mahalanobis": on_features("RMD"),
    "gmm": on_features("GMM"),
    "vim": on_features("ViM", lambda t: dim_of(t.z), lambda t: t.weight, lambda t: t.bias),
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
    "rankfeat": before_pooling("RankFeat"),
    "odin": odin,
    "mc_dropout": mc_dropout,
    "mahalanobis_odin": mahalanobis_odin,
}
"""How the peer of each detector is fitted and asked."""

OPTIONS: dict[str, Callable[[Arrays], dict[str, Any]]] = {
    "vim": lambda a: {"dim": dim_of(a.z)},
    "dice": lambda a: {"p": P},
    "weighted_energy": lambda a: {"weights": weights_of(a.weight)},
}
"""What pytorch-ood asks of whoever uses it: it has no default for these."""

UNTOUCHED = {**PEERS, "temperature": on_logits("TemperatureScaling")}
"""The same, of the peer as it is: its L-BFGS stops after 50 steps."""

TAKES: dict[str, Callable[[Arrays], tuple[Any, Any]]] = {
    "rankfeat": tokens_of,
    "odin": with_odin,
    "mc_dropout": with_runs,
    "mahalanobis_odin": with_perturbed,
}
"""What a detector takes instead of pooled features, of the fit and of the test."""

HEADS: dict[str, Callable[[Arrays], LinearHead]] = {
    "mcm": lambda a: LinearHead(Const(a.weight), Const(np.zeros(len(a.weight)))),
}
"""Heads other than W, b: text embeddings have no bias."""

OFFSETS = {
    "temperature": (1.0, "1 - p instead of - p, as msp"),
    "msp": (1.0, "1 - p instead of - p, which keeps the order of rows whose p rounds to 1"),
    "mcm": (1.0, "1 - p instead of - p, as msp"),
    "odin": (1.0, "1 - p instead of - p, as msp"),
}
"""A constant that is added to the peer's scores, and why: it moves no rank."""

IN_FLOAT64 = {
    "mahalanobis": "a float32 inverse of the scatter is off by more than 1e-5 of a distance",
    "relative_mahalanobis": "a small difference of two distances of the float32 inverses",
    "gen": "1 - p of a confident row, of which float32 keeps few digits",
    "temperature": "its loss in float32 is flat about the minimum",
    "openmax": "distances to which it adds 10,000 before it fits their tail",
    "nac": "features at the edge of a bin",
    "vim": "float32 eigenvectors of the smaller eigenvalues",
    "pnml": "a float32 pseudo-inverse",
    "mahalanobis_odin": "as mahalanobis",
}
"""Peers whose own code runs in float64 here, and why float32 cannot agree to 1e-5."""


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


def asked(call: Call, arrays: Arrays, dtype: torch.dtype) -> np.ndarray:
    """Return the scores of a peer that runs in ``dtype``."""
    pytorch_ood("detector")
    with running_in(dtype):
        return call(Tensors(arrays)).detach().numpy().astype("f8")


def theirs(name: str, arrays: Arrays) -> np.ndarray:
    """Return the scores of pytorch-ood, plus the constant that ours differ by."""
    dtype = torch.float64 if name in IN_FLOAT64 else torch.float32
    return asked(PEERS[name], arrays, dtype) + OFFSETS.get(name, (0.0, ""))[0]


def ours(name: str, arrays: Arrays) -> np.ndarray:
    """Return our scores of the test rows under the preset."""
    options = OPTIONS[name](arrays) if name in OPTIONS else {}
    made = detectors.make(name, preset=PRESET, **options)
    head = HEADS[name](arrays) if name in HEADS else arrays.head
    fit, test = TAKES.get(name, lambda a: (a.z, a.test))(arrays)
    named = isinstance(fit, dict)
    data = {**fit, "labels": arrays.labels} if named else (fit, arrays.labels)
    fitted = ff.fit({"it": made}, data, head=head, cluster="threads")
    return fitted["it"](test)
