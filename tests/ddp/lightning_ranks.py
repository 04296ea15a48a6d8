"""A binary task on two ranks that both draw all samples, in orders of their own.

``python lightning_ranks.py OUT [--without-ids]``: each rank writes the numbers it ended with.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import lightning
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler

import pipeline as ff

ROWS = 23


def scores_and_labels() -> tuple[np.ndarray, np.ndarray]:
    """Probabilities, some of them alike, and labels."""
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 2, ROWS)
    return np.round(0.3 * labels + 0.7 * rng.random(ROWS), 1).astype(np.float32), labels


class Rows(Dataset):
    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, index: int) -> dict[str, object]:
        scores, labels = scores_and_labels()
        return {"x": scores[index : index + 1], "y": labels[index], "id": f"row {index}"}


class Classifier(lightning.LightningModule):
    def __init__(self, ids: bool) -> None:
        super().__init__()
        self.ids = ids
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.val_metrics = ff.ddp.Collection(
            ["auroc", "accuracy"], classes=2, task="binary", prefix="val/"
        )

    def training_step(self, batch: dict, batch_idx: int) -> torch.Tensor:
        return (self.scale * batch["x"]).sum()

    def validation_step(self, batch: dict, batch_idx: int) -> None:
        ids = batch["id"] if self.ids else None
        self.val_metrics.update(batch["x"][:, 0], batch["y"], ids=ids)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def main(out: Path, ids: bool) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    callback = ff.ddp.callback(out / "metrics", "binary")
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, num_sanity_val_steps=0,
        callbacks=[callback], use_distributed_sampler=False, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    torch.manual_seed(trainer.global_rank)
    train = DataLoader(Rows(), batch_size=8)
    val = DataLoader(Rows(), batch_size=4, sampler=RandomSampler(Rows()))
    trainer.fit(Classifier(ids), train, val)
    numbers = callback.numbers["val_metrics"]
    logged = {key: float(x) for key, x in trainer.callback_metrics.items() if "val/" in key}
    (out / f"{trainer.global_rank}.json").write_text(
        json.dumps(
            {
                "numbers": {key: float(one) for key, one in numbers.items()},
                "rows": numbers.rows, "scope": numbers.scope, "logged": logged,
            }
        )
    )  # fmt: skip


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--without-ids" not in sys.argv)
