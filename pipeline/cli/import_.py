"""``featfold import``: features that lie in files become a split of a store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click
from rich.table import Table
from rich.text import Text

from pipeline.cli.options import common, progress_option
from pipeline.cli.terminal import Terminal
from pipeline.errors import ConfigError, FeatfoldError

if TYPE_CHECKING:
    from pipeline.importing import Imported
    from pipeline.store.importers.peek import Seen


@click.command("import", short_help="Bring features in files into a store.")
@click.argument("sources", metavar="SRC...", nargs=-1, required=True)
@click.option("--store", metavar="STORE", help="Where the split goes; made where there is none.")
@click.option("--split", metavar="NAME", help="id/train, id/test, ood/near/NAME and so on.")
@click.option(
    "--map", "mapped", metavar="FOUND=NAME", multiple=True,
    help="Store an array of the files as NAME, as in feat_list=features, and leave out those that "
    "are not mapped, but labels and ids. 'f*=features' takes columns f0, f1, ... of a table as one "
    "array. May be repeated.",
)  # fmt: skip
@click.option("--classes", metavar="K", type=click.IntRange(min=0),
              help="Number of classes; by default that of the store's other splits.")  # fmt: skip
@click.option(
    "--labels", metavar="NAME|FILE|none",
    help="Integers (n,) from 0 to K-1: an array of the files, or FILE.npy, FILE.npz/NAME, "
    "TABLE.csv/COLUMN (tsv, parquet). Without it, the array called labels. Below 0 (-1) is "
    "out-of-distribution: id/train may have some, which fits leave out; other splits id/... may "
    "not; splits ood/... have none else, and need no labels (none).",
)  # fmt: skip
@click.option(
    "--layout", "layouts", metavar="NAME=AXES", multiple=True,
    help="Axes in the files, as in features=NCHW: NTD, NDT, NCHW, NHWC or ND.",
)  # fmt: skip
@click.option(
    "--dtype", "dtypes", metavar="[NAME=]DTYPE", multiple=True,
    help="float16, bfloat16, float32 or float64, for one array or all floats; else as found.",
)  # fmt: skip
@click.option(
    "--scores", metavar="NAME=higher-is-ood|higher-is-id", multiple=True,
    help="What high scores mean; stored so that higher is out-of-distribution. =not-scores for "
    "other arrays of one float a row.",
)  # fmt: skip
@click.option(
    "--block", "block_size", metavar="SIZE",
    help="Bytes of a block, the unit of writing and resuming; 500MB unless a split is resumed.",
)  # fmt: skip
@click.option(
    "--peek", is_flag=True,
    help="Show what the files hold, what it would become, and why it would be refused, with the "
    "exit code of that; rows other than labels are not read, and nothing is written.",
)  # fmt: skip
@click.option(
    "--resume", is_flag=True,
    help="Go on with a split of the same files; blocks that are damaged are written again.",
)  # fmt: skip
@click.option(
    "--overwrite", is_flag=True,
    help="Replace the split if it is there: its rows are removed once all was checked.",
)  # fmt: skip
@click.option(
    "--adopt", is_flag=True,
    help="Link the chunk files of zarr where they fit as they are, instead of copying them.",
)  # fmt: skip
@progress_option
@common
def import_(
    terminal: Terminal,
    sources: tuple[str, ...],
    store: str | None,
    split: str | None,
    mapped: tuple[str, ...],
    classes: int | None,
    labels: str | None,
    layouts: tuple[str, ...],
    dtypes: tuple[str, ...],
    scores: tuple[str, ...],
    block_size: str | None,
    peek: bool,
    resume: bool,
    overwrite: bool,
    adopt: bool,
    progress: bool,
) -> int:
    """Write what files hold into a split: block by block, bit for bit, in constant memory.

    SRC are files, folders and globs (in quotes), or NAME=SRC to call the one array of a file so.
    Arrays of one name in several files are one, in natural order: img_emb_2 before img_emb_10.
    Nothing is written before all that can be refused was checked.
    """
    pairs = [_pair(text, "--map", "FOUND=NAME") for text in mapped]
    options: dict[str, Any] = {
        "arrays": {name: found for found, name in pairs} or None,
        "labels": False if labels == "none" else labels,
        "layouts": dict(_pair(text, "--layout", "NAME=AXES") for text in layouts),
        "dtype": dict(_dtype(text) for text in dtypes),
        "scores": dict(_pair(text, "--scores", "NAME=SIGN") for text in scores),
    }
    sizes: dict[str, Any] = {} if block_size is None else {"block_nbytes": _size(block_size)}
    given: dict[str, Any] = {"classes": classes, "resume": resume, "overwrite": overwrite}
    if peek:
        return _show_peek(terminal, sources, store, split, options, given)
    if store is None or split is None:
        raise ConfigError(
            "import needs --store STORE and --split NAME; or --peek, which writes none"
        )
    from pipeline import importing, stopping

    with terminal.progress(progress) as watched, stopping.heeded():
        done = importing.import_split(
            store,
            split,
            sources,
            adopt=adopt,
            progress=watched,
            **sizes,
            **given,
            **options,
        )
    _show_done(terminal, done)
    return 0


def _show_peek(
    terminal: Terminal,
    sources: Sequence[str],
    store: str | None,
    split: str | None,
    options: Mapping[str, Any],
    given: Mapping[str, Any],
) -> int:
    """Show what an import would do, and say why it would be refused; return its exit code."""
    from pipeline.store.importers.mapping import Wanted
    from pipeline.store.importers.peek import seen
    from pipeline.store.importers.settled import settled

    wanted = Wanted(options["arrays"], options["layouts"], options["dtype"], options["scores"])
    labels, code, problem = options["labels"], 0, ""
    arrays = seen(sources, wanted, labels)
    terminal.show(_table(arrays))
    for one in arrays:
        if one.note:
            terminal.show(f"{one.found}: {one.note}")
    try:
        with settled(store, split or "", sources, wanted, say=terminal.say, labels=labels, **given):
            pass
    except FeatfoldError as error:
        problem, code = str(error), error.exit_code
    if not (store and split):
        terminal.say("not checked without --store and --split: labels, classes and what is there")
    terminal.show(f"not yet: {problem}" if problem else "nothing was written")
    terminal.emit({"arrays": [one.to_dict() for one in arrays], "problem": problem})
    return code


def _table(seen: Sequence[Seen]) -> Table:
    from pipeline.report.text import size

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("array", "files", "shape", "dtype", "bytes", "stored as", "row", "dtype"):
        table.add_column(name, justify="right" if name in ("files", "bytes") else "left")
    for one in seen:
        row = " x ".join(map(str, one.row_shape)) or "number"
        shown = f"{row} {one.layout}".rstrip() if one.stored_dtype else ""
        table.add_row(
            Text(one.found, style="bold"), f"{one.files:,}", " x ".join(map(str, one.shape)),
            one.dtype, size(one.nbytes), one.stored or "(left out)", shown, one.stored_dtype,
        )  # fmt: skip
    return table


def _show_done(terminal: Terminal, done: Imported) -> None:
    from pipeline.report.text import size

    for found, why in done.left_out.items():
        terminal.say(f"left out {found}: {why}")
    blocks = f"{done.written:,} blocks written" if done.written else "it was complete already"
    if done.mended:
        blocks += f", {done.mended:,} of them had been damaged"
    if done.kept and done.written:
        blocks += f", {done.kept:,} kept"
    terminal.show(
        f"{done.store}, {done.split}: {done.rows:,} rows, {done.classes:,} classes, "
        f"{size(done.nbytes)}; {blocks}"
    )
    if done.adopted:
        terminal.show(f"{done.adopted}: its chunk files were linked, not copied")
    if done.copied:
        terminal.show(f"copied: {done.copied}")
    terminal.emit(done.to_dict())


def _size(text: str) -> int:
    from pipeline.cluster import parse_nbytes

    try:
        return parse_nbytes(text)
    except ConfigError:
        raise ConfigError(f"--block: {text!r}; expected a size such as 64MB") from None


def _pair(text: str, option: str, form: str) -> tuple[str, str]:
    name, equals, rest = text.partition("=")
    if not (equals and name.strip() and rest.strip()):
        raise ConfigError(f"{option}: {text!r}; expected {form}")
    return name.strip(), rest.strip()


def _dtype(text: str) -> tuple[str, str]:
    return _pair(text, "--dtype", "NAME=DTYPE") if "=" in text else ("", text.strip())
