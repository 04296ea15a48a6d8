"""``featfold bench scheduler``: what a task costs when its block holds next to nothing."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.bench.measuring import Outcome, Say, table
from pipeline.chunk import ArraySpec, Block, Chunk, Schema
from pipeline.cluster import open_cluster, settle
from pipeline.engine import Job, Settings, Trace, run_jobs
from pipeline.evaluation import LabelCounts
from pipeline.fold import AnyStatistic
from pipeline.machine import peak_rss_nbytes, reset_peak, rss_nbytes
from pipeline.plan import Work, human
from pipeline.procedure import TRAIN
from pipeline.statistics import Marginals
from pipeline.views import Labels

COUNTS = (100, 1_000)
FAR = 10_000
"""Tasks that times are extrapolated to: the most that a pass has."""


@dataclass(frozen=True)
class NoopSplit:
    """As many blocks as asked for, of one row each; reading them opens nothing."""

    count: int

    @property
    def name(self) -> str:
        return "id/train"

    @property
    def is_ood(self) -> bool:
        return False

    @cached_property
    def schema(self) -> Schema:
        return Schema(self.count, 2, {"labels": ArraySpec((), "int64")}, self.name)

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        return tuple(Block(i, i, i + 1) for i in range(self.count))

    @property
    def chunk_rows(self) -> int:
        return 1

    def __reduce__(self) -> tuple[Any, ...]:
        return NoopSplit, (self.count,)

    def only(self, block: Block) -> NoopSplit:
        """Return itself: it is but a number."""
        return self

    def read(
        self, block: Block, fields: frozenset[str], step_rows: int | None = None
    ) -> Iterator[Chunk]:
        """Yield the one row of a block; its label is the parity of its index."""
        labels = np.array([block.index % 2])
        yield Chunk(self.schema, block.start, 1, dict.fromkeys(fields, labels))

    def reading_nbytes(self, fields: frozenset[str], step_rows: int | None = None) -> int:
        """Return the bytes of a row."""
        return self.schema.row_nbytes(fields)

    def checksums(self, block: Block, fields: frozenset[str]) -> Mapping[str, str]:
        """Return names for the rows that nobody wrote."""
        return dict.fromkeys(fields, f"noop-{block.index}")

    def identity(self, block: Block, fields: frozenset[str]) -> str:
        """Return a name, so that partials are kept in files as those of a store are."""
        return f"noop-{block.index}"


@dataclass(frozen=True)
class Count:
    """One pass over so many blocks."""

    blocks: int
    graph_seconds: float
    """Naming the partials and laying out folds and merges, in the client."""
    pass_seconds: float
    """All of the pass: graph, submission, folds, merges, and their files."""
    client_growth_nbytes: int
    """Peak memory of the client, which runs the scheduler as well, less what it held before."""
    worker_growth_nbytes: int
    """The same of the worker that grew most."""
    merges: int


def bench(tasks: int, workers: int, scratch: Path, say: Say = lambda text: None) -> Outcome:
    """Time passes over 100, 1,000 and ``tasks`` empty blocks on the scheduler that fits use."""
    counts = sorted({*(c for c in COUNTS if c < tasks), tasks})
    with (
        tempfile.TemporaryDirectory(prefix="bench-scheduler-", dir=scratch) as cache,
        open_cluster(settle("local", workers), Path(cache)) as running,
    ):
        _pass(NoopSplit(2 * workers), Path(cache) / "first", running.client)  # workers import
        found = []
        for count in counts:
            found.append(_pass(NoopSplit(count), Path(cache) / str(count), running.client))
            say(f"{count:,} blocks: {found[-1].pass_seconds:.2f} s")
    return _outcome(found, workers)


def _pass(split: NoopSplit, cache: Path, client: Any) -> Count:
    from pipeline.engine import Dask

    statistics: tuple[AnyStatistic, ...] = (Marginals(of=Labels(), by=Labels()),)
    began = time.perf_counter()
    schedule = Settings().schedule(Work(split, statistics), cache)
    merges = len(schedule.steps) - len(schedule.folds)
    graph_seconds = time.perf_counter() - began
    trace = Trace()
    before, workers_before = _held(), client.run(_held)
    jobs = {"labels": Job(LabelCounts(), {TRAIN: (split,)})}
    run_jobs(jobs, Dask(client, cache), trace=trace)
    growth = max(0, peak_rss_nbytes() - before)
    peaks = client.run(peak_rss_nbytes)
    workers_growth = max(peaks[worker] - held for worker, held in workers_before.items())
    return Count(
        split.count, graph_seconds, sum(trace.seconds), growth, max(0, workers_growth), merges
    )


def _held() -> int:
    """Return the memory that this process holds now, from where its peak is counted anew."""
    reset_peak()
    return rss_nbytes()


def line_through(counts: Sequence[int], seconds: Sequence[float]) -> tuple[float, float]:
    """Return a, b of seconds = a + b x count, by least squares; a is 0 for a single count."""
    if len(counts) < 2:
        return 0.0, seconds[0] / counts[0]
    b, a = np.polyfit(np.asarray(counts, float), np.asarray(seconds), 1)
    return float(a), float(b)


def _outcome(found: Sequence[Count], workers: int) -> Outcome:
    a, b = line_through([c.blocks for c in found], [c.pass_seconds for c in found])
    numbers = {
        "workers": workers,
        "counts": [asdict(count) for count in found],
        "seconds_at_no_task": a,
        "seconds_per_task": b,
        "tasks_far": FAR,
        "seconds_far": a + b * FAR,
    }
    shown = table(
        "blocks", "merges", "graph s", "pass s", "ms per block", "client grew by", "worker"
    )
    for count in found:
        shown.add_row(
            f"{count.blocks:,}", f"{count.merges:,}", f"{count.graph_seconds:.2f}",
            f"{count.pass_seconds:.2f}", f"{1e3 * count.pass_seconds / count.blocks:.2f}",
            human(count.client_growth_nbytes), human(count.worker_growth_nbytes),
        )  # fmt: skip
    shown.add_section()
    shown.add_row(f"{FAR:,} *", "", "", f"{a + b * FAR:.1f}", style="bold")
    notes = [
        f"* on the line through the others: {a:.2f} s + {1e3 * b:.2f} ms x blocks",
        "blocks of one row that open no file; the rest is what every pass does: names, graph, "
        "submission, a partial per block and per merge, written and flushed",
        "the client runs the scheduler too, so its growth is that of both",
    ]
    return Outcome("scheduler", numbers, {f"No-op blocks on {workers} workers": shown}, notes)
