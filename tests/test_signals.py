"""Real signals: to a whole process group, while workers start, and the one that nobody outlives."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import numpy as np
import psutil
import pytest

from pipeline.chunk import ArraySpec
from pipeline.store import Store

TOGETHER = (signal.SIGINT, signal.SIGTERM)

# Two workers; each runs a task until the file that the driver is told to make is there.
DRIVER = """
import os, signal, sys, time
from pathlib import Path
from pipeline.cluster import Resources, open_cluster

def work(go):
    while not go.exists():
        time.sleep(0.02)
    return os.getpid()

def pids(cluster):
    found = cluster.client.run(os.getpid, on_error="ignore").values()
    return {pid for pid in found if isinstance(pid, int)}

def main():
    cache = Path(sys.argv[1])
    heard = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda which, _: heard.append(which))
    with open_cluster(Resources("local", 2, 2**30, ""), cache) as cluster:
        before = pids(cluster)
        tasks = [cluster.client.submit(work, cache / "go", key=f"work{i}") for i in range(2)]
        while not all(cluster.client.processing().values()):
            time.sleep(0.02)
        print("working", flush=True)
        sys.stdin.readline()
        if "replace" in sys.argv:
            os.kill(min(before), signal.SIGKILL)
            while len(now := pids(cluster)) < 2 or now == before:
                time.sleep(0.1)
            os.killpg(0, signal.SIGTERM)
            os.killpg(0, signal.SIGINT)
            before = pids(cluster)
        (cache / "go").touch()
        assert {task.result() for task in tasks} <= before
        assert pids(cluster) == before
    print("heard", *sorted(set(heard)), flush=True)

if __name__ == "__main__":
    main()
"""
STARTING = """
import signal, sys, time, threading
from pathlib import Path
from pipeline.cluster import Resources, open_cluster

def main():
    number = int(sys.argv[2])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    threading.Thread(target=time.sleep, args=(5,), daemon=True).start()  # one that blocks nothing
    print("starting", flush=True)
    try:
        with open_cluster(Resources("local", 2, 2**30, ""), Path(sys.argv[1])):
            print("started", flush=True)
            sys.stdin.readline()
    except KeyboardInterrupt:
        sys.exit(130)

if __name__ == "__main__":
    main()
"""


def usual_signals():
    """Let a child see signals that a background job starts with ignored."""
    for number in TOGETHER:
        signal.signal(number, signal.SIG_DFL)


@pytest.fixture
def start(tmp_path):
    """Start a script as the leader of a new group; at the end all of the group are gone."""
    started = []

    def run(script, *arguments):
        path = tmp_path / "script.py"
        path.write_text(script)
        made = subprocess.Popen(
            [sys.executable, str(path), str(tmp_path), *map(str, arguments)], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True, preexec_fn=usual_signals,
        )  # fmt: skip
        started.append(made)
        return made

    yield run
    for made in started:
        with suppress(ProcessLookupError):
            os.killpg(made.pid, signal.SIGKILL)
        made.communicate()


def wait_until(what, seconds=60.0):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def descendants(process):
    return psutil.Process(process.pid).children(recursive=True)


def test_workers_finish_what_a_signalled_group_was_doing(start):
    driver = start(DRIVER)
    assert driver.stdout.readline() == "working\n", driver.stderr.read()
    children = descendants(driver)
    for number in TOGETHER:
        os.killpg(driver.pid, number)
    time.sleep(0.3)
    out, err = driver.communicate("\n", timeout=60)
    assert (driver.returncode, out) == (0, "heard 2 15\n"), err
    assert not psutil.wait_procs(children, timeout=5)[1]


def test_a_killed_worker_is_replaced_by_one_that_signals_do_not_reach_either(start):
    """Its task is run again, too."""
    driver = start(DRIVER, "replace")
    assert driver.stdout.readline() == "working\n", driver.stderr.read()
    out, err = driver.communicate("\n", timeout=60)
    assert (driver.returncode, out) == (0, "heard 2 15\n"), err


def test_nothing_outlives_a_driver_that_is_killed(start):
    driver = start(DRIVER)
    assert driver.stdout.readline() == "working\n", driver.stderr.read()
    children = descendants(driver)
    assert len(children) >= 2
    driver.kill()
    driver.wait()
    assert not psutil.wait_procs(children, timeout=15)[1]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_while_workers_start_takes_effect_when_they_have(start, number, code):
    driver = start(STARTING, int(number))
    assert driver.stdout.readline() == "starting\n"
    wait_until(lambda: len(descendants(driver)) >= 2)
    children = descendants(driver)
    os.killpg(driver.pid, number)
    out, err = driver.communicate(timeout=60)
    assert (driver.returncode, out) == (code, ""), err
    assert not psutil.wait_procs(children, timeout=5)[1]


BLOCKS, ROWS, D, K = 120, 8, 16, 3
JOB = """\
name: stopped
store: {folder}/feats.zarr
detectors: [{{name: mahalanobis, ridge: 1.0e-3}}]
resources: {{cluster: local, workers: 2, cache: {folder}/cache}}
report: {{directory: {folder}/runs}}
"""


@pytest.fixture
def job(tmp_path):
    rng = np.random.default_rng(0)
    specs = {"features": ArraySpec((D,), "float32", "D"), "labels": ArraySpec((), "int64")}
    row_nbytes = 4 * D + 8
    writer = Store.create(tmp_path / "feats.zarr").create_split(
        "id/train", specs, classes=K, rows=BLOCKS * ROWS, block_nbytes=ROWS * row_nbytes,
        chunk_nbytes=ROWS * 4 * D,
    )  # fmt: skip
    assert len(writer.blocks) == BLOCKS
    for block in writer.blocks:
        labels = rng.integers(0, K, block.rows)
        features = rng.standard_normal((block.rows, D)).astype("f4")
        writer.write(block.index, {"features": features, "labels": labels})
    path = tmp_path / "job.yaml"
    path.write_text(JOB.format(folder=tmp_path))
    return path


@pytest.mark.slow
def test_a_terminated_run_finishes_its_window_and_goes_on_from_there(start, job):
    run = "import sys; from pipeline.__main__ import main\n"
    run += f"if __name__ == '__main__': sys.exit(main(['run', {str(job)!r}]))\n"
    first = start(run)
    partials = job.parent / "cache" / "partials"
    wait_until(lambda: len(list(partials.rglob("*"))) > 20 or first.poll() is not None)
    children = descendants(first)
    os.killpg(first.pid, signal.SIGTERM)
    out, err = first.communicate(timeout=60)
    assert (first.returncode, out) == (143, ""), err
    assert "Traceback" not in err
    assert "stopped as asked" in err
    assert not psutil.wait_procs(children, timeout=5)[1]
    kept = {p: p.stat().st_ino for p in partials.rglob("*") if p.is_file()}
    assert kept
    assert not [p for p in kept if p.name.startswith(".")]
    again = start(run)
    out, err = again.communicate(timeout=120)
    assert again.returncode == 0, err
    assert kept == {p: p.stat().st_ino for p in kept if p.exists()}
