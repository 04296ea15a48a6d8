"""Files are imported into a store at a URL as into one in a folder."""

import numpy as np
import pytest
from s3_server import bucket as bucket

import pipeline as ff
from pipeline.errors import CorruptError, ExistsRefusedError
from pipeline.store import Store


def test_an_import_into_a_bucket(folder, bucket):
    rows = np.random.default_rng(1).standard_normal((50, 6)).astype("f4")
    np.savez(folder / "a.npz", features=rows, labels=np.arange(50) % 3)
    url = bucket.store
    done = ff.import_split(
        url, "id/train", folder / "a.npz", classes=3, chunk_nbytes=240, block_nbytes=960
    )
    assert (done.store, done.rows) == (url, 50)
    split = Store.open(url).split("id/train", verify=True)
    found = [chunk["features"].copy() for block in split.blocks
             for chunk in split.read(block, frozenset({"features"}))]  # fmt: skip
    np.testing.assert_array_equal(np.concatenate(found), rows)
    with pytest.raises(ExistsRefusedError):
        ff.import_split(url, "id/train", folder / "a.npz", classes=3)
    again = ff.import_split(url, "id/train", folder / "a.npz", resume=True)
    assert (again.written, again.kept) == (0, done.written)


def test_compressed_rows_of_several_chunks_are_read_in_order(folder, bucket):
    rows = np.random.default_rng(2).standard_normal((2000, 1024)).astype("f4")
    np.savez_compressed(folder / "a.npz", features=rows)
    url = bucket.store
    sizes = {"chunk_nbytes": 40 * 4096, "block_nbytes": 1000 * 4096}
    ff.import_split(url, "id/train", folder / "a.npz", classes=0, **sizes)
    split = Store.open(url).split("id/train", verify=True)
    found = [chunk["features"].copy() for block in split.blocks
             for chunk in split.read(block, frozenset({"features"}))]  # fmt: skip
    np.testing.assert_array_equal(np.concatenate(found), rows)


def test_damaged_rows_do_not_become_a_split_of_a_bucket(folder, bucket):
    rows = np.random.default_rng(3).standard_normal((2000, 1024)).astype("f4")
    np.savez(folder / "a.npz", features=rows)
    content = bytearray((folder / "a.npz").read_bytes())
    content[content.find(rows[1150].tobytes())] ^= 1
    (folder / "a.npz").write_bytes(content)
    url = bucket.store
    sizes = {"chunk_nbytes": 40 * 4096, "block_nbytes": 1000 * 4096}
    with pytest.raises(CorruptError, match=r"a\.npz is damaged"):
        ff.import_split(url, "id/train", folder / "a.npz", classes=0, **sizes)
    assert 1 not in Store.open(url).writer("id/train").committed
