"""Datasets and loaders of torch, and anything that gives batches, as rows in a known order.

A loader over a map-style dataset is taken apart: its dataset and its ``collate_fn`` make any rows,
in the order of the dataset, whether the loader shuffles or not. Other samplers keep their own
order, and iterable datasets theirs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    default_collate,
)

from pipeline.errors import ConfigError, DataError
from pipeline.extract.data.images import Preparation, preparation
from pipeline.extract.model import count_rows
from pipeline.extract.sources import Batch, Source, Stream

LABELS, IDS = ("labels", "label"), ("ids", "id")
"""Names of labels and of ids in batches that are mappings."""
NO_LABEL = -1


def as_rows(given: Any, transform: Any = None, name: str = "") -> Source | Stream:
    """Return data as rows by range, where they have ranges, else as a stream.

    ``given`` is one of these already, or a DataLoader, a dataset, or an iterable of batches.
    Batches are inputs, (inputs, labels) or (inputs, labels, ids), or a mapping with labels and ids
    by name, whose other values are the inputs. Rows without labels get -1; those without ids get
    their place in the dataset, or in the stream. ``transform`` takes PIL images, where the dataset
    gives such.

    Raises
    ------
    ConfigError
        When the data are none of these.
    """
    if hasattr(given, "batches") or (hasattr(given, "read") and hasattr(given, "__len__")):
        return given  # type: ignore[no-any-return]
    if isinstance(given, DataLoader):
        return _of_loader(given, transform, name or loader_name(given))
    if isinstance(given, IterableDataset):
        return LoaderStream(name or _name(given), lambda rows: DataLoader(given, batch_size=rows))
    no_rows = hasattr(given, "dtype") or isinstance(given, (Mapping, str, bytes))
    if hasattr(given, "__getitem__") and hasattr(given, "__len__") and not no_rows:
        return DatasetRows(name or _name(given), given, range(len(given)), transform=transform)
    if isinstance(given, Iterable) and not no_rows:
        return LoaderStream(name or _name(given), lambda rows: given)
    raise ConfigError(
        f"data: a {type(given).__name__} gives no rows: expected a DataLoader, a dataset, or an "
        "iterable of batches (inputs, labels)"
    )


class DatasetRows:
    """Items of a map-style dataset, by range."""

    def __init__(
        self,
        name: str,
        dataset: Any,
        places: Sequence[int] | NDArray[np.int64],
        collate: Callable[[list[Any]], Any] = default_collate,
        transform: Any = None,
    ) -> None:
        self.name, self.dataset, self.places = name, dataset, places
        self._collate, self._prepared = collate, preparation(transform)

    def __len__(self) -> int:
        return len(self.places)

    def read(self, start: int, stop: int) -> Batch:
        """Return the items of the rows ``start`` to ``stop`` as one batch."""
        places = [int(place) for place in self.places[start:stop]]
        if hasattr(self.dataset, "__getitems__"):
            items = self.dataset.__getitems__(places)
        else:
            items = [self.dataset[place] for place in places]
        rows = [_decoded(item, self._prepared, f"{self.name} item {place}")
                for item, place in zip(items, places, strict=True)]  # fmt: skip
        try:
            batch = self._collate(rows)
        except (TypeError, RuntimeError, ValueError) as error:
            raise DataError(
                f"{self.name} items {places[0]} to {places[-1]} make no batch ({error}); give the "
                "dataset a transform to tensors of one shape, or the loader a collate_fn"
            ) from error
        return taken_apart(batch, np.asarray(places, np.int64), self.name)


class LoaderStream:
    """Batches of a loader in its own order; ids count rows where it gives none.

    An iterable dataset is copied to every worker of its loader, and gives all rows once for each
    unless it shares them out: rows of two workers that are alike are an error.
    """

    def __init__(self, name: str, opened: Callable[[int], Iterable[Any]], workers: int = 0) -> None:
        self.name = name
        self._opened, self._workers = opened, workers

    def batches(self, rows: int) -> Iterator[Batch]:
        """Yield the batches of the loader; without its own size, of ``rows`` rows."""
        copies = Copies(self.name, self._workers)
        count = 0
        for given in self._opened(rows):
            batch = taken_apart(given, None, self.name, count)
            if not len(batch.ids):
                continue
            if not _has_ids(given):
                copies.look(batch)
            count += len(batch.ids)
            yield batch
        copies.end()


def taken_apart(batch: Any, ids: NDArray[np.int64] | None, name: str, first: int = 0) -> Batch:
    """Return the inputs, labels and ids of a batch; ids count from ``first`` if there are none."""
    labels: Any = None
    if isinstance(batch, Mapping):
        inputs: Any = {key: each for key, each in batch.items() if key not in (*LABELS, *IDS)}
        labels = next((batch[key] for key in LABELS if key in batch), None)
        own = next((batch[key] for key in IDS if key in batch), None)
        if not inputs:
            raise DataError(f"{name}: a batch has {', '.join(map(str, batch))}, and no inputs")
    elif isinstance(batch, (tuple, list)):
        if not 1 <= len(batch) <= 3:
            raise DataError(
                f"{name}: a batch has {len(batch)} parts: expected (inputs, labels, ids)"
            )
        inputs, labels, own = (*batch, None, None)[:3]
    else:
        inputs, own = batch, None
    if not hasattr(inputs, "__len__"):
        raise DataError(
            f"{name}: a batch is a {type(batch).__name__}: expected inputs, (inputs, labels) or "
            "(inputs, labels, ids)"
        )
    _refuse_lists(inputs, name)
    rows = count_rows(inputs)
    if own is None:
        own = np.arange(first, first + rows) if ids is None else ids
    return Batch(inputs, np.full(rows, NO_LABEL) if labels is None else labels, own)


def _refuse_lists(inputs: Any, name: str) -> None:
    """Raise :class:`DataError` for what ``default_collate`` makes of lists: one tensor a place."""
    for key, each in inputs.items() if isinstance(inputs, Mapping) else (("inputs", inputs),):
        if isinstance(each, (list, tuple)) and any(hasattr(part, "dtype") for part in each):
            raise DataError(
                f"{name}: {key} are a {type(each).__name__} of {len(each)} tensors: expected one "
                "tensor or array (n, ...); have the dataset give tensors (datasets of Hugging Face "
                "do so by set_format('torch')), or give the loader a collate_fn"
            )


def _has_ids(batch: Any) -> bool:
    if isinstance(batch, Mapping):
        return any(key in batch for key in IDS)
    return isinstance(batch, (tuple, list)) and len(batch) == 3


class Copies:
    """Looks for rows that several workers give: batch i comes from worker i modulo their number."""

    def __init__(self, name: str, workers: int, *, has_ids: bool = True) -> None:
        self._name, self._workers = name, workers
        self._more = ". Rows that are alike by right need ids: (inputs, labels, ids)"
        self._more = self._more if has_ids else ""
        self._digests: list[NDArray[np.uint64]] = []

    def look(self, batch: Batch) -> None:
        """Compare a batch with the first ones of the other workers, and remember its rows."""
        if self._workers < 2:
            return
        digests = np.asarray([_digest(batch, row) for row in range(len(batch.ids))], np.uint64)
        place = len(self._digests)
        for other in range(min(place, self._workers)) if place < self._workers else ():
            if np.array_equal(self._digests[other], digests):
                self._refuse(f"batch {place} equals batch {other}")
        self._digests.append(digests)

    def end(self) -> None:
        """Raise :class:`DataError` if every row came once for every worker."""
        if self._digests:
            _, counts = np.unique(np.concatenate(self._digests), return_counts=True)
            if not np.any(counts % self._workers):
                self._refuse(f"each of {counts.sum()} rows came {self._workers} times, or more")

    def _refuse(self, why: str) -> None:
        raise DataError(
            f"{self._name}: its {self._workers} workers give the same rows, {why}: an iterable "
            "dataset is copied to each; share its rows out by torch.utils.data.get_worker_info(), "
            f"or choose num_workers=0{self._more}"
        )


def _digest(batch: Batch, row: int) -> int:
    """Return a number that stands for the content of a row."""
    total = hashlib.blake2b(digest_size=8)
    inputs = batch.inputs if isinstance(batch.inputs, Mapping) else {"": batch.inputs}
    for name, each in (*inputs.items(), ("labels", batch.labels)):
        one = each[row]
        total.update(str(name).encode())
        if isinstance(one, torch.Tensor):
            total.update(one.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        else:
            total.update(one.tobytes() if hasattr(one, "tobytes") else repr(one).encode())
    return int.from_bytes(total.digest(), "little")


def _of_loader(loader: Any, transform: Any, name: str) -> Source | Stream:
    dataset, sampler = loader.dataset, loader.sampler
    if isinstance(dataset, IterableDataset):
        return LoaderStream(name, lambda rows: loader, loader.num_workers)
    if loader.batch_sampler is None:  # every item is a batch, in the order of the sampler
        return LoaderStream(name, lambda rows: loader)
    if type(loader.batch_sampler) is BatchSampler and _keeps_all(sampler, len(dataset)):
        places: Any = range(len(dataset))
        return DatasetRows(name, dataset, places, loader.collate_fn, transform)
    if type(loader.batch_sampler) is BatchSampler and isinstance(sampler, SubsetRandomSampler):
        places = np.sort(np.asarray(list(sampler.indices), np.int64))
        return DatasetRows(name, dataset, places, loader.collate_fn, transform)
    drawn = [list(batch) for batch in loader.batch_sampler]
    rows = DatasetRows(
        name, dataset, [p for batch in drawn for p in batch], loader.collate_fn, transform
    )
    return LoaderStream(name, lambda _: _drawn(rows, drawn))


def _drawn(rows: DatasetRows, drawn: list[list[int]]) -> Iterator[Batch]:
    start = 0
    for batch in drawn:
        yield rows.read(start, start + len(batch))
        start += len(batch)


def _keeps_all(sampler: Any, rows: int) -> bool:
    """Tell whether a sampler gives every row of its dataset once, in whatever order."""
    if type(sampler) is SequentialSampler:
        return True
    return type(sampler) is RandomSampler and not sampler.replacement and len(sampler) == rows


def _decoded(item: Any, prepared: Preparation, what: str) -> Any:
    """Make rows of the PIL images in an item of a dataset."""
    if _is_image(item):
        return prepared(item, what)
    if isinstance(item, (tuple, list)) and item and _is_image(item[0]):
        return (prepared(item[0], what), *item[1:])
    if isinstance(item, Mapping) and any(map(_is_image, item.values())):
        return {k: prepared(x, what) if _is_image(x) else x for k, x in item.items()}
    return item


def _is_image(given: Any) -> bool:
    return type(given).__module__.startswith("PIL.")


def _name(given: Any) -> str:
    return f"{type(given).__module__}.{type(given).__qualname__}"


def loader_name(loader: Any) -> str:
    """Return what names a loader in errors and in the attributes of a split."""
    workers = f" with {loader.num_workers} workers" if loader.num_workers else ""
    return f"DataLoader over {_name(loader.dataset)}{workers}"
