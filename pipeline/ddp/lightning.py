"""The Lightning callback: rows that repeat, partial files, one sync, and the log, for every phase.

Every rank ends with the same numbers and logs them with ``sync_dist=False``: that alone goes with
ModelCheckpoint and EarlyStopping. ``sync_dist=True`` under ``if is_global_zero`` hangs by itself,
and what is logged with ``rank_zero_only=True`` cannot be monitored.
"""

from __future__ import annotations

import importlib
import re
import sys
import uuid
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipeline.ddp import live
from pipeline.ddp.files import RUNNING, Moment, Run
from pipeline.ddp.kept import MATRIX, METRICS, merged
from pipeline.ddp.numbers import Numbers, loggable
from pipeline.ddp.trainer import Found, Loaders, batches_trained, collections_of, moment
from pipeline.errors import ConfigError, FeatfoldError

__all__ = ["callback"]

PACKAGES = {"lightning": "lightning.pytorch", "pytorch_lightning": "pytorch_lightning"}
CHECKPOINT = "featfold"


@dataclass(frozen=True)
class Options:
    """How the callback was made."""

    directory: Path | None = None
    run: str | None = None
    keep_matrix: bool = True
    log: bool = True
    phases: Mapping[str, str] = field(default_factory=dict)


def callback(
    directory: str | Path | None = None,
    run: str | None = None,
    *,
    keep_matrix: bool = True,
    log: bool = True,
    phases: Mapping[str, str] | None = None,
) -> Any:
    """Return a callback for ``Trainer(callbacks=...)`` of lightning or pytorch_lightning.

    The collections of ``pipeline.ddp`` that the module holds are reset when their phase begins,
    told which rows repeat others, written as partial files of ``directory/run`` when it ends,
    added up over the ranks and logged. ``directory`` is by default the folder ``featfold`` of the
    trainer's root, ``run`` the time it began; training that goes on from a checkpoint goes on with
    its run. ``keep_matrix``: confusion matrices are kept for metrics after the fact, where there
    are at most 1,024 classes. ``log=False`` leaves logging to the module. ``phases``: name of an
    attribute -> train, val or test, where prefixes do not say so.
    """
    options = Options(
        None if directory is None else Path(directory), run, keep_matrix, log, dict(phases or {})
    )
    return _made(options, _packages())


def _packages() -> tuple[str, ...]:
    """Return the packages whose trainers may call: those in use, else the one that is there."""
    used = tuple(name for name in PACKAGES if PACKAGES[name] in sys.modules)
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
    bases = tuple(importlib.import_module(PACKAGES[name]).Callback for name in packages)
    made = type("MetricsCallback", (MetricsHooks, *bases), {})(options)
    made.packages = packages
    return made


