"""Taps: outputs of any submodules, by name, in one forward pass, as arrays of a split.

``tapped(vit, {"features": "blocks.11", "logits": "head"}, layouts={"features": "NTD"},
prefix={"cls": 1})`` is a model with arrays features (t, d), cls (d,) and logits (k,).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import chain
from typing import Any

import torch

from pipeline.errors import ConfigError, DataError
from pipeline.extract import devices
from pipeline.extract.final_layer import last_linear, linear_called
from pipeline.extract.model import Description, call, name_of
from pipeline.extract.tap import Tap, input_of, item_of, near_names, tap_of
from pipeline.extract.token_layouts import (
    arranged,
    check_layout,
    copied,
    has_tokens,
    is_sequence,
    mask_of,
    masked,
    parted,
)
from pipeline.pooled import STORED as POOLED
from pipeline.pooled import said_of_copy

FEATURES, LOGITS, MASK = "features", "logits", "mask"
AUTO = "auto"
RETURNED = "what the model returns"
Arrays = dict[str, torch.Tensor]


def tapped(
    model: Callable[..., Any],
    taps: Mapping[str, str] | None = None,
    *,
    layouts: Mapping[str, str] | None = None,
    prefix: Mapping[str, int] | None = None,
    head: str | None = None,
    mask: str | None = None,
    length: int | None = None,
    pooled: bool = False,
    transform: Callable[[Any], Any] | None = None,
    attributes: Mapping[str, str] | None = None,
) -> Tapped | Arranged:
    """Return a model that gives the outputs of submodules by the names of ``taps``.

    Without taps (or a head), arrays are what any callable returns, a tensor being ``features``.

    A tap is the name of a submodule, ``blocks.11``; with an item of its output, ``encoder:0`` or
    ``encoder:last_hidden_state``, or ``head:input``, what goes into it, where several tensors do
    with its name, ``block:input:hidden_states``; or an item of what the model returns,
    ``last_hidden_state``, or ``:``, all of that. Outputs (n, d) need no layout; others declare
    theirs, N first: NTD, NDT, NCHW, NHWC. Tokens are stored (t, d), those of a map row by row.

    ``prefix`` counts the tokens before those, by the name of the array that they become: one gives
    (d,), several (r, d). It holds for every tap of a sequence; those of others than ``features``
    (or the first) carry the name of their tap, ``TAP_cls``. ``mask`` names the input, such as
    ``attention_mask``, that flags valid tokens (n, t) by 1; others are stored as zeros, and all
    are padded to ``length``, where it is given. ``pooled`` adds the mean of the valid tokens of
    ``features`` (or the first tap of tokens), float64 (d,), which detectors read in their place.

    ``head`` names the final ``torch.nn.Linear``, whose weights are saved with the features, or is
    ``auto``: the last one whose output is that of the model. Its output becomes ``logits`` unless
    a tap has that name. ``transform`` makes an input of one RGB image of PIL; ``attributes`` are
    recorded in the store.

    Raises
    ------
    ConfigError
        For a model without submodules, layouts and prefixes that are not known or do not fit, and
        two arrays of one name.
    UnknownNameError
        For a submodule that is not there; near names are listed.
    """
    network = devices.module_of(model)
    if taps is None and head is None:
        made: Tapped | Arranged = Arranged(model, layouts or {})
        return _completed(made, model, prefix, mask, length, pooled, transform, attributes)
    if network is None:
        raise ConfigError(
            f"taps need a torch.nn.Module, or a method of one, got {name_of(model)}: return what "
            "you want as a mapping of tensors by name instead, and declare layouts alone"
        )
    if isinstance(network, torch.jit.ScriptModule):
        raise ConfigError("taps need a module as it was written: one that is scripted has no hooks")
    if head not in (None, AUTO):
        linear_called(network, str(head))
        taps = taps if taps is None or LOGITS in taps else {**taps, LOGITS: str(head)}
    named = dict(_checked(taps))
    chosen = tuple(tap_of(network, name, path, layouts or {}) for name, path in named.items())
    if odd := [name for name in layouts or {} if name not in named]:
        raise ConfigError(f"layouts: there is no tap {odd[0]!r}; taps: {', '.join(named)}")
    made = Tapped(network, None if model is network else model, chosen, head)
    return _completed(made, model, prefix, mask, length, pooled, transform, attributes)


def _completed(
    made: Tapped | Arranged,
    model: Callable[..., Any],
    prefix: Mapping[str, int] | None,
    mask: str | None,
    length: int | None,
    pooled: bool,
    transform: Callable[[Any], Any] | None,
    attributes: Mapping[str, str] | None,
) -> Tapped | Arranged:
    made.prefixes = _prefixes(made.taps, prefix or {})
    made.mask, made.length = mask, _length(length, mask)
    made.transform = getattr(model, "transform", None) if transform is None else transform
    copied_of = _tokens_of(made.taps).name if pooled else ""
    _refuse_twice(made, [POOLED] if pooled else [])
    made.description = _description(made, model, copied_of, attributes or {})
    return made


class Laid:
    """Arrays as they are stored: tokens behind a prefix, and a mask of those that are valid."""

    taps: tuple[Tap, ...]
    prefixes: Mapping[str, Mapping[str, int]]
    """Of each tap of a sequence, the arrays of its first tokens and their numbers."""
    mask: str | None
    length: int | None
    transform: Callable[[Any], Any] | None
    description: Description

    def _laid(self, tap: Tap, output: torch.Tensor) -> Arrays:
        """Return copies of a tap's tokens and of each part of its prefix."""
        found = arranged(output, tap.layout, tap.where)
        rest, parts = parted(found, self.prefixes.get(tap.name, {}), tap.where)
        return {name: copied(each) for name, each in {tap.name: rest, **parts}.items()}

    def _finished(self, arrays: Arrays, inputs: Any) -> Arrays:
        """Return the arrays with their mask, where there is one."""
        if self.mask is not None:
            if not isinstance(inputs, Mapping) or self.mask not in inputs:
                there = ", ".join(inputs) if isinstance(inputs, Mapping) else "one tensor"
                raise DataError(f"mask: no input is called {self.mask!r}; inputs: {there}")
            tokens = [tap for tap in self.taps if has_tokens(tap.layout)]
            skipped = sum(self.prefixes.get(tokens[0].name, {}).values()) if tokens else 0
            mask, length = mask_of(inputs[self.mask], skipped, self.length, self.mask)
            for tap in tokens:
                arrays[tap.name] = masked(arrays[tap.name], mask, length, tap.where)
            arrays[MASK] = torch.nn.functional.pad(mask, (0, length - mask.shape[1]))
        return arrays


