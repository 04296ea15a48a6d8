"""featfold: fit out-of-distribution detectors and reduce metrics over features on disk.

``import pipeline as ff``: ``ff.fit``, ``ff.load``, ``ff.score``, ``ff.evaluate``, ``ff.run``,
``ff.import_split``, ``ff.tapped``, ``ff.Store``, ``ff.detectors.NAME``, ``ff.metrics.NAME``,
``ff.ddp``. Each is imported when it is first used.
"""

from __future__ import annotations

import importlib
from difflib import get_close_matches
from typing import Any

_HOMES = {
    "fit": "pipeline.api",
    "score": "pipeline.api",
    "evaluate": "pipeline.api",
    "load": "pipeline.fitted",
    "Fitted": "pipeline.fitted",
    "measure": "pipeline.measuring",
    "select": "pipeline.selection",
    "run": "pipeline.job",
    "import_split": "pipeline.importing",
    "export_split": "pipeline.exporting",
    "Store": "pipeline.store",
    "tapped": "pipeline.extract.taps",
    "to_pytorch_ood": "pipeline.pytorch_ood",
}
_MODULES = ("ddp", "detectors", "metrics")
__all__ = ["Store", "__version__", "detectors", "evaluate", "fit", "metrics", "run", "score"]
__all__ += ["Fitted", "ddp", "export_split", "import_split", "load", "measure", "select"]
__all__ += ["tapped", "to_pytorch_ood"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        found = getattr(importlib.import_module(_HOMES[name]), name)
    elif name in _MODULES:
        found = importlib.import_module(f"pipeline.{name}")
    elif name == "__version__":
        found = _version()
    else:
        near = get_close_matches(name, __all__, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(__all__)}"
        raise AttributeError(f"module 'pipeline' has no attribute {name!r}{hint}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("featfold")
    except PackageNotFoundError:
        return "0.1.0+checkout"
