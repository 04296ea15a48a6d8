"""Which arrays of files become which arrays of a split, with which layout and dtype, and how."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import numpy as np

from pipeline.chunk import ArraySpec
from pipeline.errors import ConfigError, DataError, FeatfoldError
from pipeline.store import layout
from pipeline.store.importers import Rows, Unreadable, logical_dtype, read_into

LAYOUTS = {"D": "D", "K": "K", "T": "T", "TD": "TD", "DT": "TD", "CHW": "TD", "HWC": "TD"}
"""Axes of a row as files may have them, and as they are stored: maps become tokens."""
FLOATS = ("float16", layout.BFLOAT16, "float32", "float64")
GIVEN_BY_NAME = ("labels", "ids")
"""Arrays that are taken along when others are mapped: their names say what they are."""
NO_SCORES = ("weights", *GIVEN_BY_NAME)
SIGNS = ("higher-is-ood", "higher-is-id", "not-scores")
MAP_IT = "no name of an array in a store; map it to one, as in --map '{found}=features'"
_USUAL = {"logits": "K", "mask": "T"}
_BFLOAT16_SIGN, _BFLOAT16_INFINITY = np.uint16(0x8000), 0x7F80


@dataclass(frozen=True)
class Wanted:
    """What is asked of the arrays that files hold; keys are names as stored."""

    arrays: Mapping[str, str] | None = None
    """Names in the files by name; None takes every array of numbers under its own."""
    layouts: Mapping[str, str] = field(default_factory=dict)
    dtypes: Mapping[str, str] = field(default_factory=dict)
    """Of floats; the key "" stands for all others of them."""
    scores: Mapping[str, str] = field(default_factory=dict)


class Target:
    """One array as it will be stored, and the rows that it comes from."""

    def __init__(self, name: str, found: str, rows: Rows, wanted: Wanted) -> None:
        self.name, self.found, self.rows = name, found, rows
        self.given = logical_dtype(rows)
        self.is_column = name == "labels" and tuple(rows.shape[1:]) == (1,)
        """Whether labels (n, 1) are stored as (n,)."""
        self.axes = _axes(name, rows, self.given, wanted.layouts.get(name, ""))
        if self.is_column:
            self.axes = ""
        self.sign = _sign(name, rows, self.given, wanted.scores.get(name, ""))
        self.spec = ArraySpec(
            () if self.is_column else _shape(rows.shape[1:], self.axes),
            _dtype(name, self.given, wanted.dtypes),
            LAYOUTS.get(self.axes, ""),
        )
        self.dtype = layout.stored_dtype(self.spec)
        self._buffers = threading.local()

    @property
    def nbytes(self) -> int:
        """Bytes of all rows as stored."""
        return int(self.rows.shape[0]) * self.spec.nbytes

    @property
    def conversion(self) -> dict[str, str]:
        """What is done to the rows on their way, for people and for the split's attributes."""
        told = {"shape": "(n, 1) to (n,)"} if self.is_column else {}
        if self.axes != self.spec.layout:
            told["layout"] = f"N{self.axes} to N{self.spec.layout}"
        if self.given != self.spec.dtype:
            told["dtype"] = f"{self.given} to {self.spec.dtype}"
        if self.sign == SIGNS[1]:
            told["sign"] = "negated: higher meant in-distribution"
        return told

    def read(self, start: int, stop: int) -> np.ndarray[Any, Any]:
        """Return rows as they are stored, in memory of this thread that its next call reuses.

        Raises :class:`DataError` for rows that cannot be read, or do not fit into the dtype.
        """
        out = self._buffer(stop - start)
        try:
            if self.conversion:
                self._convert(self.rows[start:stop], out, start)
            else:
                read_into(self.rows, out, start)
        except OSError as error:  # of a file: not to be taken for one of the store
            if isinstance(error, FeatfoldError):
                raise
            raise DataError(
                f"{self.found}: rows {start}-{stop} cannot be read ({error}); check the disk that "
                "they lie on, and go on with --resume (resume=True)"
            ) from error
        return out

    def _buffer(self, rows: int) -> np.ndarray[Any, Any]:
        held = getattr(self._buffers, "rows", None)
        if held is None or len(held) < rows:
            held = self._buffers.rows = np.empty((rows, *self.spec.shape), self.dtype)
        return held[:rows]

    def _convert(self, rows: np.ndarray[Any, Any], out: np.ndarray[Any, Any], start: int) -> None:
        ordered = _as_tokens(rows, self.axes).reshape(out.shape)
        if self.given == "uint64" and self.spec.dtype == "int64":
            self._check_int64(ordered, start)
        try:
            with np.errstate(over="raise"):
                _cast(ordered, self.given, out, self.spec.dtype)
        except FloatingPointError:
            raise DataError(
                f"{self.name}: rows {start}-{start + len(rows)} hold numbers too large for "
                f"{self.spec.dtype}; import them with a wider dtype"
            ) from None
        if self.sign == SIGNS[1]:
            if self.spec.dtype == layout.BFLOAT16:
                np.bitwise_xor(out, _BFLOAT16_SIGN, out=out)
            else:
                np.negative(out, out=out)

    def _check_int64(self, rows: np.ndarray[Any, Any], start: int) -> None:
        """Raise a DataError for an integer that would become a negative one."""
        wrong = np.nonzero(rows > np.iinfo(np.int64).max)[0]
        if wrong.size:
            row = int(wrong[0])
            raise DataError(
                f"{self.name}: row {start + row}: {rows[row].max()} is too large for int64; mend "
                "it, or save it as int64"
            )


