"""Schedulers and workers of dask as processes of their own, as people start them."""

import os
import subprocess
import sys
import time


def dask(*arguments, cwd=None, settings=()):
    """Start a process that finds the modules of the tests."""
    paths = os.pathsep.join([os.getcwd(), *sys.path])
    return subprocess.Popen(
        [sys.executable, "-m", "dask", *map(str, arguments)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": paths} | dict(settings),
        cwd=cwd,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def stop(process):
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def scheduler_with(path, settings=()):
    """Start a scheduler that nobody has joined, and wait for its file."""
    scheduler = dask(
        "scheduler", "--scheduler-file", path, "--host", "127.0.0.1", "--port", 0,
        "--dashboard-address", "127.0.0.1:0", settings=settings,
    )  # fmt: skip
    end = time.monotonic() + 60
    while not (path.exists() and path.read_text().strip().endswith("}")):
        assert time.monotonic() < end
        time.sleep(0.05)
    return scheduler
