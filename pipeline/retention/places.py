"""Where a collection looks, and what it is to leave."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pipeline import config
from pipeline.config import JobConfig
from pipeline.engine.settings import CONSTANTS, PARTIALS
from pipeline.errors import ConfigError, MissingInputError
from pipeline.inputs import cache_directory
from pipeline.report.runs import families
from pipeline.report.schema import Results
from pipeline.store.disk import is_group
from pipeline.store.place import at

_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])")
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


@dataclass(frozen=True)
class Place:
    """A cache, the store that it is of, and the runs that used either."""

    cache: Path
    store: str
    """Empty where a cache was named."""
    runs: Path
    """Folder that jobs write their runs to; it need not be there."""
    last: int
    """Finished runs of each job that are kept."""
    unused_seconds: float
    """Partials and constants that were used more lately are kept."""

    def families(self) -> dict[Path, list[Path]]:
        """Return the run directories of every job, the oldest first."""
        return families(self.runs) if self.runs.is_dir() else {}

    def caches(self, job: JobConfig) -> bool:
        """Tell whether the partials of a job are in this cache."""
        return any(
            cache_directory(each.resources.cache, each.store).absolute() == self.cache
            for each in job.each()
        )

    def is_used_by(self, job: JobConfig) -> bool:
        """Tell whether a job reads this store, or uses this cache."""
        stores = {str(at(each.store)) for each in job.each()}
        return self.caches(job) or (bool(self.store) and str(at(self.store)) in stores)


def place_of(given: str, runs: Path, last: int, unused: str) -> Place:
    """Return where to look, from a store or a cache; raises :class:`MissingInputError` for others.

    ``unused`` is an age such as ``12h``.
    """
    root, seconds = at(given), _seconds(unused)
    if isinstance(root, Path) and any((root / name).is_dir() for name in (PARTIALS, CONSTANTS)):
        return Place(root, "", runs, last, seconds)
    if is_group(root):
        return Place(cache_directory(None, given).absolute(), given, runs, last, seconds)
    raise MissingInputError(
        f"{given}: expected a store, or a cache with {PARTIALS} or {CONSTANTS}; there is neither"
    )


def job_of(results: Results, run: Path) -> JobConfig:
    """Return the job of a run; raises :class:`ConfigError` where this version does not read it."""
    return config.parse(results["provenance"]["config"], f"config of {run}")


def _seconds(text: str) -> float:
    found = _AGE.fullmatch(text.strip())
    if not found:
        raise ConfigError(f"--unused: {text!r} is not an age; write 12h, 1d or 0s")
    return float(found[1]) * SECONDS[found[2]]
