"""Two plain processes, no Lightning: 21 samples on two ranks, computed on both or on one.

``python ranks.py RANK STORE_FILE OUT_DIR SIDE``
"""

from __future__ import annotations

import json
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from parts import CLASSES, Shapes, UNet
from torch.utils.data import DataLoader, DistributedSampler

import pipeline as ff
from pipeline.ddp import Collection, Moment, Run
from pipeline.errors import NotJoinedError

PER_CLASS = ("macro", "none")
METRICS = {
    "accuracy": ff.metrics.Accuracy(average=PER_CLASS),
    "precision": ff.metrics.Precision(average=PER_CLASS),
    "recall": ff.metrics.Recall(average=PER_CLASS),
    "dice": ff.metrics.Dice(average=PER_CLASS),
    "iou": ff.metrics.IoU(average=PER_CLASS),
}
WAIT_SECONDS = 3.0


def main(rank: int, store: str, out: Path, side: int) -> None:
    """Do as one of two ranks does, and write what came of it."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2,
        timeout=timedelta(seconds=120),
    )  # fmt: skip
    data, net = Shapes(21, side, 1000), UNet()
    collection = Collection(METRICS, classes=CLASSES, prefix="val/")
    sampler = DistributedSampler(data, shuffle=False)
    with torch.inference_mode():
        for imgs, masks in collection.follow(DataLoader(data, batch_size=2, sampler=sampler)):
            preds = torch.cat([net(img[None]) for img in imgs]).argmax(1)  # no bit of its batch
            collection.update(preds, masks)
    run, moment = Run(out / "run"), Moment("val", step=0)
    collection.write(run, 1, moment)
    dist.barrier()

    found: dict[str, object] = {"own_rows": collection.rows}
    if rank == 0:  # as in the report: the other rank is somewhere else
        start = time.monotonic()
        try:
            collection.compute(timeout_seconds=WAIT_SECONDS)
        except NotJoinedError as error:
            found |= {"error": str(error), "seconds": time.monotonic() - start}
        numbers = ff.ddp.merge(run, moment).compute()
        found["from_files"] = {key: float(one) for key, one in numbers.items()}
    dist.barrier()
    if rank == 1:  # comes late to the sync that was given up, and is told at once
        try:
            collection.compute()
        except NotJoinedError as error:
            found["late"] = str(error)
    dist.barrier()
    start = time.monotonic()
    numbers = collection.compute()
    found |= {
        "on_all_ranks": {key: float(one) for key, one in numbers.items()},
        "scope": numbers.scope, "rows": numbers.rows, "sync_seconds": time.monotonic() - start,
        "states": collection.total()[0].packed()[1:].tolist(),
    }  # fmt: skip
    (out / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
