"""Weights from a file of this machine, into a module: all of them or none, and never a pickle.

safetensors, or what ``torch.save(model.state_dict())`` wrote, read with ``weights_only=True``.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from pipeline.errors import ConfigError, CorruptError, DataError, MissingInputError

PRETRAINED, RANDOM = "pretrained", "random"
SAFETENSORS = (".safetensors", ".st")
SUFFIXES = (*SAFETENSORS, ".pt", ".pth", ".bin", ".ckpt")
SEED = 0
"""Seed of random weights, so that every process makes the same."""
SHOWN = 3


def is_file(weights: str) -> bool:
    """Tell whether weights name a file, rather than what a library calls its own."""
    return weights.endswith(SUFFIXES) or Path(weights).is_file()


def read(path: str | Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a file by name, on the host.

    Of a mapping with one mapping of tensors in it, such as ``state_dict``, that one is meant.

    Raises
    ------
    MissingInputError
        When there is no such file.
    CorruptError
        When it is damaged, or of another format.
    DataError
        When it holds more than tensors, which would have to be run to be read.
    ConfigError
        When it holds several mappings of tensors.
    """
    if not Path(path).is_file():
        raise MissingInputError(f"weights: there is no file {path}")
    found = _safetensors(path) if str(path).endswith(SAFETENSORS) else _torch(path)
    if isinstance(found, Mapping) and not _are_tensors(found):
        within = {str(name): each for name, each in found.items() if _are_tensors(each)}
        if len(within) > 1:
            raise ConfigError(
                f"weights: {path} holds several sets of weights, {', '.join(within)}; save the one "
                "that is meant by itself"
            )
        found = next(iter(within.values()), None)
    if not _are_tensors(found):
        raise DataError(
            f"weights: {path} holds no mapping of names to tensors; save model.state_dict()"
        )
    return {str(name): tensor for name, tensor in found.items()}


def kept(path: str | Path, drop: Sequence[str]) -> dict[str, torch.Tensor]:
    """Return the tensors of a file, without names that begin with one of ``drop``."""
    given = read(path)
    for start in drop:
        if not any(name.startswith(start) for name in given):
            raise ConfigError(f"drop: no name in {path} begins with {start!r}")
    return {name: each for name, each in given.items() if not name.startswith(tuple(drop))}


def load_into(module: Any, path: str | Path, drop: Sequence[str] = ()) -> None:
    """Give a module the weights of a file; every name and shape has to be there.

    Raises :class:`DataError` with how many names are missing, unexpected or of another shape, and
    the first of them.
    """
    given, own = kept(path, drop), module.state_dict()
    there = {own[name].data_ptr() for name in given.keys() & own.keys()}
    missing = [name for name in own if name not in given and own[name].data_ptr() not in there]
    unexpected = [name for name in given if name not in own]
    unlike = [
        f"{name} {tuple(given[name].shape)} for {tuple(own[name].shape)}"
        for name in own.keys() & given.keys()
        if given[name].shape != own[name].shape
    ]
    wrong = (("missing", missing), ("unexpected", unexpected), ("of another shape", sorted(unlike)))
    if told := [f"{len(names)} {what} ({_first(names)})" for what, names in wrong if names]:
        raise DataError(
            f"weights: {path} does not fit a {type(module).__name__} of {len(own)} tensors: "
            f"{', '.join(told)}; choose the architecture that the weights were saved from, or drop "
            "names that are not needed"
        )
    module.load_state_dict(given, strict=False)  # tied weights may be there once


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


def _safetensors(path: str | Path) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path, device="cpu")
    except SafetensorError as error:
        raise CorruptError(f"weights: {path} is not a file of safetensors ({error})") from error


def _torch(path: str | Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        why = str(error).partition("\n")[0]
        raise DataError(
            f"weights: {path} holds more than tensors, and nothing of it was run ({why}); save "
            "model.state_dict() alone, or as safetensors"
        ) from error
    except (RuntimeError, EOFError, OSError, ValueError) as error:
        why = str(error).partition("\n")[0]
        raise CorruptError(f"weights: {path} cannot be read ({why})") from error


def _are_tensors(found: Any) -> bool:
    return (
        isinstance(found, Mapping)
        and bool(found)
        and all(isinstance(each, torch.Tensor) for each in found.values())
    )
