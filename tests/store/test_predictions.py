"""Predictions and labels in files of people: read in place, each stored chunk once."""

from __future__ import annotations

import pickle
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

from pipeline.chunk import Split
from pipeline.engine import Dask, Job, Threads, Trace, run_jobs, run_serial
from pipeline.errors import ConfigError, CorruptError, DataError, MissingInputError
from pipeline.procedure import TRAIN
from pipeline.statistics import ConfusionMatrix
from pipeline.store import open_predictions, reads
from pipeline.views import Every, Stored, Truth

K, VOID = 21, 255
FIELDS = frozenset({"predictions", "labels"})


class Pairs:
    """The pairs of a split, as a procedure."""

    def passes(self, schema: Any) -> Any:
        of = Stored("predictions")
        asked = ConfusionMatrix(of, Truth(), Every(), (VOID,))
        results = yield {"pairs": asked}
        return results["pairs"]


def counted(split: Split, execute: Any = run_serial, trace: Trace | None = None) -> Any:
    jobs = {"pairs": Job(Pairs(), {TRAIN: (split,)})}
    return run_jobs(jobs, execute, trace=trace or Trace())["pairs"]


def expected(masks: dict[str, Any]) -> Any:
    kept = masks["labels"] != VOID
    truth, predicted = (masks[side][kept].astype(int) for side in ("labels", "predictions"))
    pairs = np.bincount(truth * K + predicted, minlength=K * K).reshape(K, K)
    return np.pad(pairs, ((0, 0), (0, 1)))  # nothing is predicted as void


def made(rows: int, shape: tuple[int, ...] = (6, 5), dtype: str = "uint8") -> dict[str, Any]:
    random = np.random.default_rng(rows)
    labels = random.integers(0, K, (rows, *shape)).astype(dtype)
    labels[random.random(labels.shape) < 0.1] = VOID
    return {"predictions": random.integers(0, K, (rows, *shape)).astype(dtype), "labels": labels}


def in_zarr(folder: Path, masks: dict[str, Any], rows: dict[str, int]) -> dict[str, str]:
    for side, mask in masks.items():
        array = zarr.create_array(
            folder / "masks.zarr" / side, shape=mask.shape, chunks=(rows[side], 3, 5),
            dtype=mask.dtype,
        )  # fmt: skip
        array[:] = mask
    return {side: str(folder / "masks.zarr" / side) for side in masks}


def in_files(folder: Path, masks: dict[str, Any], kind: str) -> dict[str, str]:
    if kind == "npy":
        for side, mask in masks.items():
            np.save(folder / f"{side}.npy", mask)
        return {side: str(folder / f"{side}.npy") for side in masks}
    save = np.savez if kind == "npz" else np.savez_compressed
    save(folder / "masks.npz", **masks)
    return {side: str(folder / "masks.npz" / side) for side in masks}


