"""Datasets of Hugging Face: saved to disk, in local files, or from the hub; streamed if asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import ConfigError, DataError, FeatfoldError, MissingInputError
from pipeline.extract.data.images import Preparation, preparation, stacked
from pipeline.extract.sources import Batch


@dataclass(frozen=True)
class Columns:
    """Which columns are inputs, labels and ids, and how images are prepared."""

    image: str | None
    columns: tuple[str, ...]
    label: str | None
    id: str | None
    prepared: Preparation

    def batch(self, rows: Mapping[str, Sequence[Any]], first: int, name: str) -> Batch:
        """Return rows, given as columns, of which the first is row ``first``."""
        count = len(next(iter(rows.values())))
        labels = np.full(count, -1) if self.label is None else np.asarray(rows[self.label])
        ids = np.arange(first, first + count) if self.id is None else np.asarray(rows[self.id])
        named = [f"{name} row {first + row}" for row in range(count)]
        if self.image is None:
            inputs: Any = {each: _array(rows[each], each, named) for each in self.columns}
            return Batch(inputs, labels, ids)
        images = [
            self.prepared(image, what)
            for image, what in zip(rows[self.image], named, strict=True)
        ]  # fmt: skip
        return Batch(stacked(images, named), labels, ids)


@dataclass(frozen=True)
class DatasetRows:
    """Rows of a dataset of Hugging Face, by range."""

    name: str
    dataset: Any
    taken: Columns
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.dataset)

    def read(self, start: int, stop: int) -> Batch:
        """Return the rows ``start`` to ``stop``."""
        return self.taken.batch(self.dataset[start:stop], start, self.name)


@dataclass(frozen=True)
class DatasetStream:
    """Rows of a dataset of Hugging Face that is streamed."""

    name: str
    dataset: Any
    taken: Columns
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def batches(self, rows: int) -> Iterator[Batch]:
        """Yield the rows in the order of the stream."""
        first = 0
        for given in self.dataset.iter(batch_size=rows):
            batch = self.taken.batch(given, first, self.name)
            first += len(batch.ids)
            yield batch


def huggingface(
    path: str,
    split: str = "train",
    config: str | None = None,
    files: Any = None,
    image: str | None = "image",
    columns: Sequence[str] = (),
    label: str = "label",
    labelled: bool = True,
    id: str | None = None,
    streaming: bool = False,
    transform: Any = None,
    size: Any = None,
    crop: Any = None,
) -> DatasetRows | DatasetStream:
    """Return a dataset of Hugging Face as rows.

    ``path`` is a folder that ``save_to_disk`` wrote, or what ``datasets.load_dataset`` takes: the
    name of a dataset, a folder, or a format such as parquet with ``files``. Inputs are the column
    ``image``, or those of ``columns`` by name (n, ...), such as [input_ids, attention_mask]; ids
    are the column ``id``, else places in the dataset. For ``transform``, ``size`` and ``crop`` see
    :func:`pipeline.extract.data.folder.folder`.

    Raises
    ------
    MissingInputError
        When the package is not installed, or the dataset is not there.
    ConfigError
        When it has no such column.
    """
    try:
        import datasets
    except ModuleNotFoundError as error:
        raise MissingInputError("datasets is not installed: pip install 'featfold[hf]'") from error
    found = _opened(datasets, path, split, config, files, streaming)
    if columns:
        image = None
    taken = Columns(
        image, tuple(columns), label if labelled else None, id, preparation(transform, size, crop)
    )
    wanted = [each for each in (image, *columns, taken.label, id) if each is not None]
    known = list(found.column_names or wanted)
    if missing := [each for each in wanted if each not in known]:
        raise ConfigError(
            f"huggingface: {path} has no column {missing[0]!r}; it has {', '.join(known)}: name "
            "image or columns, and label, or say labelled: false"
        )
    names = getattr((found.features or {}).get(taken.label), "names", None)
    attributes: dict[str, Any] = {"class_names": list(names)} if names else {}
    if image is not None:
        attributes["images"] = str(taken.prepared)
    name = f"{path}, {split}"
    if isinstance(found, datasets.IterableDataset):
        return DatasetStream(name, found, taken, attributes)
    return DatasetRows(name, found.select_columns(wanted), taken, attributes)


def _opened(
    datasets: Any, path: str, split: str, config: str | None, files: Any, streaming: bool
) -> Any:
    try:
        if (Path(path) / "state.json").exists() or (Path(path) / "dataset_dict.json").exists():
            found = datasets.load_from_disk(path)
            if not isinstance(found, datasets.DatasetDict):
                return found
            if split not in found:
                raise ConfigError(
                    f"huggingface: {path} has no split {split!r}; it has {', '.join(found)}"
                )
            return found[split]
        return datasets.load_dataset(
            path, config, split=split, data_files=files, streaming=streaming
        )
    except FeatfoldError:
        raise
    except (OSError, ConnectionError) as error:
        raise MissingInputError(f"huggingface: {path} cannot be opened ({error})") from error
    except Exception as error:
        raise DataError(
            f"huggingface: {path} cannot be opened ({type(error).__name__}: {error})"
        ) from error


def _array(values: Sequence[Any], column: str, named: Sequence[str]) -> Any:
    rows = [np.asarray(value) for value in values]
    found = stacked(rows, [f"{name}, {column}" for name in named])
    if found.dtype.kind not in "biuf":
        raise DataError(f"{named[0]}: {column} holds {found.dtype}, expected numbers")
    return found
