"""What the Lightning callback does at each moment of a run, for whichever package calls it.

Rows that repeat are told to the collections, their states are written as partial files, added up
over the ranks once, and logged alike on every rank.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.collection import Collection as OneProcess
from pipeline.ddp import live
from pipeline.ddp.attempts import opened, restored
from pipeline.ddp.checkpoints import Checkpoints, Save
from pipeline.ddp.files import RUNNING, Moment, Run
from pipeline.ddp.kept import merged
from pipeline.ddp.numbers import Numbers, loggable
from pipeline.ddp.panels import Panels
from pipeline.ddp.shown import Shown
from pipeline.ddp.trainer import Found, Loaders, batches_trained, collections_of, moment
from pipeline.errors import ConfigError, FeatfoldError

__all__ = ["MetricsHooks", "Options"]

CHECKPOINT = "featfold"
SHARED_DISK_SECONDS = 30.0
"""How long a file that another machine has written may take to be seen."""


@dataclass(frozen=True)
class Options:
    """How the callback was made; see :func:`pipeline.ddp.callback`."""

    directory: Path | None = None
    run: str | None = None
    keep_matrix: bool = True
    log: bool = True
    table: Sequence[str] = ("test",)
    panels: Panels | None = None
    phases: Mapping[str, str] = field(default_factory=dict)


class MetricsHooks:
    """What the callback does, for whichever Callback class it is one of."""

    def __init__(self, options: Options) -> None:
        self.options = options
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
        self._checkpoints: Checkpoints | None = None
        self._shown = Shown(options.table, options.panels)

    def setup(self, trainer: Any, module: Any, stage: str) -> None:
        self._found = collections_of(module, self.options.phases)
        self._loaders, self.attempt, self._loaded = {}, 0, None
        self._checkpoints = None
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
        if trainer.is_global_zero:  # the others have left every earlier save
            self._checkpoints = self._checkpoints or Checkpoints(self.run.path)
            save = Save(self.attempt, tuple(when for _, when in running))
            for attempt, moments in self._checkpoints.saving(trainer, save):
                for when in moments:
                    self.run.remove(attempt, when)
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

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._remember(trainer, "train", batch)

    def on_validation_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        self._remember(trainer, "val", batch)

    def on_test_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:  # fmt: skip
        self._remember(trainer, "test", batch)

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
            found.collection.drop()
            found.collection.reset()
            self._shown.begin(trainer, found)

    def _expect(self, trainer: Any, phase: str, batch: int, loader: int) -> None:
        loaders = self._loaders_of(trainer, phase)
        for found in self._of(phase):
            found.collection.expect(loaders.expected(batch, loader))

    def _remember(self, trainer: Any, phase: str, batch: Any) -> None:
        for found in self._of(phase):
            with self._only_said(trainer, "no panels"):
                self._shown.remember(found, batch)

    def _end(self, trainer: Any, module: Any, phase: str) -> None:
        for found in self._of(phase):
            found.collection.expect(None)
            when = moment(trainer, found, self._loaded)
            self._write(found, when, trainer)
            total, scope, rows = self._total(found, when, trainer)
            numbers = Numbers(total.numbers(), scope, rows)
            self.numbers[found.name] = numbers
            self._say_if_rows_are_missing(trainer, found, numbers)
            if self.options.log:
                self._log(module, numbers)
            if trainer.is_global_zero and not trainer.sanity_checking:
                with self._only_said(trainer, f"nothing of {found.name} is shown"):
                    self._shown.report(trainer, found, total)

    def _total(self, found: Found, when: Moment, trainer: Any) -> tuple[OneProcess, str, int]:
        if found.collection.fixed or trainer.world_size == 1:
            return found.collection.total()
        assert self.run is not None
        size = found.collection.meet()  # when all have come, all have written
        partials = self.run.gathered(when, self.attempt, SHARED_DISK_SECONDS)
        total = merged(partials)
        assert total is not None
        rows = sum(partial.about["rows"] for partial in partials)
        return total, f"all {size} ranks", rows

    def _write(self, found: Found, when: Moment, trainer: Any) -> None:
        assert self.run is not None
        rows = self._loaders_of(trainer, found.phase).rows()
        about = {"epoch": int(trainer.current_epoch), "dataset_rows": rows}
        found.collection.write(self.run, self.attempt, when, **about)

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
        if trainer.world_size > 1 and live.ranks() is None:
            raise ConfigError(
                f"{type(trainer.strategy).__name__} has {trainer.world_size} processes that are "
                "no process group of torch.distributed; metrics cannot be those of all of them"
            )
        if not self.attempt:
            self.run, self.attempt = opened(
                trainer, self.options.directory, self.options.run, self._loaded
            )

    def _resume(self, trainer: Any) -> None:
        """Take up training metrics where a checkpoint within an epoch left them."""
        for saved in (self._loaded or {}).get("running", ()):
            when = Moment(**saved)
            for found in self._of("train"):
                if found.name != when.collection or not trainer.is_global_zero:
                    continue  # one rank has it all; there may be more or fewer ranks now
                try:
                    restored(found.collection, when, self._loaded or {})
                except FeatfoldError as error:
                    self._say(
                        trainer,
                        f"{found.name}: the partials that go with the checkpoint cannot be used "
                        f"({error}); training metrics of this epoch count from here on",
                    )

    @contextmanager
    def _only_said(self, trainer: Any, what: str) -> Iterator[None]:
        """Say what went wrong and go on: no training ends for a picture, on one rank alone."""
        try:
            yield
        except Exception as error:
            self._say(trainer, f"{what}: {type(error).__name__}: {error}")

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
