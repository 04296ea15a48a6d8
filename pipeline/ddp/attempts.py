"""Which run and attempt a Lightning trainer writes to, on every rank, and how it goes on."""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.ddp.collection import Collection
from pipeline.ddp.files import Moment, Origin, Run
from pipeline.ddp.kept import MATRIX, METRICS, merged
from pipeline.ddp.trainer import batches_trained
from pipeline.errors import FeatfoldError

__all__ = ["opened", "restored"]

FOLDER = "featfold"
_RUNS: weakref.WeakKeyDictionary[Any, tuple[Run, int]] = weakref.WeakKeyDictionary()
"""Run and latest attempt of trainers, whose callbacks a module may make anew for fit and test."""

Loaded = Mapping[str, Any] | None


def opened(
    trainer: Any, directory: Path | None, name: str | None, loaded: Loaded
) -> tuple[Run, int]:
    """Return the run and a new attempt of it, which rank zero begins for all.

    ``loaded`` is what a checkpoint says of the run that it is of. Raises :class:`FeatfoldError` on
    every rank where rank zero could not begin one.
    """
    found: tuple[str, int, str] = ("", 0, "")
    if trainer.is_global_zero:
        try:
            run = Run(_path(trainer, directory, name, loaded or {}).absolute())
            trains = trainer.state.fn == "fit"
            number = run.open_attempt(_origin(trainer, run, loaded or {}), trains=trains)
            found = (str(run.path), number, "")
        except (FeatfoldError, OSError) as error:  # the others wait to be told
            found = ("", 0, str(error))
    path, attempt, trouble = trainer.strategy.broadcast(found)
    if trouble:
        raise FeatfoldError(f"no attempt of a run could begin: {trouble}")
    _RUNS[trainer] = Run(path), attempt
    return _RUNS[trainer]


def _origin(trainer: Any, run: Run, loaded: Mapping[str, Any]) -> Origin | None:
    """Return where in a run the weights of a trainer come from, if it is known to be of the run."""
    if loaded:
        here = loaded["run"] == run.id and loaded["attempt"] in run.attempts()
        return Origin(loaded["attempt"], loaded["batch"]) if here else None
    earlier, attempt = _RUNS.get(trainer, (None, 0))
    if earlier is None or earlier.path != run.path:
        return None
    return Origin(attempt, batches_trained(trainer))


def _path(
    trainer: Any, directory: Path | None, name: str | None, loaded: Mapping[str, Any]
) -> Path:
    earlier = _RUNS.get(trainer)
    root = directory or loaded.get("directory") or Path(trainer.default_root_dir) / FOLDER
    own = name or loaded.get("run") or (earlier[0].id if earlier else _new_name())
    return Path(root) / own


def restored(collection: Collection, when: Moment, loaded: Mapping[str, Any]) -> None:
    """Give a collection what all ranks had taken in when a checkpoint was saved."""
    run = Run(Path(loaded["directory"]) / loaded["run"])
    partials = run.gathered(when, loaded["attempt"])
    rows = sum(partial.about["rows"] for partial in partials)
    collection.restore({name: merged(partials, name) for name in (METRICS, MATRIX)}, rows)


def _new_name() -> str:
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:6]}"
