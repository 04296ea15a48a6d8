"""Folders of clip-retrieval: embeddings in numbered npy files, and tables beside them.

``img_emb/img_emb_N.npy``, ``text_emb/text_emb_N.npy`` and ``metadata/metadata_N.parquet`` hold the
same rows, file by file (https://github.com/rom1504/clip-retrieval). Columns of the tables are named
``metadata/COLUMN``, which is stored only where it is mapped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from pipeline.errors import ConfigError, DataError
from pipeline.store.importers import Importer, Rows, Unreadable
from pipeline.store.importers.npy import npy_rows
from pipeline.store.importers.parquet import parquet_rows
from pipeline.store.importers.shards import Part, Shards

EMBEDDINGS = ("img_emb", "text_emb")
METADATA = "metadata"
_ENDINGS = {METADATA: "parquet"}


def folder_rows(folder: Path) -> Mapping[str, Rows]:
    """Return the embeddings of a folder, and the columns of its tables; reads heads.

    Raises :class:`DataError` where a number is there of one kind of file and not of another, or
    of two files of a kind.
    """
    kinds = (*EMBEDDINGS, METADATA)
    numbered = {kind: found for kind in kinds if (found := _by_number(folder, kind))}
    numbers = {n for found in numbered.values() for n in found}
    for kind, found in numbered.items():
        if missing := sorted(numbers - set(found)):
            raise DataError(
                f"{folder} lacks {kind}/{kind}_{missing[0]}.{_ENDINGS.get(kind, 'npy')}, and has "
                "others of that number: the rows would be out of step; bring it, or remove those"
            )
    arrays: dict[str, Rows] = {}
    for kind in EMBEDDINGS:
        parts = [Part(path, npy_rows(path)) for _, path in sorted(numbered.get(kind, {}).items())]
        if parts:
            arrays[kind] = Shards(kind, parts)
    return arrays | _columns(numbered.get(METADATA, {}))


def _columns(tables: Mapping[int, Path]) -> dict[str, Rows]:
    try:
        read = [(path, parquet_rows(path)) for _, path in sorted(tables.items())]
    except ConfigError as error:
        return {METADATA: Unreadable(str(error))}
    found: dict[str, Rows] = {}
    for column in dict.fromkeys(name for _, columns in read for name in columns):
        parts = [Part(path, columns[column]) for path, columns in read if column in columns]
        bad = next((p.rows for p in parts if isinstance(p.rows, Unreadable)), None)
        name = f"{METADATA}/{column}"
        try:
            found[name] = bad or Shards(name, parts)
        except DataError as error:
            found[name] = Unreadable(str(error))
    return found


def _by_number(folder: Path, kind: str) -> dict[int, Path]:
    """Return the files of a kind by their numbers."""
    found: dict[int, Path] = {}
    for number, path in sorted(_files(folder, kind)):
        if (other := found.setdefault(number, path)) is not path:
            raise DataError(
                f"{other} and {path.name} have the same number, {number}; remove or rename one"
            )
    return found


def _files(folder: Path, kind: str) -> list[tuple[int, Path]]:
    """Return the files of a kind and their numbers."""
    ending = _ENDINGS.get(kind, "npy")
    found = (
        (p, re.fullmatch(rf"{kind}_(\d+)\.{ending}", p.name)) for p in folder.glob(f"{kind}/*")
    )
    return [(int(match[1]), path) for path, match in found if match]


def _is_folder(path: Path) -> bool:
    return path.is_dir() and any(_files(path, kind) for kind in EMBEDDINGS)


FORMAT = Importer("clip-retrieval", (), _is_folder, folder_rows)
