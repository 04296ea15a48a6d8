"""Locks and leases between real processes, some of which are killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline import locks
from pipeline.errors import FeatfoldError, LockedError

KINDS = ["flock", "lease"]

# What a process of its own does first; a system that refuses flock is one where the call fails.
PROLOGUE = """
import errno, fcntl, os, sys, time
from pathlib import Path
from pipeline import locks
from pipeline.errors import LockedError

kind, path = sys.argv[1], Path(sys.argv[2])

def refused(handle, how):
    raise OSError(errno.ENOLCK, "No locks available")

if kind == "lease":
    fcntl.flock = refused
    locks.LEASE_SECONDS, locks.MARGIN_SECONDS = 1.2, 0.3
"""
HOLDER = """
with locks.hold(path, "the thing"):
    print("held", flush=True)
    sys.stdin.read()
"""
ONCE = """
try:
    with locks.hold(path, "the thing", timeout_seconds=float(sys.argv[3])):
        print("held")
except LockedError as error:
    print(error)
    sys.exit(error.exit_code)
"""
# Enters as often as it can; whoever meets another inside says so.
CONTENDER = """
end = time.monotonic() + 1.5
entered = 0
while time.monotonic() < end:
    try:
        with locks.hold(path, "the thing", timeout_seconds=0.3):
            os.close(os.open(path.with_name("inside"), os.O_CREAT | os.O_EXCL))
            time.sleep(0.002)
            os.unlink(path.with_name("inside"))
            entered += 1
    except LockedError:
        pass
print(entered)
"""
# A holder that sleeps through its lease, as a suspended machine does.
SLEEPER = """
with locks.hold(path, "the thing") as held:
    print("held", flush=True)
    sys.stdin.readline()
    try:
        time.sleep(0.6)
        held.check()
        print("mine", flush=True)
    except LockedError as error:
        print("lost", flush=True)
