"""``featfold export``: a split of a store becomes files that other programs read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pipeline.cli.options import common, progress_option
from pipeline.cli.terminal import Terminal

if TYPE_CHECKING:
    from pipeline.exporting import Exported


@click.command(short_help="Write a split of a store to npy, Parquet or safetensors.")
@click.argument("store", metavar="STORE")
@click.argument("place", metavar="OUT", type=click.Path())
@click.option("--split", metavar="NAME", required=True, help="id/train, ood/near/NAME and so on.")
@click.option("--to", metavar="FORMAT", required=True, help="npy, parquet or safetensors.")
@click.option(
    "--array", "arrays", metavar="NAME", multiple=True,
    help="Write this array alone; may be repeated. Without it all of the split.",
)  # fmt: skip
@click.option("--overwrite", is_flag=True, help="Replace files that are there.")
@progress_option
@common
def export(
    terminal: Terminal,
    store: str,
    place: str,
    split: str,
    to: str,
    arrays: tuple[str, ...],
    overwrite: bool,
    progress: bool,
) -> None:
    """Write the arrays of a split bit for bit, in constant memory; the store is only read.

    OUT is a folder for npy, with a file for each array; else a file. A row of Parquet is a list of
    fixed length. bfloat16 stays in safetensors, and becomes float32 of the same values elsewhere
    (import it again with --dtype NAME=bfloat16). Files appear whole or not at all.
    """
    from pipeline import exporting

    with terminal.progress(progress) as watched:
        done = exporting.export_split(
            store, split, place, to=to, arrays=arrays or None, overwrite=overwrite, progress=watched
        )
    _show(terminal, done)


def _show(terminal: Terminal, done: Exported) -> None:
    from pipeline.report.text import size

    for path, nbytes in done.files.items():
        terminal.show(f"{path}: {size(nbytes)}")
    terminal.show(f"{done.split}: {done.rows:,} rows of {', '.join(done.arrays)}")
    terminal.emit(done.to_dict())
