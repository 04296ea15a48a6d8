"""``featfold plan``: what a job will read and hold, before anything is read."""

from __future__ import annotations

from pathlib import Path

import click

from pipeline.cli.options import common, job_options
from pipeline.cli.terminal import Terminal
from pipeline.errors import BudgetError


@click.command(short_help="Show what a job will read and hold.")
@click.argument("path", metavar="JOB.yaml", type=click.Path(path_type=Path))
@job_options
@common
def plan(terminal: Terminal, path: Path, overrides: list[str]) -> None:
    """Show the passes of a job, what they read and hold; exit 3 if it does not fit.

    Nothing is read: splits that do not exist yet may be declared in the job.
    """
    from pipeline import config, job

    planned = job.plan(config.load(path, overrides))
    terminal.show(planned.explain())
    refused = ""
    try:
        planned.check()
    except BudgetError as error:
        refused = str(error)
        raise
    finally:
        terminal.emit({**planned.to_dict(), "refused": refused or None})
