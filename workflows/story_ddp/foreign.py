"""What computing on rank zero reads where the other rank computes another metric meanwhile.

``python foreign.py RANK STORE_FILE torchmetrics|featfold``. The memory of the process is capped.
"""

from __future__ import annotations

import resource
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

CLASSES = 21
CORRECT = 1_118_000_000
"""Pixels that the other rank got right: as the length of an int64 array, 8.33 GiB."""
CAP_NBYTES = 6 * 2**30


def torchmetrics(rank: int) -> None:
    """Compute recall per class on rank zero, and a metric with two counters on the other.

    The counters are those of the example that torchmetrics gives for metrics of one's own.
    """
    from torchmetrics import Metric
    from torchmetrics.classification import MulticlassRecall

    class PixelAccuracy(Metric):
        full_state_update = False

        def __init__(self) -> None:
            super().__init__()
            self.add_state("correct", default=torch.tensor(0), dist_reduce_fx="sum")
            self.add_state("total", default=torch.tensor(0), dist_reduce_fx="sum")

        def update(self, correct: int, total: int) -> None:
            self.correct += correct
            self.total += total

        def compute(self) -> torch.Tensor:
            return self.correct / self.total

    if rank == 0:
        recall = MulticlassRecall(num_classes=CLASSES, average=None)
        recall.update(torch.tensor([0, 1]), torch.tensor([0, 1]))
        recall.compute()
    else:
        accuracy = PixelAccuracy()
        accuracy.update(CORRECT, 2 * CORRECT)
        accuracy.compute()


def featfold(rank: int) -> None:
    """Do the same with ours."""
    import numpy as np

    import pipeline as ff
    from pipeline.ddp import Collection

    averages = ("macro", "none") if rank == 0 else "micro"
    collection = Collection(
        ff.metrics.Recall(average=averages), classes=CLASSES, repeats="none", timeout_seconds=5
    )
    collection.update(np.array([0, 1]), np.array([0, 1]))
    collection.compute()


if __name__ == "__main__":
    own_rank = int(sys.argv[1])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{sys.argv[2]}", rank=own_rank, world_size=2,
        timeout=timedelta(seconds=15),
    )  # fmt: skip
    if own_rank == 0:
        resource.setrlimit(resource.RLIMIT_AS, (CAP_NBYTES, CAP_NBYTES))
    {"torchmetrics": torchmetrics, "featfold": featfold}[sys.argv[3]](own_rank)
