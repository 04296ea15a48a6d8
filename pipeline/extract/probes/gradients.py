"""Gradients with respect to what a model, or a submodule of it, is given; and runs on moved inputs.

No weight takes part: requires_grad of all of them is off meanwhile, and no ``.grad`` is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from pipeline.errors import ConfigError, DataError, UnknownNameError
from pipeline.extract.model import count_rows
from pipeline.extract.probes.probing import Base
from pipeline.extract.tap import near_names
from pipeline.extract.token_layouts import differentiated

Change = Callable[[torch.Tensor], torch.Tensor]
Objective = Callable[[dict[str, torch.Tensor]], torch.Tensor]
"""Returns a number for each row (n,), from the outputs of the model."""
Step = Callable[[torch.Tensor], torch.Tensor]
"""Returns what is added to inputs (n, ...), from their gradient."""


def outputs_after(
    base: Base, inputs: Any, objective: Objective, step: Step, at: str | None, probe: str
) -> dict[str, torch.Tensor]:
    """Return the outputs of the model for inputs moved by a step along their gradient.

    The gradient of each row is that of its own ``objective``. ``at`` names the submodule whose
    input is moved in place of that of the model. Everything runs in the precision of the weights,
    whatever autocast says, which would round the step away.
    """
    alone = count_rows(inputs) == 1
    # Batch norm of torch 2.13 in evaluation mode, on the CPU, gives a wrong gradient for one row
    # whose incoming one is laid out as tokens are: one row is differentiated beside a copy.
    inputs = _twice(inputs) if alone else inputs
    given: list[torch.Tensor] = []

    def take(x: torch.Tensor) -> torch.Tensor:
        if x.dtype not in (torch.float32, torch.float64):
            raise ConfigError(
                f"probe {probe}: it would move inputs of {x.dtype}, in which small steps are lost "
                "or impossible; have weights in float32, or name by at= the first submodule that "
                "takes floats, such as {at: conv1}"
            )
        given.append(x.detach().clone().requires_grad_())
        return given[-1]

    with _precise(base):
        with torch.enable_grad(), _frozen(base.networks), differentiated():
            total = objective(_run(base, inputs, at, take, probe)).sum()
            gradient = _gradient(total, given[0], probe)
        with torch.no_grad():
            moved = given[0].detach() + step(gradient)
            found = _run(base, inputs, at, lambda _: moved, probe)
    return {name: each[:1] for name, each in found.items()} if alone else found


def check_at(base: Base, at: str | None, probe: str) -> None:
    """Raise :class:`UnknownNameError` where no module has a submodule of this name."""
    if at is not None and not any(_has(root, at) for root in base.roots):
        close = ", ".join(filter(None, (near_names(at, root) for root in base.roots)))
        raise UnknownNameError(
            f"probe {probe}: at: the model has no submodule {at!r}"
            + (f"; near names: {close}" if close else "")
        )


def check_std(std: Any) -> tuple[float, ...]:
    """Return standard deviations per channel; :class:`ConfigError` where one is not above 0."""
    found = tuple(std) if isinstance(std, (list, tuple)) else (std,) * (std is not None)
    if any(isinstance(each, (bool, str)) or not 0 < each < float("inf") for each in found):
        raise ConfigError(f"std: {std!r}; expected numbers above 0, one for each channel")
    return found


def per_channel(direction: torch.Tensor, std: Sequence[float], probe: str) -> torch.Tensor:
    """Return a direction (n, c, ...) divided by the standard deviation of each channel."""
    if not std:
        return direction
    if direction.ndim < 2 or direction.shape[1] != len(std):
        raise ConfigError(
            f"probe {probe}: std has {len(std)} channels, inputs have shape "
            f"{tuple(direction.shape)}; expected (n, {len(std)}, ...)"
        )
    divisor = torch.tensor(std, dtype=direction.dtype, device=direction.device)
    return direction / divisor.reshape(-1, *(1,) * (direction.ndim - 2))


def _gradient(total: torch.Tensor, x: torch.Tensor, probe: str) -> torch.Tensor:
    why = "" if total.requires_grad else "its outputs have no graph"
    if not why:
        (gradient,) = torch.autograd.grad(total, x, allow_unused=True)
        if gradient is not None:
            return gradient
        why = "its outputs do not depend on them"
    raise DataError(
        f"probe {probe}: no gradient reaches the inputs ({why}): a model that works under "
        "torch.no_grad, detaches, or goes through integers cannot be probed there; name a later "
        "submodule by at="
    )


def _run(
    base: Base, inputs: Any, at: str | None, change: Change, probe: str
) -> dict[str, torch.Tensor]:
    """Return the outputs of the model, with one tensor on its way changed."""
    if at is None:
        return base.run(_changed(inputs, change, probe))
    times = 0

    def hook(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        nonlocal times
        times += 1
        if times > 1:
            raise DataError(f"probe {probe}: {at} ran twice in one pass; name one that runs once")
        for place, each in enumerate(args):
            if isinstance(each, torch.Tensor):
                return (*args[:place], change(each), *args[place + 1 :]), kwargs
        for name, each in kwargs.items():
            if isinstance(each, torch.Tensor):
                return args, {**kwargs, name: change(each)}
        raise DataError(f"probe {probe}: {at} was given no tensor")

    root = next(root for root in base.roots if _has(root, at))
    handle = root.get_submodule(at).register_forward_pre_hook(hook, with_kwargs=True)
    try:
        found = base.run(inputs)
    finally:
        handle.remove()
    if not times:
        raise DataError(f"probe {probe}: {at} did not run in this pass; name another submodule")
    return found


def _changed(inputs: Any, change: Change, probe: str) -> Any:
    if not isinstance(inputs, Mapping):
        return change(torch.as_tensor(inputs))
    floating = [n for n, x in inputs.items() if torch.is_tensor(x) and x.is_floating_point()]
    if len(floating) != 1:
        raise ConfigError(
            f"probe {probe}: of the inputs {', '.join(inputs)}, {len(floating)} are floats, and "
            "one is to be moved; name by at= the submodule whose input that is"
        )
    return {**inputs, floating[0]: change(inputs[floating[0]])}


def _twice(inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return {name: _twice(each) for name, each in inputs.items()}
    tensor = torch.as_tensor(inputs)
    return torch.cat((tensor, tensor))


def _has(root: Any, name: str) -> bool:
    return bool(name) and name in dict(root.named_modules())


@contextmanager
def _frozen(networks: Sequence[Any]) -> Iterator[None]:
    """Have no weight require a gradient, so that only the inputs keep a graph."""
    learning = [w for each in networks for w in each.parameters() if w.requires_grad]
    for weight in learning:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in learning:
            weight.requires_grad_(True)


@contextmanager
def _precise(base: Base) -> Iterator[None]:
    with ExitStack() as stack:
        kinds = {each.device.type for net in base.networks for each in net.parameters()}
        for kind in kinds | {"cpu"}:
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield
