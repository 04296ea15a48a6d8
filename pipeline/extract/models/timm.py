"""Models of timm, with the transform that its own data configuration says."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.errors import ConfigError, UnknownNameError
from pipeline.extract.models.making import Taps, check_weights, finished, library, made
from pipeline.extract.models.weights import PRETRAINED
from pipeline.extract.taps import Tapped


def load(
    name: str,
    weights: str | None = None,
    taps: Mapping[str, str] | None = None,
    layouts: Mapping[str, str] | None = None,
    prefix: Mapping[str, int] | None = None,
    head: str | None = None,
    pooled: bool = False,
    drop: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    device: Any = None,
) -> Tapped:
    """Return ``timm.create_model(name, **options)`` with taps and its transform, of ``img_size``.

    ``weights`` is a file, ``pretrained``, those that timm has or downloads, or ``random``. Taps
    and what goes with them are those of :func:`pipeline.extract.taps.tapped`; ``drop`` lists how
    names begin that the file may have in excess.

    Raises
    ------
    MissingInputError
        Without timm, or the file of weights.
    UnknownNameError
        For a model that timm does not have.
    ConfigError, DataError
        For weights that are not named or do not fit, and taps that do not fit.
    """
    timm = library("timm", "models", f"timm: {name}")
    data = library("timm.data", "models", f"timm: {name}")
    if not timm.is_model(name):
        close = difflib.get_close_matches(name, timm.list_models(), n=3)
        raise UnknownNameError(f"timm: it has no model {name!r}" + _near(close))
    chosen = check_weights(weights, f"{PRETRAINED}, those of timm")

    def create() -> Any:
        try:
            return timm.create_model(name, pretrained=chosen == PRETRAINED, **(options or {}))
        except TypeError as error:
            raise ConfigError(f"options: timm: {name} does not take them ({error})") from error

    module = made(create, chosen, drop)
    side = (options or {}).get("img_size")
    sides = (side, side) if isinstance(side, int) else side
    resized = {} if sides is None else {"input_size": (3, *sides)}
    settings = data.resolve_data_config(resized, model=module)
    transform = data.create_transform(**settings, is_training=False)
    attributes = {"model": f"timm {name}", "timm_version": timm.__version__}
    where = Taps(taps, layouts, prefix, head, pooled=pooled)
    return finished(module, where, device, transform, attributes)


def _near(close: list[str]) -> str:
    return f"; did you mean {' or '.join(close)}?" if close else ""
