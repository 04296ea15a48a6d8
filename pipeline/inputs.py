"""What people pass in, brought into the types of the engine: detectors, heads, splits, caches."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pipeline import detectors
from pipeline.arrays import is_array
from pipeline.chunk import Schema, Split
from pipeline.content import replaced
from pipeline.errors import ConfigError
from pipeline.heads import Head, LDAHead, LinearHead, StoredHead
from pipeline.procedure import Detector
from pipeline.store import ArraySplit
from pipeline.views import Pooled

Detectors = str | Detector | Iterable[str | Detector] | Mapping[str, str | Detector]


def detectors_by_id(given: Detectors) -> dict[str, Detector]:
    """Return detectors by the id that names their rows in tables.

    ``given`` is a name, a detector, several, or a mapping from id to either. Raises
    :class:`ConfigError` for two equal ids, and for none at all.
    """
    if isinstance(given, Mapping):
        pairs = [(name, _detector(entry)) for name, entry in given.items()]
    else:
        one = isinstance(given, (str, type)) or hasattr(given, "passes")
        several: list[Any] = list(given) if isinstance(given, Iterable) and not one else [given]
        pairs = [(detectors.default_id(made), made) for made in map(_detector, several)]
    chosen = dict(pairs)
    if odd := [name for name in chosen if not isinstance(name, str) or name in ("", "head")]:
        raise ConfigError(f"{odd[0]!r} cannot name a detector; give an id such as 'mine'")
    if not chosen:
        raise ConfigError(f"no detector was named; known: {', '.join(detectors.names())}")
    if len(chosen) < len(pairs):
        twice = sorted({name for name, _ in pairs if [n for n, _ in pairs].count(name) > 1})
        raise ConfigError(f"two detectors are called {', '.join(twice)}; give one another id")
    return chosen


def _detector(entry: Any) -> Detector:
    if isinstance(entry, str):
        return detectors.load(entry)()  # type: ignore[no-any-return]
    if isinstance(entry, type) or not hasattr(entry, "passes"):
        raise ConfigError(
            f"{entry!r} is not a detector; pass a name such as 'msp' or a value such as "
            "ff.detectors.Mahalanobis(ridge=1e-5)"
        )
    return entry  # type: ignore[no-any-return]


def choose_head(given: Any, schema: Schema) -> Head:
    """Return the head that ``given`` names: auto, lda, stored, or a head as it is.

    ``auto`` takes stored logits where the split has them, and fits one by lda otherwise.
    {"lda": {"ridge": 0.01}} gives lda its options, {"weights": file} reads W and b.
    """
    if given in (None, "auto"):
        given = "stored" if "logits" in schema.arrays else "lda"
    if given == "lda":
        return LDAHead()
    if given == "stored":
        return StoredHead()
    if isinstance(given, Mapping) and set(given) == {"lda"}:
        return _lda_head(given["lda"])
    if (
        isinstance(given, Mapping)
        and set(given) == {"weights"}
        and isinstance(given["weights"], (str, Path))
    ):
        return LinearHead.read(given["weights"], Pooled())
    if hasattr(given, "passes"):
        return given  # type: ignore[no-any-return]
    raise ConfigError(f"head: {given!r} is unknown; choose auto, lda, stored or {{weights: FILE}}")


def _lda_head(options: Any) -> LDAHead:
    if not isinstance(options, Mapping) or not set(options) <= {"of", "ridge"}:
        raise ConfigError(f"head: lda takes {{'ridge': NUMBER}}, got {options!r}")
    return LDAHead(**options)


def with_head(detector: Detector, head: Head) -> Detector:
    """Return the detector with ``head``, if it has one and was not given another."""
    fields = {field.name for field in dataclasses.fields(detector)}  # type: ignore[arg-type]
    if "head" in fields and detector.head == StoredHead():  # type: ignore[attr-defined]
        return replaced(detector, head=head)
    return detector


def as_split(data: Any, *, name: str = "id/train", classes: int | None = None) -> Split:
    """Return ``data`` as a split.

    It may be a split, an array of features (n, d) or (n, t, d), a tuple (features, labels), or a
    mapping of arrays by name; arrays are numpy, torch, cupy, zarr or dask ones.
    """
    if hasattr(data, "blocks") and hasattr(data, "read"):
        return data  # type: ignore[no-any-return]
    if isinstance(data, Mapping):
        return ArraySplit(arrays=data, name=name, classes=classes)
    if isinstance(data, tuple) and len(data) == 2:
        return ArraySplit(data[0], data[1], name=name, classes=classes)
    if is_array(data) or hasattr(data, "shape"):
        return ArraySplit(data, name=name, classes=classes)
    raise ConfigError(
        f"cannot read rows from a {type(data).__name__}; pass a split of a store, an array, "
        "(features, labels), or a mapping of arrays"
    )


def cache_directory(given: str | Path | None, store: str | Path | None = None) -> Path:
    """Return where constants and partials go: as given, beside a writable store, else at home."""
    if given is not None:
        if not isinstance(given, (str, os.PathLike)):
            raise ConfigError(f"cache: {given!r}; expected the path of a directory")
        return Path(given)
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "featfold"
    if store is None:
        return home
    path = Path(store).absolute()
    if os.access(path.parent, os.W_OK):
        return path.with_name(f"{path.name}.cache")
    return home / hashlib.sha256(str(path).encode()).hexdigest()[:16]
