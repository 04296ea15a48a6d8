"""``featfold compare``: what differs between two runs, as a table and as a regression gate."""

from __future__ import annotations

from pathlib import Path

import click

from pipeline.cli.options import common
from pipeline.cli.terminal import Terminal

REGRESSED = 10

EXAMPLES = """\b
Examples:
  featfold compare runs/vit/20261129T021500Z-1a2b3c4d runs/vit
  featfold compare baseline.json runs/vit --fail-if 'auroc<-0.5' --fail-if 'fpr95>2'
"""


@click.command(short_help="Compare two runs; fail on a regression.", epilog=EXAMPLES)
@click.argument("before", metavar="A", type=click.Path(path_type=Path))
@click.argument("after", metavar="B", type=click.Path(path_type=Path))
@click.option(
    "--fail-if", "rules", metavar="RULE", multiple=True,
    help="End with exit code 10 if B - A breaks RULE for any detector and set: METRIC<POINTS or "
    "METRIC>POINTS in percentage points, such as 'auroc<-0.5' for a fall by more than half a "
    "point. May be repeated.",
)  # fmt: skip
@click.option("--all", "whole", is_flag=True, help="List numbers that are equal as well.")
@common
def compare(
    terminal: Terminal, before: Path, after: Path, rules: tuple[str, ...], whole: bool
) -> None:
    """Show both values of every number that is not equal in two runs, and what else differs.

    A is the earlier run, B the later one: run directories, their results.json, or the folder of a
    job's runs, which stands for the newest of them. What differs in config, data and versions
    follows, and what only one of them has. Nothing is read but results, and nothing is written.

    A number that A has and B has not, because its detector or set is gone or it is undefined,
    breaks every rule of its metric. Numbers with bounds count at their worst.
    """
    from pipeline import comparing
    from pipeline.comparing.tables import shown, verdict
    from pipeline.report import read
    from pipeline.report.runs import directory_of

    asked = [comparing.rule_of(rule) for rule in rules]
    found = comparing.compare(read(directory_of(before)), read(directory_of(after)))
    broken = {rule: rule.broken(found) for rule in asked}
    terminal.show(f"A {found.before['name']} {found.before['run']}")
    terminal.show(f"B {found.after['name']} {found.after['run']}")
    for part in shown(found, whole=whole):
        terminal.show(part)
    for line in verdict(broken):
        terminal.show(line)
    regressed = any(broken.values())
    terminal.emit(
        {
            **found.to_dict(),
            "rules": [
                {"rule": rule.text, "broken_by": [number.to_dict() for number in numbers]}
                for rule, numbers in broken.items()
            ],
            "regressed": regressed,
        }
    )
    if regressed:
        raise click.exceptions.Exit(REGRESSED)
