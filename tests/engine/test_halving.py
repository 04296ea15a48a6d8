"""A device without room for a step is given half of it: the same bits, said once, or one error."""

import numpy as np
import pytest

from pipeline.chunk import Chunk
from pipeline.engine import Dask, Streaming, Threads, halving, run_jobs
from pipeline.errors import DeviceMemoryError
from pipeline.inputs import choose_head, detectors_by_id, fit_jobs
from pipeline.store import ArraySplit
from pipeline.testing.fake_device import PLACE, fake_device

N, T, D, K = 600, 4, 16, 5
BLOCKS = 6
DETECTORS = ("mahalanobis", "relative_mahalanobis")
SAID = "of id/train did not fit on the device: chunks are halved to"


class Stream(ArraySplit):
    """Rows that come once, each chunk in memory of its own."""

    def pieces(self, fields, step_rows):
        for block in self.blocks:
            yield block
            for chunk in self.read(block, fields, step_rows):
                rows = {name: array.copy() for name, array in chunk.arrays.items()}
                yield Chunk(chunk.schema, chunk.start, chunk.rows, rows)


def jobs(kind=ArraySplit):
    rng = np.random.default_rng(0)
    labels = np.arange(N) % K
    tokens = rng.normal(size=(N, T, D)).astype("f4") + labels[:, None, None]
    split = kind(tokens, labels, block_rows=N // BLOCKS)
    return fit_jobs(detectors_by_id(DETECTORS), split, choose_head(None, split.schema, split))


def fitted(limit_nbytes=2**62, **named):
    """Return what fits come to in so much memory, what was said, and the most that was held."""
    said = []
    with fake_device(limit_nbytes) as device:
        found = run_jobs(jobs(), Threads(1, place=PLACE, say=said.append, **named))
        return found, said, device.peak_nbytes()


@pytest.fixture(scope="module")
def whole():
    found, said, most = fitted()
    assert not said
    return found, int(0.7 * most)


@pytest.mark.parametrize("durable", [False, True])
def test_steps_are_halved_until_they_fit_and_no_bit_changes(whole, tmp_path, durable):
    expected, limit = whole
    found, said, held = fitted(limit, cache=tmp_path if durable else None)
    assert found == expected
    assert held <= limit
    assert len(said) == 1
    assert SAID in said[0]


def test_what_was_enough_for_a_block_is_where_the_next_begins(whole, monkeypatch):
    shrinks, fold = [], halving.fold

    def noted(*given, shrink):
        shrinks.append(shrink)
        return fold(*given, shrink=shrink)

    monkeypatch.setattr(halving, "fold", noted)
    fitted(whole[1])
    assert shrinks[0] == 0 < shrinks[-1]
    assert shrinks == sorted(shrinks)
    assert len(shrinks) == BLOCKS + shrinks[-1]


def installed(limit_nbytes):
    """Return what gives the process that calls it a fake device."""

    def install():
        from pipeline.testing import fake_device as module

        module.KEPT = module.fake_device(limit_nbytes)
        module.KEPT.__enter__()

    return install


def removed():
    def remove():
        from pipeline.testing import fake_device as module

        module.KEPT.__exit__(None, None, None)

    return remove


def test_workers_halve_and_their_client_says_so_once(whole, dask_client, tmp_path):
    expected, limit = whole
    said, blocks = [], []
    dask = Dask(dask_client, tmp_path, place=PLACE, say=said.append,
                finished=lambda pass_, work, block: blocks.append(block.index))  # fmt: skip
    dask_client.run(installed(limit))
    try:
        assert run_jobs(jobs(), dask) == expected
    finally:
        dask_client.run(removed())
    assert sorted(blocks) == list(range(BLOCKS))
    assert len(said) == 1
    assert SAID in said[0]


@pytest.mark.parametrize("folders", [0, 1])
def test_rows_of_a_stream_are_kept_until_their_block_is_folded(whole, folders):
    expected, limit = whole
    said = []
    execute = Streaming(folders, 10**6, place=PLACE, say=said.append)
    with fake_device(limit) as device:
        assert run_jobs(jobs(Stream), execute) == expected
        assert device.peak_nbytes() <= limit
    assert len(said) == 1
    assert SAID in said[0]


def test_what_does_not_fit_row_by_row_is_named_with_remedies(dask_client, tmp_path):
    remedies = r"block 0 of id/train does not fit.*row by row: .* projected.*--device-memory"
    with pytest.raises(DeviceMemoryError, match=remedies):
        fitted(limit_nbytes=2000)
    dask_client.run(installed(2000))
    try:
        with pytest.raises(DeviceMemoryError, match="does not fit on the device"):
            run_jobs(jobs(), Dask(dask_client, tmp_path, place=PLACE))
    finally:
        dask_client.run(removed())
