"""Story 2, shown: a collection of metrics in distributed training, computed on rank zero only.

``python story.py OUT [--side 224] [reported] [memory] [rank-zero] [resumed]``: each part prints
what came of it, and fails if it is not what it should be. Two gloo processes on the CPU; 21
samples on two ranks, 21 classes, batches (images, masks) without ids.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import recount
import torch
from parts import Shapes, UNet

import pipeline as ff

HERE = Path(__file__).parent
SAMPLES = 21
REPORTED_SECONDS = 180


def main() -> int:
    """Show the parts that are asked for."""
    given = argparse.ArgumentParser()
    given.add_argument("out", type=Path)
    given.add_argument("parts", nargs="*", default=list(PARTS))
    given.add_argument("--side", type=int, default=224)
    options = given.parse_intermixed_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name in options.parts:
        print(f"\n== {name}")
        PARTS[name](options.out / name, options.side)
    return 0


def reported(out: Path, side: int) -> None:
    """As reported: torchmetrics, computed on rank zero only. It fails or hangs; bounded in time."""
    start = time.monotonic()
    process = start_training(out, side, "--module", "with_torchmetrics", "--timeout", "20")
    try:
        output, _ = process.communicate(timeout=REPORTED_SECONDS)
        ended = f"ended with exit code {process.returncode}"
    except subprocess.TimeoutExpired:
        ended, output = "hung", ""
    finally:
        kill(process)
    seconds = time.monotonic() - start
    errors = [line.strip() for line in output.splitlines() if "Error" in line or "error" in line]
    print(f"torchmetrics on rank zero only {ended} after {seconds:.0f} s (time-out 20 s)")
    frames = [line.partition("File ")[2] for line in output.splitlines() if "File " in line]
    within = [frame for frame in frames if "/torchmetrics/" in frame]
    for line in (*dict.fromkeys(errors), *(f"within {frame}" for frame in within[-1:])):
        print(f"  {line[:200]}")
    check(process.returncode != 0, "it did not work")


def memory(out: Path, side: int) -> None:
    """The 8.33 GiB of the report: rank zero takes a counter of another metric for a length."""
    wanted = {
        "torchmetrics": "tried to allocate 8944000000 bytes",
        "featfold": "ranks [1] came with another collection than rank 0: recall.average 'micro'",
    }
    for name, message in wanted.items():
        first = two_ranks(out, "foreign.py", name)[0]
        line = next((line for line in first.splitlines() if message in line), "")
        check(bool(line), f"{name} says {message!r} on rank 0\n{first}")
        print(f"{name}: {line.partition('Error: ')[2]}")


def rank_zero(out: Path, side: int) -> None:
    """Ours on rank zero only: a named error in time, the right numbers from files, or from all."""
    said = two_ranks(out, "ranks.py", str(out), str(side))
    check(all((out / f"{rank}.json").exists() for rank in range(2)), "\n".join(said))
    first, second = (json.loads((out / f"{rank}.json").read_text()) for rank in range(2))
    print(f"on rank zero only, after {first['seconds']:.2f} s: {first['error']}")
    print(f"rank 1, later: {second['late']}")
    check("ranks [1] did not join metric sync 1" in first["error"], "the missing rank is named")
    check(3.0 <= first["seconds"] < 5.0, "within the time-out that was set, 3 s")

    matrix = one_process(side)
    right = recount.numbers(matrix, "val/")
    marginals = [matrix.diagonal(), matrix.sum(1), matrix.sum(0)]
    own = defined(first["from_files"])
    check(not recount.differences(own, right), f"{len(own)} numbers from partial files are right")
    for number, rank in enumerate((first, second)):
        here = defined(rank["on_all_ranks"])
        check(not recount.differences(here, right), f"all {len(here)} numbers on rank {number} too")
        check(rank["states"] == np.concatenate(marginals).tolist(), "integers equal one process")
    print(
        f"rows: {first['own_rows']} + {second['own_rows']} of 22 drawn; {first['scope']}, "
        f"{first['rows']} rows, {int(matrix.sum()):,} pixels; a sync took "
        f"{1e3 * first['sync_seconds']:.0f} ms; iou_mean {right['val/iou_mean']:.6f}"
    )


def resumed(out: Path, side: int) -> None:
    """Trained, killed in epoch 1, resumed: every logged number equals a count on one process."""
    folders = [out / "records" / f"attempt{attempt}" for attempt in (1, 2)]
    process = start_training(out, side, "--record", "--halt", "1", "4")
    try:
        for rank in range(2):
            wait_for(folders[0] / f"halted{rank}", process)
    finally:
        kill(process)
    print("both processes killed with SIGKILL in epoch 1, at batch 4 of 6")
    again = start_training(out, side, "--record", "--resume", "--attempt", "2")
    output, _ = again.communicate(timeout=900)
    check(again.returncode == 0, f"training that is resumed ends well\n{output}")

    epochs = recount.trained(folders, SAMPLES)
    compared = []
    for attempt, folder in enumerate(folders, 1):
        table = out / "csv" / f"attempt{attempt}" / "metrics.csv"
        expected = {phase: recount.evaluations(folder, phase) for phase in ("val", "test")}
        expected["train"] = [epochs[attempt - 1]]  # one ended in each
        for phase, matrices in expected.items():
            rows = recount.logged(table, phase)
            check(len(rows) == len(matrices), f"{len(matrices)} rows of {phase}, not {len(rows)}")
            for row, matrix in zip(rows, matrices, strict=True):
                check_alike(row, recount.numbers(matrix, f"{phase}/"))
                compared.append((attempt, phase, len(row), row[f"{phase}/iou_mean"]))
    for attempt, phase, numbers, mean in compared:
        print(f"start {attempt}, {phase:5}: {numbers} logged numbers right, iou_mean {mean:.6f}")
    print(f"{sum(numbers for _, _, numbers, _ in compared)} logged numbers equal one process")

    (run,) = (out / "featfold").iterdir()
    for phase in ("train", "val", "test"):
        kept = ff.ddp.after(run, "confusion_matrix", phase=phase)
        counted = (
            [epochs[number] for number in sorted(epochs)]
            if phase == "train"
            else [matrix for folder in folders for matrix in recount.evaluations(folder, phase)]
        )
        check(len(kept) == len(counted), f"{len(counted)} moments of {phase} are kept")
        for epoch, matrix in zip(kept, counted, strict=True):
            table = epoch.numbers[f"{phase}/confusion_matrix"].counts
            check(np.array_equal(table, matrix), f"integers of {epoch.moment} equal one process")
        steps = ", ".join(f"{e.moment.step} (attempt {e.attempt})" for e in kept)
        print(f"kept matrices of {phase} equal one process, at steps {steps}")


def one_process(side: int) -> recount.Matrix:
    """Return the matrix of all 21 samples, counted here."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net, total = UNet(), 0
    with torch.inference_mode():
        for image, mask in (Shapes(SAMPLES, side, 1000)[place] for place in range(SAMPLES)):
            total = total + recount.pairs(net(image[None]).argmax(1)[0].numpy(), mask.numpy())
    return total  # type: ignore[return-value]


