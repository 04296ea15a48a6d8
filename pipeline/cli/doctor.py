"""``featfold doctor``: whether this machine can run jobs, and what to do where it cannot."""

from __future__ import annotations

from pathlib import Path

import click
from rich.table import Table
from rich.text import Text

from pipeline.cli import checks
from pipeline.cli.options import common
from pipeline.cli.terminal import Terminal

STYLES = {checks.OK: "green", checks.WARN: "yellow", checks.FAIL: "bold red"}


@click.command(short_help="Check this machine.")
@common
def doctor(terminal: Terminal) -> None:
    """Check versions, memory, disk, locks and GPUs; exit 1 if anything fails."""
    from pipeline.cli import gpu_checks  # which loads numpy

    found = [*checks.diagnose(Path.cwd()), *gpu_checks.diagnose()]
    terminal.show(_table(found))
    failed = any(check.state == checks.FAIL for check in found)
    terminal.emit({"healthy": not failed, "checks": [check.to_dict() for check in found]})
    if failed:
        raise click.exceptions.Exit(1)


def _table(found: list[checks.Check]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in found:
        words = Text(check.found)
        if check.remedy:
            words.append(f"\n{check.remedy}", style="bold")
        table.add_row(Text(check.state, style=STYLES[check.state]), Text(check.name), words)
    return table
