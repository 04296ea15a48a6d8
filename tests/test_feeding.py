"""Chunks on their way to a device: each byte once, a few chunks at a time, none overwritten."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pipeline import arrays, detectors, feeding
from pipeline.arrays import HOST, Place, devices
from pipeline.chunk import Arena, Chunk
from pipeline.errors import DataError
from pipeline.fold import Partial, fold
from pipeline.procedure import Rows
from pipeline.statistics import ClassMeans, ClassMoments, ConfusionMatrix, Sums
from pipeline.store import ArraySplit
from pipeline.testing import drive, recipes
from pipeline.testing.compare import assert_same
from pipeline.testing.fake_device import PLACE, FakeDevice, fake_device
from pipeline.testing.recipes import CutSplit, Data
from pipeline.views import Logits

STATISTICS = (ClassMoments(), ClassMeans(), ConfusionMatrix(), Sums())
ROWS = 60
SECONDS = 20
"""How long a test waits for what happens at once."""


def cut(data: Data, size: int) -> CutSplit:
    """Return rows as one block of chunks of ``size`` rows."""
    return data.cut([[min(size, data.rows - start) for start in range(0, data.rows, size)]])


def folded(split: Any, place: Place = PLACE, **options: Any) -> Partial:
    return fold(STATISTICS, split, split.blocks[0], [Rows(Logits())], place, **options)


def assert_equal(ours: Partial, theirs: Partial) -> None:
    assert ours.used == theirs.used
    assert_same(ours.states, theirs.states)
    assert_same(ours.outputs, theirs.outputs)


@pytest.fixture
def device() -> Iterator[FakeDevice]:
    with fake_device() as fake:
        yield fake


@pytest.mark.parametrize("size", [1, 7, ROWS - 1, ROWS])
@pytest.mark.parametrize("library", ["array_api_strict", "torch"])
def test_the_bits_are_those_of_chunks_that_are_put_there(size: int, library: str) -> None:
    data = recipes.labelled(ROWS)
    split, place = cut(data, size), {"torch": Place("torch")}.get(library, PLACE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices, "of", lambda place: None)
        plain = folded(split, place)
    if library == "torch":
        assert_equal(folded(split, place), plain)
        return
    with fake_device() as device:
        ours = folded(split)
    assert_equal(ours, plain)
    nbytes = sum(rows.nbytes for name, rows in data.arrays.items() if name != "scores")
    assert device.staged_nbytes == ours.read_nbytes == nbytes


@pytest.mark.parametrize("sizes", [[], [0], [0, 5, 0, 20, 3, 0]])
def test_chunks_may_be_empty_and_grow(sizes: list[int]) -> None:
    split = recipes.labelled(sum(sizes)).cut([sizes])
    with fake_device():
        ours = folded(split)
    assert_equal(ours, folded(split, HOST)) if not sum(sizes) else None
    assert ours.rows == sum(sizes)


def test_each_row_arrives_as_it_was_read(device: FakeDevice) -> None:
    data = recipes.labelled(ROWS)
    for chunk in feeding.fed(
        cut(data, 7).read(cut(data, 7).blocks[0], frozenset(data.arrays)), PLACE, Arena()
    ):
        for name, rows in data.arrays.items():
            found = chunk[name]
            assert arrays.device_of(found) == arrays.device_of(chunk.any_array)
            np.testing.assert_array_equal(
                arrays.to_host(found), rows[chunk.start : chunk.stop], strict=True
            )
        del chunk


@pytest.mark.parametrize("place", [PLACE, Place("torch")])
def test_half_precision_crosses_the_bus_as_it_is(place: Place) -> None:
    data = recipes.labelled(ROWS)
    half = data.with_arrays(features=data.arrays["features"].astype(np.float16))
    with fake_device() as device:
        ours = folded(cut(half, 7), place)
    if place == PLACE:
        features = half.arrays["features"].nbytes
        others = sum(half.arrays[name].nbytes for name in ("labels", "logits"))
        assert device.staged_nbytes == features + others
    wide = data.with_arrays(features=half.arrays["features"].astype(np.float32))
    # Grains of half precision are as long as those of float32 here.
    np.testing.assert_allclose(
        np.asarray(ours.states[1].total), folded(cut(wide, 7), HOST).states[1].total, rtol=1e-12
    )


def test_bfloat16_is_widened_on_the_host(device: FakeDevice) -> None:
    torch = pytest.importorskip("torch")
    data = recipes.labelled(ROWS)
    narrow = torch.asarray(data.arrays["features"]).to(torch.bfloat16)
    ours, theirs = (
        folded(ArraySplit(arrays={**data.arrays, "features": x}, classes=data.classes))
        for x in (narrow, narrow.float().numpy())
    )
    assert_equal(ours, theirs)


def test_several_threads_write_to_page_locked_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    split = cut(recipes.labelled(ROWS), 7)
    with fake_device():
        plain = folded(split)
    monkeypatch.setattr(feeding, "THREAD_NBYTES", 500)
    with fake_device():
        assert_equal(folded(split), plain)
    assert_no_thread()


def test_devices_do_not_differ() -> None:
    split = cut(recipes.labelled(ROWS), 7)
    assert_equal(folded(split, Place("array_api_strict", "device2")), folded(split))


# The whole is never there (story 1)


def tokens(rows: int) -> ArraySplit:
    rng = np.random.default_rng(0)
    features = rng.standard_normal((rows, 49, 64), np.float32)
    return ArraySplit(
        features, rng.integers(0, 10, rows), classes=10, block_rows=rows, chunk_rows=64
    )


def test_the_device_never_holds_more_than_a_few_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    for grain in ("GRAIN_NBYTES", "TOKENS_GRAIN_NBYTES"):
        monkeypatch.setattr(f"pipeline.fold.{grain}", 2**16)
    peaks = []
    for rows in (512, 2048):
        split = tokens(rows)
        whole = sum(x.nbytes for x in split.arrays.values())
        with fake_device() as device:
            partial = fold((ClassMoments(), ClassMeans()), split, split.blocks[0], place=PLACE)
        assert device.staged_nbytes == partial.read_nbytes == whole
        assert device.fetched_nbytes < 2 * arrays.nbytes(partial.states)
        assert device.put_nbytes < 2 * arrays.nbytes(partial.states)
        peaks.append(device.peak_nbytes())
    assert peaks[0] == pytest.approx(peaks[1], rel=0.01)
    assert peaks[1] < whole / 5


# Copies and computing at once


def held(device: FakeDevice, data: Data, size: int, **options: Any) -> Any:
    split = cut(data, size)
    return feeding.fed(
        split.read(split.blocks[0], frozenset({"features"})), PLACE, Arena(), **options
    )


def test_chunks_are_read_and_copied_while_one_is_computed_with(device: FakeDevice) -> None:
    with_chunks = held(device, recipes.labelled(ROWS), 7)
    next(with_chunks)
    with device.happened:  # the first is still in use
        assert device.happened.wait_for(
            lambda: device.events.count("copy") == devices.SLOTS, SECONDS
        )
    assert device.events.count("hold") == 1
    with_chunks.close()


def test_rows_may_be_read_by_the_thread_that_computes(device: FakeDevice) -> None:
    threads = set()

    def reading() -> Iterator[Chunk]:
        for chunk in cut(recipes.labelled(ROWS), 7).read(
            cut(recipes.labelled(ROWS), 7).blocks[0], frozenset({"features"})
        ):
            threads.add(threading.get_ident())
            yield chunk

    for ahead in (False, True):
        threads.clear()
        assert sum(c.rows for c in feeding.fed(reading(), PLACE, Arena(), ahead=ahead)) == ROWS
        assert (threading.get_ident() not in threads) == ahead


@pytest.mark.parametrize(
    "name", ["knn", "kl_matching", "mahalanobis", "msp", "relative_mahalanobis", "she"]
)
def test_of_a_scoring_pass_only_the_scores_come_back(name: str) -> None:
    scorer = drive.outcome(detectors.make(name), recipes.labelled().cut())
    split = cut(recipes.labelled(96, seed=7), 12)
    plain = drive.scores_of(scorer, split, drive.at(PLACE))
    with fake_device() as device:
        scores = drive.scores_of(scorer, split, drive.at(PLACE))
    np.testing.assert_array_equal(scores, plain)
    assert device.fetched_nbytes == scores.nbytes
    assert device.put_nbytes == 0  # what was fitted is there, and stays from block to block


# What goes wrong


def broken(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    monkeypatch.setattr(owner, name, lambda *_: None)


@pytest.mark.parametrize(
    ("owner", "name", "fault"),
    [
        (feeding._Slot, "settle", "pinned memory changed before its copy was known to be done"),
        (FakeDevice, "after", "memory was copied to while it was computed with"),
    ],
)
def test_a_feeder_that_does_not_wait_is_found_out(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, fault: str
) -> None:
    broken(monkeypatch, owner, name)
    with pytest.raises(AssertionError, match=fault), fake_device():
        folded(cut(recipes.labelled(ROWS), 7))


def test_computing_that_does_not_wait_has_other_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, FakeDevice, "hold")
    split = cut(recipes.labelled(ROWS), 7)
    with pytest.raises((AssertionError, DataError)), fake_device():
        assert_equal(folded(split), folded(split, HOST))


class Failing(CutSplit):
    """Rows that cannot be read to their end."""

    def read(self, *arguments: Any) -> Iterator[Chunk]:
        for chunk in super().read(*arguments):
            if chunk.start >= 28:
                raise OSError("the disk is gone")
            yield chunk


@pytest.mark.parametrize("place", [HOST, PLACE, Place("torch")])
def test_errors_of_reading_are_raised_where_rows_are_computed_with(place: Place) -> None:
    split = cut(recipes.labelled(ROWS), 7)
    with fake_device(), pytest.raises(OSError, match="the disk is gone"):
        folded(Failing(split.data, split.sizes), place)
    assert_no_thread()


def assert_no_thread() -> None:
    assert not [t for t in threading.enumerate() if t.name.startswith("featfold-feed")]


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_a_fold_that_stops_early_ends_the_thread(device: FakeDevice, taken: int) -> None:
    chunks = held(device, recipes.labelled(ROWS), 7)
    for _ in range(taken):
        next(chunks)
    chunks.close()
    assert_no_thread()
    assert device.used_nbytes() == 0


def test_an_error_of_computing_leaves_nothing_on_the_device(device: FakeDevice) -> None:
    data = recipes.labelled(ROWS)
    features = data.arrays["features"].copy()
    features[40] = np.nan
    with pytest.raises(DataError, match="row 40"):
        folded(cut(data.with_arrays(features=features), 7))
    assert_no_thread()


def test_no_room_for_a_slot_is_the_error_of_the_library() -> None:
    with fake_device(limit_nbytes=4096) as device, pytest.raises(device.out_of_memory):
        folded(cut(recipes.labelled(ROWS), ROWS))
    assert_no_thread()