"""


@pytest.fixture
def process():
    """Start a script; whatever still runs at the end is killed."""
    started = []

    def start(script, *arguments):
        made = subprocess.Popen(
            [sys.executable, "-c", PROLOGUE + script, *map(str, arguments)], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        started.append(made)
        return made

    yield start
    for made in started:
        made.kill()
        made.communicate()


def once(process, kind, path, timeout_seconds=0.0):
    made = process(ONCE, kind, path, timeout_seconds)
    out, err = made.communicate(timeout=60)
    assert not err
    return made.returncode, out


@pytest.mark.parametrize("kind", KINDS)
def test_the_second_is_told_who_holds_it_and_the_third_gets_it(process, tmp_path, kind):
    path = tmp_path / "thing.lock"
    holder = process(HOLDER, kind, path)
    assert holder.stdout.readline() == "held\n"
    code, said = once(process, kind, path)
    assert code == 75
    assert f"the thing: held by process {holder.pid} on {os.uname().nodename} since 20" in said
    assert "try again when it has ended" in said
    holder.communicate("", timeout=60)
    assert holder.returncode == 0
    assert once(process, kind, path) == (0, "held\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_a_holder_that_is_killed_blocks_nobody(process, tmp_path, kind):
    path = tmp_path / "thing.lock"
    for _ in range(2):
        holder = process(HOLDER, kind, path)
        assert holder.stdout.readline() == "held\n"
        holder.kill()
        holder.wait()
        assert list(tmp_path.iterdir())  # what it left behind
        if kind == "lease":  # it may live on another machine: nobody can tell before it runs out
            assert once(process, kind, path)[0] == 75
        assert once(process, kind, path, 10) == (0, "held\n")
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", KINDS)
def test_of_eight_never_two_are_inside(process, tmp_path, kind):
    path = tmp_path / "thing.lock"
    contenders = [process(CONTENDER, kind, path) for _ in range(8)]
    ended = [made.communicate(timeout=60) for made in contenders]
    assert not [err for _, err in ended if err]
    assert sum(int(out) for out, _ in ended) >= 8
    assert not list(tmp_path.iterdir())


def test_of_eight_takers_of_a_stale_lease_one_wins(process, tmp_path):
    path = tmp_path / "thing.lock"
    holder = process(HOLDER, "lease", path)
    assert holder.stdout.readline() == "held\n"
    holder.kill()
    holder.wait()
    time.sleep(1.6)
    takers = [process(HOLDER, "lease", path) for _ in range(8)]
    said = sorted(made.stdout.readline() for made in takers)  # nobody leaves before all have tried
    assert said == [*[""] * 7, "held\n"]
    for made in takers:
        assert ("LockedError" in made.communicate("", timeout=60)[1]) == bool(made.returncode)
    assert not list(tmp_path.iterdir())


def test_a_lease_outlives_its_length_while_its_holder_lives(process, tmp_path):
    path = tmp_path / "thing.lock"
    holder = process(HOLDER, "lease", path)
    assert holder.stdout.readline() == "held\n"
    assert once(process, "lease", path, 3)[0] == 75


def test_a_holder_that_slept_through_its_lease_stops(process, tmp_path):
    path = tmp_path / "thing.lock"
    sleeper = process(SLEEPER, "lease", path)
    assert sleeper.stdout.readline() == "held\n"
    os.kill(sleeper.pid, signal.SIGSTOP)
    taker = process(HOLDER.replace('"the thing"', '"the thing", 10'), "lease", path)
    assert taker.stdout.readline() == "held\n"
    os.kill(sleeper.pid, signal.SIGCONT)
    out, err = sleeper.communicate("\n", timeout=60)
    assert out == "lost\n"
    assert "ran out before it could be renewed" in err
    assert sleeper.returncode != 0
    assert once(process, "lease", path)[0] == 75  # the taker's lease is untouched
    taker.communicate("", timeout=60)
    assert taker.returncode == 0


def test_a_taker_that_was_killed_on_the_way_blocks_nobody(process, tmp_path):
    taking = tmp_path / "thing.lock.lease.taking"
    taking.touch()
    os.utime(taking, (1, 1))
    assert once(process, "lease", tmp_path / "thing.lock", 5) == (0, "held\n")
    assert not list(tmp_path.iterdir())


def test_within_one_process_a_lock_is_held_once(tmp_path):
    path = tmp_path / "thing.lock"
    with locks.hold(path, "the thing") as held:
        held.check()
        assert json.loads(path.read_text())["pid"] == os.getpid()
        with pytest.raises(LockedError, match=rf"process {os.getpid()}.*\(waited 0.3 s\)"):
            locks.hold(path, "the thing", 0.3).__enter__()
    assert not path.exists()


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '"x"'])
def test_a_lock_that_says_nothing_useful_still_holds(process, tmp_path, text):
    path = tmp_path / "thing.lock"
    with locks.hold(path, "the thing"):
        path.write_text(text)
        code, said = once(process, "flock", path)
    assert (code, "held by another process" in said) == (75, True)


def test_a_place_where_no_file_can_be_made_is_named(tmp_path):
    (tmp_path / "thing.lock").mkdir()
    with pytest.raises(FeatfoldError, match="cannot be written to, no lock file"):
        locks.hold(tmp_path / "thing.lock", "the thing").__enter__()


def refuse_flock(monkeypatch):
    def refused(handle, how):
        raise OSError(locks.errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks.fcntl, "flock", refused)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("first", "second", "together"),
    [
        (None, None, False),
        (None, (1, 2), False),
        ((1, 2), None, False),
        ((1, 2), (1, 2), False),
        ((1, 2), (2, 2), True),
        ((1, 2), (1, 3), True),
    ],
)
def test_parts_run_side_by_side_but_not_with_a_whole_run(
    monkeypatch, tmp_path, kind, first, second, together
):
    if kind == "lease":
        refuse_flock(monkeypatch)
    family = tmp_path / "runs" / "vit"
    with locks.hold_family(family, first) as held:
        if together:
            with locks.hold_family(family, second):
                pass
        else:
            with pytest.raises(LockedError, match=f"held by process {os.getpid()} on"):
                locks.hold_family(family, second).__enter__()
        held.check()
    with locks.hold_family(family, second):
        pass
    assert not list(family.iterdir())


FAMILY = """
directory, part = path, None if sys.argv[3] == "-" else (int(sys.argv[3]), 4)
end = time.monotonic() + 1.5
mine = directory / f"inside-{sys.argv[3]}"
entered = 0
while time.monotonic() < end:
    try:
        with locks.hold_family(directory, part):
            mine.touch()
            others = {p.name for p in directory.glob("inside-*")} - {mine.name}
            bad = others if part is None else others & {"inside--"}
            assert not bad, bad
            time.sleep(0.002)
            mine.unlink()
            entered += 1
    except LockedError:
        time.sleep(0.01)
print(entered)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_whole_runs_and_parts_that_contend_never_mix(process, tmp_path, kind):
    runs = [process(FAMILY, kind, tmp_path, part) for part in ("-", 1, 2, 3, 4)]
    ended = [made.communicate(timeout=60) for made in runs]
    assert not [err for _, err in ended if err]
    assert sum(int(out) for out, _ in ended) >= 1
    assert not list(Path(tmp_path).iterdir())
