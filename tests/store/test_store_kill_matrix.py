"""Writers that get a real SIGKILL while they write a block: alone, one of two, both at once.

After the resume the store has the files and the bytes of one that was written undisturbed.
"""

import json
import multiprocessing
import time

import numpy as np
import pytest
from kills import Moments, kills

from pipeline.chunk import ArraySpec
from pipeline.store import Store, manifest

KILLS = kills(usual=3)
ROWS, WIDTH, IDLE = 400, 512, -1
SPECS = {
    "features": ArraySpec((WIDTH,), "float32", "D"),
    "labels": ArraySpec((), "int64"),
    "even": ArraySpec((), "bool"),
}
VICTIMS = {"driver": (1, (0,)), "worker": (2, (1,)), "machine": (2, (0, 1))}
"""Who is killed: the number of writers, and which of them die."""
CONTEXT = multiprocessing.get_context("forkserver")


def rows_of(block):
    rng = np.random.default_rng(block.index)
    labels = np.arange(block.start, block.stop)
    features = rng.standard_normal((block.rows, WIDTH)).astype("f4")
    return {"features": features, "labels": labels, "even": labels % 2 == 0}


def create(path):
    Store.create(path).create_split(
        "id/train", SPECS, classes=ROWS, rows=ROWS, chunk_nbytes=5 * WIDTH * 4,
        block_nbytes=10 * (WIDTH * 4 + 9),
    )  # fmt: skip


def write_share(path, number, writers, started, writing):
    """Write the blocks that are missing of every ``writers``-th; tell which is being written."""
    writer = Store.open(path).writer("id/train")
    started.wait()
    for block in writer.missing():
        if block.index % writers == number:
            writing[number] = block.index
            writer.write(block.index, rows_of(block))
            writing[number] = IDLE


def start(path, writers):
    """Start writers that begin together; return them, and what each is writing."""
    CONTEXT.set_forkserver_preload(["pipeline.store", "numpy"])
    started = CONTEXT.Barrier(writers + 1)
    writing = CONTEXT.RawArray("i", [IDLE] * writers)
    processes = [
        CONTEXT.Process(target=write_share, args=(path, number, writers, started, writing))
        for number in range(writers)
    ]
    for process in processes:
        process.start()
    started.wait(60)
    return processes, writing


def finish(processes):
    for process in processes:
        process.join(60)
        assert process.exitcode == 0


def outcome(path):
    """Return every file there and beside, with its bytes; of records what outlives their writer.

    Lock files say nothing: the system frees a lock with its holder, and its file may stay.
    """
    found = {}
    for file in path.parent.rglob("*"):
        if file.is_file() and file.suffix != ".lock":
            found[file.relative_to(path.parent).as_posix()] = file.read_bytes()
    for name in [name for name in found if "/manifest/block-" in name]:
        record = json.loads(found[name])["attributes"]
        found[name] = {key: record[key] for key in record if key not in ("written", "writer")}
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return the outcome of an undisturbed write, and its seconds by the number of writers."""
    seconds = {}
    for writers in (1, 2):
        path = tmp_path_factory.mktemp("whole") / "store.zarr"
        create(path)
        processes, _ = start(path, writers)
        began = time.monotonic()
        finish(processes)
        seconds[writers] = time.monotonic() - began
    return outcome(path), seconds


@pytest.mark.timeout(60 + 30 * KILLS)
@pytest.mark.parametrize("victim", VICTIMS)
def test_killed_writers_leave_what_a_resume_completes_to_the_same_bytes(
    undisturbed, tmp_path, victim
):
    expected, seconds = undisturbed
    writers, dying = VICTIMS[victim]
    moments = Moments(f"{victim} writing", KILLS)
    for share, _ in moments:
        path = tmp_path / f"draw{len(moments.hits) + moments.missed}" / "store.zarr"
        create(path)
        processes, writing = start(path, writers)
        time.sleep(share * seconds[writers])
        for number in dying:
            processes[number].kill()
        for process in processes:
            process.join(60)
        torn = [writing[number] for number in dying if writing[number] != IDLE]
        if not torn:
            moments.miss()
            continue
        finish([process for number, process in enumerate(processes) if number not in dying])
        whole = manifest.committed(manifest.read_records(path / "id/train"))
        moments.hit(
            f"at {share * seconds[writers]:.3f} of {seconds[writers]:.3f} s, {len(whole)} of "
            f"{ROWS // 10} blocks committed, blocks {torn} being written"
        )
        resumed, _ = start(path, 1)
        finish(resumed)
        assert outcome(path) == expected
        assert not Store.open(path).split("id/train").verify()
