"""``featfold inspect``: what a store holds, and whether its bytes are still those written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from rich.table import Table
from rich.text import Text

from pipeline.cli.options import common
from pipeline.cli.terminal import Terminal

if TYPE_CHECKING:
    from pipeline.store.column import Finding
    from pipeline.store.head import HeldHead
    from pipeline.store.survey import HeldSplit

DAMAGED = 4


@click.command(short_help="Show what a store holds; find damage.")
@click.argument("path", metavar="STORE")
@click.option("--verify", is_flag=True, help="Read everything and compare it with its checksums.")
@common
def inspect(terminal: Terminal, path: str, verify: bool) -> None:
    """Show the splits, arrays and head of a store, and missing rows; nothing is written.

    STORE is a folder, or the URL of a place in an object store, such as s3://bucket/feats.zarr.
    With --verify every byte is read once. Exit 4 if anything is damaged, with all of the damage.
    """
    from pipeline.store import Store
    from pipeline.store.head import HeldHead
    from pipeline.store.survey import HeldSplit, examine

    store = Store.open(path)
    splits, findings, head = [], [], None
    for found in examine(store, verify):
        if isinstance(found, HeldSplit):
            splits.append(found)
            if verify:
                terminal.say(f"verifying {found.name}: {found.rows:,} rows")
        elif isinstance(found, HeldHead):
            head = found
        else:
            findings.append(found)
    terminal.show(_held(splits) if splits else f"{path} holds no splits yet")
    if head is not None:
        terminal.show(_of_head(head))
    for finding in findings:
        terminal.show(_damage(finding))
    terminal.show(_verdict(splits, findings, verify))
    terminal.emit(
        {
            "store": str(store.path),
            "verified": verify,
            "complete": not any(split.missing for split in splits),
            "splits": [split.to_dict() for split in splits],
            "head": head and vars(head),
            "findings": [{**vars(found), "remedy": found.remedy} for found in findings],
        }
    )
    if findings:
        raise click.exceptions.Exit(DAMAGED)


def _held(splits: list[HeldSplit]) -> Table:
    from pipeline.plan import human

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("split", "array", "row", "dtype"):
        table.add_column(name, overflow="fold")
    for name in ("chunk rows", "chunk", "bytes"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("compression")
    for split in splits:
        names = [split.name, *("" for _ in split.arrays[1:])]
        for name, array in zip(names, split.arrays, strict=True):
            table.add_row(
                Text(name, style="bold"), array.name, _shape(array.row_shape), array.dtype,
                f"{array.chunk_rows:,}", human(array.chunk_nbytes), human(array.nbytes),
                array.compression,
            )  # fmt: skip
    return table


def _of_head(head: HeldHead) -> str:
    said = head.attributes
    reads = f"{said.get('how') or 'mean'} of {said.get('field') or 'features'}"
    of = "".join(f", {key} {said[key]}" for key in ("model", "weights_sha256") if key in said)
    return (
        f"head: weight {_shape(head.weight_shape)}, bias {_shape(head.bias_shape)}, {head.dtype}; "
        f"reads {reads}{of}"
    )


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "number"


def _damage(found: Finding) -> str:
    rows = f"rows {found.start}-{found.stop}" if found.stop else "all rows"
    return f"damaged {found.split}, {found.array}, {rows}: {found.what}\n        {found.remedy}"


def _verdict(splits: list[HeldSplit], findings: list[Finding], verify: bool) -> str:
    lines = []
    for split in splits:
        lines.append(
            f"{split.name}: {split.rows:,} rows in {split.blocks:,} blocks, {split.classes:,} "
            + (f"classes; {split.missing} missing" if split.missing else "classes, complete")
            + (f"; {split.removed} removed" if split.removed else "")
        )
    if findings:
        lines.append(f"damaged in {len(findings)} places; rows are counted from 0, end excluded")
    elif verify:
        lines.append("every byte is as it was written")
    return "\n".join(lines)
