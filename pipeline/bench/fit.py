"""``featfold bench fit``: a pass beside its floor, in turn, from the same state of caches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pipeline.bench import fitting, floor
from pipeline.bench.alone import alone_seconds
from pipeline.bench.measuring import (
    Outcome,
    Processes,
    Say,
    alternate,
    medians,
    spread,
    table,
)
from pipeline.calibration import Calibration, measure
from pipeline.chunk import Split
from pipeline.errors import DataError
from pipeline.inputs import cache_directory
from pipeline.plan import human
from pipeline.store import Store

READ, PRODUCTS, PASS = "raw read", "products", "pass"


@dataclass(frozen=True)
class Asked:
    """What is measured."""

    store: Path
    detectors: Sequence[str] = fitting.DETECTORS
    pool: str = "tokens"
    workers: int = 2
    repeat: int = 5
    cold: bool = False
    scratch: Path | None = None
    """Where caches go: beside the store by default."""

    @property
    def directory(self) -> Path:
        return self.scratch or self.store.absolute().parent


def bench(asked: Asked, say: Say = lambda text: None) -> Outcome:
    """Measure a fit of a store beside the floor of the same reads and products."""
    split = Store.open(asked.store).split(fitting.SPLIT)
    jobs = fitting.jobs_of(fitting.chosen(asked.detectors, asked.pool), split)
    passes = fitting.passes_of(jobs)
    paths, products = floor.files_of(passes), floor.products_of(passes)
    if not paths:
        raise DataError(f"{asked.store}: the detectors read nothing of {fitting.SPLIT}")
    ran: list[fitting.Ran] = []

    def our_pass() -> float:
        if asked.cold:
            floor.drop(paths)
        ran.append(fitting.timed(jobs, asked.workers, asked.directory))
        return ran[-1].pass_seconds

    with Processes(asked.workers) as processes:

        def raw_read() -> float:
            if asked.cold:
                floor.drop(paths)
            return floor.read_seconds(processes, paths)

        raw_read()  # warm: what does not stay in memory now would be read from disk by one side
        taken = alternate(
            {
                READ: raw_read,
                PRODUCTS: lambda: floor.products_seconds(processes, products),
                PASS: our_pass,
            },
            asked.repeat,
            say,
        )
    say("each statistic alone")
    each = alone_seconds(split, fitting.statistics_of(passes))
    return _outcome(asked, split, taken, ran, paths, products, each)


def _outcome(
    asked: Asked,
    split: Split,
    taken: dict[str, list[float]],
    ran: list[fitting.Ran],
    paths: list[Path],
    products: list[floor.Products],
    each: dict[str, dict[str, float]],
) -> Outcome:
    middle = medians(taken)
    nbytes = sum(path.stat().st_size for path in paths)
    flops = sum(p.flops for p in products)
    floor_seconds = max(middle[READ], middle[PRODUCTS])
    numbers: dict[str, Any] = {
        "store": str(asked.store),
        "rows": split.schema.rows,
        "detectors": list(asked.detectors),
        "pool": asked.pool,
        "workers": asked.workers,
        "repeat": asked.repeat,
        "cache_state": "cold" if asked.cold else "warm",
        "seconds": taken,
        "median_seconds": middle,
        "floor_seconds": floor_seconds,
        "floor_is": READ if middle[READ] >= middle[PRODUCTS] else PRODUCTS,
        "ratio": middle[PASS] / floor_seconds,
        "pass_over_raw_read": middle[PASS] / middle[READ],
        "files_nbytes": nbytes,
        "read_bytes_per_second": nbytes / middle[READ],
        "pass_bytes_per_second": nbytes / middle[PASS],
        "products": [asdict(p) for p in products],
        "products_flops_per_second": flops / middle[PRODUCTS] if flops else None,
        "fit_seconds": medians({"fit": [r.fit_seconds for r in ran]})["fit"],
        "total_seconds": medians({"total": [r.total_seconds for r in ran]})["total"],
        "passes": ran[-1].passes,
        "peak_nbytes": max(r.peak_nbytes for r in ran),
        "projected_nbytes": ran[-1].projected_nbytes,
        "statistics": each,
    }
    numbers["calibration"] = asdict(_calibrate(asked, numbers))
    return Outcome("fit", numbers, _tables(numbers), _notes(numbers))


def _calibrate(asked: Asked, numbers: dict[str, Any]) -> Calibration:
    """Keep the rates of this run for plans; the rates it did not need are measured shortly."""
    made = measure(asked.directory)
    if asked.cold:
        made = replace(made, read_bytes_per_second=numbers["read_bytes_per_second"])
    dtypes = {p["dtype"] for p in numbers["products"]}
    if len(dtypes) == 1 and numbers["products_flops_per_second"]:
        rate = numbers["products_flops_per_second"] / asked.workers
        made = replace(made, **{f"{dtypes.pop()}_flops": rate})
    made.save(cache_directory(None))
    return made


def _tables(numbers: dict[str, Any]) -> dict[str, Any]:
    what = f"{numbers['rows']:,} rows, {numbers['workers']} workers, {numbers['cache_state']} cache"
    times = table("side", "median s", "range s", "rate")
    rates = {
        READ: f"{numbers['read_bytes_per_second'] / 1e9:.2f} GB/s",
        PRODUCTS: f"{(numbers['products_flops_per_second'] or 0) / 1e9:,.0f} GFLOP/s",
        PASS: f"{numbers['pass_bytes_per_second'] / 1e9:.2f} GB/s",
    }
    for name, seconds in numbers["seconds"].items():
        middle = numbers["median_seconds"][name]
        times.add_row(name, f"{middle:.3f}", spread(seconds), rates[name])
    times.add_section()
    times.add_row(f"floor ({numbers['floor_is']})", f"{numbers['floor_seconds']:.3f}")
    times.add_row("pass / floor", f"{numbers['ratio']:.2f}", style="bold")
    times.add_row("pass and algebra after it", f"{numbers['fit_seconds']:.3f}")
    times.add_row("all, with start of workers", f"{numbers['total_seconds']:.3f}")
    times.add_section()
    times.add_row("peak memory of a worker", human(numbers["peak_nbytes"]))
    times.add_row("projected", human(numbers["projected_nbytes"]))
    each = table("statistic", "s per GB", "GB", "s for all rows")
    for name, found in numbers["statistics"].items():
        seconds, nbytes = found["seconds_per_gb"], found["nbytes"]
        all_seconds = f"{seconds * nbytes / 1e9:.2f}"
        each.add_row(name, f"{seconds:.3f}", f"{nbytes / 1e9:.2f}", all_seconds)
    return {
        f"Fit of {', '.join(numbers['detectors'])} (pool: {numbers['pool']}), {what}": times,
        "Each statistic alone: one process, one thread, rows in memory": each,
    }


def _notes(numbers: dict[str, Any]) -> list[str]:
    return [
        "raw read: readinto of a reused buffer, in as many processes as there are workers",
        "products: X'X of one hot block of rows, one BLAS thread a process, counted as 2 n d^2; "
        "adding each to a float64 matrix counts",
        "pass: folding and merging with an empty cache, partials written and flushed; fresh "
        "worker processes every time, whose start does not count",
    ]
