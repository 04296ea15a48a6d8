"""The rows of a loader: through a model, one batch at a time, into files or straight to a fold."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, default_collate

from pipeline.chunk import Split
from pipeline.engine.streaming import MORE_ROWS
from pipeline.errors import ConfigError, DataError, FeatfoldError
from pipeline.extract.data.datasets import Copies, loader_name
from pipeline.extract.final_layer import checked, saved
from pipeline.extract.model import Extractor, count_rows, integers
from pipeline.extract.sources import Batch
from pipeline.extract.stream import Shape, StreamedSplit
from pipeline.extract.temporary import ExtractedSplit, TemporaryRows
from pipeline.store import SavedHead, layout, memory
from pipeline.store.file_rows import FileRows

Contents = dict[str, NDArray[Any]]
Check = Callable[[Split], object]
LABELS, FEATURES, LOGITS = "labels", "features", "logits"


@contextmanager
def opened(
    loader: Iterable[Any],
    model: Callable[[Any], Any],
    *,
    device: Any = None,
    name: str = "id/train",
    classes: int | None = None,
    labelled: bool = True,
) -> Generator[Loaded]:
    """Have a model where it computes, and yield a loader whose first rows went through it.

    ``loader`` gives batches (inputs, labels) of any number of rows; labels are integers (n,).
    ``model`` returns features, tokens (n, t, d) or pooled (n, d), or a mapping of arrays by name:
    {"features": ..., "logits": ...}. bfloat16 is widened to float32. Without ``classes``, k is the
    width of the logits, else the largest label plus one. Unless ``labelled``, labels are not looked
    at, and batches of inputs alone will do.

    Raises
    ------
    ConfigError
        When the loader cannot be iterated over, or the model is not on ``device``: before a read.
    DataError
        For batches or outputs of another form, and no rows.
    """
    extractor = _extractor(model, device)
    with (
        extractor.ready(),
        closing(Loaded(loader, _Reading(extractor, name, classes, labelled))) as loaded,
    ):
        yield loaded


class Loaded:
    """The rows that a loader and a model give, once: into files, or batch by batch."""

    def __init__(self, loader: Iterable[Any], reading: _Reading) -> None:
        self._loader, self._reading = loader, reading
        self._rest = self._read(_batches(loader))
        first = next(self._rest, None)
        if first is None:
            raise DataError(
                f"{reading.name}: the loader gave no rows: expected batches (inputs, labels)"
            )
        # Copies: a model may use the memory of its outputs again, for the rows of another loader.
        self._first: Contents = {name: array.copy() for name, array in first.items()}
        self.batch_rows = _rows_of(first)
        _look(reading, first)

    def close(self) -> None:
        """Let go of the loader, and of the processes that it has."""
        self._first = {}
        self._rest.close()

    @property
    def classes(self) -> int | None:
        """Number of classes; None where only the last label will tell."""
        return self._reading.classes

    @property
    def rows(self) -> int | None:
        """How many rows there will be, where the loader leaves no doubt."""
        return exact_rows(self._loader)

    def filed(self, folder: Path, check: Check = lambda promised: None) -> ExtractedSplit:
        """Write the rows into files of ``folder``, and return them as a split.

        Where k is known beforehand, ``check`` is called first with a split like the one that will
        be returned, to refuse what cannot be. Raises :class:`DataError` where no label is >= 0.
        """
        reading = self._reading
        with TemporaryRows(folder / reading.name.replace("/", "+")) as rows:
            shapes = {name: (array.shape[1:], array.dtype) for name, array in self._first.items()}
            count, known = _rows_to_come(self._loader, self.batch_rows)
            promised = rows.promised(shapes, count)
            rows.check_room(promised)
            if reading.classes is not None and (known or not _passes(check, promised, reading)):
                more = promised if known else rows.promised(shapes, max(count, MORE_ROWS))
                check(reading.split(more))
            for contents in self._contents():
                rows.add(contents, _rows_of(contents))
        return reading.split(rows.arrays())

    def streamed(self) -> StreamedSplit:
        """Return the rows as a split that is read once; blocks are those that files would have.

        Needs to know the number of classes.
        """
        reading, first = self._reading, self._first
        total = sum(array[0].nbytes for array in first.values())
        widest = max(array[0].nbytes for array in first.values())
        enough = max(1, memory.BLOCK_NBYTES // max(1, total), memory.CHUNK_NBYTES // max(1, widest))
        like = reading.split(
            {n: FileRows(Path(n), (enough, *a.shape[1:]), a.dtype) for n, a in first.items()}
        )
        shape = Shape(
            reading.name, like.schema.arrays, like.schema.classes, like.chunk_rows,
            like.blocks[0].rows, self.batch_rows, self.rows,
        )  # fmt: skip
        made = StreamedSplit(shape, self._contents(), reading.attributes)
        made.head = reading.head
        return made

    def _contents(self) -> Iterator[Contents]:
        first, self._first = self._first, {}
        yield first
        del first
        yield from self._rest

    def _read(self, batches: Iterator[Any]) -> Generator[Contents, None, None]:
        """Yield the arrays of every batch that has rows; at the end look back at all of them."""
        reading, copies = self._reading, _copies(self._loader, self._reading.name)
        while True:
            try:
                batch = next(batches)
            except StopIteration:
                break
            except Exception as error:  # the loader's own, which says less than where it was
                error.add_note(reading.where)
                raise
            contents, count = reading.read(batch)
            if count and copies is not None:
                copies.look(reading.given(batch, count))
            del batch
            if count:
                yield contents
                del contents
        if copies is not None:
            copies.end()
        reading.check_whole(_batches_promised(self._loader), exact_rows(self._loader))


def _copies(loader: Any, name: str) -> Copies | None:
    """Return what looks for rows that the workers of an iterable dataset have in common."""
    if not isinstance(loader, DataLoader) or not isinstance(loader.dataset, IterableDataset):
        return None
    return Copies(f"{name}: {loader_name(loader)}", loader.num_workers, has_ids=False)


def _rows_of(contents: Contents) -> int:
    return len(next(iter(contents.values())))


def _extractor(model: Callable[[Any], Any], device: Any) -> Extractor:
    if not callable(model):
        raise ConfigError(f"model: {model!r} cannot be called; pass a module or a function")
    if isinstance(model, Extractor) and device is None:
        return model
    return Extractor(model, device=device)


def _batches(loader: Iterable[Any]) -> Iterator[Any]:
    if hasattr(loader, "shape") or isinstance(loader, Mapping) or hasattr(loader, "blocks"):
        raise ConfigError(
            f"model: it runs over the batches of a loader, got a {type(loader).__name__}; wrap "
            "inputs and labels into a DataLoader, or leave model out where they are features"
        )
    try:
        return iter(loader)
    except TypeError as error:
        raise ConfigError(
            f"a {type(loader).__name__} gives no batches ({error}); pass a DataLoader, or any "
            "iterable of (inputs, labels)"
        ) from error


class _Reading:
    """What has been seen of a loader, and what every further batch must look like."""

    def __init__(
        self, extractor: Extractor, name: str, classes: int | None, labelled: bool
    ) -> None:
        self.extractor, self.name, self.labelled = extractor, name, labelled
        self.classes = classes
        self.largest = -1
        self.attributes: Mapping[str, str] = {}
        self.head: SavedHead | None = None
        self._batches = self._rows = 0
        self._expected: dict[str, tuple[tuple[int, ...], str]] = {}

    @property
    def where(self) -> str:
        """What names the batch that comes next."""
        return f"{self.name}: batch {self._batches} of the loader, from row {self._rows} on"

    def read(self, batch: Any) -> tuple[Contents, int]:
        """Return the arrays of a batch, and its rows."""
        where = self.where
        self._batches += 1
        inputs, given = self._pair(batch, where)
        count = _length(inputs, where)
        labels = {LABELS: self._labels(given, count, where)} if self.labelled else {}
        if not count:
            return {}, 0
        found = {name: _host(output) for name, output in self._called(inputs, where).items()}
        if LABELS in found:
            raise DataError(f"{where}: the model gives {LABELS}, which come from the loader")
        contents = found | labels
        self._compare(contents, where)
        self._rows += count
        return contents, count

    def given(self, batch: Any, count: int) -> Batch:
        """Return what a batch has of its own: inputs and labels, or whatever comes last."""
        inputs, last = self._pair(batch, self.where)
        none = np.full(count, -1)
        return Batch(inputs, none if last is None else last, none)

    def check_whole(self, batches: int | None, rows: int | None) -> None:
        """Raise :class:`DataError` where rows are missing, or none has a label >= 0."""
        short = batches is not None and self._batches < batches
        if self._rows and (short or rows not in (None, self._rows)):
            promised = f"{batches} batches" if short else f"{rows} rows"
            raise DataError(
                f"{self.name}: the loader ended after {self._batches} batches with {self._rows} "
                f"rows, and says that it has {promised}; mend its length, or its data"
            )
        if self._rows and self.labelled and self.largest < 0:
            raise DataError(
                f"{self.name}: of {self._rows} rows of the loader none has a label >= 0, and fits "
                "leave out rows with labels below 0; give in-distribution rows their classes as "
                "labels"
            )

    def split(self, rows: Mapping[str, Any]) -> ExtractedSplit:
        """Return rows in files as a split."""
        classes = self.largest + 1 if self.classes is None else self.classes
        made = ExtractedSplit(rows, classes=classes, name=self.name, attributes=self.attributes)
        made.head = self.head
        return made

    def _pair(self, batch: Any, where: str) -> tuple[Any, Any]:
        pair = isinstance(batch, (tuple, list)) and len(batch) == 2
        if pair or (not self.labelled and isinstance(batch, (tuple, list)) and batch):
            return batch[0], batch[-1]
        if not self.labelled and hasattr(batch, "shape"):
            return batch, None
        several = f" of {len(batch)}" if isinstance(batch, (tuple, list, Mapping)) else ""
        raise DataError(
            f"{where}: expected (inputs, labels), got a {type(batch).__name__}{several}; have the "
            "loader's collate_fn, or a generator around it, give such pairs"
        )

    def _labels(self, given: Any, count: int, where: str) -> NDArray[np.int64]:
        host = given.cpu() if isinstance(given, torch.Tensor) else given
        labels = integers(LABELS, host, where)
        if len(labels) != count:
            raise DataError(f"{where}: {count} inputs, but {len(labels)} labels")
        limit = memory.LARGEST_CLASSES if self.classes is None else self.classes
        layout.check_labels(labels, limit, self.name, self._rows)
        self.largest = max(self.largest, int(labels.max(initial=-1)))
        return labels

    def _called(self, inputs: Any, where: str) -> dict[str, torch.Tensor]:
        try:
            return self.extractor(inputs)
        except FeatfoldError as error:
            raise type(error)(f"{where}: {error}") from error
        except Exception as error:
            raise DataError(
                f"{where}: the model raised {type(error).__name__}: {error} (inputs were on "
                f"{self.extractor.device}; device= names another)"
            ) from error

    def _compare(self, contents: Contents, where: str) -> None:
        got = {name: (rows.shape[1:], rows.dtype.name) for name, rows in contents.items()}
        self._expected = self._expected or got
        if got != self._expected:
            raise DataError(
                f"{where}: expected rows of {self._expected}, as in the batches before, got {got}"
            )


def _look(reading: _Reading, contents: Contents) -> None:
    """Look at the first rows: refuse now what would be later."""
    layouts = reading.extractor.description.layouts
    for name, array in contents.items():
        _check_layout(reading.name, name, array, layouts.get(name))
    found = checked(reading.extractor, contents, reading.name)
    reading.head = saved(found, reading.extractor)
    if reading.extractor.is_known:
        reading.attributes = reading.extractor.attributes()
    if reading.classes is None and LOGITS in contents and contents[LOGITS].ndim == 2:
        reading.classes = contents[LOGITS].shape[1]
        if LABELS in contents:
            layout.check_labels(contents[LABELS], reading.classes, reading.name, 0)


def exact_rows(loader: Any) -> int | None:
    """Return how many rows a loader has, where nothing of it could make others of them."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset):
        return None
    if type(loader.batch_sampler) is not BatchSampler or loader.collate_fn is not default_collate:
        return None
    with suppress(TypeError):  # a sampler of unknown length
        rows = len(loader.sampler)
        size = loader.batch_sampler.batch_size
        return rows // size * size if loader.drop_last else rows
    return None


