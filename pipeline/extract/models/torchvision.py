"""Models of torchvision, with the transform that belongs to their weights."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.errors import ConfigError, UnknownNameError
from pipeline.extract.models.making import Taps, check_weights, finished, library, made
from pipeline.extract.models.weights import PRETRAINED, RANDOM, is_file
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
    preset: str | None = None,
    options: Mapping[str, Any] | None = None,
    device: Any = None,
) -> Tapped:
    """Return ``torchvision.models.get_model(name, **options)`` with taps and a transform.

    ``weights`` is a file, ``random``, or the library's own, which it has or downloads:
    ``pretrained``, or one by name, ``IMAGENET1K_V1``. ``preset`` names the weights whose transform
    is meant, which a file has to where they differ. The rest is as in
    :func:`pipeline.extract.models.timm.load`.

    Raises
    ------
    MissingInputError
        Without torchvision, or the file of weights.
    UnknownNameError
        For a model, or weights, that torchvision does not have.
    ConfigError, DataError
        For weights that are not named or do not fit, and taps that do not fit.
    """
    torchvision = library("torchvision", "models", f"torchvision: {name}")
    models = torchvision.models
    if name not in models.list_models():
        raise UnknownNameError(
            f"torchvision: it has no model {name!r}{_near(name, models.list_models())}"
        )
    known = models.get_model_weights(name)
    chosen = check_weights(weights, f"{PRETRAINED} or one of {', '.join(known.__members__)}")
    own = None if chosen == RANDOM or is_file(chosen) else _member(known, chosen, "weights")

    def create() -> Any:
        try:
            return models.get_model(name, weights=own, **(options or {}))
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"options: torchvision: {name} does not take them ({error})"
            ) from error

    module = made(create, PRETRAINED if own is not None else chosen, drop)
    transform = _transform(known, own, preset, chosen)
    attributes = {"model": f"torchvision {name}", "torchvision_version": torchvision.__version__}
    where = Taps(taps, layouts, prefix, head, pooled=pooled)
    return finished(module, where, device, transform, attributes)


def _member(known: Any, name: str, what: str) -> Any:
    if name == PRETRAINED:
        return known.DEFAULT
    if name not in known.__members__:
        raise UnknownNameError(
            f"{what}: torchvision has no {name!r} for this model{_near(name, known.__members__)}; "
            f"it has {', '.join(known.__members__) or 'none'}"
        )
    return known[name]


def _transform(known: Any, own: Any, preset: str | None, weights: str) -> Any:
    """Return the transform of some weights; ConfigError where it is not known which."""
    if preset is not None:
        return _member(known, preset, "preset").transforms()
    if own is not None:
        return own.transforms()
    transforms = {repr(each.transforms()): each for each in known}
    if len(transforms) > 1 and weights != RANDOM:
        raise ConfigError(
            f"preset: the weights of torchvision have several transforms; name those that {weights}"
            f" was trained like: {', '.join(known.__members__)}"
        )
    return known.DEFAULT.transforms() if transforms else None


def _near(name: str, known: Any) -> str:
    close = difflib.get_close_matches(name, list(known), n=3)
    return f"; did you mean {' or '.join(close)}?" if close else ""
