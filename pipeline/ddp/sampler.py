"""Which rows of a batch repeat others: what a DistributedSampler adds so that ranks share alike.

The sampler puts n samples in some order, repeats the first of them until W ranks share alike, and
gives rank r the positions r, r + W, r + 2 W ... So whatever the order, what stands at position n
and beyond is a repetition: rank r counts its first ceil((n - r) / W) samples and no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pipeline.errors import ConfigError

__all__ = ["Share", "share_of"]

WRAPPERS = (
    "lightning.fabric.utilities.distributed.DistributedSamplerWrapper",
    "lightning_fabric.utilities.distributed.DistributedSamplerWrapper",
    "lightning.pytorch.overrides.distributed.UnrepeatedDistributedSamplerWrapper",
    "pytorch_lightning.overrides.distributed.UnrepeatedDistributedSamplerWrapper",
)
"""Samplers of positions in the order of another sampler, which each rank draws for itself."""
IN_TURN = (
    "torch.utils.data.distributed.DistributedSampler",
    "lightning.pytorch.overrides.distributed.UnrepeatedDistributedSampler",
    "pytorch_lightning.overrides.distributed.UnrepeatedDistributedSampler",
    *WRAPPERS,
)
"""Samplers that give rank r the positions r, r + W ... of one order, repeated at its end."""
ALIKE = ("torch.utils.data.sampler.SequentialSampler",)
"""Samplers whose order is the same on all ranks, each sample once."""
IN_ORDER = ("torch.utils.data.sampler.BatchSampler",)
"""Samplers of batches that take what the sampler gives in order."""
STREAM = "_InfiniteConstantSampler"
"""The sampler of a loader of a dataset that is iterated over."""
IDS = "give the ids of the samples, update(preds, target, ids=...)"
ONE_RANK = "if every sample reaches one rank only, declare Collection(..., repeats='none')"
WITHOUT_SAMPLER = f"{IDS}; or, {ONE_RANK}"
"""What helps where the sampler is not what is not known, or one is there already."""
WITH_SAMPLER = f"{IDS}; or use a DistributedSampler; or, {ONE_RANK}"


@dataclass(frozen=True)
class Share:
    """The samples of one rank in the order it meets them."""

    dataset_rows: int
    """Samples n that are shared out, each once."""
    replicas: int
    rank: int
    drawn_rows: int
    """Samples that the sampler gives this rank, repetitions included."""
    batch_rows: int
    drop_last: bool = False
    """Whether the last batch is left out where it is short."""

    @property
    def distinct_rows(self) -> int:
        """Samples of this rank before the repetitions begin."""
        of_rank = max(0, -((self.rank - self.dataset_rows) // self.replicas))
        return min(of_rank, self.drawn_rows)

    def rows_of_batch(self, batch: int) -> int:
        """Return the number of rows of a batch, by its place among those of this rank."""
        left = self.drawn_rows - batch * self.batch_rows
        return max(
            0, 0 if self.drop_last and left < self.batch_rows else min(left, self.batch_rows)
        )

    def counted_rows(self, batch: int) -> int:
        """Return how many leading rows of a batch count; the rest repeat samples."""
        left = self.distinct_rows - batch * self.batch_rows
        return max(0, min(left, self.rows_of_batch(batch)))


def share_of(loader: Any, rank: int, world_size: int) -> Share | None:
    """Return the share that a DataLoader gives one of several ranks, or None on a single one.

    Raises :class:`ConfigError` naming a sampler whose order is not known, or one that was made for
    other ranks than those there are.
    """
    if world_size == 1:
        return None
    batches = getattr(loader, "batch_sampler", None)
    if batches is None:
        raise _unknown(loader, "loader, which makes no batches of samples,", "", WITHOUT_SAMPLER)
    if not _is(batches, IN_ORDER):
        raise _unknown(batches, "batch sampler", "", WITHOUT_SAMPLER)
    sampler = batches.sampler
    if type(sampler).__name__ == STREAM:
        raise _unknown(loader.dataset, "iterable dataset", "", WITHOUT_SAMPLER)
    if not _is(sampler, IN_TURN):
        raise _unknown(sampler, "sampler")
    if _is(sampler, WRAPPERS) and not _is(sampler.dataset._sampler, ALIKE):
        raise _unknown(sampler.dataset._sampler, "sampler", f", wrapped in {_name(sampler)},")
    if getattr(loader, "num_workers", 0) and not getattr(loader, "in_order", True):
        remedy = f"make it with in_order=True; or {WITHOUT_SAMPLER}"
        raise _unknown(loader, "loader, with in_order=False,", "", remedy)
    if (sampler.num_replicas, sampler.rank) != (world_size, rank):
        raise ConfigError(
            f"the sampler was made for rank {sampler.rank} of {sampler.num_replicas}, and this is "
            f"rank {rank} of {world_size}; make it after the process group is there"
        )
    return Share(
        len(sampler.dataset),
        world_size,
        rank,
        len(sampler),
        batches.batch_size,
        batches.drop_last,
    )


def flattened(loaders: Any) -> Iterator[Any]:
    """Yield the loaders of a list or mapping of them, in order."""
    if hasattr(loaders, "flattened"):  # Lightning's CombinedLoader
        yield from loaders.flattened
    elif isinstance(loaders, (list, tuple)):
        for one in loaders:
            yield from flattened(one)
    elif isinstance(loaders, dict):
        for one in loaders.values():
            yield from flattened(one)
    elif loaders is not None:
        yield loaders


def _is(sampler: Any, known: tuple[str, ...]) -> bool:
    """Tell whether the class that says in which order samples come is a known one.

    A subclass that leaves the order alone is as good as its base.
    """
    for cls in type(sampler).__mro__:
        if "__iter__" in vars(cls):
            return f"{cls.__module__}.{cls.__qualname__}" in known
    return False


def _unknown(found: Any, what: str, within: str = "", remedy: str = WITH_SAMPLER) -> ConfigError:
    return ConfigError(
        f"the {what} {type(found).__module__}.{_name(found)}{within} may give a sample to several "
        f"ranks, and which rows repeat others is not known; {remedy}"
    )


def _name(one: Any) -> str:
    return type(one).__qualname__
