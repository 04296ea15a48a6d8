"""How a fit makes its bank: a table of all entries, or a sample of them, in one pass."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.bank.rows import Bank, BankFile, finite_entries
from pipeline.chunk import Schema
from pipeline.content import Const, replaced
from pipeline.errors import ConfigError, DataError
from pipeline.partials import RowTable, opened_rows
from pipeline.procedure import REHEARSING, Passes, Rows
from pipeline.statistics import Sum, Sums
from pipeline.statistics.coreset import Centres, Coreset
from pipeline.statistics.sample import Sample
from pipeline.views.entries import Entries, EntryCounts, EntryKeys

BANK_LIMIT_NBYTES = 256 * 2**20
"""Most bytes of a bank that is saved with the scorer; of a larger one, files of the cache are."""
IDS = "ids"
SHARE_LIMIT = 20
"""A k above one in so many entries averages over much of the bank."""


def check_max_bank(max_bank: int | None) -> None:
    """Raise :class:`ConfigError` for a sample of no entry."""
    if max_bank is not None and max_bank < 1:
        raise ConfigError(f"max_bank: {max_bank}; expected at least 1, or none for all entries")


def reference_bank(schema: Schema, view: Entries, max_bank: int | None = None) -> Passes[Bank]:
    """Ask for the entries of a split, in one pass; return their bank.

    With ``max_bank``, it is the entries whose ids (the array ``ids``, or else the row numbers) have
    the smallest hashes. Raises :class:`DataError` where no entry counts.
    """
    asked: Any = Rows(view)
    if max_bank is not None:
        asked = Sample(view, _keys(schema, view), max_bank, view.where)
    results = yield {"bank": asked, "entries": Sums(EntryCounts(view.of), view.where)}
    counted: Sum = results["entries"]
    if isinstance(results["bank"], RowTable):
        bank = _bank_of_table(results["bank"], schema, view, int(counted.total))
    else:
        sampled = results["bank"].entries
        bank = Bank(schema.split, view, len(sampled), sampled.shape[1], Const(sampled))
    _refuse_none(bank.entries, schema)
    return _as_large_as_it_will_be(bank, view, schema, max_bank) if REHEARSING.get() else bank


def reference_coreset(
    schema: Schema, view: Entries, most: int, max_bank: int, seed: int
) -> Passes[Centres]:
    """Ask for the composable coreset of a split, in one pass: at most ``most`` of its entries.

    Every block offers the ``max_bank`` of its entries whose ids have the smallest hashes. Raises
    :class:`DataError` where no entry counts.
    """
    keys = _keys(schema, view)
    results = yield {"coreset": Coreset(view, keys, most, max_bank, seed, view.where)}
    centres: Centres = results["coreset"]
    _refuse_none(len(centres.keys), schema)
    return centres


def _keys(schema: Schema, view: Entries) -> EntryKeys:
    tokens = view.of.shape(schema)[:-1]
    return EntryKeys(IDS if IDS in schema.arrays else "", *tokens)


def _refuse_none(entries: int, schema: Schema) -> None:
    if entries < 1:
        raise DataError(f"{schema.split}: no usable row for a bank; fits need labels >= 0")


def _bank_of_table(table: RowTable, schema: Schema, view: Entries, counted: int) -> Bank:
    width = view.shape(schema)[-1]
    paths = [part for part in table.parts if isinstance(part, Path)]
    if len(paths) == len(table.parts):
        files = tuple(map(_bank_file, paths))
        if sum(file.nbytes for file in files) > BANK_LIMIT_NBYTES:
            return Bank(schema.split, view, counted, width, files=files)
    entries = np.concatenate([finite_entries(part, width) for part in table])
    return Bank(schema.split, view, len(entries), width, Const(entries))


def _bank_file(path: Path) -> BankFile:
    """Return the file of a block."""
    with opened_rows(path) as stored:
        nbytes = stored.dtype.itemsize * math.prod(stored.shape)
        return BankFile(str(path.absolute()), stored.checksum, stored.shape[0], nbytes)


def _as_large_as_it_will_be(
    bank: Bank, view: Entries, schema: Schema, max_bank: int | None
) -> Bank:
    """Return a bank that takes the memory of the real one in a plan, and none itself."""
    offered = schema.rows * math.prod(view.shape(schema)[:-1])
    entries = max(1, min(offered, max_bank or offered))
    if bank.held is None:
        return replaced(bank, entries=entries)
    nbytes = entries * bank.width * bank.held.dtype.itemsize
    if max_bank is None and nbytes > BANK_LIMIT_NBYTES:  # it will be read from files
        return replaced(bank, entries=entries, files=(BankFile("", 0, schema.rows, nbytes),))
    return replaced(bank, entries=entries, held=Const.repeated(bank.held.array[0], entries))


def too_few(bank: Bank, k: int, detector: str) -> tuple[str, ...]:
    """Return a note where ``k`` is large for a bank; raise :class:`DataError` where it is larger.

    A plan, whose rows are made up, knows better than to refuse.
    """
    if k > bank.entries and not REHEARSING.get():
        raise DataError(
            f"{detector}: k: {k} neighbours of a bank of {bank.entries} entries of {bank.split}; "
            f"choose k up to {bank.entries}, or fit on more rows"
        )
    if SHARE_LIMIT * k > bank.entries:
        return (f"k {k} is more than 1 in {SHARE_LIMIT} of the bank",)
    return ()
