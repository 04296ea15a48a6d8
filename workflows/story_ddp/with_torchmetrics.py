"""The module as it was reported: a collection per phase, computed on rank zero alone."""

from __future__ import annotations

import lightning
import torch
from parts import CLASSES, UNet
from torch import Tensor
from torchmetrics import MetricCollection
from torchmetrics.classification import (
    MulticlassAccuracy,
    MulticlassF1Score,
    MulticlassJaccardIndex,
    MulticlassPrecision,
    MulticlassRecall,
)


class Segmentation(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = UNet()
        metrics = MetricCollection(
            {
                "accuracy": MulticlassAccuracy(num_classes=CLASSES, average=None),
                "precision": MulticlassPrecision(num_classes=CLASSES, average=None),
                "recall": MulticlassRecall(num_classes=CLASSES, average=None),
                "dice": MulticlassF1Score(num_classes=CLASSES, average=None),
                "iou": MulticlassJaccardIndex(num_classes=CLASSES, average=None),
            }
        )
        self.train_metrics = metrics.clone(prefix="train/")
        self.val_metrics = metrics.clone(prefix="val/")
        self.test_metrics = metrics.clone(prefix="test/")

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> dict[str, Tensor]:
        return self._step(batch, self.train_metrics)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> dict[str, Tensor]:
        return self._step(batch, self.val_metrics)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> dict[str, Tensor]:
        return self._step(batch, self.test_metrics)

    def _step(self, batch: tuple[Tensor, Tensor], metrics: MetricCollection) -> dict[str, Tensor]:
        imgs, masks = batch
        logits = self(imgs)
        preds = logits.argmax(dim=1)
        metrics.update(preds, masks)
        return {"loss": torch.nn.functional.cross_entropy(logits, masks), "preds": preds}

    def on_train_epoch_end(self) -> None:
        self._log_per_class(self.train_metrics)

    def on_validation_epoch_end(self) -> None:
        self._log_per_class(self.val_metrics)

    def on_test_epoch_end(self) -> None:
        self._log_per_class(self.test_metrics)

    def _log_per_class(self, metrics: MetricCollection) -> None:
        if self.trainer.is_global_zero:
            for name, values in metrics.compute().items():
                self.log(f"{name}_mean", values.mean(), rank_zero_only=True)
                for label, value in enumerate(values):
                    self.log(f"{name}_{label}", value, rank_zero_only=True)
        metrics.reset()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)
