"""``featfold gc``: what old runs have left on the disk, shown before it is deleted."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.table import Table
from rich.text import Text

from pipeline.cli.options import common
from pipeline.cli.terminal import Terminal

if TYPE_CHECKING:
    from pipeline.retention import Found

EXAMPLES = """\b
Examples:
  featfold gc data/feats.zarr --keep-last 7           # shows what would go
  featfold gc data/feats.zarr --keep-last 7 --yes     # for a nightly script
"""


@click.command(short_help="Delete what old runs have left.", epilog=EXAMPLES)
@click.argument("place", metavar="STORE_OR_CACHE")
@click.option(
    "--keep-last", "last", metavar="N", required=True, type=click.IntRange(min=1),
    help="Finished runs of each job that are kept; the newest always is.",
)  # fmt: skip
@click.option(
    "--runs", metavar="DIR", default="runs", show_default=True, type=click.Path(path_type=Path),
    help="Where jobs write their runs to.",
)  # fmt: skip
@click.option(
    "--unused", metavar="AGE", default="1d", show_default=True,
    help="Leave partials and constants that were used more lately: 12h, 30d, 0s. A fit from "
    "Python may be about to read them, and no lock tells of it.",
)  # fmt: skip
@click.option("--yes", is_flag=True, help="Delete without asking.")
@common
def gc(terminal: Terminal, place: str, last: int, runs: Path, unused: str, yes: bool) -> None:
    """Show what nobody will look at again, with its bytes and why, and delete it if told to.

    Of the runs that read the store, or used the cache, all but the last N of each job go, and those
    that never finished; partials that no kept run would find again or can be pinned to; constants;
    and what processes that have ended left unfinished. The store itself is not touched. While
    a job runs, its runs, and all partials and constants, stay.

    On a terminal you are asked before anything is deleted; elsewhere --yes is needed.
    """
    from pipeline import retention
    from pipeline.plan import human

    looked = retention.place_of(place, runs, last, unused)
    found = retention.find(looked)
    if found.garbage:
        terminal.show(_table(found))
    for line in found.left:
        terminal.say(f"left: {line}")
    asks = sys.stdin.isatty() and not terminal.as_json
    total = human(found.nbytes)
    delete = yes or (bool(found.garbage) and asks and click.confirm(f"delete {total}?"))
    if not found.garbage:
        terminal.show("nothing to delete")
    elif delete:
        found = retention.collect(looked)
        terminal.show(f"{human(found.nbytes)} deleted")
    else:
        terminal.show(f"nothing was deleted; --yes deletes {total}")
    terminal.emit(
        {
            "deleted": delete and bool(found.garbage),
            "nbytes": found.nbytes,
            "garbage": [{**vars(one), "paths": [*map(str, one.paths)]} for one in found.garbage],
            "left": list(found.left),
        }
    )


def _table(found: Found) -> Table:
    from pipeline.plan import human

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("", overflow="fold")
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("why")
    for one in found.garbage:
        name = str(one.paths[0]) if one.what == "run" else f"{len(one.paths):,} {one.what}"
        table.add_row(Text(name), human(one.nbytes), one.why)
    return table
