"""Filling a store: the splits of a job that are not there yet, from models or from files."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from pipeline.cluster import remote
from pipeline.config import JobConfig, Source
from pipeline.config.factories import PROBES
from pipeline.errors import ConfigError
from pipeline.provenance import MADE_OF, changes, made_of
from pipeline.store import Store
from pipeline.store.layout import UNFINISHED, is_ood

EXTRACTED_FROM = "extracted_from"
"""Attribute of a split: what the job said of its rows and their model."""

LAYING = ("taps", "layouts", "prefix", "head", "mask", "length", "pooled")
"""Keys of a model that say what is stored of its outputs: see ``ff.tapped``."""


class Progress(Protocol):
    """What is told how far a job is; stages count bytes, or another unit that they name."""

    def begin(self, name: str, total: int, unit: str = "bytes") -> None: ...
    def advance(self, amount: int) -> None: ...
    def end(self) -> None: ...
    def say(self, text: str) -> None: ...


@dataclass(frozen=True)
class Extracted:
    """What was done for one split."""

    split: str
    rows: int
    blocks: int
    written: int
    rewritten: int
    missing: int
    """Blocks that are left to other shares."""
    batch_rows: int | None
    seconds: float


def fill(
    config: JobConfig,
    told: Progress,
    *,
    only: Sequence[str] = (),
    verify: bool = False,
    part: tuple[int, int] | None = None,
    workers: int | None = None,
) -> list[Extracted]:
    """Fill the splits whose sources the job names, or ``only`` some; committed blocks are kept.

    ``verify`` reads what is there, too, and writes damaged blocks again; ``part`` (i, n) fills the
    i-th of n shares of the blocks of each split; ``workers`` takes the place of what sources say.
    Where the cluster of the job is a scheduler elsewhere, all its workers take blocks.
    """
    sources = _chosen(config, only)
    if not sources:
        return []
    path = config.store
    store = Store.open(path) if Store.is_at(path) else None
    classes = config.classes or 0  # a job with sources names it: see the configuration
    there = {s.split for s in sources if store and _is_extracted(store, s, classes, told)}
    waiting = [source for source in sources if verify or source.split not in there]
    models: dict[str, Any] = {}
    made = []  # all of them before the first is extracted: what is missing is told at once
    for source in waiting:
        if source.files:
            made.append((source, None, None))
            continue
        wanted = source.model.model_dump_json()
        if wanted not in models:
            models[wanted] = model_of(source)
        made.append((source, models[wanted], data_of(source, models[wanted])))
    kind = config.resources.cluster
    elsewhere = remote.is_address(kind) and any(not source.files for source in waiting)
    opened: Any = remote.client(kind) if elsewhere else nullcontext()
    with opened as client:
        if elsewhere:
            remote.greet(client)
            told.say(f"extracts on {len(client.nthreads())} workers of {kind}")
        return [
            _import(config, source, told, part)
            if source.files
            else _extract(config, source, model, rows, told, verify, part, workers, client)
            for source, model, rows in made
        ]


def _import(
    config: JobConfig, source: Source, told: Progress, part: tuple[int, int] | None
) -> Extracted:
    """Import the files of a source; of several shares, the first does that."""
    from pipeline.importing import import_split

    if part is not None and part[0] > 1:
        told.say(f"{source.split}: its files are imported by the share 1/{part[1]}")
        return Extracted(source.split, 0, 0, 0, 0, 0, None, 0.0)
    began = time.perf_counter()
    done = import_split(
        config.store, source.split, source.files,
        arrays={name: found for found, name in source.map.items()} or None,
        classes=config.classes, labels=source.labels, layouts=source.layouts,
        dtype=None if source.dtype == "auto" else source.dtype, scores=source.scores,
        attributes=_origin(config, source), resume=True, progress=told,
        block_nbytes=config.block_nbytes,
    )  # fmt: skip
    for found, why in done.left_out.items():
        told.say(f"{source.split}: left out {found}: {why}")
    return Extracted(
        done.split, done.rows, done.written + done.kept, done.written - done.mended, done.mended, 0,
        None, time.perf_counter() - began,
    )  # fmt: skip


def _chosen(config: JobConfig, only: Sequence[str]) -> list[Source]:
    known = [source.split for source in config.sources]
    if unknown := [name for name in only if name not in known]:
        raise ConfigError(
            f"split {unknown[0]!r} has no source in this job; those with one: "
            f"{', '.join(known) or 'none'}"
        )
    return [source for source in config.sources if not only or source.split in only]


def _extract(
    config: JobConfig,
    source: Source,
    model: Any,
    rows: Any,
    told: Progress,
    verify: bool,
    part: tuple[int, int] | None,
    workers: int | None,
    client: Any,
) -> Extracted:
    from pipeline.extract.filling import Share, extract_split  # torch is loaded only to extract

    began = time.perf_counter()
    store = Store.open(config.store) if Store.is_at(config.store) else Store.create(config.store)
    count = workers or source.workers
    share = Share(count, part, verify, partial(_made, source), client)
    steps = _Steps(told, f"extract {source.split}", getattr(rows, "unit", "rows"))
    done = extract_split(
        store, source.split, model, rows,
        classes=config.classes or 0, block_nbytes=config.block_nbytes, progress=steps,
        attributes=_origin(config, source), manner=manner_of(source), share=share,
        say=told.say,
    )  # fmt: skip
    steps.end()
    return Extracted(
        done.split, done.rows, done.blocks, done.written, done.rewritten, done.missing,
        done.batch_rows, time.perf_counter() - began,
    )  # fmt: skip


def _made(source: Source) -> tuple[Any, Any]:
    """Return the model and the data of a source, in whatever process."""
    model = model_of(source)
    return model, data_of(source, model)


def manner_of(source: Source) -> Any:
    """Return how a job runs a model over the rows of a source."""
    from pipeline.extract.passing import Manner

    batch_rows = "auto" if source.batch is None else source.batch
    return Manner(batch_rows, source.autocast, source.dtype, source.nonfinite)


def model_of(source: Source) -> Any:
    """Return the model of a source, with its probes.

    A callable that ``import`` makes is laid out by keys that its factory does not take itself.
    """
    from pipeline.extract import build
    from pipeline.extract.sources import accepts

    factory, arguments = source.model.factory, source.model.arguments
    own = [key for key in LAYING if key in arguments and not accepts(factory, key)]
    laying = {key: arguments.pop(key) for key in own}
    model = build(factory, **arguments)
    if laying:
        from pipeline.extract.taps import tapped

        model = tapped(model, **laying)
    for probe in source.model.probes:
        options = {key: given for key, given in probe.items() if key != "name"}
        model = build(PROBES[probe["name"]], model=model, **options)
    return model


def data_of(source: Source, model: Any) -> Any:
    """Return the data of a source, made with what the model and the split say of them."""
    from pipeline.extract import build
    from pipeline.extract.sources import takes

    factory, arguments = source.data.factory, source.data.arguments
    transform = getattr(model, "transform", None)
    own = not {"transform", "size", "crop"} & set(arguments)
    if transform is not None and own and takes(factory, "transform"):
        arguments["transform"] = transform
    if is_ood(source.split) and "labelled" not in arguments and takes(factory, "labelled"):
        arguments["labelled"] = False
    return build(factory, **arguments)


class _Steps:
    """Turns "rows done so far" into a stage of the rows that were left at its start."""

    def __init__(self, told: Progress, name: str, unit: str) -> None:
        self._told, self._name, self._unit = told, name, unit
        self._last: int | None = None

    def __call__(self, done: int, rows: int) -> None:
        """Take over how many rows are done, of how many; 0 where nobody knows."""
        if self._last is None:
            self._last = done
            self._told.begin(self._name, max(0, rows - done), self._unit)
        self._told.advance(done - self._last)
        self._last = done

    def end(self) -> None:
        """End the stage, if it began."""
        if self._last is not None:
            self._told.end()


def _origin(config: JobConfig, source: Source) -> dict[str, Any]:
    """Return what is recorded of where a split comes from; of one that is there, as it was."""
    store = Store.open(config.store) if Store.is_at(config.store) else None
    then = store.attributes(source.split) if store and store.has(source.split) else None
    made = made_of(source, config.store) if then is None else then.get(MADE_OF)
    return {EXTRACTED_FROM: said_of(source)} | ({} if made is None else {MADE_OF: made})


def _is_extracted(store: Store, source: Source, classes: int, told: Progress) -> bool:
    """Tell whether a split is complete; raise where it was extracted from something else."""
    if not store.has(source.split):
        return False
    attributes = store.attributes(source.split)
    then, now = attributes.get(EXTRACTED_FROM), said_of(source)
    if then is not None and then != now:
        raise ConfigError(
            f"{store.path}: split {source.split} was extracted from {then}, the job now says "
            f"{now}; name another split or store, or delete the old one"
        )
    writer = store.writer(source.split)
    if writer.declared.classes != classes:
        raise ConfigError(
            f"{store.path}: split {source.split} has {writer.declared.classes} classes, the job "
            f"now says {classes}; name another split or store, or delete the old one"
        )
    if then is not None:
        _refuse_stale(store, source, attributes.get(MADE_OF), told)
    return not writer.missing() and not attributes.get(UNFINISHED)


def _refuse_stale(store: Store, source: Source, then: Any, told: Progress) -> None:
    """Raise :class:`ConfigError` where weights or data are not those that a split was made of."""
    split, old = source.split, store.path / source.split
    if then is None:
        told.say(f"{split}: what it was made of was not recorded, so changes since are not noticed")
        return
    found = changes(then, source, str(store.path))
    if found.certain:
        raise ConfigError(
            f"{store.path}: split {split} is stale, as these have changed since it was made: "
            f"{'; '.join(found.certain)}; delete {old} to make it anew, name another split or "
            "store, or restore what it was made of"
        )
    if found.perhaps:
        told.say(
            f"{split}: used as it is, though these were touched since it was made: "
            f"{', '.join(found.perhaps)}; delete {old} to make it anew"
        )


def said_of(source: Source) -> str:
    """Return what a job says of the rows of a split and of their model, as text to compare."""
    if source.files:
        return source.model_dump_json(exclude={"split"}, exclude_defaults=True)
    manner = source.model_dump(mode="json", include={"autocast", "dtype"}, exclude_defaults=True)
    text = f"{source.data.model_dump_json()} by {source.model.model_dump_json()}"
    return text + (f" in {manner}" if manner else "")