def selected(arrays: Mapping[str, Any], wanted: Wanted) -> tuple[dict[str, str], dict[str, str]]:
    """Return names in the files by name as stored, and why others are left out, by their names.

    Raises :class:`ConfigError` for a name that no file has, :class:`DataError` for a named array
    that cannot be stored.
    """
    unfit = {name: why for name, rows in arrays.items() if (why := _unfit(name, rows))}
    if wanted.arrays is None:
        asked = {*wanted.scores, *wanted.dtypes, *wanted.layouts}
        for n in arrays.keys() - unfit.keys():
            if not re.fullmatch(layout.NAME, n):
                unfit[n] = MAP_IT.format(found=n)
        chosen = {
            n: n for n in arrays if n not in unfit and (n in asked or not wider_of(n, arrays))
        }
    else:
        named = {name: name for name in (*GIVEN_BY_NAME, *wanted.scores) if name in arrays}
        taken = set(wanted.arrays.values())
        chosen = {n: f for n, f in named.items() if f not in taken and f not in unfit}
        chosen |= wanted.arrays
    for name, found in chosen.items():
        if found not in arrays:
            raise ConfigError(f"{name}: {_no_array(found, arrays)}")
        if found in unfit:
            raise DataError(f"{name}: {unfit[found]}")
    for options in (wanted.layouts, wanted.dtypes, wanted.scores):
        for name in options:
            if name and name not in chosen:
                raise ConfigError(f"{_no_array(name, chosen)}, of those that are imported")
    left = [n for n in arrays if n not in chosen.values() and not wider_of(n, arrays)]
    return chosen, {n: unfit.get(n, "not mapped") for n in left}


def wider_of(name: str, arrays: Mapping[str, Any]) -> str:
    """Return the array ``f*`` that ``f12`` is a column of, or nothing."""
    wider = re.sub(r"\d+$", "*", name)
    columns = getattr(arrays.get(wider), "columns", ())
    return wider if name.rpartition("/")[2] in columns else ""


