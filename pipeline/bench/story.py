"""``featfold bench story``: tokens of a loader through ``ff.fit``, in one fresh process."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pipeline import api
from pipeline.bench import fitting
from pipeline.bench.measuring import Outcome, Say, table
from pipeline.bench.tokens import Recipe
from pipeline.chunk import Block, Schema
from pipeline.cluster import settle
from pipeline.errors import FeatfoldError
from pipeline.extract.temporary import ExtractedSplit
from pipeline.machine import peak_rss_nbytes, reset_peak, rss_nbytes
from pipeline.plan import human
from pipeline.store.file_rows import FileRows
from pipeline.streams import second_reads, streaming_of, with_folders
from pipeline.workplace import client_of, projected

LOOK_SECONDS = 0.1
"""How often the temporary files are looked at."""
AHEAD = 8.0
"""About what the logit of the right class has more than the others."""
_ANSWER = """
import dataclasses, json, sys
from pipeline.bench.story import answer
print(json.dumps(dataclasses.asdict(answer(**json.loads(sys.argv[1])))))
"""


@dataclass(frozen=True)
class Told:
    """What the story took."""

    loader_seconds: float
    """Reading the loader once, and the model; what it gives is folded meanwhile, or written."""
    after_seconds: float
    """All after it: the passes over temporary files, if there are any, and linear algebra."""
    passes: int
    streamed: bool
    """Whether rows went straight from the model into the statistics."""
    held_nbytes: int
    """What the process held before: libraries, the made-up loader, the model."""
    peak_nbytes: int
    projected_nbytes: int


def bench(
    recipe: Recipe,
    names: Sequence[str],
    pool: str,
    workers: int,
    batch_rows: int,
    scratch: Path,
    say: Say = lambda text: None,
) -> Outcome:
    """Fit detectors on a loader of made-up images with a callable, on threads of one process."""
    say(f"{recipe.rows:,} rows, {human(_tokens_nbytes(recipe))} of features")
    asked = {
        "recipe": asdict(recipe), "names": list(names), "pool": pool, "workers": workers,
        "batch_rows": batch_rows,
    }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="bench-story-", dir=scratch) as cache:
        command = [sys.executable, "-c", _ANSWER, json.dumps({**asked, "cache": cache})]
        answered, disk_nbytes = _watched(command, Path(cache))
    return _outcome(recipe, asked, Told(**json.loads(answered)), disk_nbytes)


def _watched(command: Sequence[str], folder: Path) -> tuple[str, int]:
    """Return what a process prints, and the most bytes that files of a folder took meanwhile."""
    most = 0
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        while True:
            try:
                answered, errors = process.communicate(timeout=LOOK_SECONDS)
                break
            except subprocess.TimeoutExpired:
                most = max(most, _held_nbytes(folder))
    if process.returncode:
        raise FeatfoldError(f"a fit in a fresh process failed:\n{errors.strip()}")
    return answered, most


def _held_nbytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):  # removed meanwhile
            total += path.stat().st_size if path.is_file() else 0
    return total


def answer(
    recipe: Mapping[str, Any],
    names: Sequence[str],
    pool: str,
    workers: int,
    batch_rows: int,
    cache: str,
) -> Told:
    """Run the story in this process."""
    made = Recipe(**recipe)
    detectors = fitting.chosen(names, pool)
    model = _backbone(made)
    fit = partial(api.fit, detectors, model=model, cluster="threads", workers=workers, cache=cache)
    few = fit(_Loader(made, batch_rows, batch_rows))  # what the libraries hold
    reset_peak()
    held_nbytes = rss_nbytes()
    schema = next(iter(few.values())).schema
    projected_nbytes, streamed = _planned(detectors, schema, made, workers, batch_rows)
    loader = _Loader(made, made.rows, batch_rows)
    began = time.perf_counter()
    fitted = fit(loader)
    return Told(
        loader.exhausted - began,
        time.perf_counter() - loader.exhausted,
        fitted.passes,
        streamed,
        held_nbytes,
        peak_rss_nbytes(),
        projected_nbytes,
    )


class _Loader:
    """Batches (inputs, labels): the inputs are tokens, which the model hands on."""

    def __init__(self, recipe: Recipe, rows: int, batch_rows: int) -> None:
        self.recipe, self.rows, self.batch_rows = recipe, rows, batch_rows
        self.exhausted = 0.0
        """When the last batch was taken."""

    def __len__(self) -> int:
        return -(-self.rows // self.batch_rows)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        for index in range(len(self)):
            start = index * self.batch_rows
            batch = self.recipe.block(Block(index, start, min(start + self.batch_rows, self.rows)))
            yield batch["features"], batch["labels"]
        self.exhausted = time.perf_counter()


def _backbone(recipe: Recipe) -> Any:
    """Return a plain callable from tokens to themselves and logits."""
    import torch

    weight = torch.from_numpy(recipe.means.T * (AHEAD / recipe.features)).to(
        getattr(torch, recipe.dtype)
    )

    def backbone(tokens: Any) -> dict[str, Any]:
        pooled = tokens.mean(dim=1) if recipe.tokens else tokens
        return {"features": tokens, "logits": pooled @ weight}

    return backbone


def _planned(
    detectors: Mapping[str, Any], schema: Schema, recipe: Recipe, workers: int, batch_rows: int
) -> tuple[int, bool]:
    """Return what a plan of the fit allots to this process, and whether rows go straight into it.

    Its threads, and what drives them; the model is not in it.
    """
    from pipeline.extract.stream import Shape, StreamedSplit  # where torch is loaded anyway

    rows = {
        name: FileRows(Path(name), (recipe.rows, *spec.shape), spec.memory_dtype)
        for name, spec in schema.arrays.items()
    }
    files = ExtractedSplit(rows, classes=schema.classes, name=fitting.SPLIT, attributes={})
    shape = Shape(
        fitting.SPLIT, schema.arrays, schema.classes, files.chunk_rows, files.blocks[0].rows,
        batch_rows, recipe.rows,
    )  # fmt: skip
    split: Any = StreamedSplit(shape, iter(()))
    passes = fitting.passes_of(fitting.jobs_of(detectors, split))
    streamed = second_reads(passes, list(detectors)) is None
    threads = 1 if streamed else workers
    if not streamed:
        passes = fitting.passes_of(fitting.jobs_of(detectors, files))
    resources = settle("threads", threads)
    projections, shrink = projected(passes, resources)
    client, _ = client_of(passes, projections, resources)
    if streamed:
        execute = streaming_of(passes, projections, shrink, workers, "auto")
        projections = with_folders(projections, execute)
    return threads * max(each.nbytes for each in projections) + client.nbytes, streamed


def _tokens_nbytes(recipe: Recipe) -> int:
    return recipe.rows * recipe.arrays["features"].nbytes


def _outcome(recipe: Recipe, asked: Mapping[str, Any], told: Told, disk_nbytes: int) -> Outcome:
    nbytes = _tokens_nbytes(recipe)
    numbers = {
        "recipe": asked["recipe"],
        "detectors": asked["names"],
        **{key: asked[key] for key in ("pool", "workers", "batch_rows")},
        **asdict(told),
        "features_nbytes": nbytes,
        "disk_nbytes": disk_nbytes,
        "total_seconds": told.loader_seconds + told.after_seconds,
        "peak_over_features": told.peak_nbytes / nbytes,
        "within_projection": told.peak_nbytes <= told.projected_nbytes,
    }
    shown = table("", "figure")
    for name, figure in (
        ("features of all rows", human(nbytes)),
        ("peak of the process", human(told.peak_nbytes)),
        ("of it before: libraries, loader, model", human(told.held_nbytes)),
        ("projected for it", human(told.projected_nbytes)),
        ("temporary files", human(disk_nbytes)),
        (
            "loader, model, and the pass beside it" if told.streamed else "loader, model, files",
            f"{told.loader_seconds:.1f} s",
        ),
        (
            "linear algebra" if told.streamed else f"{told.passes} passes, linear algebra",
            f"{told.after_seconds:.1f} s",
        ),
    ):
        shown.add_row(name, figure)
    names = ", ".join(asked["names"])
    title = f"{names} (pool: {asked['pool']}) on a loader of {recipe.rows:,} rows"
    notes = [
        f"{asked['workers']} threads of one process; batches of {asked['batch_rows']} rows; the "
        "model is a plain callable that hands its inputs on as tokens, with logits",
        "rows went straight from the model into the statistics: no features on the disk"
        if told.streamed
        else "a second pass was needed: temporary files take as much disk as the features",
    ]
    return Outcome("story", numbers, {title: shown}, notes)
