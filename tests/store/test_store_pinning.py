"""A split that was opened keeps its rows while the store grows, here and in other processes."""

import pickle
import subprocess
import sys

import numpy as np

from pipeline.store import Store

APPEND = """
import sys
sys.path.insert(0, sys.argv[2])
from conftest import Sample
from pipeline.store import Store
print(Store.open(sys.argv[1]).writer("id/train").append(Sample.rows(20, 31)).index)
"""
COUNT = """
import pickle, sys
split = pickle.loads(sys.stdin.buffer.read())
rows = sum(c.rows for b in split.blocks for c in split.read(b, frozenset({"labels"})))
print(rows, split.schema.rows, len(split.blocks))
"""


def append_elsewhere(path, folder):
    done = subprocess.run(
        [sys.executable, "-c", APPEND, str(path), str(folder)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return int(done.stdout)


def test_rows_that_arrive_during_a_read_belong_to_the_next(path, sample, request):
    store = sample.filled(path)
    split = store.split("id/train")
    identities = [split.identity(block, frozenset({"labels"})) for block in split.blocks]
    chunks = split.read(split.blocks[2], frozenset({"labels"}))
    seen = [next(chunks)["labels"].copy()]
    assert append_elsewhere(path, request.path.parent) == 3
    seen += [chunk["labels"].copy() for chunk in chunks]
    np.testing.assert_array_equal(np.concatenate(seen), sample.rows(16, 20)["labels"])
    np.testing.assert_array_equal(sample.read(split)["labels"], sample.rows(0, 20)["labels"])
    assert split.schema.rows == 20
    grown = store.split("id/train")
    assert [len(grown.blocks), grown.schema.rows] == [4, 31]
    assert identities == [grown.identity(b, frozenset({"labels"})) for b in grown.blocks[:3]]
    np.testing.assert_array_equal(sample.read(grown)["labels"], sample.rows(0, 31)["labels"])


def test_another_process_reads_what_was_pinned_before_the_store_grew(path, sample, request):
    packed = pickle.dumps(sample.filled(path).split("id/train"))
    append_elsewhere(path, request.path.parent)
    done = subprocess.run(
        [sys.executable, "-c", COUNT], input=packed, capture_output=True, check=True
    )
    assert done.stdout.split() == [b"20", b"20", b"3"]
    assert len(packed) < 300


def test_identity_names_the_bytes_and_not_the_place(tmp_path, sample):
    fields = frozenset({"labels", "logits"})
    names = []
    for folder in ("a", "b"):
        split = sample.filled(tmp_path / folder).split("id/train")
        names.append([split.identity(block, fields) for block in split.blocks])
    assert names[0] == names[1]
    assert len(set(names[0])) == 3
    split = Store.open(tmp_path / "a").split("id/train")
    first = split.blocks[0]
    assert split.identity(first, frozenset({"labels"})) != split.identity(first, fields)
    other = sample.filled(tmp_path / "a", "id/test").split("id/test")
    assert other.identity(first, fields) != split.identity(first, fields)
    changed = {**sample.rows(0, 8), "labels": np.zeros(8, int)}
    Store.open(tmp_path / "a").writer("id/train").write(0, changed, overwrite=True)
    again = Store.open(tmp_path / "a").split("id/train")
    assert again.identity(first, fields) != split.identity(first, fields)
    features = frozenset({"features"})
    assert again.identity(first, features) == split.identity(first, features)