def _no_array(name: str, there: Mapping[str, Any]) -> str:
    near = get_close_matches(name, there, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"there is no array {name!r}: {hint}there are {', '.join(there) or 'none'}"


def _unfit(name: str, rows: Any) -> str:
    """Say why an array cannot be stored, or nothing."""
    if isinstance(rows, Unreadable):
        return rows.why
    if (dtype := logical_dtype(rows)) not in layout.DTYPES:
        known = ", ".join(sorted(layout.DTYPES))
        return f"array {name!r} is {dtype}; expected one of {known}: convert it"
    if 0 in rows.shape[1:]:
        return (
            f"array {name!r} has rows of shape {rows.shape[1:]}, which hold nothing; write it again"
        )
    return ""


def _axes(name: str, rows: Rows, dtype: str, given: str) -> str:
    """Return the axes of a row; raise a ConfigError where they are needed and not told."""
    rank = len(rows.shape) - 1
    axes = given.upper().removeprefix("N") if given else _USUAL.get(name, "D" if rank else "")
    if len(axes) == rank and (axes in LAYOUTS or not axes):
        return axes
    if not given and not (dtype in FLOATS and rank > 1):
        return ""  # flags and counts of any shape
    fitting = " or ".join(f"N{axes}" for axes in LAYOUTS if len(axes) == rank)
    asked = f", got {given!r}" if given else ""
    raise ConfigError(
        f"{name}: rows have shape {tuple(rows.shape[1:])}; say which axis is which with the layout "
        f"{name}={fitting or '(none: tokens, maps and vectors can be stored)'}{asked}"
    )


def _shape(shape: tuple[int, ...], axes: str) -> tuple[int, ...]:
    shape = tuple(map(int, shape))
    if axes == "DT":
        return shape[::-1]
    if axes == "CHW":
        return (shape[1] * shape[2], shape[0])
    return (shape[0] * shape[1], shape[2]) if axes == "HWC" else shape


def _as_tokens(rows: np.ndarray[Any, Any], axes: str) -> np.ndarray[Any, Any]:
    if axes == "CHW":
        return rows.reshape(*rows.shape[:2], -1).swapaxes(1, 2)
    return rows.swapaxes(1, 2) if axes == "DT" else rows


def _dtype(name: str, given: str, wanted: Mapping[str, str]) -> str:
    asked = wanted.get(name, wanted.get("", "") if given in FLOATS else "")
    if asked and (asked not in FLOATS or given not in FLOATS):
        raise ConfigError(
            f"{name}: dtype {asked!r} for {given}; floats are stored as one of {', '.join(FLOATS)},"
            " others as they are"
        )
    if name == "labels" and "int" not in given:
        raise DataError(
            f"labels are {given}; expected integers, below 0 for OOD rows: save them as such, as "
            "in labels.astype('int64'), or name others with --labels (labels=)"
        )
    if name == "labels" or (name == "ids" and "int" in given and given != "uint64"):
        return "int64"  # uint64 ids may be hashes, which int64 does not hold
    return asked or given


def _sign(name: str, rows: Rows, dtype: str, given: str) -> str:
    """Return what high numbers of scores mean; raise a ConfigError where it is not told."""
    if given and given not in SIGNS:
        raise ConfigError(f"{name}: scores are one of {', '.join(SIGNS)}, got {given!r}")
    is_column = tuple(rows.shape[1:]) == (1,) and name not in _USUAL
    is_one_float = (len(rows.shape) == 1 or is_column) and dtype in FLOATS
    if given in SIGNS[:2] and not is_one_float:
        raise ConfigError(
            f"{name}: {rows.shape[1:]} {dtype} a row are no scores; name one float a row"
        )
    if is_one_float and not given and name not in NO_SCORES:
        raise ConfigError(
            f"{name}: one float a row; if these are scores, say what high ones mean: "
            f"{name}={SIGNS[0]} or {name}={SIGNS[1]}; if not, {name}={SIGNS[2]}"
        )
    return given


def _cast(rows: np.ndarray[Any, Any], given: str, out: np.ndarray[Any, Any], wanted: str) -> None:
    """Fill ``out`` with rows of another dtype; bfloat16 comes and goes as its bits."""
    if layout.BFLOAT16 in (given, wanted) and given != wanted:
        rows = _widened(rows) if given == layout.BFLOAT16 else _narrowed(rows)
    np.copyto(out, rows, casting="unsafe")


def _widened(bits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    wide = np.empty(bits.shape, np.float32)
    layout.widen_into(wide, np.ascontiguousarray(bits))
    return wide


def _narrowed(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the bits of the nearest bfloat16 numbers, ties to even."""
    single = np.ascontiguousarray(rows, dtype=np.float32)
    bits = single.view(np.uint32)
    nearest = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    if np.any(((nearest & 0x7FFF) == _BFLOAT16_INFINITY) & np.isfinite(single)):
        raise FloatingPointError
    return np.where(np.isnan(single), (bits >> 16) | 0x40, nearest).astype(np.uint16)
