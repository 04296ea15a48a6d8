"""Killed while blocks are in flight, and run again: the same bits, nothing folded twice."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest
from durable_store import make

from pipeline import files

SCRIPT = Path(__file__).with_name("fit_in_process.py")
BLOCKS = 64


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("kill") / "feats.zarr"
    make(path, BLOCKS)
    return path


@pytest.fixture(scope="module")
def start():
    """Start a fit; whatever happens to it, its group is killed and its pipes closed at the end."""
    with ExitStack() as started:

        def run(path, cache, kind):
            process = started.enter_context(
                subprocess.Popen(
                    [sys.executable, str(SCRIPT), str(path), str(cache), kind],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                    env={**os.environ, "OMP_NUM_THREADS": "1"},
                )
            )
            started.callback(kill, process)
            return process

        yield run


def kill(process):
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def finish(process):
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    lines = [line.split() for line in out.splitlines()]
    folded = [tuple(line[1:]) for line in lines if line[0] == "folded"]
    (digest,) = (line[1] for line in lines if line[0] == "digest")
    return digest, folded


def wait_for_folds(process, count):
    """Read the output until ``count`` blocks were folded; return them.

    There are far more blocks than all kills together wait for, so no run ends before its kill.
    """
    folded = []
    while len(folded) < count:
        line = process.stdout.readline()
        assert line, f"ended after {folded}: {process.wait()}, {process.stderr.read()}"
        if line.startswith("folded"):
            folded.append(tuple(line.split()[1:]))
    return folded


@pytest.fixture(scope="module")
def undisturbed(path, start, tmp_path_factory):
    digest, folded = finish(start(path, tmp_path_factory.mktemp("whole"), "threads"))
    assert len(folded) == 2 * BLOCKS
    return digest


def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bits(
    path, start, undisturbed, tmp_path
):
    """Three times, at moments drawn anew; the last run ends."""
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    done = set()
    for _ in range(3):
        process = start(path, tmp_path, "threads")
        family = psutil.Process(process.pid)
        known = set(done)
        folded = wait_for_folds(process, rng.randint(1, 8))
        time.sleep(rng.random() * 0.02)
        children = family.children(recursive=True)
        assert process.poll() is None, "it ended before it was killed"
        kill(process)
        process.wait()
        _, alive = psutil.wait_procs(children, timeout=20)
        assert not alive, "orphans"
        assert not known & set(folded), "a block was folded twice"
        done |= set(folded)
    digest, folded = finish(start(path, tmp_path, "threads"))
    assert digest == undisturbed
    assert not done & set(folded)
    files.sweep(tmp_path)
    assert not [p for p in tmp_path.rglob("*") if ".partial" in p.name]
