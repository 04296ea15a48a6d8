"""Filling a split: the outputs of a model over a source, written block by block."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pipeline.chunk import Block
from pipeline.errors import ConfigError, DataError, ExistsRefusedError
from pipeline.extract.appending import BATCH_ROWS, append_rows
from pipeline.extract.blocks import Writer, damaged, fill_blocks
from pipeline.extract.data.datasets import as_rows
from pipeline.extract.final_layer import saved
from pipeline.extract.model import Extractor, declare
from pipeline.extract.passing import AUTO, Manner, Pass, Progress
from pipeline.extract.resuming import Outputs, refuse_other_rows
from pipeline.extract.sharing import share_out
from pipeline.extract.sources import Batch, Source
from pipeline.extract.stations import Make, Task, as_given, told_by
from pipeline.store import Store
from pipeline.store.layout import UNFINISHED

CLASS_NAMES, WEIGHTS = "class_names", "weights_sha256"
Say = Callable[[str], None]


@dataclass(frozen=True)
class Filled:
    """What an extraction did."""

    split: str
    rows: int
    blocks: int
    written: int
    """Blocks that were missing, and are written now."""
    rewritten: int = 0
    """Blocks that were damaged, and were written again."""
    missing: int = 0
    """Blocks that are left to other shares."""
    batch_rows: int | None = None


@dataclass(frozen=True)
class Share:
    """Which blocks are filled here, and how."""

    workers: int = 1
    """Processes that each take whole blocks."""
    part: tuple[int, int] | None = None
    """(i, n): the i-th of n shares of the blocks, the others being filled elsewhere."""
    verify: bool = False
    """Whether committed blocks are read too, and written again where they are damaged."""
    make: Make | None = None
    """What makes model and source in another process; None: they are sent there."""
    client: Any = None
    """A dask client whose workers take the blocks, instead of processes of this machine."""

    def own(self, blocks: Iterable[Block]) -> list[Block]:
        """Return the blocks of this share."""
        i, n = self.part or (1, 1)
        return [block for block in blocks if block.index % n == i - 1]


def extract_split(
    store: Store,
    name: str,
    model: Extractor | Callable[[Any], Any],
    source: Any,
    *,
    classes: int,
    batch_rows: int | str = 32,
    progress: Progress | None = None,
    attributes: Mapping[str, Any] | None = None,
    manner: Manner | None = None,
    share: Share = Share(),
    say: Say = lambda text: None,
    **options: Any,
) -> Filled:
    """Create split ``name`` of ``store`` as the model's outputs ask for, and fill it.

    ``source`` gives rows by range, or is a dataset, a DataLoader or an iterable of batches: see
    :func:`pipeline.extract.data.datasets.as_rows`. ``manner`` says how the model is run, where
    ``batch_rows`` alone does not. A split that is there already is gone on with, its committed
    blocks are kept; one that came from another source or model is refused, also where its first
    row alone tells, and so is a second process while this one writes (LockedError), unless both
    fill a ``share``. ``attributes`` are recorded beside those of the model, ``options`` are those
    of ``store.create_split``.
    """
    manner = manner or Manner(batch_rows)
    rows: Any = as_rows(source, getattr(model, "transform", None))
    extractor = _extractor(model)
    then = store.attributes(name) if store.has(name) else None
    known = told_by(extractor, rows)
    told: dict[str, Any] = {**known, **manner.attributes, **(attributes or {})}
    if then is not None and WEIGHTS not in then:
        told.pop(WEIGHTS, None)  # begun when a callable did not tell those of its modules
    _check_classes(store, name, told, classes)
    run = Pass(extractor, manner, name, rows.name, (then or {}).get(BATCH_ROWS), classes)
    with extractor.ready():
        if hasattr(rows, "read"):
            work = _Work(store, run, rows, known, share, progress, say)
            return work.split(classes, told, then, options)
        _refuse_shares(name, rows, share, say)
        with store.lock(name) as run.held:
            done = append_rows(
                store, run, rows, classes=classes, attributes=told, then=then,
                verify=share.verify, progress=progress, options=options,
            )  # fmt: skip
            keep_head(store, run)
            return Filled(name, *done, batch_rows=run.batch_rows)


def extract(
    model: Extractor | Callable[[Any], Any],
    source: Source,
    writer: Writer,
    *,
    batch_rows: int = 32,
    progress: Progress | None = None,
) -> None:
    """Write the blocks that ``writer`` misses; never more than one is in memory.

    Features, labels and ids of a row come from one read of the source. Batches start anew with
    each block, so a resumed run gives the bits of an uninterrupted one with the same
    ``batch_rows``, threads and device; other ones may differ by float32 rounding.

    Raises
    ------
    ConfigError
        When ``batch_rows`` is not positive.
    DataError
        When source and split differ in rows, the model fails, gives values that are not finite, or
        batches do not fit together: split and rows are named, and the blocks before are kept.
    """
    extractor = _extractor(model)
    run = Pass(extractor, Manner(batch_rows), writer.name, source.name)
    with extractor.ready():
        fill_blocks(run, source, writer, writer.missing(), progress)


@dataclass(frozen=True)
class _Work:
    """A split whose rows are read by range, and how its blocks are filled."""

    store: Store
    run: Pass
    source: Source
    known: Mapping[str, Any]
    """What model and source tell of themselves."""
    share: Share
    progress: Progress | None
    say: Say

    def split(
        self,
        classes: int,
        attributes: Mapping[str, Any],
        then: Mapping[str, Any] | None,
        options: Mapping[str, Any],
    ) -> Filled:
        """Create the split, or go on with it, and fill the blocks of this share."""
        name, rows = self.run.split, len(self.source)
        first, outputs = self._first(then)
        specs = declare(outputs, self.run.extractor.description.layouts)
        begun = self.run.batch_rows if then is None else then.get(BATCH_ROWS)
        own = {} if begun is None else {BATCH_ROWS: begun}
        with self.store.lock(name, self.share.part) as self.run.held:
            writer = self.store.create_split(
                name, specs, classes=classes, rows=rows, attributes={**attributes, **own},
                exist_ok=True, **options,
            )  # fmt: skip
            if then is not None:
                refuse_other_rows(self.store, self.run, self.source, (first, outputs))
            keep_head(self.store, self.run)
            if (names := getattr(self.source, "names", None)) is not None:
                self.store.write_names(name, names)
            wanted = self.share.own(writer.missing())
            self._fill(writer, wanted)
            wrong = self.share.own(damaged(self.store, name)) if self.share.verify else []
            for block in wrong:
                self.say(
                    f"{name}: block {block.index} (rows {block.start}-{block.stop}) is damaged and "
                    "written again"
                )
            self._fill(writer, wrong, overwrite=True)
        left, made = len(writer.missing()), len(writer.blocks)
        return Filled(name, rows, made, len(wanted), len(wrong), left, self.run.batch_rows)

    def _first(self, then: Mapping[str, Any] | None) -> tuple[Batch, Outputs]:
        """Return the first rows and their outputs; they settle the size of batches."""
        name, run, source = self.run.split, self.run, self.source
        if not len(source):
            raise DataError(f"split {name}: source {source.name!r} has no rows")
        if then is not None and then.get(UNFINISHED):
            raise ExistsRefusedError(
                f"{self.store.path}: split {name} came from a stream or files, {source.name} has "
                "rows by range; name another split or store, or delete the old one"
            )
        tried = run.batch_rows if run.manner.batch_rows == AUTO and then is None else 1
        batch = run.checked(source.read(0, min(tried, len(source))), 0)
        return batch, run.tensors(batch, 0)

    def _fill(self, writer: Any, blocks: list[Block], *, overwrite: bool = False) -> None:
        """Write blocks, as long as the split is held; only missing ones count as progress."""

        def progress(done: int, rows: int) -> None:
            self.run.check_held()
            if self.progress is not None and not overwrite:
                self.progress(done, rows)

        workers, client = min(self.share.workers, len(blocks)), self.share.client
        if not blocks or (client is None and workers < 2):
            fill_blocks(self.run, self.source, writer, blocks, progress, overwrite=overwrite)
            return
        make = self.share.make or as_given(self.run.extractor, self.source)
        manner = replace(self.run.manner, batch_rows=self.run.batch_rows)
        task = Task(make, str(self.store.path), self.run.split, manner, self.known, overwrite)
        if client is None:
            share_out(task, blocks, workers, len(self.source), progress, self.say)
            return
        from pipeline.extract.spreading import spread_out  # dask, which few extractions need

        spread_out(task, blocks, client, writer, progress, self.say)


def keep_head(store: Store, run: Pass) -> None:
    """Save the final layer of the model with the features, where it carries one."""
    head = saved(run.head, run.extractor)
    if head is not None:
        store.write_head(head.weight, head.bias, head.attributes)


def _refuse_shares(name: str, stream: Any, share: Share, say: Say) -> None:
    if share.client is not None:
        say(f"{name}: {stream.name} is a stream, in one order: this process alone runs its model")
    if share.workers > 1 or share.part:
        raise ConfigError(
            f"split {name}: {stream.name} is a stream, whose rows come in one order: it is filled "
            "by one process, so leave out workers and shares of blocks"
        )


def _extractor(model: Extractor | Callable[[Any], Any]) -> Extractor:
    return model if isinstance(model, Extractor) else Extractor(model)


def _check_classes(store: Store, name: str, told: Mapping[str, Any], classes: int) -> None:
    """Raise :class:`DataError` where labels of two splits would stand for other classes."""
    own = told.get(CLASS_NAMES)
    if own and len(own) > classes:
        raise DataError(
            f"split {name}: {told['source']} has {len(own)} classes, expected {classes} at most: "
            f"{', '.join(map(str, own[:3]))}, ...; declare as many, or leave out labels"
        )
    for other in store.splits() if own else ():
        theirs = store.attributes(other).get(CLASS_NAMES)
        if other != name and theirs and list(theirs) != list(own or ()):
            both = list(zip(own or (), theirs, strict=False))
            place = next((n for n, (a, b) in enumerate(both) if a != b), len(both))
            raise DataError(
                f"split {name}: its {len(own or ())} classes are not the {len(theirs)} of {other}: "
                f"from label {place} on, labels would stand for other classes; give both the same "
                "order by classes: [NAME, ...], or classes: FOLDER, whose sub-folders they are"
            )
