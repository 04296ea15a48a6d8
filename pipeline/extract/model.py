"""A torch model as it is run, without leaving a trace, and what a split must declare for it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline import arrays
from pipeline.chunk import ArraySpec
from pipeline.errors import ConfigError, DataError
from pipeline.extract import devices


@dataclass(frozen=True)
class Description:
    """What a store records about a model that the model alone does not say."""

    attributes: Mapping[str, str] = field(default_factory=dict)
    """E.g. model, weights_sha256, tap, transform."""
    layouts: Mapping[str, str] = field(default_factory=dict)
    """Axes after the rows, one letter each, e.g. ``{"features": "TD"}``; never guessed."""


class Extractor:
    """Any callable from inputs to a tensor or to named tensors, run without leaving a trace.

    During a call the modules of a ``torch.nn.Module`` (or of the one whose bound method or partial
    call is given) are in evaluation mode and gradients are off; after it, the training flag of
    every module and all buffers are what they were. A plain callable is called as it is. Inputs go
    to the device that :func:`pipeline.extract.devices.settled` finds; :meth:`ready` has the model
    there.
    A lone tensor is named ``features``. A model may carry its description as ``description``.
    """

    def __init__(
        self,
        model: Callable[[Any], Any],
        *,
        device: Any = None,
        description: Description | None = None,
    ) -> None:
        called = devices.called_by(model)
        owner = getattr(called, "__self__", called)
        self._model, self._name = model, _name(called)
        self._module = devices.module_of(model)
        self.device = devices.settled(model, device)
        carried = getattr(owner, "description", None)
        known = carried if isinstance(carried, Description) else Description()
        self.description = description or known

    @property
    def is_known(self) -> bool:
        """Whether more is known of the model than the name of a function."""
        return self._module is not None or bool(self.description.attributes)

    def attributes(self) -> dict[str, str]:
        """Return what the store records: model, weights, and the versions of the libraries."""
        described = {"model": self._name, **self.description.attributes}
        if self._module is not None and "weights_sha256" not in described:
            described["weights_sha256"] = _weights_sha256(self._module)
        versions = arrays.versions(("numpy", "torch"))
        return {**described, **{f"{name}_version": v for name, v in versions.items()}}

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Have the model on its device; afterwards it, and torch's random states, are as before."""
        forked = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(forked), devices.placed(self._module, self.device):
            yield

    def __call__(self, inputs: Any) -> dict[str, torch.Tensor]:
        """Return the outputs for ``inputs`` (n, ...), detached, by name.

        Raises
        ------
        DataError
            When an output is no tensor or has another number of rows than the inputs.
        """
        with _evaluating(self._module), torch.inference_mode():
            found = self._model(_tensor(inputs).to(self.device))
        named = found if isinstance(found, Mapping) else {"features": found}
        for name, output in named.items():
            if not isinstance(output, torch.Tensor):
                raise DataError(
                    f"the model gave a {type(output).__name__} as {name!r}: expected a tensor, or "
                    "a mapping from names to tensors"
                )
            if output.shape[:1] != (len(inputs),):
                raise DataError(
                    f"the model gave {name!r} of shape {tuple(output.shape)} for {len(inputs)} "
                    "inputs: expected the rows along the first axis"
                )
        return {str(name): output.detach() for name, output in named.items()}


def declare(
    outputs: Mapping[str, torch.Tensor], layouts: Mapping[str, str] | None = None
) -> dict[str, ArraySpec]:
    """Return what a split must declare to hold ``outputs`` (n, ...) with labels and ids.

    Raises
    ------
    ConfigError
        When the layout of an output with several axes is not given, a dtype cannot be stored, or
        an output is called labels or ids.
    """
    specs = {"labels": ArraySpec((), "int64"), "ids": ArraySpec((), "int64")}
    for name, output in outputs.items():
        if name in specs:
            raise ConfigError(f"the model calls an output {name!r}, which the source provides")
        shape, layout = tuple(output.shape[1:]), (layouts or {}).get(name, "")
        if len(layout) != len(shape) and (layout or len(shape) > 1):
            raise ConfigError(
                f"rows of {name!r} have shape {shape}: expected a layout of one letter per axis, "
                f"such as {{{name!r}: 'TD'}} for tokens x features, got {layout!r}"
            )
        specs[name] = ArraySpec(shape, _dtype_name(name, output), layout)
    return specs


def integers(name: str, given: Any, where: str) -> NDArray[np.int64]:
    """Return int64 (n,); raise :class:`DataError` for another shape or for other numbers."""
    host = np.asarray(given)
    if host.ndim != 1 or host.dtype.kind not in "iu":
        raise DataError(
            f"{where}: expected {name} of shape (n,) and an integer dtype, "
            f"got {host.shape} {host.dtype}"
        )
    return host.astype(np.int64, copy=False)


def _tensor(inputs: Any) -> torch.Tensor:
    if isinstance(inputs, np.ndarray) and not inputs.flags.writeable:
        inputs = inputs.copy()  # torch warns about memory that it must not write to
    return torch.as_tensor(inputs)


def bits(output: torch.Tensor) -> NDArray[Any]:
    """Return a tensor as a host array; bfloat16, which numpy lacks, as its bits in uint16."""
    host = output.cpu()
    if host.dtype == torch.bfloat16:
        host = host.contiguous().view(torch.int16)
    found: NDArray[Any] = host.numpy()
    return found.view(np.uint16) if output.dtype == torch.bfloat16 else found


def _dtype_name(name: str, output: torch.Tensor) -> str:
    dtype = str(output.dtype).removeprefix("torch.")
    if dtype != "bfloat16":
        try:
            np.dtype(dtype)
        except TypeError as error:
            raise ConfigError(f"{name!r} is {dtype}, which cannot be stored: cast it") from error
    return dtype


@contextmanager
def _evaluating(module: Any) -> Iterator[None]:
    """Put every module in evaluation mode; restore flags and buffers afterwards."""
    modules = list(module.modules()) if module is not None else []
    flags = [(each, each.training) for each in modules]
    buffers = [
        (each, name, buffer, buffer.clone())
        for each in modules
        for name, buffer in each._buffers.items()
        if buffer is not None
    ]
    try:
        if any(training for _, training in flags):
            module.eval()
        yield
    finally:
        for each, training in flags:
            each.training = training
        for each, name, buffer, saved in buffers:
            if each._buffers[name] is not buffer:
                each._buffers[name] = buffer
            if not torch.equal(buffer, saved):
                with torch.no_grad():
                    buffer.copy_(saved)


def _name(model: Any) -> str:
    named = model if hasattr(model, "__qualname__") else type(model)
    return f"{named.__module__}.{named.__qualname__}"


def _weights_sha256(module: Any) -> str:
    """Return a hash over names, dtypes, shapes and bytes of all weights and saved buffers."""
    total = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        if isinstance(tensor, torch.Tensor):
            host = tensor.detach().cpu().contiguous()
            total.update(f"{name} {host.dtype} {tuple(host.shape)}".encode())
            total.update(host.flatten().view(torch.uint8).numpy())
    return total.hexdigest()
