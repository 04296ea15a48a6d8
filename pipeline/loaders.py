"""Data of a call as splits: as they are, or, with a model, what it makes of a loader's batches."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from pipeline import files
from pipeline.chunk import Split
from pipeline.engine import Job
from pipeline.inputs import (
    VAL_SPLIT,
    as_split,
    cache_directory,
    choose_head,
    fit_jobs,
    val_split,
)
from pipeline.procedure import Detector
from pipeline.workplace import planned


class SplitOf(Protocol):
    """Returns data as a split."""

    def __call__(
        self,
        data: Any,
        *,
        name: str = "id/train",
        classes: int | None = None,
        labelled: bool = True,
        check: Callable[[Split], object] = lambda promised: None,
    ) -> Split: ...


@contextmanager
def splits_of(model: Any, device: Any, cache: str | Path | None) -> Iterator[SplitOf]:
    """Yield what makes splits of data, which can be read until the end of the context.

    Without a model, data are rows already: see :func:`pipeline.inputs.as_split`. With one, they are
    loaders, each of which is read once; what the model gives lies in temporary files of the cache,
    so that any detector may pass over it as often as it needs: see
    :func:`pipeline.extract.loading.extracted`. ``check`` is called with a split like the one to
    come before most of it is extracted.
    """
    if model is None:
        yield _as_they_are
        return
    from pipeline.extract.loading import extracted  # torch is loaded only to extract

    directory = cache_directory(cache).absolute()
    files.sweep(directory)
    folder = directory / files.unfinished("loader")
    try:
        yield partial(extracted, model=model, device=device, folder=folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _as_they_are(
    data: Any,
    *,
    name: str = "id/train",
    classes: int | None = None,
    labelled: bool = True,
    check: Callable[[Split], object] = lambda promised: None,
) -> Split:
    return as_split(data, name=name, classes=classes)


class Given(NamedTuple):
    """What a fit is given apart from detectors: see :func:`pipeline.api.fit`."""

    data: Any
    val: Any
    head: Any
    classes: int | None


@contextmanager
def jobs_of(
    chosen: Mapping[str, Detector],
    given: Given,
    model: Any,
    device: Any,
    cluster: str,
    workers: int | None,
    memory: str | int,
    cache: str | Path | None,
) -> Iterator[dict[str, Job]]:
    """Yield the jobs of a fit; what a loader gives is planned for after its first batch."""

    def prepare(split: Split, val: Split | None) -> dict[str, Job]:
        further = {} if val is None else {VAL_SPLIT: val}
        return fit_jobs(chosen, split, choose_head(given.head, split.schema), further)

    def check(promised: Split) -> None:
        val = promised if given.val is not None else None
        planned(prepare(promised, val), cluster, workers, memory)

    with splits_of(model, device, cache) as split_of:
        split = split_of(given.data, classes=given.classes, check=check)
        if given.val is None:
            yield prepare(split, None)
            return
        k = split.schema.classes
        val = val_split(split_of(given.val, name=VAL_SPLIT, classes=k), k)
        yield prepare(split, val)
