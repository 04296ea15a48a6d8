"""Rows on their way through a model: batches of a size that fits, outputs as they are stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.errors import ConfigError, DataError, FeatfoldError
from pipeline.extract.final_layer import FinalLayer, checked
from pipeline.extract.model import Extractor, bits, count_rows, integers
from pipeline.extract.sources import Batch
from pipeline.extract.token_layouts import mean_of_tokens
from pipeline.pooled import STORED as POOLED
from pipeline.store import layout
from pipeline.store.importers.labelled import check_rows

Contents = dict[str, NDArray[Any]]
AUTO, AS_GIVEN, NONE, KEEP = "auto", "auto", "none", "keep"
HOST_ROWS = 32
"""Rows of a batch on the CPU, where more of them are hardly faster."""
DEVICE_ROWS = 512
"""Rows that ``auto`` tries first on any other device."""
HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}
STORED = {**HALF, "float32": torch.float32}
SHOWN = 5
UNLABELLED = "have no row of the split bring a label (labelled: false)"


@dataclass(frozen=True)
class Manner:
    """How a model is run over rows, and what its outputs are stored as."""

    batch_rows: int | str = HOST_ROWS
    """``auto``: as many as the device can hold, found out by halving."""
    autocast: str = NONE
    """none, bfloat16 or float16: precision of the products within the model."""
    dtype: str = AS_GIVEN
    """float32, float16 or bfloat16 of stored floats; ``auto``: as the model gives them."""
    nonfinite: str = "raise"
    """raise, or keep: whether values that are not finite are an error."""

    def __post_init__(self) -> None:
        rows = self.batch_rows
        if rows != AUTO and not (isinstance(rows, int) and rows >= 1):
            raise ConfigError(f"batch_rows is at least 1, or auto, got {rows}")
        for name, given, known in (
            ("autocast", self.autocast, (NONE, *HALF)),
            ("dtype", self.dtype, (AS_GIVEN, *STORED)),
            ("nonfinite", self.nonfinite, ("raise", KEEP)),
        ):
            if given not in known:
                raise ConfigError(f"{name}: expected one of {', '.join(known)}, got {given!r}")

    @property
    def attributes(self) -> dict[str, str]:
        """What a split records where it is not the usual."""
        return {"autocast": self.autocast} if self.autocast != NONE else {}


class Pass:
    """A model that is run over the rows of one split; ``batch_rows`` is what it settled on.

    Labels are looked at where the number of ``classes`` is told: see :meth:`checked`.
    """

    def __init__(
        self,
        extractor: Extractor,
        manner: Manner,
        split: str,
        source: str,
        rows: int | None = None,
        classes: int | None = None,
    ) -> None:
        self.extractor, self.manner, self.split, self.source = extractor, manner, split, source
        self.held: Any = None
        """The lock of the split, for as long as this process fills it."""
        self._classes = classes
        self._labelled: bool | None = None
        self.head: FinalLayer | None = None
        """The final layer of the model, once the first rows have shown what it reads."""
        self._looked = False
        self._halves = manner.batch_rows == AUTO
        usual = HOST_ROWS if extractor.device.type == "cpu" else DEVICE_ROWS
        given = usual if self._halves else int(manner.batch_rows)
        self.batch_rows = given if rows is None or not self._halves else rows

    def tensors(self, batch: Batch, start: int) -> dict[str, torch.Tensor]:
        """Return the outputs for rows that begin with row ``start``, in the dtype of the store.

        Whatever fails names the split and the rows. Out of memory, ``auto`` halves its batches.
        """
        rows = len(batch.ids)
        where = f"split {self.split} rows {start}-{start + rows}"
        try:
            outputs = self._called(batch.inputs, rows)
        except FeatfoldError as error:
            raise type(error)(f"{where}: {error}") from error
        except Exception as error:
            raise DataError(f"{where}: the model raised {type(error).__name__}: {error}") from error
        outputs = {name: self._cast(output) for name, output in outputs.items()}
        if self.manner.nonfinite != KEEP:
            for name, output in outputs.items():
                self._check_finite(name, output, batch.ids, start)
        if field := self.extractor.description.pooled:
            outputs[POOLED] = mean_of_tokens(outputs[field], outputs.get("mask"))
        if not self._looked:
            self._looked, self.head = True, checked(self.extractor, outputs, where)
        return outputs

    def arrays(self, batch: Batch, start: int) -> Contents:
        """Return what is stored for rows that begin with row ``start``: outputs, labels and ids."""
        found = {name: bits(output) for name, output in self.tensors(batch, start).items()}
        return found | {"labels": batch.labels, "ids": batch.ids}

    def checked(self, given: Any, start: int, rows: int | None = None) -> Batch:
        """Return a batch of a source with labels and ids that are integers, one for each row.

        Raises :class:`DataError` otherwise, and by row for labels that are not below the number of
        classes, or below 0 beside others in a split of in-distribution rows that are scored.
        """
        inputs, labels, ids = given
        count = count_rows(inputs)
        where = f"split {self.split} rows {start}-{start + (count if rows is None else rows)}"
        batch = Batch(inputs, integers("labels", labels, where), integers("ids", ids, where))
        lengths = {"inputs": count, "labels": len(batch.labels), "ids": len(batch.ids)}
        if set(lengths.values()) != {count if rows is None else rows}:
            raise DataError(f"{where}: source {self.source!r} gave {lengths}")
        if count and self._classes is not None:
            self._check_labels(batch.labels, self._classes, start)
        return batch

    def _check_labels(self, labels: NDArray[np.int64], classes: int, start: int) -> None:
        """Have one rule for labels that are imported and extracted; none at all is one more way."""
        layout.check_labels(labels, classes, self.split, start)
        if self._labelled is None:
            self._labelled = bool(labels[0] >= 0)
        if layout.is_ood(self.split):
            return
        if self._labelled:
            check_rows(labels, classes, self.split, start, UNLABELLED)
        elif np.any(labels >= 0):  # rows before, the first one at least, have none
            check_rows(np.full(1, -1), classes, self.split, 0, UNLABELLED)

    def check_held(self) -> None:
        """Raise :class:`LockedError` where the lock of the split was lost meanwhile."""
        if self.held is not None:
            self.held.check()

    def _called(self, inputs: Any, rows: int) -> dict[str, torch.Tensor]:
        if not self._halves:
            try:
                return self._run(inputs)
            except RuntimeError as error:
                if not _is_out_of_memory(error):
                    raise
                raise FeatfoldError(
                    f"{self.extractor.device} ran out of memory with {rows} rows at once; choose "
                    f"batch: auto, or fewer than {rows}"
                ) from error
        while True:
            try:
                parts = pieces(inputs, rows, self.batch_rows)
                if rows <= self.batch_rows:
                    return self._run(next(parts))
                return _joined([_kept(self._run(each)) for each in parts])
            except RuntimeError as error:
                if not _is_out_of_memory(error) or self.batch_rows == 1:
                    raise
                self.batch_rows = max(1, min(self.batch_rows, rows) // 2)
            if self.extractor.device.type == "cuda":
                torch.cuda.empty_cache()

    def _run(self, inputs: Any) -> dict[str, torch.Tensor]:
        with self._cast_within():
            return self.extractor(inputs)

    def _cast_within(self) -> AbstractContextManager[Any]:
        half = HALF.get(self.manner.autocast)
        if half is None:
            return nullcontext()
        return torch.autocast(self.extractor.device.type, dtype=half)  # type: ignore[no-any-return]

    def _cast(self, output: torch.Tensor) -> torch.Tensor:
        wanted = STORED.get(self.manner.dtype)
        return output.to(wanted) if wanted is not None and output.is_floating_point() else output

    def _check_finite(
        self, name: str, output: torch.Tensor, ids: NDArray[np.int64], start: int
    ) -> None:
        if not output.is_floating_point():
            return
        finite = torch.isfinite(output)
        if finite.all():
            return
        wrong = (~finite).flatten(1).sum(1).cpu() if output.ndim > 1 else (~finite).long().cpu()
        rows = wrong.nonzero()[:, 0].tolist()
        shown = ", ".join(
            f"row {start + row} (id {ids[row]}): {wrong[row]}" for row in rows[:SHOWN]
        )
        more = f" and {len(rows) - SHOWN} more rows" if len(rows) > SHOWN else ""
        raise DataError(
            f"split {self.split}: {name} has values that are not finite, in {output.dtype}: "
            f"{shown}{more}, of {output[0].numel()} each; mend the model or these inputs, take a "
            "wider dtype or autocast, or say nonfinite: keep to store them as they are"
        )


def pieces(inputs: Any, rows: int, size: int) -> Iterator[Any]:
    """Yield inputs of the model, at most ``size`` rows at a time."""
    if rows <= size:
        yield inputs
        return
    for start in range(0, rows, size):
        if isinstance(inputs, Mapping):
            yield {name: each[start : start + size] for name, each in inputs.items()}
        else:
            yield inputs[start : start + size]


def _kept(outputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return copies: a model may use the memory of its outputs again in the next call."""
    return {name: output.clone() for name, output in outputs.items()}


def _joined(several: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {name: torch.cat([each[name] for each in several]) for name in several[0]}


def _is_out_of_memory(error: BaseException) -> bool:
    """Tell what the allocators of torch raise where there is too little memory."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


Progress = Callable[[int, int], None]
"""Called at first, and after each batch, with the rows done so far and those of the split.

The latter are 0 where nobody knows them.
"""
