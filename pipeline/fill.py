"""Filling a store: the splits of a job that are not there yet are extracted from their sources."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from pipeline.config import JobConfig, Source
from pipeline.errors import ConfigError
from pipeline.store import Store

EXTRACTED_FROM = "extracted_from"
"""Attribute of a split: what the job said of its rows and their model."""


class Progress(Protocol):
    """What is told how far a job is; stages count bytes, or another unit that they name."""

    def begin(self, name: str, total: int, unit: str = "bytes") -> None: ...
    def advance(self, amount: int) -> None: ...
    def end(self) -> None: ...
    def say(self, text: str) -> None: ...


def fill(config: JobConfig, told: Progress) -> None:
    """Fill the splits whose sources the job names; committed blocks are kept."""
    if not config.sources:
        return
    path = Path(config.store)
    store = Store.open(path) if path.exists() else Store.create(path)
    classes = config.classes or 0  # a job with sources names it: see the configuration
    waiting = [s for s in config.sources if not _is_extracted(store, s, classes)]
    if not waiting:
        return
    from pipeline.extract import build
    from pipeline.extract.filling import extract_split  # torch is loaded only to extract

    models: dict[str, Any] = {}
    for source in waiting:
        wanted = source.model.model_dump_json()
        if wanted not in models:
            models[wanted] = build(source.model.factory, **source.model.arguments)
        rows = build(source.data.factory, **source.data.arguments)
        told.begin(f"extract {source.split}", len(rows), "rows")
        extract_split(
            store, source.split, models[wanted], rows,
            classes=classes, block_nbytes=config.block_nbytes, progress=_steps(told),
            attributes={EXTRACTED_FROM: _said_of(source)},
        )  # fmt: skip
        told.end()


def _steps(told: Progress) -> Callable[[int, int], None]:
    """Turn "rows done so far" into steps."""
    last = 0

    def advance(done: int, rows: int) -> None:
        nonlocal last
        told.advance(done - last)
        last = done

    return advance


def _is_extracted(store: Store, source: Source, classes: int) -> bool:
    """Tell whether a split is complete; raise where it was extracted from something else."""
    if source.split not in store.splits():
        return False
    then, now = store.attributes(source.split).get(EXTRACTED_FROM), _said_of(source)
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
    return not writer.missing()


def _said_of(source: Source) -> str:
    """Return what a job says of the rows of a split and of their model, as text to compare."""
    return f"{source.data.model_dump_json()} by {source.model.model_dump_json()}"
