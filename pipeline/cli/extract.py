"""``featfold extract``: fill the store of a job, without fitting anything."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.cli.options import common, part_of, progress_option
from pipeline.cli.terminal import Terminal
from pipeline.errors import ConfigError

if TYPE_CHECKING:
    from pipeline.fill import Extracted


@click.command(short_help="Fill the store of a job with features.")
@click.argument("path", metavar="JOB.yaml", type=click.Path(path_type=Path))
@click.option(
    "--resume",
    is_flag=True,
    help="Read what is there, too, and write damaged blocks again; missing ones are always filled.",
)
@click.option(
    "--blocks", "part", metavar="I/N", callback=lambda _c, _p, text: part_of(text),
    help="Fill only the I-th of N shares of the blocks: for array jobs, side by side.",
)  # fmt: skip
@click.option(
    "--split", "only", metavar="NAME", multiple=True,
    help="Fill this split alone, such as id/train; may be repeated.",
)  # fmt: skip
@click.option(
    "--workers", type=click.IntRange(min=1), metavar="N",
    help="Processes that each take whole blocks, instead of the workers of each source.",
)  # fmt: skip
@click.option(
    "--cluster", metavar="WHERE",
    help="The tcp:// address or FILE.json of a dask scheduler, whose workers all take blocks.",
)  # fmt: skip
@click.option(
    "--set", "assignments", metavar="KEY=VALUE", multiple=True,
    help="Override any key of the job, e.g. sources.0.batch=64; may be repeated.",
)  # fmt: skip
@progress_option
@common
def extract(
    terminal: Terminal,
    path: Path,
    resume: bool,
    part: tuple[int, int] | None,
    only: tuple[str, ...],
    workers: int | None,
    cluster: str | None,
    assignments: tuple[str, ...],
    progress: bool,
) -> None:
    """Run the models of a job over its sources, and store what they give.

    Splits that are there are left as they are; one that was interrupted is gone on with, block by
    block. `featfold run` does the same first.
    """
    from pipeline import config
    from pipeline.cluster import remote
    from pipeline.fill import fill

    if cluster is not None and not remote.is_address(cluster):
        raise ConfigError(
            f"--cluster: {cluster!r}; expected the tcp:// or tls:// address of a scheduler, or its "
            "scheduler file (.json); --workers starts processes on this machine"
        )
    where = () if cluster is None else (f"resources.cluster={json.dumps(cluster)}",)
    asked = config.load(path, (*assignments, *where))
    if not asked.sources:
        raise ConfigError(f"{path}: the job has no sources, which say what to extract")
    with terminal.progress(progress) as watched:
        done = fill(asked, watched, only=only, verify=resume, part=part, workers=workers)
    for one in done:
        terminal.show(_said(one, part))
    if not done:
        terminal.show("nothing to do: all splits are there")
    changed = any(one.written or one.rewritten for one in done)
    splits = [asdict(one) for one in done]
    terminal.emit({"store": asked.store, "splits": splits, "changed": changed})


def _said(one: Extracted, part: tuple[int, int] | None) -> str:
    """Say what was done for a split."""
    again = f", {one.rewritten} written again" if one.rewritten else ""
    text = f"{one.split}: {one.rows} rows, {one.written} of {one.blocks} blocks written{again}"
    if one.missing:
        share = f"share {part[0]}/{part[1]} is done" if part else "some were left"
        text += f"; {share}, {one.missing} blocks are left to others"
    return text
