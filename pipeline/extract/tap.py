"""A tap: where in a model an array comes from, and which tensor of a layer's output it is."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import torch

from pipeline.errors import DataError, UnknownNameError
from pipeline.extract.token_layouts import check_layout

INPUT = "input"
"""Item of a tap that is what goes into the submodule; ``input:NAME`` is one of several."""


class Tap(NamedTuple):
    """An array, and where in a model it comes from."""

    name: str
    path: str
    module: Any
    """The submodule; None for what the model itself returns."""
    item: str
    """Which item of its output; empty for the output, see :data:`INPUT` for what goes in."""
    layout: str

    @property
    def where(self) -> str:
        return f"tap {self.name} ({self.path})"

    @property
    def is_input(self) -> bool:
        return self.item.partition(":")[0] == INPUT


def near_names(path: str, network: Any) -> str:
    """Return the names of submodules most like a path, itself left out."""
    names = [name for name, _ in network.named_modules() if name not in ("", path)]
    return ", ".join(difflib.get_close_matches(path, names, n=4, cutoff=0.5))


def tap_of(network: Any, name: str, path: str, layouts: Mapping[str, str]) -> Tap:
    """Return a tap of a network; raises UnknownNameError for a submodule that is not there."""
    module_path, _, item = path.partition(":")
    layout = check_layout(layouts[name], f"layouts: {name}") if name in layouts else ""
    if not module_path:
        return Tap(name, path, None, item, layout)
    try:
        return Tap(name, path, network.get_submodule(module_path), item, layout)
    except AttributeError:
        if "." not in path and ":" not in path and path.isidentifier():
            return Tap(name, path, None, path, layout)  # an item of what the model returns
        close = near_names(module_path, network)
        raise UnknownNameError(
            f"tap {name}: the model has no submodule {module_path!r}"
            + (f"; near names: {close}" if close else "; list them by named_modules()")
        ) from None


def item_of(tap: Tap, output: Any, near: Callable[[Tap], str]) -> torch.Tensor:
    """Return the tensor that a tap means of an output: itself, an item, or its only tensor."""
    if tap.item and not tap.is_input:
        output = _named_item(tap, tap.item, output, near)
    elif isinstance(output, (tuple, list, Mapping)):
        values = list(output.values()) if isinstance(output, Mapping) else list(output)
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        if len(tensors) != 1:
            raise DataError(
                f"{tap.where}: it gives a {type(output).__name__} with {_items(output)}; name one "
                f"of them, such as {tap.path.rstrip(':')}:{next(iter(_keys(output)), 0)}"
            )
        output = tensors[0]
    if not isinstance(output, torch.Tensor):
        raise DataError(f"{tap.where}: expected a tensor, got a {type(output).__name__}")
    return output


def input_of(
    tap: Tap, args: tuple[Any, ...], kwargs: Mapping[str, Any], near: Callable[[Tap], str]
) -> Any:
    """Return what a tap means of what goes in: the item it names, or all that holds a tensor.

    Raises :class:`DataError` where that is several, and which of them is meant is not known.
    """
    given: Any = {**_named_arguments(tap.module, args), **kwargs}
    names = tap.item.split(":")[1:]
    for name in names:
        given = _named_item(tap, name, given, near)
    if names:
        return given
    holding = {name: value for name, value in given.items() if _holds_tensor(value)}
    if len(holding) > 1:
        raise DataError(
            f"{tap.where}: several tensors go in, {_items(holding)}; name one of them, such as "
            f"{tap.path}:{next(iter(holding))}"
        )
    return next(iter(holding.values()), None)


def _named_arguments(module: Any, args: tuple[Any, ...]) -> dict[str, Any]:
    """Return arguments by the names of the forward pass, or by their number where it has none."""
    names = [str(number) for number in range(len(args))]
    with suppress(TypeError, ValueError):
        parameters = inspect.signature(module.forward).parameters.values() if module else ()
        known = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
        names[: len(known)] = known[: len(names)]
    return dict(zip(names, args, strict=True))


def _holds_tensor(value: Any) -> bool:
    if isinstance(value, Mapping):
        value = tuple(value.values())
    if isinstance(value, (tuple, list)):
        return any(map(_holds_tensor, value))
    return isinstance(value, torch.Tensor)


def _named_item(tap: Tap, name: str, output: Any, near: Callable[[Tap], str]) -> Any:
    try:
        if isinstance(output, Mapping):
            return output[name]
        if isinstance(output, (tuple, list)) and name.isdecimal():
            return output[int(name)]
    except LookupError:
        pass
    named = getattr(output, "_fields", ())  # of a namedtuple
    if name in named:
        return getattr(output, name)
    raise DataError(f"{tap.where}: no item {name!r} in {_items(output)}{near(tap)}")


def _keys(output: Any) -> list[str]:
    named = output if isinstance(output, Mapping) else range(len(output))
    return [str(key) for key in named]


def _items(output: Any) -> str:
    if not isinstance(output, (tuple, list, Mapping)):
        return f"its output, a {type(output).__name__}"
    return f"items {', '.join(_keys(output)) or '(none)'}"
