"""``featfold schema``: the JSON Schema of a job, or of results.json."""

from __future__ import annotations

import json

import click

from pipeline.cli.options import common
from pipeline.cli.terminal import Terminal


@click.command(short_help="Print the JSON Schema of a job.")
@click.option("--results", is_flag=True, help="That of results.json, which every run leaves.")
@common
def schema(terminal: Terminal, results: bool) -> None:
    """Print what a job may say, with the detectors that are installed, as JSON Schema.

    Editors with the YAML language server check and complete a job whose first line is
    `# yaml-language-server: $schema=job.schema.json`.

    \b
    Example:
      featfold schema > job.schema.json
    """
    if results:
        from pipeline.report.json_schema import results_schema as of
    else:
        from pipeline.config.schema import job_schema as of
    click.echo(json.dumps(of(), indent=1))
