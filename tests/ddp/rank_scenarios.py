"""What each of two gloo processes does in the tests of syncs: writes what came of it as JSON.

``python rank_scenarios.py RANK SIZE STORE_FILE OUT_FILE``
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from pipeline import metrics
from pipeline.ddp import Collection, Moment, Run, after, live, merge
from pipeline.errors import FeatfoldError

CLASSES, SAMPLES, SIDE = 21, 21, 16
PER_CLASS = ("macro", "none")


def masks() -> TensorDataset:
    """21 samples of true and predicted masks; the first, which a sampler repeats, is all wrong."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, CLASSES, (SAMPLES, SIDE, SIDE))
    wrong = rng.random(truth.shape) < 0.4
    predicted = np.where(wrong, rng.integers(0, CLASSES, truth.shape), truth)
    predicted[0] = (truth[0] + 1) % CLASSES
    return TensorDataset(
        torch.arange(SAMPLES), torch.from_numpy(predicted), torch.from_numpy(truth)
    )


def collection(**options) -> Collection:
    chosen = [metrics.IoU(average=PER_CLASS), metrics.Recall(average=PER_CLASS), "accuracy"]
    return Collection(chosen, classes=CLASSES, **options)


def values(numbers) -> dict[str, float]:
    return {key: float(one) for key, one in numbers.items()}


def loader(rank: int, size: int) -> DataLoader:
    data = masks()
    sampler = DistributedSampler(data, size, rank, shuffle=False)
    return DataLoader(data, batch_size=4, sampler=sampler)


def told(act) -> dict[str, object]:
    """Return the error that something ends in, and how long that took."""
    start = time.monotonic()
    try:
        act()
    except FeatfoldError as error:
        kind, message = type(error).__name__, str(error)
    else:
        kind, message = "", ""
    return {"kind": kind, "message": message, "seconds": time.monotonic() - start}


def of_all_ranks(rank: int, size: int) -> object:
    made = collection(prefix="val/")
    for _, predicted, truth in made.follow(loader(rank, size)):
        made.update(predicted, truth)
    before = made.packed().tolist()
    first, second = made.compute(), made.compute()
    return {
        "values": values(first), "again": values(second), "scope": first.scope,
        "rows": first.rows, "own_rows": made.rows, "unchanged": before == made.packed().tolist(),
        "local": made.compute(sync=False).scope,
    }  # fmt: skip


def rank_zero_only(rank: int, size: int) -> object:
    made = filled(rank, size)
    before = made.packed().tolist()
    dist.barrier()
    outcome = {}
    if rank == 0:
        outcome = told(lambda: made.compute(timeout_seconds=1.0))
    dist.barrier()
    late = told(made.compute) if rank == 1 else {}
    dist.barrier()
    return {
        "error": outcome, "late": late, "unchanged": before == made.packed().tolist(),
        "after": values(made.compute()),
    }  # fmt: skip


def filled(rank: int, size: int, **options) -> Collection:
    made = collection(**options)
    for _, predicted, truth in made.follow(loader(rank, size)):
        made.update(predicted, truth)
    return made


def busy_rank(rank: int, size: int) -> object:
    """Rank 1 is within another collective while rank 0 computes: neither reads the other's."""
    made = filled(rank, size)
    error = told(lambda: made.compute(timeout_seconds=1.0)) if rank == 0 else {}
    other = torch.tensor([2_236_000_000 + rank])
    dist.all_reduce(other)
    if rank == 1:  # counts as having been there, like rank 0
        told(made.compute)
    return {"error": error, "other": other.item(), "values": values(made.compute())}


def empty_rank(rank: int, size: int) -> object:
    made = collection(repeats="none")
    if rank == 0:
        _, predicted, truth = masks()[:]
        made.update(predicted, truth)
    return values(made.compute())


def two_thresholds() -> Collection:
    """Two statistics of scores, and one of predicted classes."""
    return Collection(
        {"low": metrics.F1(task="binary", threshold=0.3),
         "high": metrics.F1(task="binary", threshold=0.7)},
        task="binary", repeats="none",
    )  # fmt: skip


def empty_rank_beside_classes(rank: int, size: int) -> object:
    """A rank without a batch does not know whether the others have scores or classes."""
    found = []
    for full in range(size):
        made = two_thresholds()
        if rank == full:
            made.update(torch.tensor([1, 1, 0, 1]), torch.tensor([1, 0, 0, 1]))
        found.append(values(made.compute()))
    return found


def scores_beside_classes(rank: int, size: int) -> object:
    made = two_thresholds()
    preds = torch.tensor([0.9, 0.1]) if rank == 0 else torch.tensor([1, 0])
    made.update(preds, torch.tensor([1, 0]))
    return told(made.compute)


def no_rank_has_rows(rank: int, size: int) -> object:
    numbers = collection().compute()
    return {"reason": numbers["iou_mean"].reason, "rows": numbers.rows}


def other_declaration(rank: int, size: int) -> object:
    made = Collection(["iou"], classes=CLASSES + rank)
    return told(made.compute)


def other_order(rank: int, size: int) -> object:
    both = [collection(prefix="val/"), collection(prefix="test/")]
    return told(both[rank].compute)


def unknown_repeats(rank: int, size: int) -> object:
    made = collection()
    _, predicted, truth = masks()[rank * 10 : rank * 10 + 10]
    made.update(predicted, truth)
    return told(made.compute)


def by_ids(rank: int, size: int) -> object:
    """Every sample comes to some rank twice, in batches of several sizes and any order."""
    made, outcome = collection(prefix="ids/"), []
    for epoch in range(3):
        order = np.random.default_rng(epoch + 10 * rank).permutation(SAMPLES)
        for part in np.array_split(order, 4 + rank):
            names, predicted, truth = masks()[part]
            made.update(predicted, truth, ids=[f"image {name}" for name in names.tolist()])
        outcome.append({"values": values(made.compute()), "rows": made.rows})
        made.reset()
    return outcome


