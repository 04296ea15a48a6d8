"""Files are imported into a store at a URL as into one in a folder."""

import numpy as np
import pytest
from s3_server import bucket as bucket

import pipeline as ff
from pipeline.errors import ExistsRefusedError
from pipeline.store import Store


def test_an_import_into_a_bucket(folder, bucket):
    rows = np.random.default_rng(1).standard_normal((50, 6)).astype("f4")
    np.savez(folder / "a.npz", features=rows, labels=np.arange(50) % 3)
    url = f"{bucket}/import.zarr"
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
