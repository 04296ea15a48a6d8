"""Where runs lie: ``FOLDER/NAME/UTC-HASH``, and which of a job's runs is the newest."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from pipeline.errors import MissingInputError
from pipeline.report.results import FILE_NAME

LATEST = "LATEST"
"""File beside the runs of a job that names the newest finished one."""
_RUN = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{8}(-\d+)?")


def directory_of(path: str | Path) -> Path:
    """Return the run directory, or results file, of a path: a job's folder is its newest run."""
    latest = Path(path) / LATEST
    return Path(path) / latest.read_text("utf-8").strip() if latest.is_file() else Path(path)


def families(folder: Path) -> dict[Path, list[Path]]:
    """Return the run directories of every job below a folder, or of the job whose folder it is.

    The oldest come first. Raises :class:`MissingInputError` where there is no folder.
    """
    if not folder.is_dir():
        raise MissingInputError(f"{folder}: no such folder; name one that jobs write their runs to")
    found = {place: _runs_in(place) for place in (folder, *_folders(folder))}
    return {place: runs for place, runs in found.items() if runs or (place / LATEST).is_file()}


def is_finished(run: Path) -> bool:
    """Tell whether a run has written its results."""
    return (run / FILE_NAME).is_file()


def _runs_in(folder: Path) -> list[Path]:
    """Return runs in the order in which they began; those of one second are numbered."""
    runs = [place for place in _folders(folder) if _RUN.fullmatch(place.name)]
    return sorted(runs, key=lambda run: (run.name[:25], len(run.name), run.name))


def _folders(folder: Path) -> Iterator[Path]:
    with os.scandir(folder) as entries:
        yield from sorted(Path(entry) for entry in entries if entry.is_dir(follow_symlinks=False))
