"""The memory limit: of real control groups, and of every way in which they are mounted."""

import subprocess
import sys

import psutil
import pytest
from cgroups import memory_cgroup

from pipeline.machine import memory_limit_nbytes

RAM = psutil.virtual_memory().total
LIMIT = 300 * 2**20
V1_MOUNT = "35 32 0:32 {root} {top} rw,nosuid shared:9 - cgroup cgroup rw,memory"
V2_MOUNT = "41 31 0:38 {root} {top} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
OTHERS = (
    "33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n22 1 8:1 / / rw - ext4 /dev/x rw"
)


def in_group(limit_nbytes, code):
    with memory_cgroup(limit_nbytes) as enter:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, preexec_fn=enter
        )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_the_limit_of_a_real_group_is_seen():
    code = "from pipeline.machine import memory_limit_nbytes; print(memory_limit_nbytes())"
    assert in_group(LIMIT, code) == LIMIT


def test_automatic_memory_is_a_share_of_the_group():
    code = """
from pipeline.cluster import MEMORY_SHARE, settle
print(settle("local", workers=3).allowed_nbytes)
"""
    assert in_group(LIMIT, code) == int(0.8 * LIMIT / 3)


@pytest.fixture
def process(tmp_path):
    """Write what the kernel says about a process and its groups; return its directory."""

    def make(version, own, limits, root="/", mounted=True):
        top = tmp_path / "groups with space"
        for group, text in limits.items():
            name = "memory.limit_in_bytes" if version == 1 else "memory.max"
            (top / group).mkdir(parents=True, exist_ok=True)
            (top / group / name).write_text(text)
        mount = (V1_MOUNT if version == 1 else V2_MOUNT).format(
            root=root, top=str(top).replace(" ", "\\040")
        )
        line = f"4:memory:{own}\n0::/elsewhere" if version == 1 else f"1:cpu:/x\n0::{own}"
        (tmp_path / "cgroup").write_text(f"8:pids:/\n{line}\n")
        (tmp_path / "mountinfo").write_text(f"{OTHERS}\n{mount if mounted else ''}\n")
        return tmp_path

    return make


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("own", "limits", "root", "expected"),
    [
        ("/a/b", {"a/b": "1000", "a": "2000"}, "/", 1000),
        ("/a/b", {"a/b": "2000", "a": "1000"}, "/", 1000),  # set on the parent alone
        ("/a/b", {"a/b": "2000", "": "500"}, "/", 500),
        ("/a/b", {"a/b": "2000", "other": "500"}, "/", 2000),
        ("/docker/x", {"": "700"}, "/docker/x", 700),  # a container sees its own group as the top
        ("/docker/x/y", {"": "700", "y": "600"}, "/docker/x", 600),
        ("/../x", {"": "700"}, "/", 700),  # outside the namespace
        ("/gone", {"": "700"}, "/", 700),
        ("/", {"": "0"}, "/", RAM),
        ("/", {"": "-1"}, "/", RAM),
        ("/", {"": "words"}, "/", RAM),
        ("/", {}, "/", RAM),
        ("/", {"": str(RAM * 4)}, "/", RAM),
    ],
)
def test_the_least_limit_on_the_way_up_counts(process, version, own, limits, root, expected):
    assert memory_limit_nbytes(process(version, own, limits, root)) == expected


def test_unlimited_groups_leave_the_ram(process):
    assert memory_limit_nbytes(process(1, "/", {"": "9223372036854771712"})) == RAM
    assert memory_limit_nbytes(process(2, "/a", {"a": "max", "": "max"})) == RAM


def test_the_pace_limit_of_version_2_counts(process, tmp_path):
    made = process(2, "/a", {"a": "5000"})
    (tmp_path / "groups with space" / "a" / "memory.high").write_text("4000")
    assert memory_limit_nbytes(made) == 4000


def test_groups_that_are_not_mounted_and_no_groups_at_all_leave_the_ram(process, tmp_path):
    assert memory_limit_nbytes(process(1, "/a", {"a": "5000"}, mounted=False)) == RAM
    assert memory_limit_nbytes(tmp_path / "nothing") == RAM
