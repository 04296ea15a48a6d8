"""Metrics in distributed training: partial files, one safe sync, and what Lightning needs.

Nothing here is imported before it is used: reading and merging partial files needs no torch.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Collection": "pipeline.ddp.collection",
    "Moment": "pipeline.ddp.files",
    "Origin": "pipeline.ddp.files",
    "Panels": "pipeline.ddp.panels",
    "Run": "pipeline.ddp.files",
    "after": "pipeline.ddp.history",
    "callback": "pipeline.ddp.lightning",
    "loggable": "pipeline.ddp.numbers",
    "merge": "pipeline.ddp.kept",
}
__all__ = [
    "Collection", "Moment", "Origin", "Panels", "Run", "after", "callback", "loggable", "merge",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pipeline.ddp' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