class Arranged(Laid):
    """Any callable, whose outputs have layouts that it does not tell itself: see :func:`tapped`.

    No module, so that what it holds is found, and left where it is, as for every callable.
    """

    def __init__(self, model: Callable[..., Any], layouts: Mapping[str, str]) -> None:
        self.model = model
        self.taps = tuple(
            Tap(name, RETURNED, None, "", check_layout(layout, f"layouts: {name}"))
            for name, layout in layouts.items()
        )

    @property
    def head(self) -> Any:
        """The final layer that the callable carries, if any."""
        return getattr(self.model, "head", None)

    def __call__(self, inputs: Any) -> Arrays:
        """Return the arrays (n, ...) by name.

        Raises
        ------
        DataError
            For an output that is missing, or is not as declared, and two arrays of one name.
        """
        output = call(self.model, inputs)
        found = dict(output) if isinstance(output, Mapping) else {FEATURES: output}
        arrays: Arrays = {}
        for tap in self.taps:
            if not isinstance(found.get(tap.name), torch.Tensor):
                raise DataError(
                    f"layouts: the model returns no tensor {tap.name!r}; it returns "
                    f"{', '.join(map(str, found))}"
                )
            arrays |= self._laid(tap, found.pop(tap.name))
        if twice := sorted(found.keys() & arrays.keys()):
            raise DataError(f"prefix: the model itself returns {', '.join(twice)}; rename one")
        return self._finished(arrays | found, inputs)