def _batches_promised(loader: Any) -> int | None:
    """Return how many batches a loader says it has; those of several processes may be fewer."""
    if isinstance(getattr(loader, "dataset", None), IterableDataset):
        return None
    with suppress(TypeError):
        return len(loader)
    return None


def _rows_to_come(loader: Any, count: int) -> tuple[int, bool]:
    """Return about how many rows a loader has, and whether it says so: else as the first batch."""
    known = []
    sizes: tuple[tuple[Any, int], ...] = ((getattr(loader, "dataset", None), 1), (loader, count))
    for sized, each in sizes:
        with suppress(TypeError):  # of unknown length
            known.append(len(sized) * each)
    return max(count, min(known, default=0)), bool(known)


def _passes(check: Check, promised: Mapping[str, Any], reading: _Reading) -> bool:
    """Tell whether a check passes; too little memory for few rows is too little for any."""
    with suppress(ConfigError, DataError):  # such as more components than so few rows have
        check(reading.split(promised))
        return True
    return False


def _check_layout(split: str, name: str, array: NDArray[Any], declared: str | None) -> None:
    letters = {2: "D", 3: "TD"}.get(array.ndim)
    if name == FEATURES and (letters is None or (declared or letters) != letters):
        raise DataError(
            f"{split}: the model gave features of shape {array.shape} {declared or ''}: expected "
            "tokens (n, t, d) or pooled features (n, d); of maps (n, d, h, w), "
            "x.flatten(2).transpose(1, 2) are the tokens"
        )


def _length(inputs: Any, where: str) -> int:
    given = list(inputs.values()) if isinstance(inputs, Mapping) else [inputs]
    if odd := [each for each in given if not len(getattr(each, "shape", ()))]:
        raise DataError(
            f"{where}: inputs are a {type(odd[0]).__name__}: expected a tensor or array (n, ...), "
            "or a mapping of them by name"
        )
    return count_rows(inputs)


def _host(output: torch.Tensor) -> NDArray[Any]:
    """Return a tensor as a host array; bfloat16, which numpy lacks, as float32."""
    widened = output.float() if output.dtype == torch.bfloat16 else output
    found: NDArray[Any] = widened.cpu().numpy()
    return found
