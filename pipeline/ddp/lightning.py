"""The callback for Lightning, of whichever package the trainer comes from.

Every rank ends with the same numbers and logs them with ``sync_dist=False``: that alone goes with
ModelCheckpoint and EarlyStopping. ``sync_dist=True`` under ``if is_global_zero`` hangs by itself,
and what is logged with ``rank_zero_only=True`` cannot be monitored.
"""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.ddp.hooks import MetricsHooks, Options
from pipeline.ddp.panels import Panels
from pipeline.ddp.trainer import check_phases
from pipeline.errors import ConfigError

__all__ = ["callback"]

PACKAGES = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}


def callback(
    directory: str | Path | None = None,
    run: str | None = None,
    *,
    keep_matrix: bool = True,
    log: bool = True,
    table: Sequence[str] = ("test",),
    panels: Panels | None = None,
    phases: Mapping[str, str] | None = None,
) -> Any:
    """Return a callback for ``Trainer(callbacks=...)`` of lightning or pytorch_lightning.

    The collections of ``pipeline.ddp`` that the module holds are reset when their phase begins,
    told which rows repeat others, written as partial files of ``directory/run`` when it ends,
    added up over the ranks and logged. ``directory`` is by default the folder ``featfold`` of the
    trainer's root, ``run`` the time it began; training that goes on from a checkpoint goes on with
    its run. ``keep_matrix``: confusion matrices are kept for metrics after the fact, where there
    are at most 1,024 classes. ``log=False`` leaves logging to the module. ``table``: phases that
    end with a table of all classes; ``panels``: images with their masks; both for TensorBoard and
    W&B. ``phases``: name of an attribute -> train, val or test, where prefixes do not say so.

    Every rank writes a file at the end of each phase, which stays: 8 k^2 bytes for the matrix of k
    classes, 8 MiB for 1,024 of them, and less for their counts; exact metrics of scores, such as
    an AUROC without bins, add 4 to 8 bytes for every score of the phase. One more goes with each
    checkpoint. It is removed once its checkpoint is none of the latest three, nor in a folder of
    the trainer's checkpoint callbacks: a copy elsewhere then goes on with training metrics that
    count from there.
    """
    check_phases("table", table)
    check_phases("phases", (phases or {}).values())
    options = Options(
        directory=None if directory is None else Path(directory),
        run=run,
        keep_matrix=keep_matrix,
        log=log,
        table=tuple(table),
        panels=panels,
        phases=dict(phases or {}),
    )
    return _made(options, _packages())


def _packages() -> tuple[str, ...]:
    """Return the packages whose trainers may call: those in use, else the one that is there."""
    used = tuple(name for name in PACKAGES if sys.modules.get(PACKAGES[name]))
    if used:
        return used
    for name, module in PACKAGES.items():
        try:
            importlib.import_module(module)
        except ModuleNotFoundError:
            continue
        return (name,)
    raise ConfigError("neither lightning nor pytorch_lightning is installed: featfold[lightning]")


def _made(options: Options, packages: tuple[str, ...]) -> Any:
    return _class(packages)(options)


@functools.cache
def _class(packages: tuple[str, ...]) -> Any:
    """Return one class for ever: a trainer replaces a callback by another of its class."""
    bases = tuple(importlib.import_module(PACKAGES[name]).Callback for name in packages)

    def reduced(self: Any) -> tuple[Any, ...]:  # pickles as what it was made of
        return _made, (self.options, packages)

    return type("MetricsCallback", (MetricsHooks, *bases), {"__reduce__": reduced})
