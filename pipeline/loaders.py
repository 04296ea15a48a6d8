"""Data of a call as splits: as they are, or, with a model, what it makes of a loader's batches."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pipeline import files
from pipeline.chunk import Split
from pipeline.engine import Job
from pipeline.engine.streaming import MORE_ROWS
from pipeline.errors import ConfigError, FeatfoldError
from pipeline.inputs import (
    VAL_SPLIT,
    as_split,
    cache_directory,
    choose_head,
    fit_jobs,
    val_split,
)
from pipeline.procedure import Detector
from pipeline.streams import FILES, streaming
from pipeline.workplace import Workplace, planned, workplace

Prepare = Callable[..., dict[str, Job]]
"""Returns the jobs over splits, one for each of the data that are given."""


class Load(NamedTuple):
    """Data of a call: rows, or, with a model, a loader of inputs."""

    data: Any
    name: str
    classes: int | None
    """None where the data say it, or those that were given before."""
    labelled: bool = True


class Call(NamedTuple):
    """What a call says of where and how it runs: see :func:`pipeline.api.fit`."""

    model: Any
    device: Any
    stream: bool | None
    cluster: str
    workers: int | None
    memory: str | int
    device_memory: str | int
    cache: str | Path | None
    stage: str = "fit"


class Given(NamedTuple):
    """What a fit is given apart from detectors: see :func:`pipeline.api.fit`."""

    data: Any
    val: Any
    head: Any
    classes: int | None


@contextmanager
def fit_at_work(
    chosen: Mapping[str, Detector], given: Given, call: Call
) -> Iterator[tuple[dict[str, Job], Workplace]]:
    """Yield the jobs of a fit, and what runs them."""

    def prepare(split: Split, val: Split | None = None) -> dict[str, Job]:
        further = {} if val is None else {VAL_SPLIT: val}
        return fit_jobs(chosen, split, choose_head(given.head, split.schema, split), further)

    loads = [Load(given.data, "id/train", given.classes)]
    if given.val is not None:
        loads.append(Load(given.val, VAL_SPLIT, None))
    with at_work(loads, prepare, call) as found:
        yield found


@contextmanager
def at_work(
    loads: Sequence[Load], prepare: Prepare, call: Call
) -> Iterator[tuple[dict[str, Job], Workplace]]:
    """Yield jobs over data, and what runs them; what cannot be is refused first.

    Without a model, data are rows already: see :func:`pipeline.inputs.as_split`; a device of
    CUDA then asks for workers with GPUs. With one, they are loaders, each of which is read
    once: straight into the folds where one pass is enough and the number of classes is known,
    else into temporary files of the cache, so that any detector may pass over them as often as
    it needs. See :func:`pipeline.extract.loading.opened`.
    """
    if call.stream not in (None, True, False):
        raise ConfigError(f"stream: {call.stream!r}; expected True, False, or None to choose")
    if call.model is None:
        if call.stream:
            raise ConfigError("stream: True needs a model= whose rows are folded as it makes them")
        if str(call.device).startswith("cuda") and call.cluster == "auto":
            call = call._replace(cluster="cuda")
        with _placed(prepare(*_as_they_are(loads)), call) as found:
            yield found
        return
    with _through_model(loads, prepare, call) as found:
        yield found


@contextmanager
def _through_model(
    loads: Sequence[Load], prepare: Prepare, call: Call
) -> Iterator[tuple[dict[str, Job], Workplace]]:
    from pipeline.extract.loading import opened  # torch is loaded only to extract

    def open_(load: Load, classes: int | None) -> AbstractContextManager[Any]:
        return opened(
            load.data, call.model, device=call.device, name=load.name, classes=classes,
            labelled=load.labelled,
        )  # fmt: skip

    def check(promised: Split) -> None:
        jobs = prepare(promised, *(promised for _ in loads[1:]))
        planned(
            jobs, call.cluster, call.workers, call.memory, device_memory=call.device_memory,
            stage=call.stage,
        )  # fmt: skip

    directory = cache_directory(call.cache).absolute()
    files.sweep(directory)
    folder = directory / files.unfinished("loader")
    first, *others = loads
    try:
        with ExitStack() as held:
            loaded = held.enter_context(open_(first, first.classes))
            if (place := _straight(loaded, others, prepare, call)) is not None:
                later = [held.enter_context(open_(each, loaded.classes)) for each in others]
                streams = [each.streamed() for each in (loaded, *later)]
                yield prepare(*streams), place
                for stream in streams:
                    stream.leave()
                return
            splits = [loaded.filed(folder, check)]
        for load in others:
            with open_(load, splits[0].schema.classes) as loaded:
                splits.append(loaded.filed(folder))
        with _placed(prepare(*splits), call) as found:
            yield found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _straight(
    loaded: Any, others: Sequence[Load], prepare: Prepare, call: Call
) -> Workplace | None:
    """Return what folds rows as they come; None where that cannot be and was not asked for."""
    if call.stream is False:
        return None
    try:
        return _planned_straight(loaded, others, prepare, call)
    except FeatfoldError:
        if call.stream:
            raise
        return None  # what is wrong with the call itself is so with files, too


def _planned_straight(
    loaded: Any, others: Sequence[Load], prepare: Prepare, call: Call
) -> Workplace:
    if loaded.classes is None:
        raise ConfigError(
            "the number of classes is known only when the last label was seen, and a fold needs it "
            f"before the first row: pass classes=, have the model give logits, or give {FILES}"
        )
    split = loaded.streamed()
    few: list[dict[str, Job]] = []
    if split.shape.rows is None or others:
        for rows in (loaded.batch_rows, MORE_ROWS):
            count = split.shape.rows or rows
            streams = [split.like(name, count) for name in (split.name, *(e.name for e in others))]
            few.append(prepare(*streams))
    prepared = prepare(split, *(split.like(each.name, None) for each in others))
    return streaming(
        prepared, few, cluster=call.cluster, workers=call.workers, memory=call.memory,
        stage=call.stage,
    )  # fmt: skip


@contextmanager
def _placed(prepared: dict[str, Job], call: Call) -> Iterator[tuple[dict[str, Job], Workplace]]:
    with workplace(
        prepared,
        call.cluster,
        call.workers,
        call.memory,
        call.cache,
        device_memory=call.device_memory,
        stage=call.stage,
    ) as place:
        yield prepared, place


def _as_they_are(loads: Sequence[Load]) -> list[Split]:
    splits: list[Split] = []
    for load in loads:
        if splits:
            splits.append(val_split(load.data, splits[0].schema.classes))
        else:
            splits.append(as_split(load.data, name=load.name, classes=load.classes))
    return splits