class MetricsHooks:
    """What the callback does, for whichever Callback class it is one of."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.packages: tuple[str, ...] = ()
        self.run: Run | None = None
        """The run, once it is open."""
        self.attempt = 0
        self.numbers: dict[str, Numbers] = {}
        """The latest numbers of each collection by the name of its attribute."""
        self._found: list[Found] = []
        self._loaders: dict[str, Loaders] = {}
        self._loaded: Mapping[str, Any] | None = None
        self._first_batch: int | None = None
        self._told: set[str] = set()

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (self.options, self.packages)

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        self._found = collections_of(module, self.options.phases)
        self._loaders, self.attempt, self._loaded = {}, 0, None
        if not self.options.keep_matrix:
            return
        for found in self._found:
            if not found.collection.keep_matrix():
                self._say(
                    trainer,
                    f"{found.name}: no confusion matrix is kept, there are more than 1,024 classes "
                    "or labels that are not exclusive; metrics after the fact are those of its "
                    "own counts",
                )

    def on_load_checkpoint(self, trainer: Any, module: Any, checkpoint: Any) -> None:
        self._loaded = checkpoint.get(CHECKPOINT)

    def on_save_checkpoint(self, trainer: Any, module: Any, checkpoint: Any) -> None:
        if self.run is None:
            return
        running = [self._running(found, trainer) for found in self._of("train")]
        for found, when in running:
            self._write(found, when, trainer)
        checkpoint[CHECKPOINT] = {
            "directory": str(self.run.path.parent), "run": self.run.id, "attempt": self.attempt,
            "step": int(trainer.global_step), "batch": batches_trained(trainer),
            "running": [when._asdict() for _, when in running],
        }  # fmt: skip

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        self._open(trainer)
        self._first_batch = None
        for found in self._of("train"):
            found.collection.reset()
        self._resume(trainer)

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        self._begin(trainer, "train")
        self._first_batch = 0

    def on_validation_epoch_start(self, trainer: Any, module: Any) -> None:
        self._begin(trainer, "val")

    def on_test_epoch_start(self, trainer: Any, module: Any) -> None:
        self._begin(trainer, "test")

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        loaders = self._loaders_of(trainer, "train")
        if self._first_batch is None:  # in the middle of an epoch, from a checkpoint
            self._first_batch = 0 if loaders.resumable() else batch_idx
        for found in self._of("train"):
            found.collection.expect(loaders.expected(batch_idx - self._first_batch))

    def on_validation_batch_start(
        self, trainer: Any, module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._expect(trainer, "val", batch_idx, dataloader_idx)

    def on_test_batch_start(
        self, trainer: Any, module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._expect(trainer, "test", batch_idx, dataloader_idx)

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self._end(trainer, module, "train")

    def on_validation_epoch_end(self, trainer: Any, module: Any) -> None:
        self._end(trainer, module, "val")

    def on_test_epoch_end(self, trainer: Any, module: Any) -> None:
        self._end(trainer, module, "test")

    def _of(self, phase: str) -> list[Found]:
        return [found for found in self._found if found.phase == phase]

    def _loaders_of(self, trainer: Any, phase: str) -> Loaders:
        if phase not in self._loaders:
            self._loaders[phase] = Loaders(trainer, phase)
        return self._loaders[phase]

    def _begin(self, trainer: Any, phase: str) -> None:
        self._open(trainer)
        self._loaders.pop(phase, None)  # they may be made anew for each epoch
        for found in self._of(phase):
            found.collection.expect(None)
            found.collection.reset()

    def _expect(self, trainer: Any, phase: str, batch: int, loader: int) -> None:
        loaders = self._loaders_of(trainer, phase)
        for found in self._of(phase):
            found.collection.expect(loaders.expected(batch, loader))

    def _end(self, trainer: Any, module: Any, phase: str) -> None:
        for found in self._of(phase):
            found.collection.expect(None)
            when = moment(trainer, found, self._loaded)
            self._write(found, when, trainer)
            numbers = self._numbers(found, when, trainer)
            self.numbers[found.name] = numbers
            self._say_if_rows_are_missing(trainer, found, numbers)
            if self.options.log:
                self._log(module, numbers)

    def _numbers(self, found: Found, when: Moment, trainer: Any) -> Numbers:
        if found.collection.fixed or trainer.world_size == 1:
            return found.collection.compute()
        here = live.ranks(timeout_seconds=found.collection.timeout_seconds)
        assert here is not None
        assert self.run is not None
        live.meet(here, {"prefix": found.collection.prefix})  # when all have come, all have written
        partials = self.run.gathered(when, self.attempt)
        total = merged(partials)
        assert total is not None
        rows = sum(partial.about["rows"] for partial in partials)
        return Numbers(total.compute(), f"all {here.size} ranks", rows)

    def _write(self, found: Found, when: Moment, trainer: Any) -> None:
        assert self.run is not None
        rows = self._loaders_of(trainer, found.phase).rows()
        about = {"epoch": int(trainer.current_epoch), "dataset_rows": rows}
        self.run.write(found.collection.partial(self.run.id, self.attempt, when, **about))

    def _log(self, module: Any, numbers: Numbers) -> None:
        for key, value in loggable(numbers).items():
            # It is the same on every rank: Lightning's advice to average it does not apply.
            warnings.filterwarnings(
                "ignore", message=rf"It is recommended to use `self\.log\({re.escape(repr(key))},"
            )
            module.log(
                key, value, on_step=False, on_epoch=True, sync_dist=False, batch_size=1,
                add_dataloader_idx=False,
            )  # fmt: skip

    def _running(self, found: Found, trainer: Any) -> tuple[Found, Moment]:
        when = moment(trainer, found, None)
        return found, when._replace(phase=RUNNING, sanity=False)

    def _open(self, trainer: Any) -> None:
        """Begin an attempt that all ranks agree on, where none has begun."""
        if self.attempt:
            return
        opened: tuple[str, int, str] = ("", 0, "")
        if trainer.is_global_zero:
            try:
                run = Run(self._path(trainer))
                opened = (str(run.path), run.open_attempt(), "")
            except (FeatfoldError, OSError) as error:  # the others wait to be told
                opened = ("", 0, str(error))
        path, attempt, trouble = trainer.strategy.broadcast(opened)
        if trouble:
            raise FeatfoldError(f"no attempt of a run could begin: {trouble}")
        self.run, self.attempt = Run(path), attempt

    def _path(self, trainer: Any) -> Path:
        loaded = self._loaded or {}
        directory = self.options.directory or loaded.get("directory")
        earlier = None if self.run is None else self.run.id
        name = self.options.run or loaded.get("run") or earlier or _new_name()
        return Path(directory or Path(trainer.default_root_dir) / "featfold") / name

    def _resume(self, trainer: Any) -> None:
        """Take up training metrics where a checkpoint within an epoch left them."""
        for saved in (self._loaded or {}).get("running", ()):
            when = Moment(**saved)
            for found in self._of("train"):
                if found.name == when.collection:
                    self._restore(found, when, trainer)

    def _restore(self, found: Found, when: Moment, trainer: Any) -> None:
        assert self._loaded is not None
        run = Run(Path(self._loaded["directory"]) / self._loaded["run"])
        try:
            partials = run.gathered(when, self._loaded["attempt"])
        except FeatfoldError as error:
            self._say(
                trainer,
                f"{found.name}: the partials that go with the checkpoint cannot be used ({error}); "
                "training metrics of this epoch count from here on",
            )
            return
        if trainer.is_global_zero:  # one rank has it all; there may be more or fewer ranks now
            rows = sum(partial.about["rows"] for partial in partials)
            states = {name: merged(partials, name) for name in (METRICS, MATRIX)}
            found.collection.restore(states, rows)

    def _say_if_rows_are_missing(self, trainer: Any, found: Found, numbers: Numbers) -> None:
        rows = self._loaders_of(trainer, found.phase).rows()
        if rows is None or numbers.rows >= rows or trainer.sanity_checking:
            return
        if found.phase != "train":
            self._say(
                trainer,
                f"{found.name}: {numbers.rows} of {rows} samples were seen; drop_last, "
                "limit_batches, or a start from within an evaluation leave some out",
            )

    def _say(self, trainer: Any, message: str) -> None:
        if trainer.is_global_zero and message not in self._told:
            self._told.add(message)
            warnings.warn(message, UserWarning, stacklevel=3)


def _new_name() -> str:
    return f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:6]}"
