"""What a job may use, settled before anything starts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Resources:
    """What a job may use, settled before anything starts."""

    kind: str
    """``threads``, ``local``, or the address or file of a scheduler."""
    workers: int
    """What folds blocks side by side: threads here, local processes, or threads elsewhere."""
    allowed_nbytes: int
    """Memory per worker."""
    why: str
    """One line on the choice, for the log."""
    dashboard: bool = False
    reserved_nbytes: int | None = None
    """What a worker elsewhere holds before any work; None where that is not known."""

    @property
    def label(self) -> str:
        """Name for reports, e.g. ``2 processes``."""
        noun = {"threads": "thread", "local": "process"}.get(self.kind, "remote worker")
        plural = {"process": "processes"}.get(noun, f"{noun}s")
        return f"{self.workers} {noun if self.workers == 1 else plural}"
