"""One start of the training script of the story: two processes, and the module that is named.

``python train.py --module with_featfold --out DIR --attempt 1 [--resume]``. Nothing here differs
between the two modules. With ``--record`` every batch is kept, so that all that was logged can be
computed again on one process.
"""

from __future__ import annotations

import argparse
import importlib
import os
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.strategies import DDPStrategy
from parts import loader


class Record(lightning.Callback):
    """Keeps what every step saw; waits to be killed at one of them if it is told to."""

    def __init__(self, folder: Path, halt: tuple[int, int] | None) -> None:
        self.folder, self.halt, self.number = folder, halt, 0

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if (trainer.current_epoch, batch_idx) == self.halt:
            (self.folder / f"halted{trainer.global_rank}").touch()
            time.sleep(3600)

    def on_train_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, *_: Any
    ) -> None:
        self._keep(trainer, "train", outputs, batch)

    def on_validation_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, *_: Any
    ) -> None:
        self._keep(trainer, "sanity" if trainer.sanity_checking else "val", outputs, batch)

    def on_test_batch_end(
        self, trainer: Any, module: Any, outputs: Any, batch: Any, *_: Any
    ) -> None:
        self._keep(trainer, "test", outputs, batch)

    def _keep(self, trainer: Any, phase: str, outputs: Any, batch: Any) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"rank{trainer.global_rank}-{self.number:05d}-{phase}"
        np.savez(
            self.folder / f"{name}.npz", preds=outputs["preds"].numpy().astype(np.uint8),
            masks=batch[1].numpy().astype(np.uint8), epoch=trainer.current_epoch,
            step=trainer.global_step,
        )  # fmt: skip
        self.number += 1


def main() -> None:
    """Train and test as the options say."""
    given = argparse.ArgumentParser()
    given.add_argument("--module", default="with_featfold")
    given.add_argument("--out", type=Path, required=True)
    given.add_argument("--attempt", type=int, default=1)
    given.add_argument("--side", type=int, default=224)
    given.add_argument("--samples", type=int, default=21)
    given.add_argument("--epochs", type=int, default=2)
    given.add_argument("--timeout", type=float, default=120.0)
    given.add_argument("--resume", action="store_true")
    given.add_argument("--record", action="store_true")
    given.add_argument("--halt", type=int, nargs=2, metavar=("EPOCH", "BATCH"))
    options = given.parse_args()

    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    lightning.seed_everything(1, verbose=False)
    module = importlib.import_module(options.module).Segmentation()
    version = f"attempt{options.attempt}"
    monitored = {"monitor": "val/iou_mean", "mode": "max"}
    callbacks: list[Any] = [
        ModelCheckpoint(options.out / "checkpoints", save_last=True, save_top_k=-1, **monitored),
        EarlyStopping(patience=100, **monitored),
    ]
    if options.record:
        callbacks.append(
            Record(options.out / "records" / version, options.halt and tuple(options.halt))
        )
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, max_epochs=options.epochs, val_check_interval=0.5,
        strategy=DDPStrategy(
            process_group_backend="gloo", timeout=timedelta(seconds=options.timeout)
        ),
        num_sanity_val_steps=2, log_every_n_steps=1, callbacks=callbacks,
        logger=[
            CSVLogger(options.out, "csv", version, flush_logs_every_n_steps=1),
            TensorBoardLogger(options.out, "tensorboard", version),
        ],
        default_root_dir=options.out, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    train, val, test = (
        loader(options.samples, options.side, first, 2, shuffle)
        for first, shuffle in ((0, True), (1000, False), (2000, False))
    )
    trainer.fit(module, train, val, ckpt_path="last" if options.resume else None)
    trainer.test(module, test, verbose=False)
    if trainer.is_global_zero:
        print(f"trained to step {trainer.global_step}; process {os.getpid()}")


if __name__ == "__main__":
    main()
