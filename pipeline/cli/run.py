"""``featfold run``: a whole job, from extraction to the report."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from pipeline.cli.options import common, job_options, part_of, progress_option
from pipeline.cli.terminal import Terminal


@click.command(short_help="Run a job, from extraction to the report.")
@click.argument("path", metavar="JOB.yaml", type=click.Path(path_type=Path))
@click.option(
    "--blocks",
    "part",
    metavar="I/N",
    callback=lambda _c, _p, text: part_of(text),
    help="Fold only the I-th of N shares of the blocks: for array jobs, side by side.",
)
@click.option(
    "--pin",
    metavar="RUN",
    is_flag=False,
    flag_value="LATEST",
    help="Keep the first passes of an earlier run (default: the latest): new blocks are read "
    "alone, once a pass.",
)
@click.option(
    "--no-store",
    "stored",
    flag_value=False,
    default=True,
    is_flag=True,
    help="Have the rows of the sources go straight into statistics and scores: features are "
    "written nowhere. For detectors of one pass.",
)
@job_options
@progress_option
@common
def run(
    terminal: Terminal,
    path: Path,
    overrides: list[str],
    progress: bool,
    part: tuple[int, int] | None,
    pin: str | None,
    stored: bool,
) -> None:
    """Extract what is missing, fit, score, evaluate, and write the report.

    Splits that exist are used as they are, and an interrupted run goes on where it was: what was
    read is not read again. With ``--no-store`` nothing is kept of a run that ends before.
    """
    run_job(terminal, path, overrides, progress=progress, part=part, pin=pin, stored=stored)


def run_job(
    terminal: Terminal,
    path: Path,
    overrides: Sequence[str],
    *,
    progress: bool,
    part: tuple[int, int] | None = None,
    pin: str | None = None,
    stored: bool = True,
) -> None:
    """Run the job of a YAML file; print the headline, where the report is, and the verdict."""
    from pipeline import config, job
    from pipeline.report import headline, read, verdict_line

    asked = config.load(path, overrides, stored=stored)
    with terminal.progress(progress) as watched:
        done = job.run(
            asked, command=_command(), progress=watched, part=part, pin=pin, stored=stored
        )
    results = read(done.directory)
    if results["scores"]:
        terminal.show(headline(results))
    terminal.show(f"report: {done.html}")
    terminal.show(verdict_line(results))
    terminal.emit(
        {
            "directory": str(done.directory),
            "html": str(done.html),
            "verdict": results["verdict"],
            "memory": results["memory"],
            "scores": results["scores"],
        }
    )


def _command() -> str:
    return shlex.join(["featfold", *sys.argv[1:]])
