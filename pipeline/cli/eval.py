"""``featfold eval``: metrics of predictions that are there already, or of every past epoch."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from pipeline.cli.options import CLUSTER, DEVICE_MEMORY, MEMORY, common
from pipeline.cli.terminal import Terminal
from pipeline.errors import ConfigError, MissingInputError

DEFAULTS = {
    "multiclass": ("accuracy", "balanced_accuracy", "precision", "recall", "f1", "iou"),
    "binary": ("accuracy", "precision", "recall", "specificity", "f1", "mcc"),
    "multilabel": ("exact_match", "precision", "recall", "f1"),
}
EXAMPLES = """\b
Examples:
  featfold eval masks/predicted masks/truth --classes 21 --ignore 255
  featfold eval predictions.npy labels.npy --classes 1000 -m accuracy -m kappa:weighting=quadratic
  featfold eval run.csv/predicted run.csv/label --classes names.txt --out metrics
  featfold eval --epochs runs/unet -m kappa -m dice:average=weighted --merge vehicle=car+bus
"""


@click.command(short_help="Measure predictions that are there already.", epilog=EXAMPLES)
@click.argument("predictions", required=False)
@click.argument("labels", required=False)
@click.option(
    "--classes",
    metavar="N|FILE|NAMES",
    help="Their number, a file with a name on each line, or names with commas between them.",
)
@click.option(
    "-m",
    "--metric",
    "wanted",
    metavar="NAME[:OPTION=VALUE,..]",
    multiple=True,
    help="A metric, with options if need be, as in iou:average=none+macro; may be repeated. "
    "Default: those of the task.",
)
@click.option(
    "--task",
    type=click.Choice(list(DEFAULTS)),
    default="multiclass",
    show_default=True,
    help="What a row holds: a class, 0 or 1, or 0 or 1 for each label.",
)
@click.option(
    "--ignore",
    metavar="CLASS",
    type=int,
    multiple=True,
    help="A label that does not count, such as 255; may be repeated.",
)
@click.option(
    "--threshold",
    type=float,
    default=0.5,
    show_default=True,
    help="Scores of at least this are positive.",
)
@click.option("--weights", metavar="ARRAY", help="A weight for each row.")
@click.option(
    "--epochs",
    "run",
    metavar="RUN",
    type=click.Path(path_type=Path),
    help="Measure every epoch that a training run kept, instead of predictions.",
)
@click.option(
    "--merge",
    metavar="NAME=A+B",
    multiple=True,
    help="With --epochs: classes that count as one, by name or number: car+bus, 1+2; may be "
    "repeated.",
)
@click.option(
    "--out",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Write the numbers there, as JSON and CSV.",
)
@click.option("--memory", metavar="SIZE", default="auto", help=MEMORY)
@click.option("--device-memory", metavar="SIZE", default="auto", help=DEVICE_MEMORY)
@click.option("--workers", metavar="N", type=int, help="Number of workers.")
@click.option("--cluster", metavar="WHERE", default="auto", help=CLUSTER)
@click.option(
    "--cache", metavar="DIR", help="Where temporary files go; no partial outlives this command."
)
@common
def evaluate(
    terminal: Terminal,
    predictions: str | None,
    labels: str | None,
    classes: str | None,
    wanted: Sequence[str],
    task: str,
    ignore: tuple[int, ...],
    threshold: float,
    weights: str | None,
    run: Path | None,
    merge: tuple[str, ...],
    out: Path | None,
    **where: Any,
) -> None:
    """Measure PREDICTIONS against LABELS, exactly and in constant memory.

    Each is an npy file, FILE.npz/NAME, TABLE.csv/COLUMN (or tsv, parquet), a zarr array, or a
    folder of PNG masks, whose files go by the same names on both sides. Predictions are classes,
    or scores of every class: TABLE.csv/P_* takes all columns whose names begin so. Each byte is
    read once in each pass, and most metrics need one. These files have no checksums that partials
    could be named by, so each command reads them anew.

    With --epochs, any metric follows from the counts that a training run with the callback of
    pipeline.ddp kept, for every past epoch, without its model or data.
    """
    from pipeline.report import measured

    if out is not None:
        measured.check_directory(out)
    if run is not None:
        from pipeline.cli.epochs import show_epochs

        said = {"classes": classes, "weights": weights, **where}
        said |= {"threshold": None if threshold == 0.5 else threshold}
        _refuse_beside_epochs(predictions, **said)
        show_epochs(terminal, run, wanted, task=task, ignore=ignore, merge=merge, out=out)
        return
    if task == "binary" and classes is None:
        classes = "2"
    if predictions is None or labels is None or classes is None:
        raise click.UsageError("expected PREDICTIONS, LABELS and --classes, or --epochs RUN")
    if merge:
        raise ConfigError("--merge: it goes with --epochs; predictions are measured as they are")
    from pipeline.cli.metric_options import metrics_of
    from pipeline.engine import Trace
    from pipeline.measuring import measure
    from pipeline.plan import human
    from pipeline.report.class_table import class_table

    known, trace, started = classes_of(classes), Trace(), time.perf_counter()
    # As of a Collection: scores of one class are probabilities, like the threshold beside them.
    kind = "logits" if task == "multiclass" else "probabilities"
    shared = {"task": task, "ignore": ignore, "threshold": threshold, "kind": kind}
    if weights is not None:
        shared["weights"] = "weights"
    asked = metrics_of(wanted or DEFAULTS[task], shared)
    numbers = measure(
        asked, predictions, labels, classes=known,
        task=task, weights=weights, trace=trace, **where,
    )  # fmt: skip
    table = class_table(numbers, known)
    if table.metrics:
        terminal.show(table.text())
    terminal.show(measured.overall(numbers, table))
    for shown in measured.objects(numbers, known):
        terminal.show(shown)
    seconds = time.perf_counter() - started
    terminal.say(f"read {human(trace.read_nbytes)} in {seconds:.1f} s")
    about = {"predictions": predictions, "labels": labels, "classes": known, "task": task,
             "ignore": list(ignore)}  # fmt: skip
    if out is not None:
        terminal.say(f"numbers: {measured.write(out, about, numbers)}")
        names = known if isinstance(known, list) else None
        for chart in measured.write_charts(out, numbers, list(asked), names):
            terminal.say(f"chart: {chart}")
    if terminal.as_json:
        terminal.emit({**about, "metrics": measured.contents(numbers)})


def _refuse_beside_epochs(predictions: str | None, **options: Any) -> None:
    """Raise :class:`ConfigError` for what would be ignored: nothing is read but small counts."""
    if predictions is not None:
        raise ConfigError("--epochs: the run has the counts; leave PREDICTIONS and LABELS out")
    given = [name for name, value in options.items() if value not in (None, "auto")]
    if given:
        option = given[0].replace("_", "-")
        raise ConfigError(f"--{option}: it does not go with --epochs; the run says it")


def classes_of(text: str) -> int | list[str]:
    """Return the number of classes, or their names, of ``--classes``."""
    if text.isdecimal():
        return int(text)
    if Path(text).is_file():
        names = Path(text).read_text().splitlines()
        return [name.strip() for name in names if name.strip()]
    if "," in text:
        return [name.strip() for name in text.split(",")]
    raise MissingInputError(
        f"--classes: {text} is neither a number nor a file; names have commas between them"
    )
