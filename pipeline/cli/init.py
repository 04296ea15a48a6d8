"""``featfold init``: a commented job to begin with."""

from __future__ import annotations

import re
from pathlib import Path

import click

from pipeline.cli.options import common
from pipeline.cli.terminal import Terminal
from pipeline.errors import ConfigError, ExistsRefusedError


@click.command(short_help="Write a commented job to begin with.")
@click.argument(
    "path",
    metavar="[JOB.yaml]",
    default="job.yaml",
    type=click.Path(path_type=Path, dir_okay=False),
)
@click.option(
    "--store", metavar="STORE", help="Over the splits of a store: a folder, s3://... and so on."
)
@click.option(
    "--images", metavar="DIR",
    help="Over folders of images: train, val and test with a sub-folder for each class, others as "
    "out-of-distribution sets.",
)  # fmt: skip
@click.option("--force", is_flag=True, help="Replace the file if it is there.")
@common
def init(
    terminal: Terminal, path: Path, store: str | None, images: str | None, force: bool
) -> None:
    """Write a job, job.yaml by default, that `featfold plan` takes as it is.

    What is there fills it in: splits, arrays, classes, and the detectors that they suffice for;
    rows are not read. Without --store and --images it is a template.

    \b
    Example:
      featfold init job.yaml --store data/feats.zarr
    """
    from pipeline import drafting, files

    if store is not None and images is not None:
        raise ConfigError("--store and --images: expected one of them")
    if path.exists() and not force:
        raise ExistsRefusedError(f"{path} is there already; --force replaces it")
    name = re.sub(r"[^A-Za-z0-9._-]+|^[.-]+", "_", path.stem) or "job"
    if store is not None:
        found = drafting.over_store(store)
    elif images is not None:
        found = drafting.over_images(images, name)
    else:
        found = drafting.blank()
    text = drafting.job_text(found, name, str(path))
    files.write_whole(path, lambda file: file.write(text.encode()), 0, "name another file")
    terminal.show(f"{path}: written; next: featfold plan {path}")
    terminal.emit(
        {"job": str(path), "splits": list(found.splits), "left_out": dict(found.left_out)}
    )
