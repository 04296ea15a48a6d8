"""What a process has that writes blocks for another one: the model and the rows, made once."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import torch

from pipeline.chunk import Block
from pipeline.errors import DataError, FeatfoldError
from pipeline.extract.blocks import fill_blocks
from pipeline.extract.data.datasets import as_rows
from pipeline.extract.model import Extractor
from pipeline.extract.passing import Manner, Pass
from pipeline.extract.sources import Source
from pipeline.store import Store, manifest

Make = Callable[[], tuple[Any, Any]]
"""Returns a model and data, in whatever process it is called."""
COMPARED = ("_sha256", "_version")
"""Endings of attributes that are the same in all processes: the names of classes need not be."""
Tell = Callable[[int], None]
"""Called with the rows of a block that are done."""


@dataclass(frozen=True)
class Task:
    """What every worker must know."""

    make: Make
    store: str
    split: str
    manner: Manner
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """What model and data tell of themselves where the split was begun."""
    overwrite: bool = False


def as_given(model: Any, source: Source) -> Make:
    """Return what has a model and a source sent to every process."""
    return partial(_as_given, model, source)


def _as_given(model: Any, source: Source) -> tuple[Any, Source]:
    return model, source


def told_by(extractor: Extractor, rows: Any) -> dict[str, Any]:
    """Return what a split records of its rows and their model."""
    return {"source": rows.name, **getattr(rows, "attributes", {}), **extractor.attributes()}


class Station:
    """A model and its rows in this process, which write blocks of one split.

    Raises :class:`DataError` where either is not what the split was begun with, such as a model
    whose factory draws its weights anew in every process.
    """

    def __init__(self, task: Task) -> None:
        model, data = task.make()
        self._overwrite = task.overwrite
        self._source = cast(Source, as_rows(data, getattr(model, "transform", None)))
        extractor = model if isinstance(model, Extractor) else Extractor(model)
        now = told_by(extractor, self._source)
        for key, then in task.attributes.items():
            if key.endswith(COMPARED) and now.get(key) != then:
                raise DataError(
                    f"split {task.split}: {key} is {now.get(key)!r} in a worker, and {then!r} in "
                    "the process that started it: each makes the model and the data anew, and must "
                    "get the same; give weights, or seed what is random"
                )
        self._writer = Store.open(task.store).writer(task.split)
        classes = self._writer.declared.classes
        self._run = Pass(extractor, task.manner, task.split, self._source.name, classes=classes)
        self._run.checked(self._source.read(0, 1), 0, 1)  # whether rows have labels at all

    def ready(self) -> AbstractContextManager[None]:
        """Have the model on its device."""
        return self._run.extractor.ready()

    def fill(self, block: Block, tell: Tell) -> None:
        """Write a block, unless a worker did that was lost before it could say so."""
        before = len(self._source) - block.rows
        if self._overwrite or not is_committed(self._writer, block):
            fill_blocks(
                self._run, self._source, self._writer, [block],
                lambda done, _: tell(done - before), overwrite=self._overwrite,
            )  # fmt: skip
        else:
            tell(block.rows)


def is_committed(writer: Any, block: Block) -> bool:
    """Tell whether a block is in the store, whoever wrote it."""
    record = manifest.read_record(writer.root / writer.name, block.index)
    return record is not None and record.committed


_kept: dict[str, Station] = {}
_alone = threading.Lock()


def fill_here(task: Task, token: str, block: Block, tell: Tell, threads: int) -> None:
    """Write a block in a process that serves others too; its station is kept until it is left.

    ``token`` names the extraction, ``threads`` are those of torch meanwhile.
    """
    with _alone, _threads(threads):  # a model is run by one thread at a time
        try:
            if (station := _kept.get(token)) is None:
                _kept.clear()
                _kept[token] = station = _made(task)
            with station.ready():
                station.fill(block, tell)
        except BaseException as error:
            _kept.clear()
            if isinstance(error, FeatfoldError) or not isinstance(error, Exception):
                raise
            raise FeatfoldError(f"split {task.split}: {type(error).__name__}: {error}") from error


def leave() -> None:
    """Forget the model and the rows that this process has kept."""
    _kept.clear()


def _made(task: Task) -> Station:
    try:
        return Station(task)
    except FeatfoldError as error:
        raise type(error)(
            f"{error} (on a worker that runs in {os.getcwd()}: store, data, weights and code must "
            "be where every worker finds them by the same name)"
        ) from error


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