class Tapped(Laid, torch.nn.Module):  # type: ignore[misc]
    """A module whose outputs are those of submodules of another: see :func:`tapped`."""

    def __init__(
        self, network: Any, method: Any, taps: tuple[Tap, ...], head_name: str | None
    ) -> None:
        super().__init__()
        self.tapped = network
        self._method = method
        self.taps, self.head_name = taps, head_name

    @property
    def head(self) -> tuple[Any, Any] | None:
        """W (k, d) and b (k,) of the final layer; None until a pass has found it."""
        if self.head_name in (None, AUTO):
            return None
        layer = self.tapped.get_submodule(self.head_name)
        zeros = layer.weight.new_zeros(layer.out_features)
        return layer.weight.detach(), zeros if layer.bias is None else layer.bias.detach()

    def forward(self, inputs: Any, /) -> Arrays:
        """Return the arrays (n, ...) by name, each in memory of its own.

        Raises
        ------
        DataError
            For a submodule that did not run, or ran twice, and outputs that are not as declared.
        """
        if self.head_name == AUTO:
            self._find_head(inputs)
        caught: dict[str, Arrays] = {}
        named = inputs if isinstance(inputs, Mapping) else {"0": inputs}
        for tap in self.taps:
            if tap.module is None and tap.is_input:
                self._before(tap, caught, None, (), named)
        with self._hooked(caught):
            output = self._run(inputs)
        for tap in self.taps:
            if tap.module is None and not tap.is_input:
                self._catch(tap, caught, output)
            elif tap.name not in caught:
                raise DataError(
                    f"{tap.where}: the submodule did not run in this forward pass{self._near(tap)}"
                    " (modules that are compiled, or whose weights are used by another one, do not)"
                )
        return self._finished(dict(chain(*(caught[tap.name].items() for tap in self.taps))), inputs)

    def _run(self, inputs: Any) -> Any:
        with _uncompiled(self.tapped):
            return call(self.tapped if self._method is None else self._method, inputs)

    @contextmanager
    def _hooked(self, caught: dict[str, Arrays]) -> Iterator[None]:
        """Have a hook on every tapped submodule; none is left, whatever happens."""
        with ExitStack() as stack:
            for tap in self.taps:
                if tap.module is None:
                    continue
                if tap.is_input:
                    hook = partial(self._before, tap, caught)
                    handle = tap.module.register_forward_pre_hook(hook, with_kwargs=True)
                else:
                    hook = partial(self._after, tap, caught)
                    handle = tap.module.register_forward_hook(hook)
                stack.callback(handle.remove)
            yield

    def _before(
        self, tap: Tap, caught: dict[str, Arrays], _: Any, args: Any, kwargs: Mapping[str, Any]
    ) -> None:
        """Copy what goes in before the submodule runs, which may write into it."""
        self._catch(tap, caught, input_of(tap, args, kwargs, self._near))

    def _after(self, tap: Tap, caught: dict[str, Arrays], _: Any, args: Any, output: Any) -> None:
        self._catch(tap, caught, output)

    def _catch(self, tap: Tap, caught: dict[str, Arrays], given: Any) -> None:
        """Copy at once: layers behind may write into the output."""
        if tap.name in caught:
            raise DataError(
                f"{tap.where}: the submodule ran twice in one forward pass, and which run is "
                f"meant is not known{self._near(tap)}: tap one that runs once"
            )
        caught[tap.name] = self._laid(tap, item_of(tap, given, self._near))

    def _find_head(self, inputs: Any) -> None:
        """Look for the last linear layer whose output is that of the model, or its logits."""
        self.head_name = last_linear(self.tapped, lambda: self._run(inputs))
        if LOGITS not in {tap.name for tap in self.taps}:
            self.taps = (*self.taps, tap_of(self.tapped, LOGITS, self.head_name, {}))

    def _near(self, tap: Tap) -> str:
        close = near_names(tap.path.partition(":")[0], self.tapped)
        return f"; submodules of near names: {close}" if close else ""


def _uncompiled(network: Any) -> AbstractContextManager[Any]:
    """Run a network as it was written: what ``torch.compile`` made of it takes no hooks."""
    modules = network.modules()
    if any(hasattr(e, "_orig_mod") or e._compiled_call_impl is not None for e in modules):
        return torch.compiler.set_stance("force_eager")  # type: ignore[no-any-return]
    return nullcontext()