@pytest.fixture(params=["zarr", "npy", "npz", "compressed npz", "memory", "mapped"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def opened(folder: Path, masks: dict[str, Any], kind: str) -> Split:
    if kind == "memory":
        return open_predictions(**masks, classes=K)
    if kind == "mapped":
        paths = in_files(folder, masks, "npy")
        return open_predictions(
            **{s: np.load(p, mmap_mode="r") for s, p in paths.items()}, classes=K
        )
    if kind == "zarr":
        return open_predictions(
            **in_zarr(folder, masks, {"predictions": 7, "labels": 4}), classes=K
        )
    return open_predictions(**in_files(folder, masks, kind), classes=K)


@pytest.mark.parametrize("rows", [1, 6, 7, 28, 61])
def test_rows_are_those_of_the_files(tmp_path: Path, kind: str, rows: int) -> None:
    masks = made(rows)
    split = opened(tmp_path, masks, kind)
    assert (split.schema.rows, split.schema.classes) == (rows, K)
    for step in (None, 1, 3, 5, rows):
        reads.reset_reads()
        found: dict[str, list[Any]] = {side: [] for side in masks}
        for block in split.blocks:
            for chunk in split.only(block).read(block, FIELDS, step):
                assert chunk.rows <= (step or split.chunk_rows)
                for side in masks:
                    found[side].append(chunk[side].copy())
        for side, mask in masks.items():
            np.testing.assert_array_equal(np.concatenate(found[side]), mask, strict=True)
        assert set(reads.READS.values()) == {1}
    assert np.array_equal(counted(split), expected(masks))


def test_a_split_is_small_to_send(tmp_path: Path, kind: str) -> None:
    masks = made(1000)
    split = opened(tmp_path, masks, kind)
    sent = len(pickle.dumps(split))
    assert sent < 8_000 if kind != "memory" else sent < 70_000
    again = pickle.loads(pickle.dumps(split))
    assert np.array_equal(counted(again), expected(masks))
    assert again.schema == split.schema


def test_blocks_of_rows_in_memory_are_sent_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.store.predictions.BLOCK_NBYTES", 10 * 60)
    masks = made(64)
    split = open_predictions(**masks, classes=K)
    assert len(split.blocks) == 7
    part = split.only(split.blocks[3])
    assert len(pickle.dumps(part)) < 3_000
    (chunk,) = part.read(split.blocks[3], FIELDS)
    np.testing.assert_array_equal(chunk["labels"], masks["labels"][30:40])
    assert np.array_equal(counted(split, Threads(2)), expected(masks))


@pytest.mark.parametrize("rows", [{"predictions": 7, "labels": 4}, {"predictions": 1, "labels": 9}])
def test_two_processes_read_every_stored_chunk_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dask_client: Any, rows: dict[str, int]
) -> None:
    """Blocks end where stored chunks of both sides do; the integers are those of one process."""
    monkeypatch.setattr("pipeline.store.predictions.BLOCK_NBYTES", 60 * 60)
    masks = made(500)
    split = open_predictions(**in_zarr(tmp_path, masks, rows), classes=K)
    assert len(split.blocks) > 4
    dask_client.run(reads.reset_reads)
    trace = Trace()
    found = counted(split, Dask(dask_client, tmp_path / "cache"), trace)
    assert np.array_equal(found, counted(split))
    assert np.array_equal(found, expected(masks))
    total: Counter[Any] = Counter()
    for read in dask_client.run(lambda: dict(reads.READS)).values():
        total.update(read)
    chunks = {side: -(-500 // rows[side]) for side in masks}
    assert total == {
        (split.name, side, index): 1 for side in masks for index in range(chunks[side])
    }
    assert trace.read_nbytes == sum(mask.nbytes for mask in masks.values())


def test_one_chunk_for_all_rows_is_decoded_once(tmp_path: Path) -> None:
    masks = made(300)
    split = open_predictions(
        **in_zarr(tmp_path, masks, {"predictions": 300, "labels": 2}), classes=K
    )
    reads.reset_reads()
    for block in split.blocks:
        for _ in split.read(block, FIELDS, 4):
            pass
    assert set(reads.READS.values()) == {1}
    assert split.reading_nbytes(FIELDS, 4) >= 300 * 30


def test_dtypes_and_row_shapes(tmp_path: Path) -> None:
    for dtype in ("int64", "uint16", ">i4", "int16"):
        masks = made(9, (2, 3, 4), dtype)
        split = open_predictions(**in_files(tmp_path, masks, "npy"), classes=K)
        assert split.schema.arrays["labels"].shape == (2, 3, 4)
        assert np.array_equal(counted(split), expected(masks))
    flags = {side: np.arange(12).reshape(3, 4) % n == 0 for side, n in
             (("predictions", 2), ("labels", 3))}  # fmt: skip
    split = open_predictions(**in_files(tmp_path, flags, "npz"), classes=2)
    (chunk,) = split.read(split.blocks[0], FIELDS)
    assert chunk["labels"].dtype == np.uint8
    assert np.array_equal(chunk["labels"], flags["labels"])


def test_floats_are_scores(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, 10)
    scores = random.standard_normal((10, 3)).astype("f4")
    assert set(open_predictions(scores, labels, classes=3).schema.arrays) == {"logits", "labels"}
    binary = open_predictions(scores[:, 0], labels, classes=2, task="binary", weights=scores[:, 1])
    fields = frozenset({"logits", "scores", "weights"})
    assert set(binary.schema.arrays) == fields | {"labels"}
    reads.reset_reads()
    (chunk,) = binary.read(binary.blocks[0], fields)
    assert chunk["logits"] is chunk["scores"]
    assert sum(reads.READS.values()) == 2
    masks = open_predictions(scores.reshape(5, 3, 2), labels.reshape(5, 2), classes=3)
    assert masks.schema.arrays["logits"].shape == (3, 2)
    labelled = open_predictions(scores > 0, scores > 1, classes=3, task="multilabel")
    assert labelled.schema.arrays["predictions"].dtype == "uint8"


def saved(folder: Path, name: str, array: Any) -> Path:
    np.save(folder / name, array, allow_pickle=True)
    return folder / name


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    three, four = np.zeros((3, 2), int), np.zeros((4, 2), int)
    for arguments, options, message in (
        ((three, four), {}, "same number of rows, got predictions: 3, labels: 4"),
        ((three[:, 0], three), {}, r"rows of shape \(\) beside labels \(2,\)"),
        ((three.astype(float), three), {}, r"expected \(21, 2\) for a multiclass"),
        ((three, three.astype(float)), {}, "labels have dtype float64"),
        ((three, three), {"task": "multilabel"}, r"expected \(21, ...\), one number"),
        ((three, three), {"weights": np.ones((3, 2))}, "one a row"),
        ((three, three), {"weights": np.ones(3, int)}, "expected floats"),
        ((three[:0], three[:0]), {}, "one or more; got 0"),
        ((np.zeros((3, 0), int),) * 2, {}, "which hold nothing"),
        ((np.zeros((), int),) * 2, {}, "rows first"),
        ((three.astype("U"), three), {}, "not supported"),
    ):
        with pytest.raises(DataError, match=message):
            open_predictions(*arguments, **{"classes": K, **options})
    for options in ({"classes": 0}, {"classes": True}, {"classes": 3, "task": "regression"}):
        with pytest.raises(ConfigError, match=r"expected|choose"):
            open_predictions(three, three, **options)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    good = saved(tmp_path, "good.npy", np.zeros((3, 2), int))
    np.savez(tmp_path / "two.npz", a=np.zeros(3, int), b=np.zeros(3, int))
    zarr.create_group(tmp_path / "g.zarr").create_array("x", shape=(3,), dtype="i4")
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.npz").write_bytes(b"PK not a zip")
    short = saved(tmp_path, "short.npy", np.zeros((30, 2), int))
    short.write_bytes(short.read_bytes()[:-8])
    for path, kind, message in (
        (tmp_path / "none.npy", MissingInputError, "none.npy is not there"),
        (tmp_path / "empty", MissingInputError, "no zarr array"),
        (good.with_suffix(".txt"), MissingInputError, "is not there; expected an npy file"),
        (saved(tmp_path, "o.npy", np.array([{}])), DataError, "Python objects"),
        (saved(tmp_path, "f.npy", np.asfortranarray(np.eye(3, dtype=int))), DataError, "lie apart"),
        (tmp_path / "two.npz", ConfigError, "holds 2 arrays: a, b; name one, such as .*two.npz/a"),
        (tmp_path / "two.npz" / "c", ConfigError, "has no array 'c': a, b"),
        (tmp_path / "g.zarr", ConfigError, "holds 1 arrays: x; name one, such as .*g.zarr/x"),
        (tmp_path / "bad.npz", DataError, "cannot be read"),
        (short, CorruptError, "472 bytes of 480|bytes of"),
    ):
        with pytest.raises(kind, match=message):
            open_predictions(path, good, classes=K)


def test_compressed_rows_that_are_damaged_are_named(tmp_path: Path) -> None:
    masks = made(400)
    paths = in_files(tmp_path, masks, "compressed npz")
    split = open_predictions(**paths, classes=K)
    file = tmp_path / "masks.npz"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 255
    file.write_bytes(bytes(content))
    with pytest.raises(CorruptError, match=re.escape(str(file))):
        counted(split)


def test_a_file_that_went_away_is_named(tmp_path: Path) -> None:
    split = open_predictions(**in_files(tmp_path, made(5), "npy"), classes=K)
    (tmp_path / "labels.npy").unlink()
    with pytest.raises(MissingInputError, match=r"labels\.npy lacks rows 0-5"):
        counted(split)


def test_a_damaged_chunk_of_zarr_is_named(tmp_path: Path) -> None:
    paths = in_zarr(tmp_path, made(20), {"predictions": 5, "labels": 5})
    split = open_predictions(**paths, classes=K)
    Path(paths["labels"], "c", "1", "0", "0").write_bytes(b"no chunk at all")
    with pytest.raises(
        CorruptError, match=r"rows 5-10 of labels cannot be read|rows 0-20 of labels"
    ):
        counted(split)
