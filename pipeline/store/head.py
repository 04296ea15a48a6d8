"""The head of the model that a store's features came from: W (k, d) and b (k,), saved beside them.

A group ``head`` of the store: its arrays are written first, its attributes, with a digest of the
bytes, last. A head that is not complete is not there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pipeline.chunk import ArraySpec
from pipeline.errors import CorruptError, DataError, ExistsRefusedError
from pipeline.store import disk, layout

GROUP, WEIGHT, BIAS, DIGEST = "head", "weight", "bias", "sha256"


@dataclass(frozen=True)
class SavedHead:
    """Weights of a linear head, and what is known of it."""

    weight: np.ndarray[Any, Any]
    """W (k, d)."""
    bias: np.ndarray[Any, Any]
    """b (k,)."""
    attributes: Mapping[str, Any]
    """The features that it reads, ``how`` pooled and of which ``field``, and the model."""


def write_head(
    root: Any, weight: np.ndarray[Any, Any], bias: np.ndarray[Any, Any], said: Mapping[str, Any]
) -> None:
    """Save a head in the store at ``root``; the same one again changes nothing.

    Raises DataError for shapes other than (k, d) and (k,), or values that are not finite, and
    ExistsRefusedError where the store has another head.
    """
    weight, bias = _plain(weight, WEIGHT), _plain(bias, BIAS)
    if weight.ndim != 2 or not weight.size or bias.shape != weight.shape[:1]:
        raise DataError(
            f"{root}: a head needs weights (k, d) and a bias (k,), got {weight.shape} and "
            f"{bias.shape}"
        )
    said = {**said, DIGEST: _digest(weight, bias)}
    with disk.told("the head of the model", root), disk.locked(root, GROUP):
        there = _attributes(root)
        if there is not None:
            _refuse_other(root, there, said)
            return
        for name, values in ((WEIGHT, weight), (BIAS, bias)):
            spec = ArraySpec(values.shape[1:], values.dtype.name)
            layout.create_array(root / GROUP / name, spec, len(values), len(values), values)
            layout.open_array(root / GROUP / name, "r+")[:] = values
        disk.write_group(root / GROUP, said)


@dataclass(frozen=True)
class HeldHead:
    """A saved head as its metadata tell of it."""

    weight_shape: tuple[int, ...]
    bias_shape: tuple[int, ...]
    dtype: str
    attributes: Mapping[str, Any]


def survey_head(root: Any) -> HeldHead | None:
    """Describe the head of the store at ``root`` without reading it; None where there is none."""
    said = _attributes(root)
    if said is None:
        return None
    weight, bias = (_opened(root, name) for name in (WEIGHT, BIAS))
    return HeldHead(weight.shape, bias.shape, weight.dtype.name, said)


def read_head(root: Any) -> SavedHead | None:
    """Return the head of the store at ``root``, or None; CorruptError where its bytes differ."""
    said = _attributes(root)
    if said is None:
        return None
    weight, bias = (_opened(root, name, slice(None)) for name in (WEIGHT, BIAS))
    if _digest(weight, bias) != said.pop(DIGEST, None):
        raise CorruptError(
            f"{root}: the head differs from what was written; restore it from a copy"
        )
    return SavedHead(weight, bias, said)


def _opened(root: Any, name: str, rows: slice | None = None) -> Any:
    """Return an array of the head, or rows of it."""
    try:
        found = layout.open_array(root / GROUP / name, "r")
        return found if rows is None else np.asarray(found[rows])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"{root}: the head cannot be read ({error})") from error


def _attributes(root: Any) -> dict[str, Any] | None:
    return disk.read_group(root / GROUP) if disk.is_group(root / GROUP) else None


def _refuse_other(root: Any, there: Mapping[str, Any], said: Mapping[str, Any]) -> None:
    keys = sorted({*there, *said})
    if differing := [key for key in keys if there.get(key) != said.get(key)]:
        shown = "; ".join(f"{k}: stored {there.get(k)!r}, now {said.get(k)!r}" for k in differing)
        raise ExistsRefusedError(
            f"{root} has the head of another model ({shown}); name another store for this one"
        )


def _plain(values: Any, what: str) -> np.ndarray[Any, Any]:
    found = np.ascontiguousarray(values)
    if found.dtype.kind != "f" or not np.isfinite(found).all():
        raise DataError(f"head: {what} must hold finite floats, got {found.dtype}")
    return found


def _digest(weight: np.ndarray[Any, Any], bias: np.ndarray[Any, Any]) -> str:
    total = hashlib.sha256(repr((weight.shape, weight.dtype.name, bias.dtype.name)).encode())
    for values in (weight, bias):
        total.update(np.ascontiguousarray(values, values.dtype.newbyteorder("<")).data)
    return total.hexdigest()
