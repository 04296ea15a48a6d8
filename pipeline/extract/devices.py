"""Where a model computes: one rule that finds the device, and what moves a module there and back.

A module, or a bound method or partial call of one, computes on the device that is asked for, else
where its first parameter or buffer lies. One that is spread over several devices, and any other
callable, is never moved: the device must be one of those of its modules, which for a plain callable
are those in its attributes, its arguments, its closure and the globals that it names, in lists and
mappings there, and those of the functions found so; without any, inputs go to the CPU unless
another device is asked for. Weights that are offloaded lie on the device meta, which is taken for
no home where there is another.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch

from pipeline.errors import ConfigError

_OWN = frozenset(vars(torch.nn.Module()))
"""Attributes in which torch keeps parameters, buffers and hooks."""
_DEPTH = 2
"""How many functions deep a module may be called from one that is looked into."""


def module_of(model: Callable[..., Any]) -> Any:
    """Return the module that a model is, or that it is a method or a partial call of, or None."""
    called = called_by(model)
    owner = getattr(called, "__self__", called)
    return owner if isinstance(owner, torch.nn.Module) else None


def called_by(model: Callable[..., Any]) -> Any:
    """Return what a partial call calls, else the model itself."""
    while isinstance(model, partial):
        model = model.func
    return model


def settled(model: Callable[..., Any], asked: Any = None) -> torch.device:
    """Return the device that inputs of a model go to, by the rule above.

    Raises
    ------
    ConfigError
        When there is no such device, or the model is elsewhere and cannot be moved: both are named.
    """
    module = module_of(model)
    homes = homes_of([module] if module is not None else held_modules(model))
    if asked is None:
        return next((h for h in homes if h.type != "meta"), *homes[:1] or [torch.device("cpu")])
    device = _existing(asked)
    movable = module is not None and len(homes) == 1
    if homes and not movable and device not in homes:
        lies = " and ".join(map(str, homes))
        raise ConfigError(
            f"device: inputs would go to {device}, but the model is on {lies} and is not moved, as "
            + ("it is spread" if module is not None else "a callable that is no module never is")
            + f": move it to {device} yourself, or choose device {homes[0]}"
        )
    return device


def _existing(asked: Any) -> torch.device:
    try:
        return torch.empty(0, device=asked).device  # with its number: cuda becomes cuda:0
    except (RuntimeError, AssertionError, TypeError, ValueError, NotImplementedError) as error:
        why = str(error).partition("\n")[0]
        raise ConfigError(
            f"device: {asked!r} cannot be used here ({why}); choose cpu, or leave it out to "
            "compute where the model is"
        ) from error


def homes_of(modules: Iterable[Any]) -> list[torch.device]:
    """Return the devices of all parameters and buffers, that of the first one first."""
    tensors = (itertools.chain(each.parameters(), each.buffers()) for each in modules)
    return list(dict.fromkeys(tensor.device for several in tensors for tensor in several))


def held_modules(model: Callable[..., Any]) -> list[Any]:
    """Return the modules that a callable holds, each once; their own submodules are left out."""
    return list(dict.fromkeys(_held(model, _DEPTH)))


def _held(model: Callable[..., Any], depth: int) -> Iterator[Any]:
    for value in _values_of(model):
        owner = getattr(value, "__self__", value)
        if isinstance(owner, torch.nn.Module):
            yield owner
        elif depth and (isinstance(value, (FunctionType, MethodType, partial))):
            yield from _held(value, depth - 1)


def _values_of(model: Callable[..., Any]) -> Iterator[Any]:
    """Yield attributes, arguments, closure and named globals, and what lies in collections."""
    values: list[Any] = []
    while isinstance(model, partial):
        values += [*model.args, *model.keywords.values()]
        model = model.func
    values += vars(getattr(model, "__self__", model)).values() if _has_vars(model) else ()
    inner = inspect.unwrap(model)  # of decorators such as torch.no_grad()
    if inspect.isfunction(inner):
        with suppress(ValueError):  # a closure that is not filled yet
            names = inspect.getclosurevars(inner)
            values += [*names.nonlocals.values(), *names.globals.values()]
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from value
        elif isinstance(value, dict):
            yield from value.values()
        else:
            yield value


def _has_vars(model: Any) -> bool:
    return hasattr(getattr(model, "__self__", model), "__dict__")


@contextmanager
def placed(module: Any, device: torch.device) -> Iterator[None]:
    """Have a module on one device, and tensors that are its plain attributes; put all back.

    Nothing is done for None and for a module that is spread over devices.
    """
    homes = homes_of([module]) if module is not None else []
    if module is None or len(homes) > 1:
        yield
        return
    modules = list(module.modules())
    buffers = [(each._buffers, name, tensor) for each in modules for name, tensor in _of(each)]
    plain = [found for each in modules for found in _plain(each) if found[2].device != device]
    try:
        if homes != [device]:
            move(module, device)
        for owner, name, tensor in plain:
            owner[name] = tensor.to(device)
        yield
    finally:
        if homes and homes != [device]:
            module.to(homes[0])
        for owner, name, tensor in (*buffers, *plain):
            with suppress(IndexError):  # of a list that is shorter by now
                owner[name] = tensor


def _of(module: Any) -> list[tuple[str, torch.Tensor]]:
    return [(name, buffer) for name, buffer in module._buffers.items() if buffer is not None]


def _plain(module: Any) -> Iterator[tuple[Any, Any, torch.Tensor]]:
    """Yield tensors that are plain attributes, or lie in lists and mappings that are."""
    for name, value in vars(module).items():
        if isinstance(value, torch.Tensor):
            yield vars(module), name, value
        elif name not in _OWN and isinstance(value, (list, dict)):
            pairs = value.items() if isinstance(value, dict) else enumerate(value)
            for key, inner in pairs:
                if isinstance(inner, torch.Tensor):
                    yield value, key, inner


def move(module: Any, device: torch.device) -> None:
    """Move a module, or raise :class:`ConfigError` where it cannot be."""
    try:
        module.to(device)
    except (RuntimeError, NotImplementedError, ValueError) as error:
        why = str(error).partition("\n")[0]
        raise ConfigError(f"device: the model cannot be moved to {device} ({why})") from error
