"""Unfinished files and folders: swept once their process is gone, and never before."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from pipeline import files

MAKE = """
import sys
from pathlib import Path
from pipeline import files
made = Path(sys.argv[1]) / files.unfinished("thing")
if sys.argv[2] == "folder":
    made.mkdir()
    (made / "inside").write_text("half")
else:
    made.write_text("half")
print(made, flush=True)
sys.stdin.read()
"""


@pytest.fixture(params=["file", "folder"])
def maker(request, tmp_path):
    """A process that has left something unfinished, and waits for its end."""
    (tmp_path / "deep").mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", MAKE, str(tmp_path / "deep"), request.param],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        process.made = type(tmp_path)(process.stdout.readline().strip())
        assert process.made.exists()
        yield process
        process.kill()


def test_what_a_process_has_left_goes_when_it_is_gone(maker, tmp_path):
    files.sweep(tmp_path)
    assert maker.made.exists()
    maker.kill()
    while psutil.Process(maker.pid).status() != psutil.STATUS_ZOMBIE:  # not reaped yet
        time.sleep(0.01)
    files.sweep(tmp_path)
    assert not maker.made.exists()
    assert (tmp_path / "deep").is_dir()


def test_a_process_that_got_the_number_of_a_dead_one_keeps_nothing(maker, tmp_path):
    long_ago = time.time() - 3600
    os.utime(maker.made, (long_ago, long_ago))
    files.sweep(tmp_path)
    assert not maker.made.exists()


def test_what_another_machine_has_left_goes_after_a_day(tmp_path):
    for name, age_seconds in (("young", 3600), ("old", 90_000)):
        stray = tmp_path / f".{name}.elsewhere-1-0a1b2c3d.partial"
        stray.touch()
        os.utime(stray, (time.time() - age_seconds,) * 2)
    finished = tmp_path / "thing.partial"
    finished.touch()
    os.utime(finished, (0, 0))
    files.sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".young.elsewhere-1-0a1b2c3d.partial", "thing.partial",
    ]  # fmt: skip
