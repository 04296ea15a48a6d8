"""``featfold bench memory``: the peak of a worker for n and 8n rows, beside its projection."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pipeline.bench import fitting
from pipeline.bench.measuring import Outcome, Say, table
from pipeline.bench.tokens import Recipe, make
from pipeline.plan import human
from pipeline.store import Store

FACTOR = 8
WHOLE = "the whole pass"


def bench(
    recipe: Recipe,
    names: Sequence[str],
    pool: str,
    workers: int,
    scratch: Path,
    say: Say = lambda text: None,
) -> Outcome:
    """Fit on n and 8n rows in fresh processes: each statistic alone, then all of them together.

    ``recipe`` is of n rows: fewer than fill a block hold less, and then 8n rows must hold more.
    """
    with tempfile.TemporaryDirectory(prefix="bench-memory-", dir=scratch) as inside:
        stores = []
        for factor in (1, FACTOR):
            stores.append(Path(inside) / f"{factor}n.zarr")
            larger = replace(recipe, rows=recipe.rows * factor)
            say(f"writing {larger.rows:,} rows, {human(larger.nbytes)}")
            make(stores[-1], larger, workers)
        split = Store.open(stores[0]).split(fitting.SPLIT)
        jobs = fitting.jobs_of(fitting.chosen(names, pool), split)
        asked = fitting.statistics_of(fitting.passes_of(jobs))
        subjects: list[tuple[str, int | None]] = [
            *((name, i) for i, name in enumerate(fitting.described(asked))),
            (WHOLE, None),
        ]
        rows = []
        for name, only in subjects:
            ran = [_fit(store, names, pool, only, workers, inside) for store in stores]
            rows.append(_compared(name, *ran))
            say(f"{name}: {human(ran[0].peak_nbytes)}, {human(ran[1].peak_nbytes)}")
    return _outcome(recipe, names, pool, workers, rows)


def _fit(
    store: Path, names: Sequence[str], pool: str, only: int | None, workers: int, scratch: str
) -> fitting.Ran:
    return fitting.in_a_process(
        {"store": str(store), "names": list(names), "pool": pool, "only": only,
         "workers": workers, "scratch": scratch}
    )  # fmt: skip


def _compared(name: str, small: fitting.Ran, large: fitting.Ran) -> dict[str, Any]:
    return {
        "name": name,
        "peak_nbytes": [small.peak_nbytes, large.peak_nbytes],
        "projected_nbytes": [small.projected_nbytes, large.projected_nbytes],
        "growth": large.peak_nbytes / small.peak_nbytes - 1,
        "measured_over_projected": max(
            small.peak_nbytes / small.projected_nbytes, large.peak_nbytes / large.projected_nbytes
        ),
    }


def _outcome(
    recipe: Recipe, names: Sequence[str], pool: str, workers: int, rows: list[dict[str, Any]]
) -> Outcome:
    numbers = {
        "recipe": asdict(recipe),
        "factor": FACTOR,
        "detectors": list(names),
        "pool": pool,
        "workers": workers,
        "measured": rows,
        "largest_growth": max(row["growth"] for row in rows),
        "within_projection": all(row["measured_over_projected"] <= 1 for row in rows),
    }
    n = recipe.rows
    shown = table(
        "statistic", f"{n:,} rows", f"{FACTOR * n:,} rows", "growth", "projected", "of it"
    )
    for row in rows:
        shown.add_row(
            row["name"],
            *(human(nbytes) for nbytes in row["peak_nbytes"]),
            f"{row['growth']:+.1%}",
            human(row["projected_nbytes"][1]),
            f"{row['measured_over_projected']:.0%}",
            style="red" if row["measured_over_projected"] > 1 else None,
        )
    title = f"Peak memory of a worker, {', '.join(names)} (pool: {pool}), {workers} workers"
    notes = [
        "fresh processes for every number; the peak is the kernel's high-water mark, that of the "
        "worker that held most",
        "projected is that of the larger store; of it: the larger share of both sizes",
    ]
    return Outcome("memory", numbers, {title: shown}, notes)
