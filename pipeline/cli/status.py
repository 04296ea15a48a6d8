"""``featfold status``: how far a run is, or how it ended."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.cli.options import common
from pipeline.cli.progress import Stage
from pipeline.cli.terminal import Terminal

if TYPE_CHECKING:
    from pipeline.status import Status


@click.command(short_help="Show how far a run is, or how it ended.")
@click.argument("place", metavar="RUNS", default="runs", type=click.Path(path_type=Path))
@common
def status(terminal: Terminal, place: Path) -> None:
    """Show the run that is on its way, or why it ended, and the last that finished.

    RUNS is the directory of a run, of all runs of a job, of those of several jobs (runs, by
    default), or the YAML of a job. A run that was killed has left no last word, and its lock is
    free; the same command as before goes on where it was. Nothing is written.

    \b
    Example:
      featfold status runs/nightly
    """
    from pipeline import status

    found = status.of(place)
    for one in found:
        terminal.show(_said(one))
    terminal.emit({"runs": [one.to_dict() for one in found]})


def _said(one: Status) -> str:
    from pipeline.report.text import duration

    code = "" if one.exit_code is None else f", exit {one.exit_code}"
    lines = [
        f"{one.place}: {one.state}{code} after {duration(one.seconds)}",
        f"  process {one.pid} on {one.host} since {one.started}: {one.command or 'from Python'}",
    ]
    if one.stage:
        stage = Stage(one.stage, one.total, one.unit, 0.0, one.done)
        blocks = f"{one.blocks_done} of {one.blocks} blocks, " if one.blocks else ""
        pace = stage.pace(one.stage_seconds)
        if (
            one.state != "running" or one.done >= one.total > 0
        ):  # nothing is left, or nobody goes on
            pace = pace.partition(", ")[0]
        lines.append(f"  {one.stage}: {blocks}{stage.amounts()}, {pace}")
    lines.append(f"  last event {duration(one.last_event_seconds)} ago: {one.last_event}")
    return "\n".join(lines)
