"""The command ``featfold``: one file per verb; what a verb needs is imported when it runs."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

import click

from pipeline.cli.bench import bench
from pipeline.cli.compare import compare
from pipeline.cli.demo import demo
from pipeline.cli.doctor import doctor
from pipeline.cli.eval import evaluate
from pipeline.cli.export import export
from pipeline.cli.extract import extract
from pipeline.cli.gc import gc
from pipeline.cli.import_ import import_
from pipeline.cli.init import init
from pipeline.cli.inspect import inspect
from pipeline.cli.plan import plan
from pipeline.cli.report import report
from pipeline.cli.run import run
from pipeline.cli.schema import schema
from pipeline.cli.status import status

EXIT_CODES = """\b
Exit codes:
  0    done, or nothing to do
  1    failed
  2    wrong usage or an invalid job
  3    refused by the plan: it would not fit into memory
  4    input missing, corrupt or incomplete
  10   a regression that compare --fail-if was asked to find
  75   locked by another process; try again later
  130  interrupted (143 when terminated); committed blocks are kept
"""


COMPLETION = """\b
Completion of verbs, options, keys and detectors in the shell:
  eval "$(_FEATFOLD_COMPLETE=bash_source featfold)"    # or zsh_source; in ~/.bashrc, ~/.zshrc
"""


class Verbs(click.Group):
    """A group that suggests a verb for a mistyped one, and lists them in the order of use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        verb = args[0]
        if verb not in self.commands and not verb.startswith("-"):
            near = get_close_matches(verb, self.commands, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise click.UsageError(
                f"no such verb {verb!r}: {hint}known: {', '.join(self.commands)}", ctx
            )
        return super().resolve_command(ctx, args)


def _print_version(ctx: click.Context, _: click.Parameter, asked: bool) -> Any:
    if asked:
        import pipeline

        click.echo(f"featfold {pipeline.__version__}")
        ctx.exit()


@click.group(
    cls=Verbs,
    epilog=f"{EXIT_CODES}\n{COMPLETION}",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Show the version and exit.",
)
def featfold() -> None:
    """Fit out-of-distribution detectors and reduce metrics over features on disk.

    Memory is a constant in the number of rows; it is planned, and refused, before anything is
    read. Jobs are YAML files: start with `featfold demo`.
    """


for _verb in (
    demo,
    init,
    import_,
    extract,
    plan,
    run,
    status,
    report,
    compare,
    inspect,
    export,
    doctor,
    schema,
    gc,
    bench,
):
    featfold.add_command(_verb)
featfold.add_command(evaluate, "eval")
