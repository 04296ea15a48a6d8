"""``featfold bench``: how fast and how small it is on this machine, beside what could be."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.options import Command, common, detector_names, progress_option
from pipeline.cli.terminal import Terminal

if TYPE_CHECKING:
    from pipeline.bench.measuring import Outcome

POSITIVE = click.IntRange(min=1)
DIRECTORY = click.Path(path_type=Path, file_okay=False, exists=True)


@click.group(short_help="Measure speed and memory on this machine.")
def bench() -> None:
    """Measure passes beside the floor of the same machine: medians, side by side, in one run."""


def measured(command: Command) -> Command:
    """Add ``--out`` and the common options; show the outcome that the command returns."""

    @click.option("--out", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False),
                  help="Write the JSON object to a file as well.")  # fmt: skip
    @common
    @functools.wraps(command)
    def showing(terminal: Terminal, out: Path | None, **options: Any) -> None:
        outcome: Outcome = command(terminal, **options)
        numbers = outcome.to_dict()
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps(numbers, indent=1, allow_nan=False) + "\n")
        terminal.show(outcome)
        terminal.emit(numbers)

    return showing


def shaped(rows: int, features: int, classes: int) -> Callable[[Command], Command]:
    """Add the options of made-up tokens."""

    def add(command: Command) -> Command:
        for option in (
            click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True),
            click.option(
                "--dtype", type=click.Choice(["float16", "float32", "float64"]),
                default="float32", show_default=True,
            ),
            click.option("--classes", type=POSITIVE, default=classes, show_default=True),
            click.option("--features", type=POSITIVE, default=features, show_default=True),
            click.option("--tokens", type=click.IntRange(min=0), default=49, show_default=True,
                         help="Tokens of an image; 0 for pooled features."),
            click.option("--rows", type=POSITIVE, default=rows, show_default=True),
        ):  # fmt: skip
            command = option(command)
        return command

    return add


def sized(command: Command) -> Command:
    """Add ``--workers`` and ``--scratch``."""
    workers = click.option("--workers", type=POSITIVE, default=2, show_default=True)
    scratch = click.option(
        "--scratch", metavar="DIR", type=DIRECTORY, default=Path(), show_default="here",
        help="Where caches and made-up stores go; they are removed.",
    )  # fmt: skip
    return workers(scratch(command))


def detectors(command: Command) -> Command:
    """Add ``--detectors`` and ``--pool``."""
    named = click.option(
        "--detectors", "names", metavar="NAME,...",
        default="mahalanobis,relative_mahalanobis,she,kl_matching", show_default=True,
        shell_complete=detector_names,
        callback=lambda _c, _p, text: [name.strip() for name in text.split(",")],
    )  # fmt: skip
    pool = click.option(
        "--pool", type=click.Choice(["tokens", "mean"]), default="tokens", show_default=True,
        help="What mahalanobis and relative_mahalanobis are fitted on.",
    )  # fmt: skip
    return named(pool(command))


@bench.command("make-tokens", short_help="Write a large store of made-up tokens.")
@click.argument("path", metavar="PATH", type=click.Path(path_type=Path))
@shaped(50_000, 1024, 1000)
@click.option("--workers", type=POSITIVE, default=2, show_default=True)
@progress_option
@common
def make_tokens(terminal: Terminal, path: Path, workers: int, progress: bool, **shape: Any) -> None:
    """Write features, logits and labels that do not compress, as split id/train of a store.

    Noise is windows into a pool of normal numbers, with a random place and sign for each image. Run
    again after an interruption, it goes on where it was.
    """
    from pipeline.bench.tokens import SPLIT, Recipe, make

    recipe = Recipe(**shape)
    with terminal.progress(progress) as watched:
        watched.begin(f"write {SPLIT}", recipe.nbytes)
        written = make(path, recipe, workers, watched.advance)
        watched.end()
    verdict = f"{written} blocks written" if written else "it was complete already"
    terminal.show(f"{path}: {recipe.rows:,} rows, {recipe.nbytes / 1e9:.2f} GB, {verdict}")
    terminal.emit(
        {"store": str(path), "rows": recipe.rows, "nbytes": recipe.nbytes,
         "blocks_written": written}
    )  # fmt: skip


@bench.command(short_help="A fit beside the floor of its reads and products.")
@click.argument("store", metavar="STORE", type=click.Path(path_type=Path))
@detectors
@click.option("--workers", type=POSITIVE, default=2, show_default=True)
@click.option("--repeat", type=POSITIVE, default=5, show_default=True)
@click.option("--cold", is_flag=True, help="Drop the files from memory before every read.")
@click.option("--scratch", metavar="DIR", type=DIRECTORY, help="Where caches go; else beside it.")
@measured
def fit(terminal: Terminal, store: Path, names: list[str], **options: Any) -> Any:
    """Measure raw reads, products and the fit of split id/train in turn; show the ratio.

    The rates are kept in the cache for plans.
    """
    from pipeline.bench.fit import Asked, bench

    return bench(Asked(store, tuple(names), **options), terminal.say)


@bench.command(short_help="What a task costs that does nothing.")
@click.option("--tasks", type=POSITIVE, default=10_000, show_default=True)
@sized
@measured
def scheduler(terminal: Terminal, tasks: int, workers: int, scratch: Path) -> Any:
    """Time passes over empty blocks on the real scheduler: 100, 1,000 and --tasks of them."""
    from pipeline.bench.scheduler import bench

    return bench(tasks, workers, scratch, terminal.say)


@bench.command(short_help="A job that fits into memory, beside pytorch-ood.")
@click.option("--peer", metavar="PYTHON", help="An interpreter that has pytorch-ood.")
@click.option("--repeat", type=POSITIVE, default=5, show_default=True)
@click.option("--rows", type=POSITIVE, default=50_000, show_default=True)
@click.option("--features", type=click.IntRange(min=4), default=1024, show_default=True)
@click.option("--classes", type=POSITIVE, default=1000, show_default=True)
@click.option("--scratch", metavar="DIR", type=DIRECTORY, default=Path(), show_default="here",
              help="Where the store and caches go; they are removed.")  # fmt: skip
@measured
def small(terminal: Terminal, peer: str | None, repeat: int, scratch: Path, **shape: int) -> Any:
    """Time five fits together on two threads, in float64 and float32, from memory and a store."""
    from pipeline.bench.small import Shape, bench

    return bench(Shape(**shape), repeat, peer, scratch, terminal.say)


@bench.command("import", short_help="An import of npy, beside a copy of the bytes.")
@click.option("--rows", type=POSITIVE, default=500_000, show_default=True)
@click.option("--features", type=POSITIVE, default=1024, show_default=True)
@click.option("--dtype", type=click.Choice(["float16", "float32", "float64"]), default="float32",
              show_default=True)  # fmt: skip
@click.option("--repeat", type=POSITIVE, default=5, show_default=True)
@click.option("--scratch", metavar="DIR", type=DIRECTORY, default=Path(), show_default="here",
              help="Where files and stores go; they are removed.")  # fmt: skip
@measured
def import_(terminal: Terminal, **options: Any) -> Any:
    """Import made-up npy files and copy them in turn, each until its bytes are on the disk."""
    from pipeline.bench.import_ import bench

    return bench(**options, say=terminal.say)


@bench.command(short_help="Images through a network, beside a plain loop.")
@click.option("--images", type=POSITIVE, default=512, show_default=True)
@click.option("--batch", type=POSITIVE, default=32, show_default=True)
@click.option("--network", type=click.Choice(["auto", "lite0", "plain"]), default="auto",
              show_default=True, help="auto: EfficientNet-Lite0, of featfold[demo].")  # fmt: skip
@click.option("--repeat", type=POSITIVE, default=3, show_default=True)
@click.option("--scratch", metavar="DIR", type=DIRECTORY, default=Path(), show_default="here",
              help="Where stores go; they are removed.")  # fmt: skip
@measured
def extract(terminal: Terminal, **options: Any) -> Any:
    """Extract decoded images with one and two workers, and call the model in loops, in turn."""
    from pipeline.bench.extract import bench

    return bench(**options, say=terminal.say)


@bench.command(short_help="Metrics of scores, beside one sort of them.")
@click.option(
    "--peer-rows",
    type=POSITIVE,
    default=10_000_000,
    show_default=True,
    help="Scores in memory, beside scikit-learn where it is installed.",
)
@click.option(
    "--exact-rows",
    type=POSITIVE,
    default=100_000_000,
    show_default=True,
    help="Scores read in several passes, for exact numbers.",
)
@click.option(
    "--bounded-rows",
    type=POSITIVE,
    default=1_000_000_000,
    show_default=True,
    help="Scores of each kind that are counted, for bounds.",
)
@click.option("--repeat", type=POSITIVE, default=5, show_default=True)
@measured
def ranks(terminal: Terminal, **options: int) -> Any:
    """Time exact AUROC, then AUROC, average precision and FPR of more scores than fit.

    Those are made up while they are read, in fresh processes of one thread: time, passes, the width
    of bounds, and the peak of memory.
    """
    from pipeline.bench.ranks import bench

    return bench(**options, say=terminal.say)


@bench.command(short_help="The peak of a worker for n and 8n rows.")
@shaped(10_000, 256, 100)
@detectors
@sized
@measured
def memory(
    terminal: Terminal, names: list[str], pool: str, workers: int, scratch: Path, **shape: Any
) -> Any:
    """Fit on --rows rows and on eight times as many, made up for it, in fresh processes.

    Each statistic by itself, then the whole pass; beside what was projected for it.
    """
    from pipeline.bench.memory import bench
    from pipeline.bench.tokens import Recipe

    return bench(Recipe(**shape), names, pool, workers, scratch, terminal.say)


@bench.command(short_help="Unpooled tokens of a loader, fitted with a callable.")
@shaped(50_000, 1024, 1000)
@detectors
@click.option("--batch-rows", type=POSITIVE, default=64, show_default=True)
@sized
@measured
def story(
    terminal: Terminal,
    names: list[str],
    pool: str,
    batch_rows: int,
    workers: int,
    scratch: Path,
    **shape: Any,
) -> Any:
    """Call ff.fit on a made-up loader, as large as asked for, in one fresh process of threads.

    Time, and the peak of its memory beside what was projected for it.
    """
    from pipeline.bench.story import bench
    from pipeline.bench.tokens import Recipe

    return bench(Recipe(**shape), names, pool, workers, batch_rows, scratch, terminal.say)


@bench.command(short_help="Metrics of masks, beside torchmetrics and floors.")
@click.option("--images", type=POSITIVE, default=1000, show_default=True)
@click.option("--side", type=POSITIVE, default=224, show_default=True,
              help="Pixels of a side of a mask.")  # fmt: skip
@click.option("--classes", type=click.IntRange(min=2, max=255), default=21, show_default=True)
@click.option("--batch", type=POSITIVE, default=1000, show_default=True)
@click.option("--wrong", type=click.FloatRange(0, 1), default=0.1, show_default=True,
              help="Share of pixels that are predicted at random.")  # fmt: skip
@click.option("--peer/--no-peer", default=True, show_default=True,
              help="Measure torchmetrics as well, which must be installed here.")  # fmt: skip
@click.option("--stored", "stored_images", type=click.IntRange(min=0), default=0,
              show_default=True, metavar="IMAGES",
              help="Reduce so many masks in zarr as well; 20,000 are 10^9 pixels.")  # fmt: skip
@click.option("--repeat", type=POSITIVE, default=3, show_default=True)
@sized
@measured
def masks(
    terminal: Terminal,
    stored_images: int,
    peer: bool,
    repeat: int,
    workers: int,
    scratch: Path,
    **shape: Any,
) -> Any:
    """Compute accuracy, precision, recall, Dice and IoU of each class in batches from memory.

    As int64 and as uint8, beside a collection of torchmetrics and one count of ready numbers.
    """
    from pipeline.bench.masks import Shape, bench

    return bench(Shape(**shape), stored_images, peer, repeat, workers, scratch, terminal.say)
