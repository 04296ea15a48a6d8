"""Datasets and loaders as rows: order, labels and ids, and rows that come more than once."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from sources_of_tests import BLOCKS, Mixed, rows_of
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
)

from pipeline.errors import ConfigError, DataError
from pipeline.extract.data.datasets import as_rows
from pipeline.extract.filling import extract_split
from pipeline.store import Store


class Items(Dataset):
    """Item i is its number, the label i % 3 and, if asked for, the id 100 + i."""

    def __init__(self, rows, ids=False):
        self.rows, self.ids = rows, ids

    def __len__(self):
        return self.rows

    def __getitem__(self, i):
        item = (torch.tensor([float(i)]), i % 3)
        return (*item, 100 + i) if self.ids else item


class Endless(IterableDataset):
    """Numbers 0 to 9, all of them from every worker, or shared out."""

    def __init__(self, shared=False, labels=False, ids=False, shuffled=False):
        self.shared, self.labels, self.ids, self.shuffled = shared, labels, ids, shuffled

    def __iter__(self):
        worker = get_worker_info()
        numbers = list(range(10))
        if worker is not None and self.shared:
            numbers = numbers[worker.id :: worker.num_workers]
        if worker is not None and self.shuffled:
            numbers = np.random.default_rng(worker.id).permutation(10).tolist()
        for n in numbers:
            row = torch.tensor([float(n)])
            yield (row, n % 3, n) if self.ids else (row, n % 3) if self.labels else row


def test_a_dataset_is_read_by_range_in_its_own_order():
    rows = as_rows(Items(10))
    batch = rows.read(3, 6)
    assert batch.inputs.tolist() == [[3.0], [4.0], [5.0]]
    assert np.asarray(batch.labels).tolist() == [0, 1, 2]
    assert batch.ids.tolist() == [3, 4, 5]
    assert np.asarray(as_rows(Items(10, ids=True)).read(3, 5).ids).tolist() == [103, 104]
    alone = as_rows(TensorDataset(torch.arange(4.0)[:, None])).read(0, 4)
    assert alone.labels.tolist() == [-1] * 4


@pytest.mark.parametrize("ids", [False, True])
def test_a_shuffling_loader_gives_the_rows_of_its_dataset(tmp_path, ids):
    store = Store.create(tmp_path / "f.zarr")
    loader = DataLoader(Items(50, ids=ids), batch_size=7, shuffle=True)
    extract_split(store, "id/train", Mixed(), loader, classes=3, **BLOCKS)
    split = store.split("id/train", verify=True)
    assert rows_of(split, "ids").tolist() == [i + 100 * ids for i in range(50)]
    numbers = torch.arange(50.0)[:, None]
    np.testing.assert_allclose(rows_of(split, "features"), Mixed()(numbers).detach(), atol=1e-5)
    np.testing.assert_array_equal(rows_of(split, "labels"), np.arange(50) % 3)


def test_one_pass_over_a_shuffling_loader_keeps_labels_beside_features(tmp_path):
    """CASES A18a: two passes over a shuffling loader agree on one row in ten."""
    labels = torch.arange(200) % 10
    data = TensorDataset(torch.nn.functional.one_hot(labels, 10).float(), labels)
    store = Store.create(tmp_path / "f.zarr")
    loader = DataLoader(data, batch_size=16, shuffle=True)
    extract_split(store, "id/train", lambda x: x, loader, classes=10)
    split = store.split("id/train")
    assert rows_of(split, "features").argmax(1).tolist() == rows_of(split, "labels").tolist()


def test_the_collate_fn_of_a_loader_is_used():
    def doubled(items):
        return torch.stack([x for x, _ in items]) * 2, torch.tensor([y for _, y in items])

    rows = as_rows(DataLoader(Items(5), collate_fn=doubled, drop_last=True, batch_size=3))
    assert len(rows) == 5
    assert rows.read(3, 5).inputs.tolist() == [[6.0], [8.0]]


def test_samplers_choose_rows():
    subset = as_rows(DataLoader(Items(10), sampler=SubsetRandomSampler([7, 2, 5])))
    assert len(subset) == 3
    assert subset.read(0, 3).ids.tolist() == [2, 5, 7]
    loader = DataLoader(Items(10), sampler=[4, 1, 8], batch_size=2)
    drawn = [batch.ids.tolist() for batch in as_rows(loader).batches(99)]
    assert drawn == [[4, 1], [8]]


def test_a_sampler_that_repeats_rows_is_refused(tmp_path):
    store = Store.create(tmp_path / "f.zarr")
    sampler = WeightedRandomSampler([1.0] * 10, 30, generator=torch.Generator().manual_seed(0))
    with pytest.raises(DataError, match=r"row \d+: id \d came before, so DataLoader over .*Items"):
        extract_split(store, "id/train", Mixed(), DataLoader(Items(10), sampler=sampler), classes=3)


@pytest.mark.parametrize("options", [{}, {"labels": True}, {"ids": True}, {"shuffled": True}])
def test_an_iterable_dataset_copied_to_two_workers_is_refused(tmp_path, options):
    """CASES A18b: 20 rows, each twice, in batches of 4 4 4 4 2 2."""
    store = Store.create(tmp_path / "f.zarr")
    loader = DataLoader(Endless(**options), batch_size=4, num_workers=2)
    with pytest.raises(DataError, match=r"DataLoader over .*Endless with 2 workers.*num_workers=0"):
        extract_split(store, "id/train", Mixed(), loader, classes=3)
    assert not store.splits() or store.attributes("id/train")["unfinished"]


@pytest.mark.parametrize("options", [{"shared": True}, {"shared": True, "ids": True}])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterable_dataset_that_is_shared_out_is_a_stream(tmp_path, workers, options):
    store = Store.create(tmp_path / "f.zarr")
    loader = DataLoader(Endless(**options), batch_size=4, num_workers=workers)
    done = extract_split(store, "id/train", Mixed(), loader, classes=3)
    assert (done.rows, done.missing) == (10, 0)
    split = store.split("id/train", verify=True)
    features = rows_of(split, "features")
    order = np.argsort(features[:, 0])
    np.testing.assert_allclose(features[order], Mixed()(torch.arange(10.0)).detach(), atol=1e-6)
    if "ids" in options:
        assert rows_of(split, "ids")[order].tolist() == list(range(10))


def test_a_generator_of_batches_of_any_size_is_a_stream(tmp_path):
    store = Store.create(tmp_path / "f.zarr")
    sizes = [4, 0, 4, 2, 1, 9]
    starts = np.cumsum([0, *sizes])
    batches = ((torch.arange(a, b), torch.arange(a, b) % 3) for a, b in pairwise(starts))
    extract_split(store, "id/train", Mixed(), batches, classes=3, **BLOCKS)
    split = store.split("id/train", verify=True)
    assert rows_of(split, "ids").tolist() == list(range(20))
    np.testing.assert_allclose(
        rows_of(split, "features"), Mixed()(torch.arange(20.0)).detach(), atol=1e-6
    )


def test_mappings_have_labels_and_ids_by_name():
    items = [{"input_ids": torch.tensor([i, 0]), "label": i % 2, "id": 7 * i} for i in range(4)]
    batch = as_rows(items).read(1, 3)
    assert set(batch.inputs) == {"input_ids"}
    assert np.asarray(batch.labels).tolist() == [1, 0]
    assert np.asarray(batch.ids).tolist() == [7, 14]


def test_pillow_images_in_a_dataset_are_made_rows():
    image = pytest.importorskip("PIL.Image")
    items = [(image.new("L", (4, 3), i), i) for i in range(3)]
    batch = as_rows(items).read(0, 3)
    assert batch.inputs.shape == (3, 3, 4, 3)
    assert batch.inputs[:, 0, 0, 0].tolist() == [0, 1, 2]
    made = as_rows(items, lambda one: torch.tensor([float(one.getpixel((0, 0))[0])]))
    assert made.read(0, 3).inputs.tolist() == [[0.0], [1.0], [2.0]]


@pytest.mark.parametrize("given", [3, np.zeros((4, 2)), torch.zeros(4, 2), "a path", {"a": 1}])
def test_what_gives_no_rows_is_refused(given):
    with pytest.raises(ConfigError, match="gives no rows: expected a DataLoader"):
        as_rows(given)


def test_batches_that_cannot_be_are_named():
    with pytest.raises(DataError, match=r"items 0 to 1 make no batch .*collate_fn"):
        as_rows([(torch.zeros(2), 0), (torch.zeros(3), 1)]).read(0, 2)
    for lists in ([{"x": [1, 2]}, {"x": [3, 4]}], [((1, 2), 0), ((3, 4), 1)]):
        with pytest.raises(DataError, match="are a list of 2 tensors: expected one tensor"):
            as_rows(lists).read(0, 2)
    with pytest.raises(DataError, match="a batch has 4 parts"):
        as_rows([(1, 2, 3, 4)]).read(0, 1)
    with pytest.raises(DataError, match="and no inputs"):
        as_rows([{"label": 1}]).read(0, 1)


def test_an_empty_stream_and_wrong_ids_leave_no_split(tmp_path):
    store = Store.create(tmp_path / "f.zarr")
    with pytest.raises(DataError, match="gave no rows"):
        extract_split(store, "id/train", Mixed(), iter(()), classes=3)
    named = [(torch.zeros(1), 0, f"img{i}.png") for i in range(3)]
    with pytest.raises(DataError, match=r"expected ids of shape .* and an integer dtype"):
        extract_split(store, "id/train", Mixed(), named, classes=3)
    assert store.splits() == ()
