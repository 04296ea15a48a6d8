"""Samples for panels: the first images of a phase with their masks, as the first rank saw them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline import arrays
from pipeline.choice import Choice
from pipeline.ddp.collection import Collection
from pipeline.ddp.trainer import check_phases
from pipeline.errors import ConfigError

__all__ = ["Panels", "figure", "taken"]

NAMES = ("image", "images", "imgs", "img", "pixel_values", "x")


@dataclass(frozen=True)
class Panels:
    """Images, truth, predictions and errors of some samples, every few epochs."""

    every_epochs: int = 1
    samples: int = 4
    """Most samples that are shown."""
    phases: Sequence[str] = ("val",)
    image: Callable[[Any], Any] | None = None
    """Returns the images (n, 1 or 3, h, w) of a batch; by default its first entry, or ``image``."""
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    """What images were normalised with; without, they are stretched to what they hold."""

    def __post_init__(self) -> None:
        if self.every_epochs < 1 or self.samples < 1:
            raise ConfigError("panels: every_epochs and samples are 1 or more")
        if (self.mean is None) != (self.std is None):
            raise ConfigError("panels: give mean and std together, or neither")
        check_phases("panels: phases", self.phases)

    def due(self, phase: str, epoch: int) -> bool:
        """Tell whether samples of a phase are to be shown in an epoch."""
        return phase in self.phases and epoch % self.every_epochs == 0


def taken(panels: Panels, batch: Any, collection: Collection, room: int) -> list[Any]:
    """Return up to ``room`` samples of a batch whose masks a collection has just been given."""
    if collection.latest is None:
        return []
    preds, target = collection.latest
    collection.latest = None
    truth = _host(target)
    if truth.ndim != 3:
        return []  # one label an image: there is no mask to show
    predicted = _classes(_host(preds), truth, collection.choice)
    images = _images(panels, batch)
    if len(images.shape) != 4 or images.shape[1] not in (1, 3):
        raise ConfigError(
            f"panels: images have shape {tuple(images.shape)}; expected (n, 1 or 3, h, w): choose "
            "channels with Panels(image=lambda batch: batch[0][:, :3])"
        )
    return samples(panels, images[:room], truth, predicted)


def samples(panels: Panels, images: Any, truth: Any, predicted: Any) -> list[Any]:
    """Return samples of images (n, c, h, w) and masks (n, h, w) on the host."""
    from pipeline.report.panels import Sample

    shown = [_shown(image, panels) for image in _host(images)]
    return [Sample(*one) for one in zip(shown, truth, predicted, strict=False)]


def figure(shown: Sequence[Any], choice: Choice, title: str) -> Any:
    """Return the figure of some samples."""
    from pipeline.report import panels as drawing

    ignored = {one for metric in choice.metrics.values() for one in getattr(metric, "ignored", ())}
    names = choice.class_names or tuple(f"class {c}" for c in range(choice.classes))
    return drawing.panels(shown, names, ignore=sorted(ignored), title=title)


def _images(panels: Panels, batch: Any) -> Any:
    if panels.image is not None:
        return panels.image(batch)
    entry = None
    if isinstance(batch, Mapping):
        entry = next((batch[name] for name in NAMES if name in batch), None)
    elif isinstance(batch, Sequence) and len(batch):
        entry = batch[0]
    if getattr(entry, "ndim", 0) != 4:
        raise ConfigError(
            "panels: which part of a batch are the images (n, channels, h, w)? Say so with "
            "Panels(image=lambda batch: batch['picture'])"
        )
    return entry


def _host(x: Any) -> Any:
    x = x.detach() if hasattr(x, "detach") else x
    if "bfloat16" in str(getattr(x, "dtype", "")):
        x = x.float()
    return arrays.to_host(x) if arrays.is_array(x) else np.asarray(x)


def _classes(preds: Any, truth: Any, choice: Choice) -> Any:
    """Return predicted classes (n, h, w): as they are, or chosen by scores."""
    if preds.shape != truth.shape:
        return preds.argmax(axis=1)
    if np.issubdtype(preds.dtype, np.floating):
        thresholds = (getattr(metric, "threshold", 0.5) for metric in choice.metrics.values())
        return (preds >= next(thresholds)).astype(np.int64)
    return preds


def _shown(image: Any, panels: Panels) -> Any:
    """Return an image (c, h, w) as (h, w, 3) from 0 to 1."""
    x = np.moveaxis(np.asarray(image, np.float64), 0, -1)
    x = x if x.shape[-1] == 3 else x[..., :1].repeat(3, axis=-1)
    if panels.mean is not None and panels.std is not None:
        return (x * np.asarray(panels.std) + np.asarray(panels.mean)).clip(0, 1)
    if np.asarray(image).dtype == np.uint8:
        return x / 255
    low, high = np.nanmin(x), np.nanmax(x)
    return (x - low) / (high - low) if high > low else np.zeros_like(x)
