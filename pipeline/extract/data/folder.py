"""Images in a folder: a class for each sub-folder, or, for out-of-distribution sets, no classes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.errors import ConfigError, DataError, MissingInputError
from pipeline.extract.data.images import Preparation, preparation, stacked
from pipeline.extract.sources import Batch
from pipeline.store.importers.shards import natural

SUFFIXES = (
    ".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp",
)  # fmt: skip
"""Endings of images, in any case; other files are left out."""


@dataclass(frozen=True)
class ImageFolder:
    """Images by their place below a folder; ids are places in the sorted list of names."""

    name: str
    root: Path
    names: Sequence[str]
    """Paths below the folder, in natural order: of classes first, then of images."""
    labels: NDArray[np.int64]
    class_names: Sequence[str]
    """What label 0, 1, ... stands for; empty without labels."""
    prepared: Preparation
    unit: str = "images"

    @property
    def attributes(self) -> Mapping[str, Any]:
        """What a split records: classes, how images become rows, and a digest of the names."""
        digest = hashlib.sha256("\n".join(self.names).encode("utf-8", "surrogateescape"))
        classes = {"class_names": list(self.class_names)} if self.class_names else {}
        return {"images": str(self.prepared), "names_sha256": digest.hexdigest(), **classes}

    def __len__(self) -> int:
        return len(self.names)

    def read(self, start: int, stop: int) -> Batch:
        """Return the rows ``start`` to ``stop``: decoded images with labels and ids.

        Raises :class:`CorruptError` that names a damaged image.
        """
        named = [str(self.root / name) for name in self.names[start:stop]]
        where = [f"image {start + row} ({name})" for row, name in enumerate(named)]
        rows = self.prepared.all(named, where)
        return Batch(
            stacked(rows, named), self.labels[start:stop], np.arange(start, start + len(rows))
        )


def folder(
    path: str,
    transform: Any = None,
    size: Any = None,
    crop: Any = None,
    labelled: bool | None = None,
    classes: Any = None,
) -> ImageFolder:
    """Return the images below ``path`` as rows.

    Each sub-folder is a class, with the images at any depth below it, and labels follow the order
    of their names. ``classes`` fixes that order, where a class may be absent: a list of names, or
    the path of a folder (this or another one) whose sub-folders they are, in natural order: c1, c2,
    c10; as a number k, sub-folders are named by their labels, 0 to k - 1, with any leading zeros.
    It must be given where natural order is not that of plain text, c1, c10, c2, by which
    torchvision's ImageFolder numbers classes: labels would not be those of a head that was trained
    with it. Without ``labelled`` (by
    default, where images lie in the folder itself) all images below have label -1.

    Images are turned as their EXIF data say and become RGB; ``transform`` makes a row of one PIL
    image, in as many threads as torch computes with. Without one, rows are uint8 (h, w, 3), with a
    shorter side of ``size`` pixels (or ``size`` [h, w]) by bicubic interpolation, and a square of
    ``crop`` pixels from the middle.

    Raises
    ------
    MissingInputError
        When there is no such folder.
    DataError
        When there are no images, or both in the folder and in sub-folders, or unknown classes, or
        when their order is in doubt.
    """
    root = Path(path)
    if not root.is_dir():
        raise MissingInputError(f"folder: {path} is not there, or is no folder")
    prepared = preparation(transform, size, crop)
    direct = [entry.name for entry in root.iterdir() if _is_image(entry.name) and entry.is_file()]
    below = _sub_folders(root)
    if labelled is None:
        if direct and below:
            raise DataError(
                f"folder: {path} has images of its own, such as {min(direct)}, beside sub-folders, "
                f"such as {below[0]}: say labelled: true to take these for classes alone, or "
                "labelled: false to take all images, without classes"
            )
        labelled = not direct
    if not labelled:
        if classes is not None:
            raise ConfigError("classes: images that are not labelled have none; leave it out")
        names = sorted(_images(root), key=natural)
        return _made(path, root, names, [-1] * len(names), [], prepared)
    order, places = _order(path, below, classes)
    grouped = [sorted(_images(root / each, f"{each}/"), key=natural) for each in places]
    names = [name for group in grouped for name in group]
    labels = [label for label, group in zip(places.values(), grouped, strict=True) for _ in group]
    return _made(path, root, names, labels, order, prepared)


def _made(
    path: str,
    root: Path,
    names: list[str],
    labels: list[int],
    order: list[str],
    prepared: Preparation,
) -> ImageFolder:
    if not names:
        raise DataError(
            f"folder: {path} holds no images; expected files that end in {', '.join(SUFFIXES)}"
        )
    return ImageFolder(str(path), root, names, np.asarray(labels, np.int64), order, prepared)


def _order(path: str, below: list[str], classes: Any) -> tuple[list[str], dict[str, int]]:
    """Return the classes in the order of their labels, and the label of each sub-folder."""
    if isinstance(classes, int) and not isinstance(classes, bool):
        return [str(label) for label in range(classes)], _numbered(path, below, classes)
    if classes is None:
        _refuse_doubtful(path, below)
        order = below
    elif isinstance(classes, str):
        if not Path(classes).is_dir():
            raise MissingInputError(f"classes: {classes} is not there, or is no folder")
        order = _sub_folders(Path(classes))
    else:
        order = [str(name) for name in classes]
    if len(set(order)) != len(order) or (classes is not None and not order):
        raise ConfigError(f"classes: expected names, each once, got {classes!r}")
    if strange := [name for name in below if name not in set(order)]:
        raise DataError(
            f"folder: {path} has sub-folders that are no classes: {', '.join(strange[:5])}; "
            f"classes are {', '.join(order[:5])}{', ...' if len(order) > 5 else ''}"
        )
    return order, {name: label for label, name in enumerate(order) if name in set(below)}


def _refuse_doubtful(path: str, natural_order: list[str]) -> None:
    """Raise :class:`DataError` where classes have other labels in torchvision's ImageFolder."""
    plain = sorted(natural_order)
    if plain == natural_order:
        return
    pairs = zip(natural_order, plain, strict=True)
    label, mine, theirs = next((n, a, b) for n, (a, b) in enumerate(pairs) if a != b)
    raise DataError(
        f"folder: {path} has sub-folders whose order is in doubt: label {label} is {mine} in "
        f"natural order, but {theirs} in that of torchvision's ImageFolder, which sorts names as "
        f"plain text; say classes: [{', '.join(plain[:3])}, ...], as the model was trained, or "
        f"classes: {path} for natural order"
    )


