"""Rows in memory on worker processes: files of the cache that outlive neither run nor Ctrl-C.

Those of a run that was killed go when the next one starts.
"""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

ROWS = ["0.id+train.features", "0.id+train.labels"]
SCRIPT = Path(__file__).with_name("fit_memory_in_process.py")


@pytest.fixture
def start(tmp_path):
    """Start a fit with its cache and log in ``tmp_path``; its session is killed at the end."""
    started = []

    def run(cluster="local"):
        process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(tmp_path / "cache"), str(tmp_path / "log"), cluster],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )  # fmt: skip
        started.append(process)
        return process

    yield run
    for process in started:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def wait_for_folds(process, log, count=6):
    log.unlink(missing_ok=True)
    deadline = time.monotonic() + 60
    while not log.exists() or log.read_text().count("fold") < count:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def rows_in(cache):
    """Return the files that hold rows of the arrays in memory."""
    return sorted(path.name for path in cache.glob(".rows.*.partial/*.id+train.*"))


def finish(process, code):
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, err
    assert "Traceback" not in err
    return out


@pytest.mark.slow
def test_rows_go_with_the_run_and_those_of_a_killed_one_with_the_next(start, tmp_path):
    cache, log = tmp_path / "cache", tmp_path / "log"
    expected = finish(start("threads"), 0)
    assert rows_in(cache) == []
    interrupted = start()
    wait_for_folds(interrupted, log)
    assert rows_in(cache) == ROWS
    os.killpg(interrupted.pid, signal.SIGINT)
    finish(interrupted, 130)
    assert rows_in(cache) == []
    killed = start()
    wait_for_folds(killed, log)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert rows_in(cache) == ROWS
    again = start()
    wait_for_folds(again, log)
    assert rows_in(cache) == ROWS  # its own alone
    assert finish(again, 0) == expected
    left = {path.relative_to(cache).parts[0] for path in cache.rglob("*") if path.is_file()}
    assert left <= {"constants"}