def _checked(taps: Any) -> Iterator[tuple[str, str]]:
    if not isinstance(taps, Mapping) or not taps:
        raise ConfigError(
            f"taps: {taps!r}; expected submodules by the name of their array, such as "
            "{'features': 'blocks.11', 'logits': 'head'}"
        )
    for name, path in taps.items():
        if not isinstance(name, str) or not isinstance(path, str) or not path.strip():
            raise ConfigError(f"taps: {name!r}: {path!r}; expected the name of a submodule")
        if name in ("labels", "ids", MASK):
            raise ConfigError(f"taps: an array {name!r} does not come from a tap; name it else")
        yield name, path


def _prefixes(taps: tuple[Tap, ...], prefix: Mapping[str, int]) -> dict[str, dict[str, int]]:
    if not isinstance(prefix, Mapping):
        raise ConfigError(f"prefix: {prefix!r}; expected numbers of tokens, such as {{'cls': 1}}")
    for name, count in prefix.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise ConfigError(f"prefix: {name}: {count!r}; expected how many tokens, at least 1")
    sequences = [tap.name for tap in taps if is_sequence(tap.layout)]
    if prefix and not sequences:
        raise ConfigError(
            "prefix: no tap is a sequence of tokens; declare its layout, NTD or NDT: a map has none"
        )
    first = FEATURES if FEATURES in sequences else next(iter(sequences), "")
    return {
        tap: {name if tap == first else f"{tap}_{name}": n for name, n in prefix.items()}
        for tap in sequences
        if prefix
    }


def _length(length: Any, mask: str | None) -> int | None:
    if length is not None and (mask is None or not isinstance(length, int) or length < 1):
        raise ConfigError(
            f"length: {length!r}; expected to how many tokens rows with a mask are padded, a number"
            " of at least 1, beside the name of the mask"
        )
    return length


def _tokens_of(taps: tuple[Tap, ...]) -> Tap:
    """Return the tap whose tokens are pooled: features, or the first one that has tokens."""
    tokens = [tap for tap in taps if has_tokens(tap.layout)]
    if not tokens:
        raise ConfigError("pooled: no tap gives tokens; declare its layout, or leave pooled out")
    return next((tap for tap in tokens if tap.name == FEATURES), tokens[0])


def _refuse_twice(made: Laid, names: list[str]) -> None:
    names += [tap.name for tap in made.taps]
    names += [name for prefix in made.prefixes.values() for name in prefix]
    names += [MASK] if made.mask is not None else []
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"taps: two arrays would be called {', '.join(twice)}; rename one")


def _said_of(transform: Any) -> str:
    """Return a transform as text, on one line and without addresses of this process."""
    return re.sub(r" at 0x[0-9a-f]+", "", " ".join(repr(transform).split()))


def _description(made: Laid, model: Any, pooled: str, attributes: Mapping[str, str]) -> Description:
    """Return what the store records: above all where the features are taken from."""
    said = {tap.name: " ".join((tap.path, tap.layout)).strip() for tap in made.taps}
    carried = getattr(model, "description", None)
    known = carried if isinstance(carried, Description) else Description()
    for name, prefix in made.prefixes.items():
        said[name] += "".join(f", without {arr} {count}" for arr, count in prefix.items())
    first = FEATURES if FEATURES in said else next(iter(said), "")
    layouts = {
        **known.layouts,
        **{tap.name: "TD" for tap in made.taps if has_tokens(tap.layout)},
        **{
            name: "D" if count == 1 else "TD"
            for prefix in made.prefixes.values()
            for name, count in prefix.items()
        },
    }
    own = {
        "model": name_of(devices.called_by(model)),
        **({"tap": said[first]} if said else {}),
        "taps": "; ".join(f"{name}: {where}" for name, where in said.items()),
        **({"mask": made.mask} if made.mask is not None else {}),
        **(said_of_copy(pooled, made.mask is not None) if pooled else {}),
        **({"transform": _said_of(made.transform)} if made.transform is not None else {}),
    }
    return Description({**known.attributes, **own, **attributes}, layouts, pooled)
