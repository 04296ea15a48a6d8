"""``featfold plan``: what a job will read, hold and take, before anything is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pipeline.cli.options import common, job_options
from pipeline.cli.terminal import Terminal
from pipeline.errors import BudgetError, ConfigError


@click.command(short_help="Show what a job will read, hold and take.")
@click.argument("path", metavar="[JOB.yaml]", required=False, type=click.Path(path_type=Path))
@click.option(
    "--synthetic", metavar="SHAPE",
    help="Plan the fit over made-up rows instead: ROWSxTOKENSxFEATURES[:DTYPE[:CLASSES]], such as "
    "50000x49x1024:float32:1000. ROWS may be a size, such as 32TB. Needs no job.",
)  # fmt: skip
@click.option(
    "--pin", metavar="RUN", is_flag=False, flag_value="LATEST",
    help="Plan a run that is pinned to an earlier one (default: the latest).",
)  # fmt: skip
@job_options
@common
def plan(
    terminal: Terminal,
    path: Path | None,
    overrides: list[str],
    synthetic: str | None,
    pin: str | None,
) -> None:
    """Show the passes of a job: what they read and hold, their hours and disk.

    Exit 3 if it does not fit. Nothing is read: splits that do not exist yet may be declared in the
    job, or made up for the plan. Without a job, these are planned for the detectors that are fitted
    in one pass.
    """
    from pipeline import config, planning, seeds, shapes

    if path is None and synthetic is None:
        raise ConfigError("plan needs the YAML file of a job, or --synthetic SHAPE")
    asked = shapes.usual_job(overrides) if path is None else config.load(path, overrides)
    made_up = None if synthetic is None else shapes.made_up(synthetic, asked.fit.split)
    seeds.refuse_unlike(asked)
    found: list[dict[str, Any]] = []
    try:
        for job in asked.each():
            if asked.seeds:
                terminal.show(f"seed {job.store}")
            planned = planning.plan(job, pin=pin, synthetic=made_up)
            rates = planning.rates_of(job)
            terminal.show(planned.explain(rates))
            found.append({**planned.to_dict(rates), "refused": None})
            try:
                planned.check()
            except BudgetError as error:
                found[-1]["refused"] = str(error)
                raise
    finally:
        if found:
            terminal.emit({"seeds": found} if asked.seeds else found[0])
