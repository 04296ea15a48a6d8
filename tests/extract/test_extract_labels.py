"""Labels of rows that are extracted follow the rule of those that are imported, by row."""

import numpy as np
import pytest
import torch

from pipeline.errors import DataError
from pipeline.extract.filling import Share, extract_split
from pipeline.extract.sources import Batch
from pipeline.store import Store


class Labelled:
    """Rows with given labels."""

    name = "labelled"

    def __init__(self, labels):
        self.labels = np.asarray(labels)

    def __len__(self):
        return len(self.labels)

    def read(self, start, stop):
        return Batch(np.ones((stop - start, 3), "float32"), self.labels[start:stop],
                     np.arange(start, stop))  # fmt: skip


class Streamed:
    """The same, in batches of their own order."""

    name = "streamed"

    def __init__(self, labels):
        self.rows = Labelled(labels)

    def batches(self, rows):
        for start in range(0, len(self.rows), rows):
            yield self.rows.read(start, min(start + rows, len(self.rows)))


@pytest.fixture
def extracted(tmp_path):
    """Return what extracts rows with labels into blocks of 10 rows."""
    store = Store.create(tmp_path / "store")

    def extract(split, rows, **options):
        extract_split(
            store, split, torch.nn.Identity(), rows, classes=3, batch_rows=4,
            block_nbytes=280, chunk_nbytes=120, **options,
        )  # fmt: skip
        return store.split(split)

    return extract


@pytest.mark.parametrize("split", ["id/val", "id/test", "id/csid/snow"])
@pytest.mark.parametrize("kind", [Labelled, Streamed])
@pytest.mark.parametrize(("place", "named"), [(0, 0), (7, 7), (29, 29), (slice(0, 25), 0)])
def test_rows_without_a_class_are_not_scored_as_in_distribution(
    extracted, split, kind, place, named
):
    labels = np.arange(30) % 3
    labels[place] = -1
    with pytest.raises(DataError, match=rf"{split}: labels below 0 .*row {named}: -1.*labelled"):
        extracted(split, kind(labels))


@pytest.mark.parametrize("kind", [Labelled, Streamed])
def test_a_label_that_is_no_class_is_named_by_its_row(extracted, kind):
    labels = np.arange(30) % 3
    labels[25] = 3
    with pytest.raises(DataError, match=r"below 3 .*row 25: 3"):
        extracted("id/train", kind(labels))


@pytest.mark.parametrize("kind", [Labelled, Streamed])
def test_rows_of_training_and_splits_without_labels_may_have_none(extracted, kind):
    some = np.where(np.arange(30) % 7, 1, -1)
    for split, labels in (("id/train", some), ("id/test", -1 + 0 * some), ("ood/far/x", some)):
        found = extracted(split, kind(labels))
        (block, *_) = found.blocks
        assert next(iter(found.read(block, {"labels"})))["labels"][0] == -1


def test_processes_that_share_blocks_out_know_of_each_others_labels(extracted):
    labels = np.arange(30) % 3
    labels[20:] = -1
    with pytest.raises(DataError, match="row 20: -1"):
        extracted("id/test", Labelled(labels), share=Share(workers=2))
