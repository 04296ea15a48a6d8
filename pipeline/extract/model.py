"""A torch model as it is run, without leaving a trace, and what a split must declare for it."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline import arrays
from pipeline.chunk import ArraySpec
from pipeline.errors import ConfigError, DataError
from pipeline.extract import devices

_LETTERS = {"logits": "K", "mask": "T"}
"""Axes of vectors that are no features."""


@dataclass(frozen=True)
class Description:
    """What a store records about a model that the model alone does not say."""

    attributes: Mapping[str, str] = field(default_factory=dict)
    """E.g. model, weights_sha256, tap, transform."""
    layouts: Mapping[str, str] = field(default_factory=dict)
    """Axes after the rows, one letter each, e.g. ``{"features": "TD"}``; never guessed."""
    pooled: str = ""
    """The tokens whose mean is stored as well, as ``pooled``; empty for none."""


class Extractor:
    """Any callable from inputs to a tensor or to named tensors, run without leaving a trace.

    During a call the modules of a ``torch.nn.Module`` (or of the one whose bound method or partial
    call is given) are in evaluation mode and gradients are off; after it, the training flag of
    every module, which parameters take gradients, and all buffers are what they were. The same
    holds for the modules that a plain callable holds, which are never moved. Inputs go to the
    device that :func:`pipeline.extract.devices.settled` finds; :meth:`ready` has the model there.

    Inputs are a tensor (n, ...), or a mapping of them, as tokenizers give: the latter goes in by
    name, ``model(**inputs)``, where the forward of a module has a parameter for every name, and as
    the mapping that it is elsewhere. Where all weights of a module are of one half precision,
    inputs of float32 or float64 are cast to it.

    A lone tensor is named ``features``. A model may carry its description as ``description``, and
    the weights W (k, d), b (k,) of its final layer as ``head``.
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
        self._model, self._name = model, name_of(called)
        self._owner, self._module = owner, devices.module_of(model)
        alone = self._module is not None
        self._modules = [self._module] if alone else devices.held_modules(model)
        self._half = _half_of(self._module)
        self.device = devices.settled(model, device)
        carried = getattr(owner, "description", None)
        known = carried if isinstance(carried, Description) else Description()
        self.description = description or known

    @property
    def is_known(self) -> bool:
        """Whether more is known of the model than the name of a function."""
        return self._module is not None or bool(self.description.attributes)

    @property
    def head(self) -> tuple[NDArray[Any], NDArray[Any]] | None:
        """W (k, d) and b (k,) of the final layer that the model carries, on the host, if any."""
        carried = getattr(self._owner, "head", None)
        if not isinstance(carried, (tuple, list)) or len(carried) != 2:
            return None  # such as a layer that is called head
        weight, bias = (_host(each) for each in carried)
        return weight, bias

    def attributes(self) -> dict[str, str]:
        """Return what the store records: model, weights, and the versions of the libraries."""
        described = {"model": self._name, **self.description.attributes}
        if "weights_sha256" not in described and (known := self._weights()):
            described["weights_sha256"] = known
        versions = arrays.versions(("numpy", "torch"))
        return {**described, **{f"{name}_version": v for name, v in versions.items()}}

    def _weights(self) -> str:
        """Return a hash of the weights, which a plain callable has in the modules that it holds."""
        if self._module is not None:
            return weights_sha256(self._module)
        held = devices.held_modules(self._model)
        if any(home.type == "meta" for home in devices.homes_of(held)):  # offloaded
            return ""
        several = list(dict.fromkeys(map(weights_sha256, held)))
        joined = hashlib.sha256("".join(several).encode()).hexdigest()
        return several[0] if len(several) == 1 else joined if several else ""

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Have the model on its device; afterwards it, and torch's random states, are as before."""
        places = [self.device, *devices.homes_of(self._modules)]
        forked = [each for each in dict.fromkeys(places) if each.type == "cuda"]
        with torch.random.fork_rng(forked), devices.placed(self._module, self.device):
            try:
                yield
            finally:
                _make_ordinary(self._modules)

    def __call__(self, inputs: Any) -> dict[str, torch.Tensor]:
        """Return the outputs for ``inputs`` (n, ...), or a mapping of such, detached, by name.

        Raises
        ------
        DataError
            When an output is no tensor or has another number of rows than the inputs.
        """
        rows = count_rows(inputs)
        with evaluating(self._modules), torch.inference_mode():
            found = self._called(inputs)
        named = found if isinstance(found, Mapping) else {"features": found}
        for name, output in named.items():
            if not isinstance(output, torch.Tensor):
                raise DataError(
                    f"the model gave a {type(output).__name__} as {name!r}: expected a tensor, or "
                    "a mapping from names to tensors"
                )
            if output.shape[:1] != (rows,):
                raise DataError(
                    f"the model gave {name!r} of shape {tuple(output.shape)} for {rows} "
                    "inputs: expected the rows along the first axis"
                )
        return {str(name): output.detach() for name, output in named.items()}

    def _called(self, inputs: Any) -> Any:
        if not isinstance(inputs, Mapping):
            return self._model(self._moved(inputs))
        return call(self._model, {str(name): self._moved(x) for name, x in inputs.items()})

    def _moved(self, given: Any) -> Any:
        tensor = _tensor(given)
        wide = tensor.dtype in (torch.float32, torch.float64)
        return tensor.to(self.device, self._half if wide and self._half else tensor.dtype)


