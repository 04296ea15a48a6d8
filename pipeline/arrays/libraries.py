"""Which library and device an array belongs to, and how it moves between them and the host."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from array_api_compat import array_namespace as _array_namespace
from array_api_compat import device as _device
from array_api_compat import is_array_api_obj
from array_api_compat import size as size_of

Array = Any  # an array of numpy, cupy, torch or any library of the array API standard


def namespace(*arrays: Array) -> Any:
    """Return the array namespace the given arrays share; mixing libraries is an error."""
    return _array_namespace(*arrays)


def library(x: Array) -> str:
    """Return the name of the library an array belongs to, e.g. ``"numpy"``."""
    return type(x).__module__.partition(".")[0]


def device_of(x: Array) -> Any:
    """Return the device of an array."""
    return _device(x)


def is_array(x: object) -> bool:
    """Tell whether ``x`` is an array of a supported library."""
    return bool(is_array_api_obj(x))


def like(host: np.ndarray[Any, Any], x: Array) -> Array:
    """Return ``host`` as an array of the library and device of ``x``."""
    if library(x) == "numpy":
        return np.asarray(host)
    # Some libraries refuse to wrap read-only memory.
    writeable = host if host.flags.writeable else host.copy()
    return namespace(x).asarray(writeable, device=device_of(x))


@dataclass(frozen=True)
class Place:
    """Where the arrays of a worker live: a library and one of its devices.

    :meth:`put` moves one array, and waits for it; :mod:`pipeline.feeding` moves chunks ahead.
    """

    library: str = "numpy"
    device: str = ""

    @property
    def on_device(self) -> bool:
        """Whether arrays live elsewhere than in the memory of the host."""
        return self.library != "numpy"

    def put(self, host: np.ndarray[Any, Any]) -> Array:
        """Return ``host`` as an array of this place."""
        if self.library == "numpy":
            return host
        xp = importlib.import_module(_NAMESPACES.get(self.library, self.library))
        device = xp.Device(self.device) if hasattr(xp, "Device") else (self.device or None)
        # Some libraries refuse to wrap read-only memory.
        return xp.asarray(host if host.flags.writeable else host.copy(), device=device)


HOST = Place()
_NAMESPACES = {"cupy": "array_api_compat.cupy", "torch": "array_api_compat.torch"}


def gpu_place() -> Place | None:
    """Return where workers with a GPU compute: cupy, or else a CUDA build of torch, if any.

    Neither is imported, so that this process makes no CUDA context.
    """
    if find_spec("cupy"):
        return Place("cupy")
    return Place("torch", "cuda") if torch_cuda() else None


def answers(place: Place) -> bool:
    """Tell whether the GPU of a place can be used by this process, which then loads its library."""
    module = importlib.import_module(place.library)
    return bool(module.cuda.is_available())


def torch_cuda() -> str:
    """Return the version of CUDA that the installed torch is built for; empty for none."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return ""
    text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    found = re.search(r"^cuda\b.*= *['\"]([\d.]+)", text, re.MULTILINE)
    return found[1] if found else ""


def to_host(x: Array) -> np.ndarray[Any, Any]:
    """Return ``x`` as a numpy array, copying from its device if it has one."""
    if isinstance(x, np.ndarray):
        return x
    if library(x) == "cupy":
        return x.get()  # type: ignore[no-any-return]
    if library(x) == "torch":
        return x.detach().cpu().numpy()  # type: ignore[no-any-return]
    if is_array_api_obj(x):
        home = namespace(x).__array_namespace_info__().default_device()
        return np.asarray(x.to_device(home))
    return np.asarray(x)


def nbytes(tree: object) -> int:
    """Return the bytes of all arrays in a tree of tuples, lists and mappings."""
    if isinstance(tree, dict):
        return sum(nbytes(value) for value in tree.values())
    if isinstance(tree, (tuple, list)):
        return sum(nbytes(value) for value in tree)
    if is_array(tree):
        return int(size_of(tree) or 0) * itemsize(tree.dtype)  # type: ignore[attr-defined]
    return 0


def itemsize(dtype: Any) -> int:
    """Return the bytes of one element of a dtype of any library."""
    size = getattr(dtype, "itemsize", None)
    return int(size) if size is not None else np.dtype(str(dtype).rpartition(".")[2]).itemsize


def map_arrays(function: Callable[[Array], Array], tree: Any) -> Any:
    """Apply ``function`` to every array of a tree of (named) tuples, lists and mappings."""
    if isinstance(tree, dict):
        return {key: map_arrays(function, value) for key, value in tree.items()}
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_arrays(function, value) for value in tree))
    if isinstance(tree, (tuple, list)):
        return type(tree)(map_arrays(function, value) for value in tree)
    return function(tree) if is_array(tree) else tree


def versions(
    names: Iterable[str] = ("numpy", "array_api_compat", "cupy", "torch"),
) -> dict[str, str]:
    """Return the versions of the array libraries that are loaded; never imports one."""
    loaded = {name: sys.modules.get(name) for name in names}
    return {name: str(module.__version__) for name, module in loaded.items() if module is not None}
