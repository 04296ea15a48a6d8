"""Partial files of runs: what a merge takes, and what it refuses by name."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from pipeline.ddp.files import Moment, Partial, Run
from pipeline.errors import ConfigError, CorruptError, DataError, IncompleteError, MissingInputError

VAL = Moment("val", step=12, batch=24, collection="val_metrics")


def partial(rank, run="unet", attempt=1, moment=VAL, world_size=2, declaration="abc", value=1):
    about = {"rows": 3, "declared": {"classes": "3", "iou.average": declaration}}
    return Partial(
        run, attempt, moment, rank, world_size, declaration, about, {"x": np.full(2, value)}
    )


@pytest.fixture
def run(tmp_path):
    made = Run(tmp_path / "unet")
    assert made.open_attempt() == 1
    return made


def test_what_was_written_is_read_back(run):
    for rank in (1, 0):
        run.write(partial(rank, value=rank + 5))
    found = run.gathered(VAL)
    assert [p.rank for p in found] == [0, 1]
    assert [p.arrays["x"].tolist() for p in found] == [[5, 5], [6, 6]]
    assert found[1].header() == partial(1).header()
    assert run.moments(1) == [VAL]


def test_moments_of_one_epoch_do_not_collide(run):
    moments = [
        Moment("val", 0, 0, sanity=True),
        Moment("val", 0, 0),
        Moment("val", 1, 4),  # the same step twice, where gradients accumulate
        Moment("val", 1, 6),
        Moment("train", 1, 6),
        Moment("val", 1, 6, collection="fine"),
    ]
    for value, moment in enumerate(moments):
        run.write(partial(0, moment=moment, world_size=1, value=value))
    for value, moment in enumerate(moments):
        assert run.gathered(moment)[0].arrays["x"].tolist() == [value, value]
    assert set(run.moments(1)) == set(moments)
    assert run.moments(1)[0].sanity


def test_a_merge_takes_the_latest_attempt_that_is_complete(run):
    for attempt, ranks in ((1, (0, 1)), (2, (0, 1)), (3, (0,))):
        if attempt > 1:
            assert run.open_attempt() == attempt
        for rank in ranks:
            run.write(partial(rank, attempt=attempt, value=attempt))
    assert {p.attempt for p in run.gathered(VAL)} == {2}
    assert {p.attempt for p in run.gathered(VAL, attempt=1)} == {1}
    with pytest.raises(IncompleteError, match=r"attempt 3.*ranks \[1\] of 2 wrote no partial"):
        run.gathered(VAL, attempt=3)


def test_without_any_complete_attempt_the_latest_is_named(run):
    run.write(partial(1))
    assert run.open_attempt() == 2
    run.write(partial(0, attempt=2))
    with pytest.raises(IncompleteError, match=r"attempt 2.*ranks \[1\] of 2"):
        run.gathered(VAL)


def test_a_rank_that_is_there_twice_is_named(run):
    path = run.write(partial(1))
    run.write(partial(0))
    shutil.copy(path, path.with_name("rank-00002-of-00002.safetensors"))
    with pytest.raises(DataError, match=r"ranks \[1\] are there twice"):
        run.gathered(VAL)


def test_partials_of_two_process_groups_are_told_apart(run):
    run.write(partial(0))
    run.write(partial(1))
    run.write(partial(0, world_size=4))
    with pytest.raises(DataError, match="2 and 4 ranks lie together"):
        run.gathered(VAL)


def test_a_rank_with_another_declaration_is_named(run):
    run.write(partial(0))
    run.write(partial(1, declaration="xyz"))
    with pytest.raises(
        DataError, match=r"ranks \[1\] declare other metrics.*iou.average xyz, not abc"
    ):
        run.gathered(VAL)


def test_a_file_of_another_place_is_refused(run, tmp_path):
    path = run.write(partial(0, world_size=1))
    other = Run(tmp_path / "resnet")
    other.open_attempt()
    target = other.path / path.relative_to(run.path)
    target.parent.mkdir(parents=True)
    shutil.copy(path, target)
    with pytest.raises(CorruptError, match=r"holds run unet.*expected run resnet"):
        other.gathered(VAL)


def test_a_torn_file_is_named(run):
    path = run.write(partial(0, world_size=1))
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(CorruptError, match="rank-00000-of-00001"):
        run.gathered(VAL)


def test_what_is_there_is_listed_where_something_else_is_wanted(run):
    run.write(partial(0))
    with pytest.raises(MissingInputError, match="it has val at step 12, batch 24, of val_metrics"):
        run.gathered(Moment("test", 12))
    with pytest.raises(MissingInputError, match="none at all"):
        Run(run.path.parent / "nothing").gathered(VAL)


def test_ranks_that_write_later_are_waited_for(run):
    run.write(partial(0))
    late = threading.Timer(0.3, lambda: run.write(partial(1)))
    late.start()
    assert len(run.gathered(VAL, wait_seconds=30)) == 2
    late.join()
    start = time.monotonic()
    with pytest.raises(MissingInputError):
        run.gathered(Moment("test", 1), wait_seconds=0.2)
    assert 0.2 <= time.monotonic() - start < 5


def test_attempts_of_several_processes_are_their_own(tmp_path):
    found: list[int] = []
    run = Run(tmp_path / "unet")
    threads = [threading.Thread(target=lambda: found.append(run.open_attempt())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(1, 9)) == run.attempts()


@pytest.mark.parametrize("name", ["a b", "über/..", ""])
def test_a_run_that_cannot_name_a_folder_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="cannot name a folder"):
        Run(f"{tmp_path}/{name} ")


def test_a_phase_that_cannot_name_a_folder_is_refused(run):
    with pytest.raises(ConfigError, match="cannot name a folder"):
        run.write(partial(0, moment=Moment("../val", 1)))


def test_nothing_in_a_partial_is_pickled(run):
    path = run.write(partial(0))
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    assert json.loads(content[8 : 8 + length])["x"]["dtype"] == "I64"
    assert b"pickle" not in content


WRITER = """
import sys
import numpy as np
from pipeline.ddp.files import Moment, Partial, Run
run = Run(sys.argv[1])
value = 0
print("writing", flush=True)
while True:
    value += 1
    arrays = {"x": np.full(100_000, value)}
    run.write(Partial("unet", 1, Moment("val", 1), 0, 1, "abc", {}, arrays))
"""


def test_a_killed_writer_leaves_a_whole_partial_or_none(run):
    moment = Moment("val", 1)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    for share in (0.0, 0.01, 0.05, 0.2):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(run.path)],
            stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip
        assert writer.stdout.readline() == "writing\n"
        time.sleep(share)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        for partial in run.partials(moment, 1):
            assert len(np.unique(partial.arrays["x"])) == 1
    assert run.partials(moment, 1)
