"""The final linear layer of a model: found among its submodules, and checked against its logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.chunk import ArraySpec, Chunk, Schema
from pipeline.errors import ConfigError, DataError, UnknownNameError
from pipeline.extract.model import Extractor
from pipeline.extract.tap import near_names
from pipeline.extract.token_layouts import to_host
from pipeline.store import SavedHead
from pipeline.views import Pooled

TOLERANCE = 1e-5
"""Largest difference of W h + b from the logits, relative to the largest logit, at least 1."""
LOGITS = "logits"
SHOWN = 4
MODEL = ("model", "weights_sha256")
"""Attributes of features that name the model whose head is saved."""


class FinalLayer(NamedTuple):
    """Weights of a head, and which pooled features it reads."""

    weight: NDArray[Any]
    bias: NDArray[Any]
    of: Pooled


def linear_called(network: Any, name: str) -> Any:
    """Return the linear layer of a name, or raise ConfigError or UnknownNameError."""
    try:
        layer = network.get_submodule(name)
    except AttributeError:
        close, linear = near_names(name, network), ", ".join(_linear_names(network)[-SHOWN:])
        raise UnknownNameError(
            f"head: the model has no submodule {name!r}"
            + (f"; near names: {close}" if close else "")
            + f"; its last linear layers: {linear or 'none'}"
        ) from None
    if not isinstance(layer, torch.nn.Linear):
        inner = _linear_names(layer)
        within = f"; linear layers in it: {', '.join(f'{name}.{n}' for n in inner)}" * bool(inner)
        raise ConfigError(
            f"head: {name} is a {type(layer).__name__}, expected a torch.nn.Linear{within}"
        )
    return layer


def _linear_names(network: Any) -> list[str]:
    return [n for n, each in network.named_modules() if isinstance(each, torch.nn.Linear)]


def last_linear(network: Any, run: Callable[[], Any]) -> str:
    """Return the name of the last linear layer whose output is what the model returns.

    Of several outputs, those called logits count, else the first. Raises :class:`ConfigError`
    where there is no such layer.
    """
    given: list[tuple[str, torch.Tensor]] = []

    def keep(name: str) -> Callable[..., None]:
        def hook(_: Any, inputs: Any, output: Any) -> None:
            if output.ndim == 2:  # those of tokens are many, and none of them is a head
                given.append((name, output.detach().clone()))

        return hook

    with ExitStack() as stack:
        for name, module in network.named_modules():
            if isinstance(module, torch.nn.Linear):
                stack.callback(module.register_forward_hook(keep(name)).remove)
        output = run()
    final = _final(output)
    for found, rows in reversed(given):
        if final is not None and rows.shape == final.shape and torch.equal(rows, final):
            return str(found)
    raise ConfigError(
        "head: auto found no torch.nn.Linear whose output is that of the model; name the layer, "
        "or leave the head out"
    )


def _final(output: Any) -> torch.Tensor | None:
    if isinstance(output, Mapping):
        output = output.get(LOGITS, next(iter(output.values()), None))
    elif isinstance(output, (tuple, list)) and output:
        output = output[0]
    return output if isinstance(output, torch.Tensor) else None


def checked(
    extractor: Extractor, outputs: Mapping[str, torch.Tensor | NDArray[Any]], where: str
) -> FinalLayer | None:
    """Return the head that a model carries, with the features that it reads; None without one.

    Raises :class:`DataError` where W h + b is not the logits for any stored features h.
    """
    carried = extractor.head
    if carried is None:
        return None
    weight, bias = carried
    if weight.ndim != 2 or bias.shape != weight.shape[:1]:
        raise DataError(
            f"{where}: the head of the model has weights {weight.shape} and a bias {bias.shape}; "
            "expected (k, d) and (k,)"
        )
    if LOGITS not in outputs:
        raise DataError(f"{where}: a head is checked against logits, and the model gives none")
    halved = str(outputs[LOGITS].dtype).endswith("float16")
    rows = {name: _rows(each) for name, each in outputs.items()}
    specs = {name: ArraySpec(each.shape[1:], each.dtype.name) for name, each in rows.items()}
    chunk = Chunk(Schema(len(rows[LOGITS]), 0, specs), 0, len(rows[LOGITS]), rows)
    worst = np.inf
    for of in _readable(specs, weight.shape[1]):
        excess = _excess(weight, bias, of(chunk), rows[LOGITS], halved)
        if excess <= 1:
            return FinalLayer(weight, bias, of)
        worst = min(worst, excess * TOLERANCE)
    raise DataError(
        f"{where}: the head of the model does not give the stored logits from any stored features "
        f"(expected W h + b equal to {TOLERANCE:g}, "
        + (f"got {worst:.3g} at best" if np.isfinite(worst) else "none has its width")
        + "): tap what goes into it, such as {penultimate: head:input}, or leave the head out"
    )


def saved(found: FinalLayer | None, extractor: Extractor) -> SavedHead | None:
    """Return a final layer as it is saved: with the features that it reads, and its model."""
    if found is None:
        return None
    known = extractor.attributes()
    attributes = {"how": found.of.how, "field": found.of.field}
    attributes |= {key: each for key, each in known.items() if key in MODEL}
    return SavedHead(found.weight, found.bias, attributes)


def _rows(given: torch.Tensor | NDArray[Any]) -> NDArray[Any]:
    return to_host(given) if isinstance(given, torch.Tensor) else given


def _readable(specs: Mapping[str, ArraySpec], width: int) -> Iterator[Pooled]:
    """Yield the pooled features that a head of some width may read, features first."""
    fitting = [name for name, spec in specs.items() if spec.shape[-1:] == (width,)]
    for name in sorted(fitting, key=lambda name: name != "features"):
        if name not in (LOGITS, "mask", "pooled", "labels", "ids") and len(specs[name].shape) <= 2:
            yield Pooled("cls") if name == "cls" else Pooled("mean", name)


def _excess(
    weight: NDArray[Any],
    bias: NDArray[Any],
    features: NDArray[Any],
    logits: NDArray[Any],
    halved: bool,
) -> float:
    """Return the largest difference of W h + b from the logits, in units of what is allowed."""
    expected = logits.astype(np.float64)
    w, b = weight.astype(np.float64), bias.astype(np.float64)
    difference = np.abs(features @ w.T + b - expected)
    allowed = np.full_like(expected, TOLERANCE * max(1.0, float(np.abs(expected).max())))
    if halved:  # bits that features, weights and logits of half precision have lost
        allowed += 2.0**-7 * (np.abs(features) @ np.abs(w).T + np.abs(b))
    return float((difference / allowed).max()) if np.isfinite(difference).all() else np.inf
