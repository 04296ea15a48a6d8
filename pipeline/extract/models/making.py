"""What all factories of models do: find a library, seed, load weights, and set the taps."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pipeline.errors import ConfigError, MissingInputError
from pipeline.extract import devices
from pipeline.extract.models.weights import PRETRAINED, RANDOM, SEED, is_file, load_into
from pipeline.extract.taps import Tapped, tapped


@dataclass(frozen=True)
class Taps:
    """Where the arrays come from: the arguments of :func:`pipeline.extract.taps.tapped`."""

    taps: Mapping[str, str] | None
    layouts: Mapping[str, str] | None = None
    prefix: Mapping[str, int] | None = None
    head: str | None = None
    mask: str | None = None
    length: int | None = None
    pooled: bool = False


def library(name: str, extra: str, what: str) -> Any:
    """Return an optional package; raises :class:`MissingInputError` that names its extra."""
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError) as error:  # RuntimeError: built for another torch
        raise MissingInputError(
            f"{what} needs {name} ({error}): pip install 'featfold[{extra}]'"
        ) from error


def check_weights(weights: Any, named: str) -> str:
    """Return weights that are named; ``named`` says what a library offers of its own.

    Raises :class:`ConfigError` for none: random ones would give features that mean nothing.
    """
    if not isinstance(weights, str) or not weights.strip():
        raise ConfigError(
            f"weights: {weights!r}; expected a file of safetensors or of torch.save, {named}, or "
            f"{RANDOM}, the same ones at every call"
        )
    return weights


def made(create: Callable[[], Any], weights: str, drop: Sequence[str]) -> Any:
    """Return a module in evaluation mode, with the weights of a file where one is named."""
    if drop and not is_file(weights):
        raise ConfigError("drop: it leaves names of a file of weights out, and there is no file")
    with torch.random.fork_rng([]):
        torch.manual_seed(SEED)
        module = create()
    if not isinstance(module, torch.nn.Module):
        raise ConfigError(
            f"taps need a torch.nn.Module, the factory made a {type(module).__name__}"
        )
    if is_file(weights):
        load_into(module, weights, drop)
    elif weights not in (RANDOM, PRETRAINED):
        raise ConfigError(f"weights: {weights!r} is no file, {PRETRAINED} or {RANDOM}")
    return module.eval()


def finished(
    module: Any,
    where: Taps,
    device: Any,
    transform: Callable[[Any], Any] | None,
    attributes: Mapping[str, str],
) -> Tapped:
    """Return a module with its taps, on a device, where one is named."""
    if where.taps is None:
        names = [name for name, _ in module.named_children()]
        raise ConfigError(
            "taps: name the submodules whose outputs are features, such as {features: blocks.11, "
            f"logits: head}}; the model has {', '.join(names)}"
        )
    rest = {name: each for name, each in vars(where).items() if name != "taps"}
    found = tapped(module, where.taps, **rest, transform=transform, attributes=attributes)
    assert isinstance(found, Tapped)  # as there are taps
    if device is not None:
        settled = devices.settled(module, device)
        if devices.homes_of([module]) != [settled]:
            devices.move(module, settled)
    return found
