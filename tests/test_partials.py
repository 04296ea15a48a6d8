"""Partials: files that are whole or missing, named by what was computed over which bytes."""

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest

from pipeline import files
from pipeline.errors import FeatfoldError
from pipeline.partials import FAN_IN, Kept, Partials, RowTable, node_names
from pipeline.statistics.class_moments import Moments


def some(seed=0):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 9, 3)
    return Kept((Moments(counts, rng.normal(size=(3, 2)), rng.normal(size=(2, 2))), 4.5), 7, 9)


def test_a_state_comes_back_bit_for_bit_with_its_classes(tmp_path):
    partials, kept = Partials(tmp_path), some()
    partials.put("key", "node", kept)
    found = partials.get("key", "node")
    assert (found.used, found.rows) == (7, 9)
    moments, number = found.state
    assert type(moments) is Moments
    assert number == 4.5
    for ours, theirs in zip(moments, kept.state[0], strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.tobytes() == theirs.tobytes()


def test_nodes_are_those_that_were_put(tmp_path):
    partials = Partials(tmp_path)
    assert partials.nodes("key") == frozenset()
    partials.put("key", "a", some())
    partials.put("key", "b", some())
    partials.put("other", "c", some())
    assert partials.nodes("key") == {"a", "b"}
    partials.drop("key", ["a", "missing"])
    assert partials.nodes("key") == {"b"}
    assert not partials.has("key", "a")


@pytest.mark.parametrize("cut", [1, 100, 400])
def test_a_torn_file_is_named_and_removed(tmp_path, cut):
    path = Partials(tmp_path).put("key", "node", some())
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(FeatfoldError, match="was damaged"):
        Partials(tmp_path).get("key", "node")
    assert not path.exists()


def test_a_flipped_bit_is_found(tmp_path):
    path = Partials(tmp_path).put("key", "node", some())
    whole = bytearray(path.read_bytes())
    at = whole.index(some().state[0].scatter.tobytes()[:8])
    whole[at] ^= 1
    path.write_bytes(whole)
    with pytest.raises(FeatfoldError, match="was damaged"):
        Partials(tmp_path).get("key", "node")


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 64, 65, 513])
def test_names_group_neighbours_by_eight(count):
    leaves = [f"{i:032x}" for i in range(count)]
    levels = node_names(leaves)
    assert levels[0] == leaves
    assert len(levels[-1]) == 1
    for below, level in itertools.pairwise(levels):
        assert len(level) == -(-len(below) // FAN_IN)
    changed = node_names([*leaves[:-1], "f" * 32])
    assert changed[-1] != levels[-1]
    if count > FAN_IN:  # a change at the end leaves the first node as it is
        assert changed[1][0] == levels[1][0]


def test_an_only_child_is_its_own_parent():
    levels = node_names([f"{i:032x}" for i in range(9)])
    assert levels[1][1] == levels[0][8]


def test_trim_removes_what_was_used_longest_ago(tmp_path):
    partials = Partials(tmp_path)
    for number, name in enumerate("abc"):
        os.utime(partials.put("key", name, some()), (number, number))
    partials.get("key", "a")  # used now
    size = partials.nbytes() // 3
    assert partials.trim(2 * size) == size
    assert partials.nodes("key") == {"a", "c"}


def test_a_state_class_is_never_imported(tmp_path):
    path = Partials(tmp_path).put("key", "node", some())
    script = (
        "import sys; from pathlib import Path; from pipeline import partials\n"
        f"try: partials.read(Path({str(path)!r}))\n"
        "except partials.FeatfoldError as error: print(error)\n"
        "print('pipeline.statistics.class_moments' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "is not a state class that is known here" in done.stdout, done.stderr
    assert done.stdout.endswith("False\n")


def test_a_table_of_rows_reads_its_files_in_order(tmp_path):
    partials = Partials(tmp_path)
    parts = [np.arange(3.0), np.arange(3.0, 5.0)]
    paths = [
        partials.put("key", str(n), Kept(part, len(part), len(part)))
        for n, part in enumerate(parts)
    ]
    assert RowTable(paths).array().tolist() == [0, 1, 2, 3, 4]
    RowTable([*paths, np.array([9.0])]).save(tmp_path / "all.npy")
    assert np.load(tmp_path / "all.npy").tolist() == [0, 1, 2, 3, 4, 9]


def test_sweeping_leaves_the_files_of_living_writers(tmp_path):
    script = (
        "import os, sys; from pathlib import Path; from pipeline import files\n"
        "def write(file):\n"
        "    file.write(b'half'); file.flush()\n"
        "    if sys.argv[2] == 'die': os.kill(os.getpid(), 9)\n"
        "    print('writing', flush=True); sys.stdin.read()\n"
        "files.write_whole(Path(sys.argv[1]) / 'deep' / 'file', write)"
    )
    run = [sys.executable, "-c", script, str(tmp_path)]
    assert subprocess.run([*run, "die"]).returncode == -9
    with subprocess.Popen([*run, "wait"], stdin=-1, stdout=-1) as living:
        assert living.stdout.readline() == b"writing\n"
        assert len(list((tmp_path / "deep").iterdir())) == 2
        files.sweep(tmp_path)
        assert len(list((tmp_path / "deep").iterdir())) == 1
        living.stdin.close()
        living.wait()
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["file"]
