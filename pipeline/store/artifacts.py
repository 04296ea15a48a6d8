"""Saved values: a JSON tree beside one safetensors file with the constant arrays, no pickle."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from pipeline import content, files
from pipeline.content import Const
from pipeline.errors import ConfigError, CorruptError, ExistsRefusedError, MissingInputError
from pipeline.store import disk

FORMAT = 1
TREE = "artifact.json"
ARRAYS = "arrays.safetensors"


def save(
    value: Any,
    directory: str | Path,
    provenance: Mapping[str, Any],
    *,
    overwrite: bool = False,
) -> None:
    """Save a value, or a mapping of names to values, with JSON ``provenance`` as a directory.

    The directory appears complete or not at all. Raises ExistsRefusedError if it is there already
    and ``overwrite`` is not set, or if it is not an artifact; ConfigError for what cannot be saved.
    """
    target = Path(directory).absolute()
    _check_free(target, overwrite)
    tree = content.to_tree(value)
    constants = {const.digest: _storable(const) for const in content.constants_in(value)}
    head = {
        "format": FORMAT,
        "digest": _digest(tree),
        "provenance": dict(provenance),
        "value": tree,
    }
    text = disk.to_json(head)
    partial = target.with_name(f".{target.name}.{uuid.uuid4().hex}.partial")
    nbytes = sum(array.nbytes for array in constants.values()) + len(text)
    with files.told(target.name, target.parent, nbytes, "save it to another directory"):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            partial.mkdir()
            _save_arrays(constants, partial / ARRAYS)
            disk.write_text(partial / TREE, text)
            _publish(partial, target)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def load(directory: str | Path) -> tuple[Any, dict[str, Any]]:
    """Return the value and the provenance that :func:`save` wrote.

    Raises MissingInputError for missing files, CorruptError for damaged ones, ConfigError for
    values of a class or version that is not known here.
    """
    source = Path(directory).absolute()
    head = _read_head(source)
    constants = {key: _checked(key, array, source) for key, array in _read_arrays(source).items()}
    try:
        return content.from_tree(head["value"], constants), head["provenance"]
    except KeyError as error:
        raise CorruptError(
            f"{source / ARRAYS} lacks the constant {error}; save it again"
        ) from error
    except TypeError as error:
        raise ConfigError(f"{source} was saved by another version ({error}); fit again") from error


def _save_arrays(constants: Mapping[str, np.ndarray[Any, Any]], path: Path) -> None:
    try:
        save_file(dict(constants), path)
    except SafetensorError as error:
        raise OSError(str(error)) from error
    disk.sync(path)


def _check_free(target: Path, overwrite: bool) -> None:
    if not target.exists():
        return
    if not (target / TREE).exists():
        raise ExistsRefusedError(f"{target} exists and is not an artifact; choose another path")
    if not overwrite:
        raise ExistsRefusedError(f"{target} exists; choose another path or ask to overwrite it")


def _publish(partial: Path, target: Path) -> None:
    """Rename a complete directory into place; what was there is removed afterwards."""
    aside = target.with_name(f".{target.name}.{uuid.uuid4().hex}.replaced")
    if target.exists():
        target.rename(aside)
    try:
        partial.rename(target)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise
        raise ExistsRefusedError(f"{target} was written by somebody else meanwhile") from error
    disk.sync(target.parent)
    shutil.rmtree(aside, ignore_errors=True)


def _storable(const: Const) -> np.ndarray[Any, Any]:
    if const.dtype.kind not in "biuf" or not const.dtype.isnative:
        raise ConfigError(f"{const!r}: arrays of this dtype cannot be saved; convert them first")
    return const.array


def _digest(tree: Any) -> str:
    text = json.dumps(tree, separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _read_head(source: Path) -> dict[str, Any]:
    path = source / TREE
    if not path.exists():
        raise MissingInputError(f"{path} is not there: {source} is not an artifact")
    try:
        head: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if head["format"] != FORMAT:
            raise ConfigError(
                f"{path} has format {head['format']}, this featfold reads {FORMAT}; fit again"
            )
        if _digest(head["value"]) != head["digest"]:
            raise CorruptError(f"{path}: content and digest do not match; fit again")
        dict(head["provenance"])
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise CorruptError(f"{path} is damaged ({error}); fit again") from error
    return head


def _read_arrays(source: Path) -> dict[str, np.ndarray[Any, Any]]:
    path = source / ARRAYS
    if not path.exists():
        raise MissingInputError(f"{path} is not there: the artifact is incomplete; fit again")
    try:
        arrays: dict[str, np.ndarray[Any, Any]] = load_file(path)
    except (SafetensorError, OSError, ValueError) as error:
        raise CorruptError(f"{path} is damaged ({error}); fit again") from error
    return arrays


def _checked(key: str, array: np.ndarray[Any, Any], source: Path) -> Const:
    const = Const(array)
    if const.digest != key:
        raise CorruptError(f"{source / ARRAYS}: bytes of constant {key[:12]} changed; fit again")
    return const
