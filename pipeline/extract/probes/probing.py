"""Probed models: what a model gives, and arrays that only more runs of it can give.

A probe is a value that runs the model again, on moved inputs, with dropout or with other weights,
and returns one more tensor (n, ...). Several probes of one model share its plain run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import torch

from pipeline.errors import ConfigError, DataError
from pipeline.extract import devices
from pipeline.extract.model import Description, Extractor, call, evaluating, name_of

FEATURES, LOGITS = "features", "logits"


class Probe(Protocol):
    """A frozen value: which array it adds, and how that is computed."""

    @property
    def array(self) -> str:
        """Name of the array."""
        ...

    @property
    def layout(self) -> str:
        """Axes of the array after the rows, one letter each."""
        ...

    @property
    def said(self) -> str:
        """What the store records of it: everything that its numbers depend on."""
        ...

    def check(self, base: Base, /) -> None:
        """Raise what can be known before the model runs."""
        ...

    def outputs(self, base: Base, inputs: Any, /) -> torch.Tensor:
        """Return the array (n, ...) for inputs; called outside of inference mode, without graph."""
        ...


class Base:
    """The model that is probed: run as often as probes ask, each time without a trace."""

    def __init__(self, model: Callable[[Any], Any]) -> None:
        if isinstance(model, Extractor):
            raise ConfigError(
                "a probe takes a model, not an Extractor, which computes no gradients; probe the "
                "model first: Extractor(odin(model))"
            )
        if not callable(model):
            raise ConfigError(f"a probe takes a model that can be called, got {model!r}")
        self.model = model
        module = devices.module_of(model)
        self.is_module = module is not None
        self.networks = [module] if self.is_module else devices.held_modules(model)
        called = devices.called_by(model)
        self.owner = getattr(called, "__self__", called)

    @property
    def roots(self) -> list[Any]:
        """The modules as their users name submodules: without what only looks into them."""
        return [getattr(each, "tapped", each) for each in self.networks]

    def run(self, inputs: Any) -> dict[str, torch.Tensor]:
        """Return the outputs by name; a lone tensor is named features."""
        found = call(self.model, inputs)
        return dict(found) if isinstance(found, Mapping) else {FEATURES: found}

    def described(self) -> Description:
        """Return what the model says of itself, and at least its name."""
        carried = getattr(self.owner, "description", None)
        known = carried if isinstance(carried, Description) else Description()
        named = {"model": name_of(devices.called_by(self.model)), **known.attributes}
        return replace(known, attributes=named)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Have further runs leave the random states as the plain run has left them."""
        cuda = [home for home in devices.homes_of(self.networks) if home.type == "cuda"]
        with torch.random.fork_rng(cuda):
            yield


class ProbedModule(torch.nn.Module):  # type: ignore[misc]
    """A module, or a method of one, with probes: see :func:`probed`."""

    def __init__(self, base: Base, probes: tuple[Probe, ...]) -> None:
        super().__init__()
        (self.probed,) = base.networks
        self.base, self.probes = base, probes
        self.description = _description(base, probes)

    @property
    def tapped(self) -> Any:
        """The module whose weights these are, as the store hashes them."""
        return self.base.roots[0]

    @property
    def transform(self) -> Any:
        return getattr(self.base.owner, "transform", None)

    @property
    def head(self) -> Any:
        """W and b of the final layer, where the model carries them."""
        return getattr(self.base.owner, "head", None)

    def forward(self, inputs: Any, /) -> dict[str, torch.Tensor]:
        """Return the arrays (n, ...) of the model and of its probes, by name."""
        with evaluating(self.base.networks):
            return _outputs(self.base, self.probes, inputs)


class ProbedCallable:
    """Any other callable with probes; the modules that it holds are evaluated."""

    def __init__(self, base: Base, probes: tuple[Probe, ...]) -> None:
        self.base, self.probes = base, probes
        self.held = torch.nn.ModuleList(base.networks)
        """What tells the device: see :mod:`pipeline.extract.devices`."""
        self.description = _description(base, probes)
        self.transform = getattr(base.owner, "transform", None)
        self.head = getattr(base.owner, "head", None)

    def __call__(self, inputs: Any, /) -> dict[str, torch.Tensor]:
        with evaluating(self.base.networks):
            return _outputs(self.base, self.probes, inputs)


Probed = ProbedModule | ProbedCallable


def probed(model: Callable[[Any], Any], probe: Probe) -> Probed:
    """Return a model that gives one more array; its transform, head and description are kept.

    Raises :class:`ConfigError` for a second probe that writes the same array.
    """
    before: tuple[Probe, ...] = ()
    if isinstance(model, (ProbedModule, ProbedCallable)):
        base, before = model.base, model.probes
    else:
        base = Base(model)
    if probe.array in {each.array for each in before}:
        raise ConfigError(f"two probes write {probe.array!r}; give one of them another array=")
    probe.check(base)
    made = ProbedModule if base.is_module else ProbedCallable
    return made(base, (*before, probe))


def output(outputs: Mapping[str, Any], name: str, probe: str) -> torch.Tensor:
    """Return an output of the model; :class:`ConfigError` with those there are, without it."""
    found = outputs.get(name)
    if not isinstance(found, torch.Tensor):
        raise ConfigError(
            f"probe {probe} needs {name!r}, the model gives {', '.join(map(str, outputs))}: have "
            f"it return a mapping with {name!r}, or tap it, or name another one"
        )
    return found


def logits_of(outputs: Mapping[str, Any], name: str, probe: str) -> torch.Tensor:
    """Return the logits (n, k) of a model; :class:`DataError` for another shape."""
    found = output(outputs, name, probe)
    if found.ndim != 2:
        raise DataError(
            f"probe {probe}: {name!r} has shape {tuple(found.shape)}; expected logits (n, k)"
        )
    return found


def _description(base: Base, probes: tuple[Probe, ...]) -> Description:
    known = base.described()
    return replace(
        known,
        attributes={**known.attributes, **{f"probe_{p.array}": p.said for p in probes}},
        layouts={**known.layouts, **{p.array: p.layout for p in probes}},
    )


def _outputs(base: Base, probes: tuple[Probe, ...], inputs: Any) -> dict[str, torch.Tensor]:
    # Outside of inference mode: what modules keep of a run in it could not be differentiated.
    with torch.inference_mode(False), torch.no_grad():
        inputs = _ordinary(inputs)
        found = base.run(inputs)
        for probe in probes:
            if probe.array in found:
                raise ConfigError(
                    f"the model gives an array {probe.array!r}, which the probe would write: give "
                    "the probe another array="
                )
            with base.unchanged():
                found[probe.array] = probe.outputs(base, inputs).detach()
    return found


def _ordinary(inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return {name: _ordinary(each) for name, each in inputs.items()}
    is_inference = isinstance(inputs, torch.Tensor) and inputs.is_inference()
    return inputs.clone() if is_inference else inputs
