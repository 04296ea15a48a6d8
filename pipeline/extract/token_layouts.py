"""From what a layer gives to rows as they are stored: tokens first, features last, prefix apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.chunk import ArraySpec, Chunk, Schema
from pipeline.errors import ConfigError, DataError
from pipeline.views import Pooled

Arrange = Callable[[torch.Tensor], torch.Tensor]
LAYOUTS: Mapping[str, Arrange] = {
    "ND": lambda x: x,
    "NTD": lambda x: x,
    "NDT": lambda x: x.transpose(1, 2),
    "NCHW": lambda x: x.flatten(2).transpose(1, 2),
    "NHWC": lambda x: x.flatten(1, 2),
}
"""Axes of a layer's output, and what makes tokens (n, t, d) of it, row by row of a map."""
SEQUENCES = ("NTD", "NDT")
"""Layouts whose first tokens may be others than those of a map or of a text."""
_DIFFERENTIATED: ContextVar[bool] = ContextVar("differentiated", default=False)


def check_layout(layout: str, what: str) -> str:
    """Return a layout that is known here, or raise :class:`ConfigError`."""
    if layout not in LAYOUTS:
        raise ConfigError(
            f"{what}: layout {layout!r}; expected the axes of the output, one of "
            f"{', '.join(LAYOUTS)}: N rows, T tokens, D or C features, H x W a map"
        )
    return layout


def is_sequence(layout: str) -> bool:
    """Tell whether a layout has tokens in one axis."""
    return layout in SEQUENCES


def has_tokens(layout: str) -> bool:
    """Tell whether rows of a layout are tokens (t, d)."""
    return len(layout) > 2


def arranged(output: torch.Tensor, layout: str, what: str) -> torch.Tensor:
    """Return a view (n, t, d), (n, d) or (n,) of an output, with tokens row by row of a map.

    Raises
    ------
    ConfigError
        For three axes or more and no layout: it is never guessed.
    DataError
        For an output with other axes than the layout declares.
    """
    if not layout and output.ndim <= 2:
        return output
    shape = tuple(output.shape)
    if not layout:
        raise ConfigError(
            f"{what}: it gives {shape}, and which axes are tokens and features is never guessed; "
            f"declare its layout, one of {', '.join(LAYOUTS)}"
        )
    if output.ndim != len(layout):
        fitting = [name for name in LAYOUTS if len(name) == output.ndim]
        raise DataError(
            f"{what}: it gives {shape}, {output.ndim} axes, and its layout {layout} declares "
            f"{len(layout)}; " + (f"choose {' or '.join(fitting)}" if fitting else "tap another")
        )
    return LAYOUTS[layout](output)


def parted(
    tokens: torch.Tensor, prefix: Mapping[str, int], what: str
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the tokens behind a prefix, and the arrays of the prefix: (n, d), or (n, r, d).

    Raises :class:`DataError` where no token would be left.
    """
    count = sum(prefix.values())
    if prefix and count >= tokens.shape[1]:
        listed = ", ".join(f"{name}: {number}" for name, number in prefix.items())
        raise DataError(
            f"{what}: it gives {tokens.shape[1]} tokens, and the prefix ({listed}) would take "
            "them all; correct the prefix"
        )
    parts, start = {}, 0
    for name, number in prefix.items():
        part = tokens[:, start : start + number]
        parts[name] = part[:, 0] if number == 1 else part
        start += number
    return tokens[:, count:], parts


def copied(view: torch.Tensor) -> torch.Tensor:
    """Return a tensor of its own, so that a slice never keeps the whole output alive.

    No graph is kept either, but within :func:`differentiated`.
    """
    kept = view if _DIFFERENTIATED.get() else view.detach()
    return kept.clone(memory_format=torch.contiguous_format)


@contextmanager
def differentiated() -> Iterator[None]:
    """Have copies belong to the graph of gradients: for who differentiates outputs of taps."""
    token = _DIFFERENTIATED.set(True)
    try:
        yield
    finally:
        _DIFFERENTIATED.reset(token)


def masked(tokens: torch.Tensor, mask: torch.Tensor, length: int, what: str) -> torch.Tensor:
    """Return tokens (n, length, d): zeros where the mask (n, t) says that there is none."""
    if tokens.shape[:2] != mask.shape:
        raise DataError(
            f"{what}: it gives {tuple(tokens.shape[:2])} rows and tokens, and the mask has "
            f"{tuple(mask.shape)}; a mask has one flag for each token"
        )
    kept = tokens.masked_fill(~mask[:, :, None].to(tokens.device), 0)
    return torch.nn.functional.pad(kept, (0, 0, 0, length - mask.shape[1]))


def mask_of(given: Any, prefix: int, length: int | None, name: str) -> tuple[torch.Tensor, int]:
    """Return a mask (n, t) bool of the tokens behind a prefix, and the length to pad it to.

    Raises
    ------
    DataError
        For other values than 0 and 1, another shape, padding where the prefix is, or more tokens
        than ``length``.
    """
    if not isinstance(given, torch.Tensor) or given.ndim != 2:
        shape = tuple(getattr(given, "shape", ()))
        raise DataError(f"mask {name!r}: expected flags (n, t) for tokens, got shape {shape}")
    if given.dtype != torch.bool and not bool(((given == 0) | (given == 1)).all()):
        raise DataError(
            f"mask {name!r}: expected 0 and 1, or false and true, got other values; masks that "
            "are added to scores, with 0 for valid tokens, must be turned into flags"
        )
    flags = given.bool()
    padded = flags.any(1) & ~flags[:, :prefix].all(1)
    if bool(padded.any()):
        raise DataError(
            f"mask {name!r}: row {int(padded.nonzero()[0, 0])} of the batch has padding among the "
            f"first {prefix} tokens, which the prefix takes; pad on the right "
            "(padding_side='right' of a tokenizer), or declare no prefix"
        )
    mask = flags[:, prefix:]
    tokens = mask.shape[1]
    if length is not None and tokens > length:
        raise DataError(
            f"mask {name!r}: rows of {tokens} tokens do not fit a length of {length}; truncate "
            "them in the tokenizer, or declare a larger length"
        )
    return mask, tokens if length is None else length


def mean_of_tokens(tokens: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Return the mean of the valid tokens, float64 (n, d) on the host, with the bits of detectors.

    Those are the bits of :class:`pipeline.views.Pooled` over the stored tokens.
    """
    masks = {} if mask is None else {"mask": mask.cpu().numpy()}
    contents = {"features": to_host(tokens), **masks}
    specs = {name: ArraySpec(rows.shape[1:], rows.dtype.name) for name, rows in contents.items()}
    schema = Schema(len(tokens), 0, specs)
    with np.errstate(invalid="ignore"):  # of tokens that are not finite
        return torch.from_numpy(Pooled("mean")(Chunk(schema, 0, len(tokens), contents)))


def to_host(rows: torch.Tensor) -> NDArray[Any]:
    """Return rows as detectors see them: on the host, bfloat16 widened to float32."""
    wide = rows.float() if rows.dtype == torch.bfloat16 else rows
    found: NDArray[Any] = wide.detach().cpu().numpy()
    return found
