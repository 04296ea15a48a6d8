"""Streams: appended in their order, gone on with after a kill, and unfinished until they end."""

import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from sources_of_tests import BLOCKS, Mixed, rows_of

from pipeline.errors import (
    ConfigError,
    CorruptError,
    DataError,
    ExistsRefusedError,
    IncompleteError,
)
from pipeline.extract.filling import Share, extract_split
from pipeline.extract.sources import Batch
from pipeline.store import Store
from pipeline.store.survey import survey


class Stream:
    """Rows 0, 1, 2, ... in batches of 7, or in another order, or fewer, or with other labels."""

    name = "numbers in a row"

    def __init__(self, rows=50, order=None, classes=3):
        self.order = np.arange(rows) if order is None else np.asarray(order)
        self.classes = classes

    def batches(self, rows):
        for start in range(0, len(self.order), 7):
            ids = self.order[start : start + 7]
            yield Batch(torch.from_numpy(ids.copy()), ids % self.classes, ids)


@pytest.fixture
def store(tmp_path):
    return Store.create(tmp_path / "f.zarr")


def extracted(store, stream, model=None, **options):
    return extract_split(
        store, "id/train", model or Mixed(), stream, classes=3, **(BLOCKS | options)
    )


def failing_at(row):
    """Return a model that fails where a row comes."""

    class Failing(Mixed):
        def forward(self, x):
            if (x == row).any():
                raise ValueError("not today")
            return super().forward(x)

    return Failing()


def same(one, other):
    for name in ("features", "labels", "ids"):
        np.testing.assert_array_equal(rows_of(one, name), rows_of(other, name))


def whole(tmp_path):
    store = Store.create(tmp_path / "whole.zarr")
    extracted(store, Stream())
    return store.split("id/train", verify=True)


def test_a_stream_that_stopped_is_unfinished_and_goes_on_bit_for_bit(store, tmp_path):
    with pytest.raises(DataError, match=r"rows 35-42: the model raised ValueError"):
        extracted(store, Stream(), failing_at(40))
    written = len(store.writer("id/train").blocks)
    assert 0 < written < 5
    with pytest.raises(IncompleteError, match=r"ends for now at row \d+, before the end"):
        store.split("id/train")
    assert store.split("id/train", allow_partial=True).schema.rows < 50
    assert survey(store, "id/train").missing == "later rows"

    seen = []

    class Counting(Mixed):
        def forward(self, x):
            seen.extend(x.tolist())
            return super().forward(x)

    done = extracted(store, Stream(), Counting())
    assert done.written == done.blocks - written
    assert (seen[0], seen.count(0)) == (0, 1)  # it is compared with the stored one
    assert min(seen[1:]) > 7
    same(store.split("id/train", verify=True), whole(tmp_path))
    assert survey(store, "id/train").missing == ""
    before = len(seen)
    again = extracted(store, Stream(), Counting())
    assert (again.written, again.rewritten, len(seen)) == (0, 0, before)


def test_a_killed_stream_goes_on(store, tmp_path):
    script = textwrap.dedent(
        f"""
        import sys, time
        sys.path[:0] = {sys.path!r}
        from test_extract_streams import Stream, extracted
        from pipeline.store import Store

        def progress(done, rows):
            print(done, flush=True)
            time.sleep(0 if done < 42 else 600)

        extracted(Store.open({str(store.path)!r}), Stream(), progress=progress)
        """
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        for line in process.stdout:
            if int(line) >= 42:
                break
        process.send_signal(signal.SIGKILL)
    assert store.writer("id/train").blocks
    extracted(store, Stream())
    same(store.split("id/train", verify=True), whole(tmp_path))


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (Stream(order=[1, 0, *range(2, 50)]), "row 0 had id 0 when it was written, .* gives 1"),
        (Stream(classes=2), r"row 2 had label 2 when .* now gives 0"),
        (Stream(20), "ended after 20 rows, of which the store has"),
    ],
)
def test_a_stream_that_comes_otherwise_does_not_go_on(store, now, words):
    with pytest.raises(DataError):
        extracted(store, Stream(), failing_at(40))
    with pytest.raises(DataError, match=words):
        extracted(store, now)


def test_a_row_that_comes_twice_is_named(store):
    order = [*range(30), 12, *range(31, 50)]
    with pytest.raises(DataError, match="row 30: id 12 came before, so numbers in a row gives"):
        extracted(store, Stream(order=order))
    with pytest.raises(IncompleteError):
        store.split("id/train")


def test_ids_in_any_order_are_fine(store):
    order = np.random.default_rng(0).permutation(50)
    extracted(store, Stream(order=order))
    assert rows_of(store.split("id/train"), "ids").tolist() == order.tolist()


def test_a_stream_has_one_order_so_one_process(store):
    for share in (Share(workers=2), Share(part=(1, 2))):
        with pytest.raises(ConfigError, match="is a stream, whose rows come in one order"):
            extracted(store, Stream(), share=share)


def test_another_model_does_not_go_on_with_a_stream(store):
    extracted(store, Stream())
    other = Mixed()
    other.layer.bias.data += 1
    other.description = None
    with pytest.raises(ExistsRefusedError, match="model: stored"):
        extracted(store, Stream(), other)


def test_other_outputs_or_weights_do_not_go_on_with_a_stream(store):
    with pytest.raises(DataError):
        extracted(store, Stream(), failing_at(40))
    other = Mixed()
    other.layer.bias.data += 1
    frozen = {k: v for k, v in store.attributes("id/train").items() if k == "weights_sha256"}
    with pytest.raises(ExistsRefusedError, match=r"row 0 is not what .* now: features \(by "):
        extracted(store, Stream(), other, attributes=frozen)


@pytest.mark.parametrize("name", ["ids", "labels"])
@pytest.mark.parametrize("ended", [True, False])
def test_damaged_ids_and_labels_of_a_stream_are_written_again(store, tmp_path, name, ended):
    if ended:
        extracted(store, Stream())
    else:
        with pytest.raises(DataError):
            extracted(store, Stream(), failing_at(40))
    path = next(p for p in sorted((store.path / f"id/train/{name}/c").rglob("*")) if p.is_file())
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data)
    if not ended:
        with pytest.raises(CorruptError, match=name):
            extracted(store, Stream())
    done = extracted(store, Stream(), share=Share(verify=True))
    assert done.rewritten == 1
    same(store.split("id/train", verify=True), whole(tmp_path))


def test_a_stream_that_comes_otherwise_mends_nothing(store):
    extracted(store, Stream())
    path = next(p for p in sorted((store.path / "id/train/ids/c").rglob("*")) if p.is_file())
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="row 49 had id 49 when it was written"):
        extracted(store, Stream(order=[*range(49), 99]), share=Share(verify=True))


def test_damaged_blocks_of_a_stream_are_written_again(store, tmp_path):
    extracted(store, Stream())
    path = next(iter(sorted((store.path / "id/train/features/c/2").rglob("*"))))
    data = bytearray(path.read_bytes())
    data[5] ^= 1
    path.write_bytes(data)
    done = extracted(store, Stream(), share=Share(verify=True))
    assert (done.written, done.rewritten) == (0, 1)
    same(store.split("id/train", verify=True), whole(tmp_path))
