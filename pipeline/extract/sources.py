"""Where inputs come from: the protocol of a source, and factories named in a configuration.

Nothing here imports torch, so a configuration is checked before a model is loaded.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import (
    ConfigError,
    DataError,
    FeatfoldError,
    MissingInputError,
    UnknownNameError,
)

PIXEL_ROWS = 64
"""Images whose pixels are averaged at a time."""


class Batch(NamedTuple):
    """Consecutive rows of a source, all from one read."""

    inputs: Any
    """What the model is called with, n along the first axis: images are uint8 (n, h, w, 3)."""
    labels: NDArray[np.int64]
    """Class per row (n,), -1 where there is none."""
    ids: NDArray[np.int64]
    """What names each row in the data it was taken from (n,)."""


class Source(Protocol):
    """Rows that are produced by range, so that an interrupted extraction can go on anywhere."""

    @property
    def name(self) -> str: ...
    def __len__(self) -> int: ...
    def read(self, start: int, stop: int) -> Batch:
        """Return the rows ``start`` to ``stop``; features, labels and ids come from this alone."""
        ...


class Stream(Protocol):
    """Rows that come in their own order, once, and nobody knows how many."""

    @property
    def name(self) -> str: ...
    def batches(self, rows: int) -> Iterator[Batch]:
        """Yield all rows; batches have ``rows`` rows where the stream has none of its own."""
        ...


def mean_pixel(source: Source) -> NDArray[np.float64]:
    """Return the mean pixel value of every image (n,): the baseline any detector has to beat."""
    means = np.empty(len(source))
    for start in range(0, len(source), PIXEL_ROWS):
        images = source.read(start, min(start + PIXEL_ROWS, len(source))).inputs
        flat = images.reshape(len(images), -1)
        means[start : start + len(flat)] = flat.mean(axis=1, dtype=np.float64)
    return means


def resolve(path: str) -> Callable[..., Any]:
    """Return the callable that ``package.module:factory`` names.

    Raises
    ------
    ConfigError
        When the path has another form, or names something that cannot be called.
    UnknownNameError
        When there is no such module or no such name in it; near names are suggested.
    MissingInputError
        When the module needs a package that is not installed.
    """
    module_name, colon, name = path.partition(":")
    if not (module_name and colon and name):
        raise ConfigError(f"import {path!r}: expected the form package.module:factory")
    module = _module(path, module_name)
    if not hasattr(module, name):
        public = [entry for entry in vars(module) if not entry.startswith("_")]
        raise UnknownNameError(
            f"import {path!r}: module {module_name} has no {name!r}{_near(name, public)}"
        )
    found = getattr(module, name)
    if not callable(found):
        raise ConfigError(f"import {path!r}: expected a factory, got {type(found).__name__}")
    return found  # type: ignore[no-any-return]


def build(path: str, /, **arguments: Any) -> Any:
    """Call the factory that ``path`` names.

    Arguments that it does not take are a ConfigError, whatever else it raises a DataError.
    """
    factory = resolve(path)
    try:
        signature = inspect.signature(factory)
    except ValueError:  # written in C: it has no signature to check against
        return _call(path, factory, arguments)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        taken = ", ".join(signature.parameters) or "none"
        unknown = [key for key in arguments if key not in signature.parameters]
        near = _near(unknown[0], signature.parameters) if unknown else ""
        raise ConfigError(f"import {path!r}: {error}{near}; it takes: {taken}") from error
    return _call(path, factory, arguments)


def takes(path: str, parameter: str) -> bool:
    """Tell whether the factory that ``path`` names has a parameter of a name."""
    try:
        return parameter in inspect.signature(resolve(path)).parameters
    except ValueError:  # written in C
        return False


def accepts(path: str, parameter: str) -> bool:
    """Tell whether the factory that ``path`` names can be called with a parameter of a name."""
    try:
        inspect.signature(resolve(path)).bind_partial(**{parameter: None})
    except TypeError:
        return False
    except ValueError:  # written in C
        pass
    return True


def _call(path: str, factory: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    try:
        return factory(**arguments)
    except FeatfoldError:
        raise
    except Exception as error:
        raise DataError(
            f"import {path!r}: it failed with {type(error).__name__}: {error}"
        ) from error


def _module(path: str, name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name != missing and not name.startswith(f"{missing}."):
            raise MissingInputError(
                f"import {path!r}: module {name} needs {missing!r}, which is not installed"
            ) from error
        parent = missing.rpartition(".")[0]
        raise UnknownNameError(
            f"import {path!r}: there is no module {missing!r}"
            f"{_near(missing.rpartition('.')[2], _submodules(parent))}"
        ) from error


def _submodules(package: str) -> list[str]:
    spec = importlib.util.find_spec(package) if package else None
    places = spec.submodule_search_locations if spec is not None else None
    return [module.name for module in pkgutil.iter_modules(places)] if places else []


def _near(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