def two_ranks(out: Path, script: str, *more: str) -> list[str]:
    """Run a script as two ranks; return what each said."""
    out.mkdir(parents=True, exist_ok=True)
    (out / "store").unlink(missing_ok=True)
    processes = [
        subprocess.Popen(
            [sys.executable, HERE / script, str(rank), out / "store", *more],
            env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        return [process.communicate(timeout=300)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def start_training(out: Path, side: int, *more: str) -> subprocess.Popen[str]:
    """Start a training of two processes, in a session of its own that can be killed at once."""
    return subprocess.Popen(
        [sys.executable, HERE / "train.py", "--out", out, "--side", str(side), *more],
        env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip


def environment() -> dict[str, str]:
    """Return what every process of the story runs with."""
    root = str(HERE.parents[1])
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root, "CUDA_VISIBLE_DEVICES": ""}


def kill(process: subprocess.Popen[str]) -> None:
    """Kill a training, all its processes at once."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    """Wait until a training has written a file."""
    until = time.monotonic() + 600
    while not path.exists():
        check(process.poll() is None, "training runs")
        check(time.monotonic() < until, "training gets there")
        time.sleep(0.05)


def defined(found: dict[str, float]) -> dict[str, float]:
    """Return the numbers that have a value."""
    return {key: value for key, value in found.items() if value == value}


def check_alike(found: dict[str, float], right: dict[str, float]) -> None:
    """Fail unless the same numbers are there, alike as float32."""
    wrong = recount.differences(found, right)
    check(not wrong, f"logged numbers differ: {wrong[:5]}" if wrong else "logged numbers are right")


def check(holds: bool, what: str) -> None:
    """Fail unless something holds."""
    if not holds:
        sys.exit(f"story: NOT SO: {what}")


PARTS = {"reported": reported, "memory": memory, "rank-zero": rank_zero, "resumed": resumed}

if __name__ == "__main__":
    sys.exit(main())
