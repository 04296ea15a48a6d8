"""Images on their way to a model: decoded, upright, RGB, of one size, and stacked to a batch."""

from __future__ import annotations

import importlib
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.errors import ConfigError, CorruptError, DataError, MissingInputError

DEEP = ("I", "F")
"""Beginnings of modes with more than 8 bits a channel, which pillow would clip to white."""

Transform = Callable[[Any], Any]


@dataclass(frozen=True)
class Preparation:
    """From an image file to a row: by a transform, or to ``size`` and cut to ``crop`` pixels."""

    transform: Transform | None = None
    size: int | tuple[int, int] | None = None
    """Pixels of the shorter side, or (height, width)."""
    crop: int | None = None
    """Pixels along a side of the square that is cut from the middle."""

    def __str__(self) -> str:
        """Say what is done, for the attributes of a split."""
        if self.transform is not None:
            return _said(self.transform)
        size = "as they are" if self.size is None else f"size {self.size}, bicubic"
        return size if self.crop is None else f"{size}, middle {self.crop} x {self.crop}"

    def __call__(self, file: Any, what: str) -> Any:
        """Return one row: what the transform gives, else uint8 (h, w, 3).

        ``file`` is a path, an open file or a PIL image, ``what`` names it. Raises
        :class:`CorruptError` for a damaged image, :class:`DataError` for one of another kind.
        """
        with _quiet():
            return self._row(file, what)

    def all(self, files: Sequence[Any], named: Sequence[str]) -> list[Any]:
        """Return the rows of several files, decoded by as many threads as torch computes with."""
        threads = min(len(files), sys.modules["torch"].get_num_threads() if _computes() else 1)
        if threads < 2:
            return [self(*each) for each in zip(files, named, strict=True)]
        with _quiet(), ThreadPoolExecutor(threads, "decode") as pool:
            return list(pool.map(self._row, files, named))

    def _row(self, file: Any, what: str) -> Any:
        image = upright(file, what)
        if self.transform is None:
            return self.of_image(image, what)
        try:
            return self.transform(image)
        except Exception as error:
            raise DataError(
                f"{what}: the transform raised {type(error).__name__}: {error}"
            ) from error

    def of_image(self, image: Any, what: str = "an image") -> Any:
        """Return uint8 (h, w, 3) of an RGB image, resized and cut."""
        return np.array(self._cut(self._sized(image), what))  # torch wants to write to it

    def _sized(self, image: Any) -> Any:
        if self.size is None:
            return image
        if isinstance(self.size, tuple):
            height, width = self.size
        else:
            short = min(image.width, image.height)
            height, width = (
                round(side * self.size / short) for side in (image.height, image.width)
            )
        return image.resize((width, height), _pillow("Image").Resampling.BICUBIC)

    def _cut(self, image: Any, what: str) -> Any:
        if self.crop is None:
            return image
        if min(image.width, image.height) < self.crop:
            raise DataError(
                f"{what} is {image.width} x {image.height} pixels, which is smaller than crop "
                f"{self.crop}; choose size: {self.crop} or more"
            )
        left, top = (image.width - self.crop) // 2, (image.height - self.crop) // 2
        return image.crop((left, top, left + self.crop, top + self.crop))


def preparation(transform: Any = None, size: Any = None, crop: Any = None) -> Preparation:
    """Return how images become rows; raises :class:`ConfigError` for what cannot be meant.

    ``transform`` may be the path of a function that takes one PIL image, ``package.module:name``.
    """
    if isinstance(transform, str):
        from pipeline.extract.sources import resolve

        transform = resolve(transform)
    if transform is not None and not callable(transform):
        raise ConfigError(f"transform: expected what takes one PIL image, got {transform!r}")
    if transform is not None and (size is not None or crop is not None):
        raise ConfigError("transform, size and crop: a transform makes the whole row; leave out "
                          "size and crop, or say transform: null")  # fmt: skip
    pair = tuple(size) if isinstance(size, (list, tuple)) else size
    sides = pair if isinstance(pair, tuple) else (pair,)
    whole = all(side is None or _is_side(side) for side in (*sides, crop))
    if not whole or (isinstance(pair, tuple) and (len(pair) != 2 or None in pair)):
        raise ConfigError(f"size and crop are pixels, size also [height, width]; got size {size!r} "
                          f"and crop {crop!r}")  # fmt: skip
    return Preparation(transform, pair, crop)


def _said(transform: Transform) -> str:
    """Name a transform: by its own words, if these are the same in every process."""
    owner = getattr(transform, "__self__", None)
    if isinstance(owner, Preparation):
        return str(owner)
    text = repr(transform)
    if " at 0x" not in text and not inspect.isroutine(transform):
        return text
    named = transform if hasattr(transform, "__qualname__") else type(transform)
    return f"{named.__module__}.{named.__qualname__}"


def _is_side(given: Any) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and given > 0


def upright(file: Any, what: str) -> Any:
    """Return an image of a file, or a PIL image, in RGB and turned as its EXIF data say."""
    module, operations = _pillow("Image"), _pillow("ImageOps")
    try:
        image = file if isinstance(file, module.Image) else module.open(file)
        image.load()
        if image.mode.startswith(DEEP):
            raise DataError(
                f"{what} has {image.mode} pixels, of more than 8 bits: expected 8 bits a "
                "channel; convert it, with a range of grays that you choose"
            )
        image = operations.exif_transpose(image)
        if image.mode == "P":  # whose transparency RGB cannot be made of
            image = image.convert("RGBA")
        return image if image.mode == "RGB" else image.convert("RGB")
    except FileNotFoundError as error:
        raise MissingInputError(f"{what} is not there any more") from error
    except DataError:
        raise
    except Exception as error:  # decoders raise whatever they like
        raise CorruptError(
            f"{what} cannot be decoded ({type(error).__name__}: {error}); mend or remove it"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Have pillow's warnings, of sizes and of EXIF data, ignored: what matters is raised."""
    with warnings.catch_warnings():  # not by each thread: filters are those of the process
        warnings.filterwarnings("ignore", module=r"PIL\b")
        yield


def _computes() -> bool:
    """Tell whether torch is there; a folder can be looked at without."""
    return hasattr(sys.modules.get("torch"), "get_num_threads")


def stacked(rows: Sequence[Any], names: Sequence[str]) -> Any:
    """Return rows along a new first axis: as tensor, array or mapping of these.

    Raises :class:`DataError` that names two rows of unlike shapes.
    """
    if not rows:
        return np.empty((0,), np.float32)
    if isinstance(rows[0], Mapping):
        return {key: stacked([row[key] for row in rows], names) for key in rows[0]}
    first = tuple(np.shape(rows[0]))
    for row, name in zip(rows, names, strict=True):
        if tuple(np.shape(row)) != first:
            raise DataError(
                f"{name} becomes a row of shape {tuple(np.shape(row))}, {names[0]} one of {first}: "
                "expected one shape; give the model a transform, or the data a size and a crop"
            )
    if hasattr(rows[0], "new_empty"):
        import torch

        return torch.stack(list(rows))
    return np.stack([np.asarray(row) for row in rows])


def _pillow(name: str) -> Any:
    try:
        return importlib.import_module(f"PIL.{name}")
    except ModuleNotFoundError as error:
        raise MissingInputError(
            "images are decoded by pillow: pip install pillow, or 'featfold[models]'"
        ) from error
