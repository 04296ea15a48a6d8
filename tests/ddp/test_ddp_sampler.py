"""Rows that a sampler repeats, by arithmetic, against the real samplers and loaders of torch."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from pipeline.ddp.sampler import share_of
from pipeline.errors import ConfigError


class Numbers(Dataset):
    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, index: int) -> int:
        return index


class Stream(IterableDataset):
    def __iter__(self):
        yield from range(4)


class MirroredSampler(DistributedSampler):
    """Gives its samples in another order, so that repetitions no longer come last."""

    def __iter__(self):
        return iter(list(super().__iter__())[::-1])


class RenamedSampler(DistributedSampler):
    """Changes nothing about the order."""

    def note(self) -> str:
        return "as it was"


def loader(rows, size, rank, *, sampler=DistributedSampler, shuffle=True, drop=False, **options):
    data = Numbers(rows)
    chosen = sampler(data, size, rank, shuffle=shuffle, drop_last=drop)
    return DataLoader(data, sampler=chosen, **options)


def counted(rows, size, **options) -> tuple[list[int], list[int]]:
    """Return the samples that count and those that repeat, over all ranks."""
    kept, repeated = [], []
    for rank in range(size):
        each = loader(rows, size, rank, **options)
        share = share_of(each, rank, size)
        for number, batch in enumerate(each):
            ids = batch.tolist()
            assert share.rows_of_batch(number) == len(ids)
            m = share.counted_rows(number)
            kept += ids[:m]
            repeated += ids[m:]
        assert share.rows_of_batch(len(each)) == 0
    return kept, repeated


@pytest.mark.parametrize("size", [2, 3, 4, 7])
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_sample_counts_once(size, shuffle):
    for rows in range(1, 23):
        for batch_size in (1, 2, 5, rows):
            kept, repeated = counted(rows, size, shuffle=shuffle, batch_size=batch_size)
            assert sorted(kept) == list(range(rows)), (rows, size, batch_size)
            assert len(repeated) == -rows % size


@pytest.mark.parametrize("size", [2, 3, 4])
def test_a_sampler_that_drops_its_last_samples_repeats_none(size):
    for rows in range(1, 15):
        kept, repeated = counted(rows, size, drop=True, batch_size=2)
        assert repeated == []
        assert len(set(kept)) == len(kept) == rows - rows % size


def test_a_loader_that_drops_its_last_batch_counts_what_it_gives():
    kept, repeated = counted(21, 2, shuffle=False, batch_size=4, drop_last=True)
    assert sorted(kept) == list(range(16))  # 11 samples a rank: two whole batches of four each
    assert repeated == []


def test_worker_processes_keep_the_order():
    kept, _ = counted(9, 2, batch_size=2, num_workers=1)
    assert sorted(kept) == list(range(9))


def test_a_subclass_that_leaves_the_order_alone_is_known():
    kept, repeated = counted(5, 4, sampler=RenamedSampler, batch_size=2)
    assert sorted(kept) == list(range(5))
    assert len(repeated) == 3


@pytest.mark.parametrize("module", ["lightning.fabric", "lightning_fabric"])
def test_samplers_that_lightning_puts_in_are_known(module):
    wrapper = pytest.importorskip(f"{module}.utilities.distributed").DistributedSamplerWrapper
    data, kept = Numbers(5), []
    for rank in range(4):
        sampler = wrapper(SequentialSampler(data), num_replicas=4, rank=rank, shuffle=False)
        each = DataLoader(data, sampler=sampler, batch_size=1)
        share = share_of(each, rank, 4)
        kept += [x for n, b in enumerate(each) for x in b.tolist()[: share.counted_rows(n)]]
    assert sorted(kept) == list(range(5))


WRAPPERS = (
    "lightning.fabric.utilities.distributed.DistributedSamplerWrapper",
    "lightning_fabric.utilities.distributed.DistributedSamplerWrapper",
    "lightning.pytorch.overrides.distributed.UnrepeatedDistributedSamplerWrapper",
    "pytorch_lightning.overrides.distributed.UnrepeatedDistributedSamplerWrapper",
)


@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.parametrize(
    "inner",
    [
        RandomSampler(Numbers(5)),
        SubsetRandomSampler(range(5)),
        WeightedRandomSampler([0.1] * 5, 5),
        [0, 0, 1, 2, 3],
    ],
    ids=lambda inner: type(inner).__name__,
)
def test_a_wrapper_of_an_order_that_may_differ_between_ranks_is_named(name, inner):
    """Each rank draws for itself: what one has at its positions another may have at its own."""
    module, _, cls = name.rpartition(".")
    wrapper = getattr(pytest.importorskip(module), cls)
    options = {} if "Unrepeated" in cls else {"shuffle": False}
    sampler = wrapper(inner, num_replicas=2, rank=0, **options)
    with pytest.raises(ConfigError, match=rf"{type(inner).__name__}, wrapped in {cls}"):
        share_of(DataLoader(Numbers(5), sampler=sampler), 0, 2)


@pytest.mark.parametrize("module", ["lightning.pytorch", "pytorch_lightning"])
def test_samplers_of_lightning_that_repeat_nothing_are_known(module):
    found = pytest.importorskip(f"{module}.overrides.distributed").UnrepeatedDistributedSampler
    kept, repeated = counted(5, 4, sampler=lambda d, w, r, **_: found(d, w, r, shuffle=False))
    assert sorted(kept) == list(range(5))
    assert repeated == []


def test_on_one_rank_nothing_repeats_whatever_the_sampler():
    assert share_of(DataLoader(Stream()), 0, 1) is None


@pytest.mark.parametrize(
    ("each", "named"),
    [
        (DataLoader(Numbers(4)), "SequentialSampler"),
        (DataLoader(Numbers(4), shuffle=True), "RandomSampler"),
        (DataLoader(Stream()), "Stream"),
        (DataLoader(Numbers(4), batch_size=None), "DataLoader"),
        (loader(4, 2, 0, sampler=MirroredSampler), "MirroredSampler"),
        (loader(4, 2, 0, num_workers=1, in_order=False), "in_order=False"),
        ([1, 2], "list"),
    ],
)
def test_an_order_that_is_not_known_is_named_with_the_remedy(each, named):
    with pytest.raises(ConfigError, match=named) as caught:
        share_of(each, 0, 2)
    assert "ids=" in str(caught.value)
    assert "repeats='none'" in str(caught.value)
    helps = "use a DistributedSampler" in str(caught.value)
    assert helps == (named in ("SequentialSampler", "RandomSampler", "MirroredSampler"))


def test_a_batch_sampler_of_ones_own_is_named():
    class Sorted(BatchSampler):
        def __iter__(self):
            yield from sorted(super().__iter__())

    data = Numbers(4)
    each = DataLoader(data, batch_sampler=Sorted(RandomSampler(data), 2, False))
    with pytest.raises(ConfigError, match="Sorted"):
        share_of(each, 0, 2)


def test_a_sampler_for_other_ranks_is_named():
    with pytest.raises(ConfigError, match=r"rank 0 of 2, and this is rank 1 of 4"):
        share_of(loader(4, 2, 0), 1, 4)


def test_the_oracle_repeats_samples():
    """What the arithmetic guards against is there: sample 0 comes twice."""
    ids = [x for rank in range(2) for b in loader(5, 2, rank, shuffle=False) for x in b.tolist()]
    assert sorted(ids) == [0, 0, 1, 2, 3, 4]
    assert torch.utils.data.distributed.DistributedSampler is DistributedSampler
