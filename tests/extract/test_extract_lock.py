"""A split whose lock was lost while it was filled: nothing more is committed to it."""

import errno
import fcntl
import time

import numpy as np
import pytest
import torch

from pipeline import locks
from pipeline.errors import LockedError
from pipeline.extract.filling import Share, extract_split
from pipeline.extract.sources import Batch
from pipeline.store import Store

ROWS = 60


class Ones:
    """Rows by range."""

    name = "ones"

    def __len__(self):
        return ROWS

    def read(self, start, stop):
        ids = np.arange(start, stop)
        return Batch(np.ones((len(ids), 3), "float32"), ids % 3, ids)


class Stream:
    """The same rows in their own order."""

    name = "stream"

    def batches(self, rows):
        for start in range(0, ROWS, rows):
            yield Ones().read(start, start + rows)


@pytest.mark.parametrize(
    ("rows", "options"),
    [(Ones(), {}), (Stream(), {}), (Ones(), {"share": Share(workers=2)})],
    ids=["rows", "stream", "workers"],
)
def test_a_lost_lock_ends_an_extraction_at_the_next_block(tmp_path, monkeypatch, rows, options):
    def refused(*_):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", refused)  # as shared file systems do: leases it is
    monkeypatch.setattr(locks, "LEASE_SECONDS", 0.3)
    store = Store.create(tmp_path / "store")
    told = []

    def taken_over(done, _):
        told.append(done)
        if done >= 20 and (lease := tmp_path / ".store.id+train.filling.lock.lease").exists():
            lease.unlink()
            while not any(held.lost for held in seen):
                time.sleep(0.02)

    seen, make = [], locks.Held
    monkeypatch.setattr(locks, "Held", lambda *given: seen.append(make(*given)) or seen[-1])
    with pytest.raises(LockedError, match="finished work is kept"):
        extract_split(
            store, "id/train", torch.nn.Identity(), rows, classes=3, batch_rows=5,
            block_nbytes=280, chunk_nbytes=120, progress=taken_over, **options,
        )  # fmt: skip
    assert 20 <= max(told) < ROWS
    assert sum(block.rows for block in store.writer("id/train").blocks
               if block.index in store.writer("id/train").committed) <= max(told) + 20  # fmt: skip