def refused_batch(rank: int, size: int) -> object:
    """A batch that is refused gives its samples back."""
    made = collection(prefix="refused/")
    names, predicted, truth = masks()[:]
    bad = truth.clone()
    bad[3, 0, 0] = 77
    error = told(lambda: made.update(predicted, bad, ids=names)) if rank == 0 else {}
    dist.barrier()
    made.update(predicted, truth, ids=names)
    return {"error": error, "values": values(made.compute())}


def shared_ids(rank: int, size: int) -> object:
    """Two collections of one prefix, and one made later, do not take each other's samples."""
    names, predicted, truth = masks()[:]
    found = []
    for _ in range(3):
        made = collection(prefix="same/")
        made.update(predicted, truth, ids=names)
        found.append(made)
    return [values(made.compute()) for made in found]


def ids_on_one_rank(rank: int, size: int) -> object:
    """A rank without a batch, and one that had no batch of an earlier collection."""
    names, predicted, truth = masks()[:]
    first, second = collection(prefix="one/"), collection(prefix="one/")
    if rank == 0:
        first.update(predicted, truth, ids=names)
    outcome = values(first.compute())
    second.update(predicted, truth, ids=names)  # of rank 0 the second to claim, of rank 1 the first
    return {"values": outcome, "error": told(second.compute)}


def own_group(rank: int, size: int) -> object:
    """A process group beside the default one, with a time-out of its own."""
    group = dist.new_group([0, 1], timeout=timedelta(seconds=7))
    made = collection(group=group)
    for _, predicted, truth in made.follow(loader(rank, size)):
        made.update(predicted, truth)
    return {"values": values(made.compute()), "seconds": live.ranks(group).timeout_seconds}


def two_groups(rank: int, size: int) -> object:
    """Each rank is a process group of its own; both write to one run."""
    group = [dist.new_group([member]) for member in range(size)][rank]
    run, when = Run(Path(sys.argv[3]).parent / "groups"), Moment("val", 1)
    if rank == 0:
        run.open_attempt()
    dist.barrier()
    made = Collection("accuracy", classes=2, group=group)
    made.update(np.array([rank, 1]), np.array([0, 1]))
    made.write(run, 1, when)
    dist.barrier()
    each = [values(merge(run, when, group=[one]).compute()) for one in range(size)]
    (epoch,) = after(run, group=[rank])
    return {
        "each": each, "after": values(epoch.numbers), "error": told(lambda: merge(run, when)),
    }  # fmt: skip


def states_of_another(rank: int, size: int) -> object:
    """The states that rank zero saved are loaded on every rank, as from a checkpoint."""
    made = Collection("accuracy", classes=2, repeats="none")
    made.update(np.array([rank]), np.array([0]))
    saved: list[object] = [None] * size
    dist.all_gather_object(saved, made.state_dict())
    restored = Collection("accuracy", classes=2, repeats="none")
    found = told(lambda: restored.load_state_dict(saved[0]))
    restored.load_state_dict(saved[rank])
    empty: list[object] = [Collection("accuracy", classes=2).state_dict()]
    dist.broadcast_object_list(empty)
    Collection("accuracy", classes=2).load_state_dict(empty[0])
    return {"error": found, "values": values(restored.compute())}


def of_one_process(rank: int, size: int) -> object:
    """A collection that knows nothing of other ranks."""
    made = metrics.Collection(["accuracy"], classes=2)
    made.update(np.array([rank]), np.array([0]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        value = float(made.compute()["accuracy"])
    return {"value": value, "warned": [str(one.message) for one in caught]}


def growing(rank: int, size: int) -> object:
    made = Collection(["auroc"], task="binary", repeats="none")
    made.update(torch.tensor([0.1, 0.9]), torch.tensor([0, 1]))
    return told(made.compute)


def met_for_files(rank: int, size: int) -> object:
    """States that grow merge by files; before that all ranks have come, within their group."""
    group = dist.new_group([0, 1], timeout=timedelta(seconds=7))
    alike = Collection(["auroc"], task="binary", repeats="none", group=group)
    joined = f"{live.ROOT}/joined/{rank}"
    before = live.ranks().store.add(joined, 0)
    found = {"size": alike.meet(), "elsewhere": live.ranks().store.add(joined, 0) - before}
    for what, other in (
        ("metrics", Collection([("auroc", "aurc")[rank]], task="binary", repeats="none")),
        ("prefix", Collection("auroc", task="binary", repeats="none", prefix=f"{rank}/")),
    ):
        found[what] = told(other.meet)["message"]
    mixed = Collection([("auroc", "accuracy")[rank]], task="binary", repeats="none")
    found["way"] = told(mixed.meet if rank == 0 else mixed.compute)["message"]
    return found


SCENARIOS = (
    of_all_ranks, rank_zero_only, busy_rank, empty_rank, empty_rank_beside_classes,
    scores_beside_classes, no_rank_has_rows, other_declaration,
    other_order, unknown_repeats, by_ids, refused_batch, shared_ids, ids_on_one_rank,
    own_group, of_one_process, growing, met_for_files, two_groups, states_of_another,
)  # fmt: skip


def main(rank: int, size: int, store: str, out: str) -> None:
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size,
        timeout=timedelta(seconds=60),
    )  # fmt: skip
    found = {}
    for scenario in SCENARIOS:
        found[scenario.__name__] = scenario(rank, size)
        dist.barrier()
    Path(out).write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
