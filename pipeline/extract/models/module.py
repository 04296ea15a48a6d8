"""A module that your own code makes, with weights of a file and taps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.errors import ConfigError
from pipeline.extract.models.making import Taps, finished
from pipeline.extract.models.making import made as made_of
from pipeline.extract.models.weights import PRETRAINED, RANDOM
from pipeline.extract.sources import build
from pipeline.extract.taps import Tapped


def load(
    factory: str,
    arguments: Mapping[str, Any] | None = None,
    weights: str | None = None,
    taps: Mapping[str, str] | None = None,
    layouts: Mapping[str, str] | None = None,
    prefix: Mapping[str, int] | None = None,
    head: str | None = None,
    mask: str | None = None,
    length: int | None = None,
    pooled: bool = False,
    drop: Sequence[str] = (),
    device: Any = None,
) -> Tapped:
    """Return what ``package.module:factory`` makes of ``arguments``, with taps.

    Without a file of ``weights`` the module has those that the factory gave it. A ``transform``
    that it carries is kept. Other parameters are as in :func:`pipeline.extract.taps.tapped`.

    Raises :class:`ConfigError` where it makes no module, and for weights that are no file.
    """
    if weights in (PRETRAINED, RANDOM):
        raise ConfigError(
            f"weights: {weights} says nothing of {factory}, which makes its own; name a FILE, or "
            "leave weights out and have the factory load them"
        )
    module = made_of(lambda: build(factory, **(arguments or {})), weights or PRETRAINED, drop)
    where = Taps(taps, layouts, prefix, head, mask, length, pooled)
    return finished(module, where, device, getattr(module, "transform", None), {})
