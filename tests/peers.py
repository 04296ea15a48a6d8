"""Detectors of other libraries, for comparison, imported without the packages they do not need.

``peer("ViM")`` is the class of ``pytorch_ood.detector``. The package's own ``__init__`` imports
data sets, and with them torchvision, which is not installed: a module object with the package's
``__path__`` stands for it, so that ``__init__`` does not run.
"""

import functools
import importlib
import importlib.util
import sys
import warnings
from types import ModuleType
from typing import Any

PACKAGE = "pytorch_ood"


@functools.cache
def pytorch_ood(module: str) -> ModuleType:
    """Return ``pytorch_ood.MODULE``, such as ``detector``, ``detector.vim`` or ``api``."""
    if PACKAGE not in sys.modules:
        spec = importlib.util.find_spec(PACKAGE)  # finds the package without running it
        if spec is None:
            raise ModuleNotFoundError(
                f"{PACKAGE} is not installed; `bash workflows/test.sh` does, or "
                f"`pip install --no-deps {PACKAGE}==0.4.0`"
            )
        sys.modules[PACKAGE] = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings():  # theirs, of syntax and of what they import
        warnings.simplefilter("ignore")
        return importlib.import_module(f"{PACKAGE}.{module}")


def peer(name: str) -> Any:
    """Return a detector class of pytorch-ood 0.4.0 by its own name."""
    return getattr(pytorch_ood("detector"), name)
