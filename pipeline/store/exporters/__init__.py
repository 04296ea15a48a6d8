"""Formats that a split is written to: one module each, streamed from the store."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import BinaryIO

from pipeline.chunk import ArraySpec, Chunk, Split

Advance = Callable[[int], None]
"""Is told of bytes that were read from the store."""
Write = Callable[[BinaryIO, Split, Sequence[str], Advance], None]
"""Writes arrays of a split to a file, front to back."""


@dataclass(frozen=True)
class Exporter:
    """A format: into which files arrays go, how many bytes they take, and how one is written."""

    name: str
    suffix: str
    is_folder: bool
    """Whether every array is a file of its own, in a folder."""
    row_nbytes: Callable[[ArraySpec], int]
    """Bytes that a row takes on the disk, at least."""
    check: Callable[[], object]
    """Raises :class:`ConfigError` where what it takes is not installed."""
    write: Write

    def files(self, place: Path, names: Sequence[str]) -> Mapping[Path, Sequence[str]]:
        """Return which arrays each file holds."""
        if self.is_folder:
            return {place / f"{name}{self.suffix}": (name,) for name in names}
        return {place: tuple(names)}


@cache
def formats() -> Mapping[str, Exporter]:
    """Return all formats by name."""
    modules = sorted(info.name for info in pkgutil.iter_modules(__path__))
    found = [importlib.import_module(f"{__name__}.{module}").FORMAT for module in modules]
    return {each.name: each for each in found}


def chunks(
    split: Split, names: Sequence[str], step_rows: int | None, advance: Advance
) -> Iterator[Chunk]:
    """Yield the chunks of all blocks with some arrays; each is read once."""
    row_nbytes = sum(split.schema.arrays[name].nbytes for name in names)
    for block in split.blocks:
        for chunk in split.read(block, frozenset(names), step_rows):
            yield chunk
            advance(chunk.rows * row_nbytes)