def _numbered(path: str, below: list[str], classes: int) -> dict[str, int]:
    labels = {name: int(name) for name in below if name.isdecimal() and int(name) < classes}
    if len(labels) < len(below) or len(set(labels.values())) < len(labels):
        strange = [name for name in below if name not in labels] or below
        raise DataError(
            f"folder: {path} has sub-folders that are no labels below {classes}, each once: "
            f"{', '.join(strange[:5])}; name the classes, by classes: [NAME, ...]"
        )
    return labels


def _sub_folders(root: Path) -> list[str]:
    found = (entry.name for entry in root.iterdir() if entry.is_dir())
    return sorted((name for name in found if not name.startswith(".")), key=natural)


def _images(root: Path, prefix: str = "") -> Iterator[str]:
    """Yield the paths of all images below a folder, relative to it; links are followed once."""
    seen: set[str] = set()
    for folder_, folders, names in os.walk(root, followlinks=True):
        folders[:] = [each for each in folders if not each.startswith(".")]
        real = os.path.realpath(folder_)
        if real in seen:  # a link to a folder above it
            folders[:] = []
            continue
        seen.add(real)
        for name in filter(_is_image, names):
            yield prefix + Path(folder_, name).relative_to(root).as_posix()


def _is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES) and not name.startswith(".")
