"""What a job may use, settled before anything starts."""

from __future__ import annotations

from dataclasses import dataclass

HERE = ("local", "cuda")
"""Kinds whose workers are processes that a job starts on this machine."""


@dataclass(frozen=True)
class Resources:
    """What a job may use, settled before anything starts."""

    kind: str
    """``threads``, ``local``, ``cuda``, or the address or file of a scheduler."""
    workers: int
    """What folds blocks side by side: threads or processes here, or threads elsewhere."""
    allowed_nbytes: int
    """Memory per worker."""
    why: str
    """One line on the choice, for the log."""
    dashboard: bool = False
    reserved_nbytes: int | None = None
    """What a worker elsewhere holds before any work; None where that is not known."""
    device_nbytes: int | None = None
    """Memory per worker on its GPU, the smallest one; None where workers compute on the host."""

    @property
    def label(self) -> str:
        """Name for reports, e.g. ``2 processes``."""
        elsewhere = "remote worker" if self.device_nbytes is None else "remote GPU"
        nouns = {"threads": "thread", "local": "process", "cuda": "GPU"}
        noun = nouns.get(self.kind, elsewhere)
        plural = {"process": "processes"}.get(noun, f"{noun}s")
        return f"{self.workers} {noun if self.workers == 1 else plural}"
