"""Going on with a split: its first stored row must be what the model gives for the source now."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pipeline.chunk import Block
from pipeline.errors import CorruptError, ExistsRefusedError
from pipeline.extract.passing import HALF, Contents, Pass
from pipeline.extract.sources import Batch, Source
from pipeline.store import Store, StoredSplit, manifest

TOLERANCE = 4e-3
"""Difference from the stored row, relative to its norm: other threads or devices round."""
LAST_PLACES = 8
"""The same in units of the last place, where outputs or products have half precision."""

Outputs = Mapping[str, torch.Tensor]


def refuse_other_rows(
    store: Store, run: Pass, source: Source, first: tuple[Batch, Outputs]
) -> None:
    """Raise :class:`ExistsRefusedError` where a split holds another row than would be made now.

    ``first`` are the first rows of the source and their outputs. What is compared is the first row
    of the first committed block that is not damaged: see :func:`refuse_other_row`.
    """
    for block in committed_blocks(store, run.split):
        stored = first_row(store, run.split, block)
        if stored is not None:
            start, stop = block.start, min(block.start + run.batch_rows, block.stop)
            batch, outputs = _made(run, source, start, start + 1) if start else first
            again = partial(_outputs, run, source, start, stop)
            where = f"{store.path}: split {run.split} row {start}"
            refuse_other_row(where, run, stored, batch, outputs, again)
            return


def refuse_other_row(
    where: str,
    run: Pass,
    stored: Contents,
    batch: Batch,
    outputs: Outputs,
    again: Callable[[], Outputs],
) -> None:
    """Raise :class:`ExistsRefusedError` unless the first row of a batch is the stored one.

    Id and label are compared exactly, outputs by the norm of their difference. Where those differ,
    ``again`` makes them twice more from a batch such as the row was stored from: outputs that
    depend on their batch, or that no two calls share, such as those of dropout, are let pass.
    """
    for what, name, given in (("id", "ids", batch.ids), ("label", "labels", batch.labels)):
        if int(stored[name]) != int(given[0]):
            _refuse(where, f"has {what} {stored[name]}, the source now gives {given[0]}")
    allowed = _tolerance(outputs, run)
    if not _unlike(stored, _row(outputs), allowed):
        return
    one, other = _row(again()), _row(again())
    wrong = _unlike(stored, one, allowed)
    if wrong and not _unlike(one, other, allowed):
        _refuse(where, f"is not what model and source give now: {', '.join(wrong)} differ")


def committed_blocks(store: Store, name: str) -> list[Block]:
    """Return the blocks of a split that are there, in order."""
    writer = store.writer(name)
    committed = writer.committed
    return [block for block in writer.blocks if block.index in committed]


def first_row(store: Store, name: str, block: Block) -> Contents | None:
    """Return the first row of a block, which is read as a whole; None where it is damaged."""
    record = manifest.read_record(store.path / name, block.index)
    if record is None or not record.committed:  # taken out meanwhile
        return None
    split = StoredSplit(store.path, name, store.writer(name).declared, (record,))
    names = sorted(split.schema.arrays)
    row: Contents = {}
    try:
        for chunk in split.read(block, frozenset(names)):
            row = row or {each: np.array(chunk[each][0]) for each in names}
    except CorruptError:
        return None
    return row


def _made(run: Pass, source: Source, start: int, stop: int) -> tuple[Batch, Outputs]:
    batch = run.checked(source.read(start, stop), start, stop - start)
    return batch, run.tensors(batch, start)


def _outputs(run: Pass, source: Source, start: int, stop: int) -> Outputs:
    return _made(run, source, start, stop)[1]


def _row(outputs: Outputs) -> Contents:
    """Return the first row of outputs in memory of its own: a model may use that of others anew."""
    return {name: output[0].double().cpu().numpy().copy() for name, output in outputs.items()}


def _tolerance(outputs: Outputs, run: Pass) -> float:
    dtypes = [output.dtype for output in outputs.values() if output.is_floating_point()]
    half = HALF.get(run.manner.autocast)
    steps = [torch.finfo(each).eps for each in (*dtypes, half) if each is not None]
    return max(TOLERANCE, LAST_PLACES * max(steps, default=0.0))


def _unlike(stored: Contents, now: Contents, allowed: float) -> list[str]:
    """Say which outputs of a row differ by more than what is allowed."""
    apart = {name: _apart(stored[name], now[name]) for name in sorted(now) if name in stored}
    return [f"{name} (by {share:.2g})" for name, share in apart.items() if share > allowed]


def _apart(stored: NDArray[Any], now: NDArray[Any]) -> float:
    """Return the norm of a difference by that of what is stored; inf where one is not finite."""
    then = np.asarray(stored, np.float64)
    if then.shape != now.shape:
        return float("inf")
    finite = np.isfinite(then)
    odd = np.array_equal(then[~finite], now[~finite], equal_nan=True)
    if not odd or not np.isfinite(now[finite]).all():
        return float("inf")
    difference = float(np.linalg.norm(then[finite] - now[finite]))
    norm = float(np.linalg.norm(then[finite]))
    return difference / norm if norm else float("inf") if difference else 0.0


def _refuse(where: str, why: str) -> None:
    raise ExistsRefusedError(
        f"{where} {why}; rows of two sources or models would be mixed: go on with those that it "
        "was begun with, name another split or store, or delete the old one"
    )
