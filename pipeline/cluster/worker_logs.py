"""What local workers print: nothing that the client raises anyway."""

from __future__ import annotations

import logging
from typing import Any

from distributed import WorkerPlugin

RAISED = ("distributed.worker", "distributed.core", "distributed.comm", "tornado.application")
"""Loggers of the tracebacks of tasks that fail, and of connections that a lost process leaves."""


class ErrorsAreRaised(WorkerPlugin):  # type: ignore[misc]
    """Keep workers, those that replace lost ones too, from printing what the client raises."""

    name = "featfold-errors-are-raised"

    def setup(self, worker: Any) -> None:
        """Quieten the loggers of this process, but not those of memory."""
        for name in RAISED:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        logging.getLogger("distributed.worker.memory").setLevel(logging.WARNING)
