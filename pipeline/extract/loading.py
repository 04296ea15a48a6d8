"""The rows of a loader: through a model into temporary files, holding one batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.chunk import Split
from pipeline.errors import ConfigError, DataError
from pipeline.extract.model import Extractor, integers
from pipeline.extract.temporary import ExtractedSplit, TemporaryRows
from pipeline.store import layout
from pipeline.store.memory import LARGEST_CLASSES

Contents = dict[str, NDArray[Any]]
Check = Callable[[Split], object]
LABELS, FEATURES, LOGITS = "labels", "features", "logits"


def extracted(
    loader: Iterable[Any],
    model: Callable[[Any], Any],
    *,
    folder: Path,
    device: Any = None,
    name: str = "id/train",
    classes: int | None = None,
    labelled: bool = True,
    check: Check = lambda promised: None,
) -> ExtractedSplit:
    """Run a model over a loader, once, and return its rows as a split of files in ``folder``.

    ``loader`` gives batches (inputs, labels) of any number of rows; labels are integers (n,).
    ``model`` returns features, tokens (n, t, d) or pooled (n, d), or a mapping of arrays by name:
    {"features": ..., "logits": ...}. bfloat16 is widened to float32. Without ``classes``, k is the
    width of the logits, else the largest label plus one. Unless ``labelled``, labels are not looked
    at, and batches of inputs alone will do. Where k is known beforehand, ``check`` is called after
    the first batch with a split like the one that will be returned, to refuse what cannot be.

    Raises
    ------
    ConfigError
        When the loader cannot be iterated over, or the model is not on ``device``: before a read.
    DataError
        For batches or outputs of another form, no rows, or no label >= 0.
    """
    extractor = _extractor(model, device)
    reading = _Reading(extractor, name, classes, labelled)
    with TemporaryRows(folder / name.replace("/", "+")) as rows, extractor.ready():
        for batch in _batches(loader):
            contents, count = reading.read(batch)
            if not rows.rows and count:
                _promise(reading, loader, rows, contents, count, check)
            if count:
                rows.add(contents, count)
    if not rows.rows:
        raise DataError(f"{name}: the loader gave no rows: expected batches (inputs, labels)")
    if labelled and reading.largest < 0:
        raise DataError(
            f"{name}: of {rows.rows} rows of the loader none has a label >= 0, and fits leave out "
            "rows with labels below 0; give in-distribution rows their classes as labels"
        )
    return reading.split(rows.arrays())


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
        self._batches = self._rows = 0
        self._expected: dict[str, tuple[tuple[int, ...], str]] = {}

    def read(self, batch: Any) -> tuple[Contents, int]:
        """Return the arrays of a batch, and its rows."""
        where = f"{self.name}: batch {self._batches} of the loader, from row {self._rows} on"
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

    def split(self, rows: Mapping[str, Any]) -> ExtractedSplit:
        """Return rows in files as a split."""
        classes = self.largest + 1 if self.classes is None else self.classes
        return ExtractedSplit(rows, classes=classes, name=self.name, attributes=self.attributes)

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
        limit = LARGEST_CLASSES if self.classes is None else self.classes
        layout.check_labels(labels, limit, self.name, self._rows)
        self.largest = max(self.largest, int(labels.max(initial=-1)))
        return labels

    def _called(self, inputs: Any, where: str) -> dict[str, torch.Tensor]:
        try:
            return self.extractor(inputs)
        except DataError as error:
            raise DataError(f"{where}: {error}") from error
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


def _promise(
    reading: _Reading,
    loader: Any,
    rows: TemporaryRows,
    contents: Contents,
    count: int,
    check: Check,
) -> None:
    """Look at the first rows, and at what is known of all: refuse now what would be later."""
    layouts = reading.extractor.description.layouts
    for name, array in contents.items():
        _check_layout(reading.name, name, array, layouts.get(name))
    if reading.extractor.is_known:
        reading.attributes = reading.extractor.attributes()
    if reading.classes is None and LOGITS in contents and contents[LOGITS].ndim == 2:
        reading.classes = contents[LOGITS].shape[1]
        if LABELS in contents:
            layout.check_labels(contents[LABELS], reading.classes, reading.name, 0)
    shapes = {name: (array.shape[1:], array.dtype) for name, array in contents.items()}
    promised = rows.promised(shapes, _rows_to_come(loader, count))
    rows.check_room(promised)
    if reading.classes is not None:
        check(reading.split(promised))


def _rows_to_come(loader: Any, count: int) -> int:
    """Return about how many rows a loader says it has: those of its first batch if it does not."""
    known = []
    sizes: tuple[tuple[Any, int], ...] = ((getattr(loader, "dataset", None), 1), (loader, count))
    for sized, each in sizes:
        with suppress(TypeError):  # of unknown length
            known.append(len(sized) * each)
    return max(count, min(known, default=0))


def _check_layout(split: str, name: str, array: NDArray[Any], declared: str | None) -> None:
    letters = {2: "D", 3: "TD"}.get(array.ndim)
    if name == FEATURES and (letters is None or (declared or letters) != letters):
        raise DataError(
            f"{split}: the model gave features of shape {array.shape} {declared or ''}: expected "
            "tokens (n, t, d) or pooled features (n, d); of maps (n, d, h, w), "
            "x.flatten(2).transpose(1, 2) are the tokens"
        )


def _length(inputs: Any, where: str) -> int:
    shape: Any = getattr(inputs, "shape", ())
    if not len(shape):
        raise DataError(
            f"{where}: inputs are a {type(inputs).__name__}: expected one tensor or array (n, ...)"
        )
    return int(shape[0])


def _host(output: torch.Tensor) -> NDArray[Any]:
    """Return a tensor as a host array; bfloat16, which numpy lacks, as float32."""
    widened = output.float() if output.dtype == torch.bfloat16 else output
    found: NDArray[Any] = widened.cpu().numpy()
    return found
