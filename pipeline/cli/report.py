"""``featfold report``: the files and tables of a finished run, made again from its results."""

from __future__ import annotations

from pathlib import Path

import click

from pipeline.cli.options import common
from pipeline.cli.terminal import Terminal


@click.command(short_help="Make the report of a finished run again.")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--history", is_flag=True,
    help="One page of all runs below the folder RUN, history.html in it: quality, rows, bytes, "
    "memory, time and exit codes, run by run.",
)  # fmt: skip
@common
def report(terminal: Terminal, run: Path, history: bool) -> None:
    """Rebuild the report of RUN, a run directory, its results.json, or the folder of a job's runs.

    The folder of a job's runs stands for the newest of them; with --history RUN is a folder of
    runs, of one job or of all: featfold report --history runs
    """
    if history:
        from pipeline.report.history import write_history

        page = write_history(run)
        terminal.show(f"history: {page}")
        terminal.emit({"html": str(page)})
        return
    from pipeline.report import headline, read, verdict_line, write_report
    from pipeline.report.runs import directory_of

    run = directory_of(run)
    results = read(run)
    html = write_report(results, run if run.is_dir() else run.parent)
    if results["scores"]:
        terminal.show(headline(results))
    terminal.show(f"report: {html}")
    terminal.show(verdict_line(results))
    terminal.emit({"directory": str(html.parent), "html": str(html), "scores": results["scores"]})
