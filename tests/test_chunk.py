from __future__ import annotations

import numpy as np
import pytest

from pipeline import chunk as chunks
from pipeline.chunk import Arena, ArraySpec, Block, Chunk, Schema
from pipeline.content import digest
from pipeline.errors import DataError, MissingInputError
from pipeline.testing import labelled, planted
from pipeline.testing.drive import PLACES

TOKENS = ArraySpec((49, 16), "float16", "TD")
SCHEMA = Schema(
    10,
    4,
    {
        "features": TOKENS,
        "mask": ArraySpec((49,), "bool"),
        "logits": ArraySpec((4,), "float32"),
        "labels": ArraySpec((), "int64"),
        "half": ArraySpec((3,), "bfloat16"),
    },
    "id/test",
)


def test_bytes_of_a_row() -> None:
    assert TOKENS.nbytes == 49 * 16 * 2
    assert ArraySpec((), "int64").nbytes == 8
    assert ArraySpec((3,), "bfloat16").nbytes == 6
    assert ArraySpec((3,), "bfloat16").memory_dtype == np.float32
    assert SCHEMA.row_nbytes({"logits"}) == 16
    assert SCHEMA.row_nbytes({"features"}) == TOKENS.nbytes + 49


def test_specs_given_as_lists_are_the_same() -> None:
    assert ArraySpec([49, 16], "float16", "TD") == TOKENS  # type: ignore[arg-type]


def test_a_mask_is_read_with_tokens_and_with_labels() -> None:
    assert SCHEMA.touched({"features"}) == {"features", "mask"}
    assert SCHEMA.touched({"labels"}) == {"labels", "mask"}
    assert SCHEMA.touched({"logits"}) == {"logits"}
    assert SCHEMA.touched({"is_ood"}) == frozenset()
    with pytest.raises(MissingInputError, match=r"id/test has no array 'cls'; it has features"):
        SCHEMA.touched({"cls"})


def test_the_key_is_the_form_of_what_is_read() -> None:
    def key(schema: Schema) -> str:
        return digest(schema.key({"logits"}))

    def changed(name: str, spec: ArraySpec) -> Schema:
        return Schema(10, 4, {**SCHEMA.arrays, name: spec}, "id/test")

    assert key(Schema(99, 4, SCHEMA.arrays, "elsewhere")) == key(SCHEMA)
    assert key(changed("features", ArraySpec((7, 7), "float64"))) == key(SCHEMA)
    assert key(Schema(10, 5, SCHEMA.arrays)) != key(SCHEMA)
    assert key(changed("logits", ArraySpec((4,), "float64"))) != key(SCHEMA)
    assert key(changed("logits", ArraySpec((4,), "float32", "K"))) != key(SCHEMA)


def test_a_chunk_knows_its_rows() -> None:
    chunk = Chunk(SCHEMA, 6, 4, {"logits": np.zeros((4, 4))})
    assert (chunk.start, chunk.stop, chunk.split) == (6, 10, "id/test")
    with pytest.raises(MissingInputError, match=r"no array 'features' here; it has logits"):
        chunk["features"]
    with pytest.raises(DataError, match="rows 0-0"):
        _ = Chunk(SCHEMA, 0, 0, {}).any_array


def test_results_are_remembered_by_equal_keys() -> None:
    chunk = Chunk(SCHEMA, 0, 1, {"logits": np.zeros((1, 4))})
    first = chunk.memo(("a", 1), lambda: np.zeros(1))
    assert chunk.memo(("a", 1), lambda: np.ones(1)) is first
    assert chunk.memo(("a", 2), lambda: np.ones(1)) is not first


@pytest.mark.parametrize("library", sorted(PLACES))
def test_scratch_is_kept_and_grows(library: str) -> None:
    arena = Arena()
    like = PLACES[library].put(np.zeros(1))
    large = arena.take("x", (5, 2), like.dtype, like)
    assert tuple(large.shape) == (5, 2)
    large[...] = 3.0
    small = arena.take("x", (2, 2), like.dtype, like)
    assert float(small[1, 1]) == 3.0
    assert tuple(arena.take("x", (9, 2), like.dtype, like).shape) == (9, 2)
    arena.take("x", (1, 2), like.dtype, like)[...] = 2.0
    arena.take("y", (5, 2), like.dtype, like)[...] = 1.0
    assert float(arena.take("x", (1, 2), like.dtype, like)[0, 0]) == 2.0


def test_blocks_count_their_rows() -> None:
    assert Block(3, 30, 42).rows == 12


def test_concatenated_splits_share_their_arrays() -> None:
    known, far = labelled(rows=20, name="id/test"), planted(rows=10)
    one = known.cut()
    assert chunks.concatenated([one]) == one.schema
    unlabelled = {name: x for name, x in far.arrays.items() if name not in ("labels", "scores")}
    other = type(far)(unlabelled, far.classes, far.name, is_ood=True).cut()
    both = chunks.concatenated([one, other])
    assert both.rows == 30
    assert set(both.arrays) == {"features", "logits", "labels"}
    assert both.split == "id/test + ood/far/planted"


def test_splits_that_do_not_belong_together_are_refused() -> None:
    known = labelled(rows=20, name="id/test")
    more = type(known)(known.arrays, 7, "ood/x").cut()
    with pytest.raises(DataError, match="id/test declares 5 classes, ood/x 7"):
        chunks.concatenated([known.cut(), more])
    narrow = known.with_arrays(features=known.arrays["features"][:, :, :3]).cut()
    with pytest.raises(DataError, match=r"features has rows \(4, 12\)"):
        chunks.concatenated([known.cut(), narrow])