def call(model: Callable[..., Any], inputs: Any) -> Any:
    """Call a model: with a mapping by name where it is, or belongs to, a module that takes all."""
    if not isinstance(inputs, Mapping) or devices.module_of(model) is None:
        return model(inputs)
    named = inspect.signature(getattr(model, "forward", model)).parameters.values()
    taken = {each.name for each in named if each.kind is not each.POSITIONAL_ONLY}
    return model(**inputs) if taken.issuperset(inputs) else model(inputs)


def count_rows(inputs: Any) -> int:
    """Return the rows of inputs (n, ...), or of a mapping of them; DataError where they differ."""
    if not isinstance(inputs, Mapping):
        return len(inputs)
    lengths = {str(name): len(given) for name, given in inputs.items()}
    if len(set(lengths.values())) != 1:
        raise DataError(f"inputs by name must have the same number of rows, got {lengths}")
    return next(iter(lengths.values()))


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
        shape = tuple(output.shape[1:])
        layout = (layouts or {}).get(name, _LETTERS.get(name, "D") if len(shape) == 1 else "")
        if len(layout) != len(shape) and (layout or len(shape) > 1):
            raise ConfigError(
                f"rows of {name!r} have shape {shape}: expected a layout of one letter per axis, "
                f"such as {{{name!r}: 'TD'}} for tokens x features, got {layout!r}; say how "
                f"batches are laid out: ff.tapped(model, layouts={{{name!r}: 'NTD'}}), or "
                f"layouts: {{{name}: NTD}} beside import: in a job"
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
def evaluating(roots: Iterable[Any]) -> Iterator[None]:
    """Put modules and all below them in evaluation mode; restore flags and buffers afterwards."""
    roots = list(roots)
    modules = _all_modules(roots)
    flags = [(each, each.training) for each in modules]
    weights = list(dict.fromkeys(chain.from_iterable(root.parameters() for root in roots)))
    learning = [(each, each.requires_grad) for each in weights]
    buffers = [
        (each, name, buffer, buffer.clone())
        for each in modules
        for name, buffer in each._buffers.items()
        if buffer is not None and buffer.device.type != "meta"  # offloaded: it holds nothing
    ]
    try:
        for root in roots:
            if any(each.training for each in root.modules()):
                root.eval()
        yield
    finally:
        for each, training in flags:
            each.training = training
        for weight, learns in learning:
            if weight.requires_grad != learns:
                weight.requires_grad_(learns)
        for each, name, buffer, saved in buffers:
            if each._buffers[name] is not buffer:
                each._buffers[name] = buffer
            if not torch.equal(buffer, saved):
                with torch.no_grad():
                    buffer.copy_(saved)


def _all_modules(roots: Iterable[Any]) -> list[Any]:
    """Return modules and all below them, each once."""
    return list(dict.fromkeys(chain.from_iterable(root.modules() for root in roots)))


def name_of(model: Any) -> str:
    """Return the path of a class or function."""
    named = model if hasattr(model, "__qualname__") else type(model)
    return f"{named.__module__}.{named.__qualname__}"


def _half_of(module: Any) -> torch.dtype | None:
    """Return the half precision that all floating weights of a module have, or None."""
    weights = list(module.parameters()) if module is not None else []
    dtypes = {each.dtype for each in weights if each.is_floating_point()}
    halves = (torch.float16, torch.bfloat16)
    return dtypes.pop() if len(dtypes) == 1 and dtypes <= set(halves) else None


def _make_ordinary(roots: Iterable[Any]) -> None:
    """Replace tensors that modules kept of a call, such as tables of angles, by ordinary ones.

    What inference mode has made could not be trained with afterwards.
    """
    for each in _all_modules(roots):
        for kept in (vars(each), each._buffers):
            for name, tensor in list(kept.items()):
                if isinstance(tensor, torch.Tensor) and tensor.is_inference():
                    kept[name] = tensor.clone()


def _host(given: Any) -> NDArray[Any]:
    """Return weights on the host; halves as float32."""
    if not isinstance(given, torch.Tensor):
        return np.asarray(given)
    wide = given.detach().to(dtype=torch.float32 if given.itemsize < 4 else given.dtype)
    found: NDArray[Any] = wide.cpu().numpy().copy()
    return found


def weights_sha256(module: Any) -> str:
    """Return a hash over names, dtypes, shapes and bytes of all weights and saved buffers.

    A module that wraps another one to look into it names that as ``tapped``; one that is compiled
    has the hash of what was compiled.
    """
    module = getattr(module, "tapped", module)
    module = getattr(module, "_orig_mod", module)
    total = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        if isinstance(tensor, torch.Tensor):
            host = tensor.detach().cpu().contiguous()
            total.update(f"{name} {host.dtype} {tuple(host.shape)}".encode())
            total.update(host.flatten().view(torch.uint8).numpy())
    return total.hexdigest()
