"""Every kind of split keeps the same promises about steps, memory and identity."""

import numpy as np
import pytest

from pipeline.chunk import ArraySpec
from pipeline.errors import MissingInputError
from pipeline.store import ArraySplit, DeclaredSplit, Store
from pipeline.synthetic import SyntheticSplit
from pipeline.testing import recipes

FIELDS = frozenset({"features", "labels"})


@pytest.fixture
def splits(path, sample):
    rows = sample.rows(0, 20)
    stored = sample.filled(path).split("id/train")
    return {
        "stored": stored,
        "arrays": ArraySplit(rows["features"], rows["labels"], block_rows=8, chunk_rows=4),
        "synthetic": SyntheticSplit.of(stored),
        "cut": recipes.labelled(20).cut([[4, 4], [4, 4], [4]]),
    }


@pytest.mark.parametrize("kind", ["stored", "arrays", "synthetic", "cut"])
@pytest.mark.parametrize("step_rows", [None, 1, 3, 4])
def test_steps_count_from_the_start_of_the_block_and_cover_it(splits, kind, step_rows):
    split = splits[kind]
    step = step_rows or split.chunk_rows
    for block in split.blocks:
        read = [(c.start, c.stop) for c in split.read(block, FIELDS, step_rows)]
        starts = range(block.start, block.stop, step)
        assert read == [(start, min(start + step, block.stop)) for start in starts]
        known = split.identity(block, FIELDS)
        assert (known is None) == (kind != "stored")
    assert 0 <= split.reading_nbytes(FIELDS, 1) <= split.reading_nbytes(FIELDS)


@pytest.mark.parametrize("kind", ["stored", "arrays", "synthetic", "cut"])
def test_steps_change_no_row(splits, kind):
    split = splits[kind]

    def rows(step_rows):
        return np.concatenate(
            [
                chunk["features"].copy()
                for block in split.blocks
                for chunk in split.read(block, FIELDS, step_rows)
            ]
        )

    for step_rows in (1, 3):
        np.testing.assert_array_equal(rows(step_rows), rows(None))


def test_a_declared_split_plans_for_no_less_than_a_stored_one(tmp_path):
    arrays = {"features": ArraySpec((4, 8), "float32", "TD"), "labels": ArraySpec((), "int64")}
    writer = Store.create(tmp_path / "s.zarr").create_split(
        "id/train", arrays, classes=2, rows=3000
    )
    for block in writer.blocks:
        features = np.random.default_rng(0).standard_normal((block.rows, 4, 8)).astype("f4")
        writer.write(block.index, {"features": features, "labels": np.zeros(block.rows, int)})
    stored = Store.open(tmp_path / "s.zarr").split("id/train")
    declared = DeclaredSplit.of("id/train", arrays, classes=2, rows=3000)
    for step_rows in (None, 10):
        assert declared.reading_nbytes(FIELDS, step_rows) >= stored.reading_nbytes(
            FIELDS, step_rows
        )
    assert declared.identity(declared.blocks[0], FIELDS).startswith("declared-")
    with pytest.raises(MissingInputError, match="declared only"):
        declared.read(declared.blocks[0], FIELDS, 10)
