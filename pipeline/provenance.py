"""What a split was made of: the weights, data and code that a job names on this machine.

It is recorded when a split is begun, and compared whenever the split is used again. What is named
no more, or lies elsewhere (a bucket, the hub of a library), is not compared.
"""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterator
from importlib import util
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.config import Source
from pipeline.plan import human

MADE_OF = "made_of"
"""Attribute of a split: digests of what its source named, by that name."""
STATTED_FILES = 100_000
"""Files of one name whose sizes and times are looked at; of further ones, names alone."""
WEIGHTS, DATA, CODE = "weights", "data", "code"
OURS = "pipeline."
SIZES, TIMES, CONTENT = "sizes_sha256", "times_sha256", "content_sha256"


class Changes(NamedTuple):
    """What is not as it was, in words."""

    certain: list[str]
    """Other names, other sizes, or weights of other content."""
    perhaps: list[str]
    """Data of other times alone, and code, whose changes may mean nothing."""


def made_of(source: Source, store: str) -> dict[str, dict[str, Any]]:
    """Return digests of what a source names, by its name.

    Of data, names, sizes and times of the files; of weights and code, their content as well.
    """
    found: dict[str, dict[str, Any]] = {}
    for kind, text, paths in _named(source, store):
        found[text] = {"kind": kind, **_looks(paths)}
        if kind != DATA:
            found[text][CONTENT] = _content(paths)
    return found


def changes(then: dict[str, dict[str, Any]], source: Source, store: str) -> Changes:
    """Compare what a source names now with :func:`made_of`; content is read where times differ."""
    certain, perhaps = [], []
    for kind, text, paths in _named(source, store):
        before, now = then.get(text), _looks(paths)
        if before is None or before.items() >= now.items():
            continue
        what = f"{kind} {text}"
        if kind == CODE:
            perhaps += [what] if _content(paths) != before[CONTENT] else []
        elif before[SIZES] != now[SIZES]:
            certain.append(f"{what} ({_counted(before)} then, {_counted(now)} now)")
        elif kind == DATA:
            perhaps.append(what)
        elif _content(paths) != before[CONTENT]:
            certain.append(f"{what} (other content)")
    return Changes(certain, perhaps)


def _named(source: Source, store: str) -> Iterator[tuple[str, str, list[Path]]]:
    """Yield what a source names that is there: its kind, its name, and its files and folders."""
    if source.files:
        texts = [(DATA, text) for text in _texts([list(source.files), source.labels])]
    else:
        model = [source.model.arguments, list(source.model.probes)]
        texts = [(WEIGHTS, text) for text in _texts(model)]
        texts += [(DATA, text) for text in _texts(source.data.arguments)]
        texts += [(CODE, each.factory) for each in (source.model, source.data)]
    for kind, text in dict.fromkeys(texts):
        paths = _code_of(text) if kind == CODE else _paths_of(text, store)
        if paths:
            yield kind, text, paths


def _texts(given: Any) -> Iterator[str]:
    if isinstance(given, str):
        yield given
    elif isinstance(given, (list, tuple, dict)):
        for each in given.values() if isinstance(given, dict) else given:
            yield from _texts(each)


def _paths_of(text: str, store: str) -> list[Path]:
    """Return the files and folders that a text names, without folders that runs write to."""
    named = text if os.path.exists(text) else text.partition("=")[2] or text  # NAME=PATH of imports
    found = [named] if os.path.exists(named) else glob.glob(named) if glob.has_magic(named) else []
    written = [Path.cwd(), Path(store).absolute()]
    return [
        path
        for path in map(Path, sorted(found))
        if not any(place.is_relative_to(path.absolute()) for place in written)
    ]


def _code_of(factory: str) -> list[Path]:
    """Return the file of the module of a factory that is not ours; nothing is imported."""
    first, *rest = factory.partition(":")[0].split(".")
    spec = None if factory.startswith(OURS) else util.find_spec(first)
    if spec is None or spec.origin is None:
        return []
    module = Path(spec.origin).parent.joinpath(*rest) if rest else Path(spec.origin)
    places = (module, module.with_suffix(".py"), module / "__init__.py")
    return [next(filter(Path.is_file, places))] if any(map(Path.is_file, places)) else []


def _looks(paths: list[Path]) -> dict[str, Any]:
    """Return how many files there are, their bytes, and digests of their names, sizes and times."""
    sizes, times, files, nbytes = hashlib.sha256(), hashlib.sha256(), 0, 0
    for path in paths:
        for file in _files(path):
            line = f"{path.name if file == path else file.relative_to(path)}"
            if files < STATTED_FILES:
                stat = file.stat()
                nbytes += stat.st_size
                line += f"\0{stat.st_size}"
                times.update(f"{stat.st_mtime_ns}\n".encode())
            sizes.update(f"{line}\n".encode(errors="surrogateescape"))
            files += 1
    return {"files": files, "nbytes": nbytes, SIZES: sizes.hexdigest(), TIMES: times.hexdigest()}


def _content(paths: list[Path]) -> str:
    total = hashlib.sha256()
    for file in (file for path in paths for file in _files(path)):
        with file.open("rb") as opened:
            total.update(hashlib.file_digest(opened, "sha256").digest())
    return total.hexdigest()


def _files(path: Path) -> Iterator[Path]:
    """Yield the files below a folder in order, without hidden ones, or the file itself."""
    if not path.is_dir():
        yield path
        return
    for folder, below, names in os.walk(path):
        below[:] = sorted(each for each in below if not each.startswith((".", "__pycache__")))
        yield from (Path(folder, name) for name in sorted(names) if not name.startswith("."))


def _counted(looks: dict[str, Any]) -> str:
    files = looks["files"]
    return f"{files:,} file{'s' * (files != 1)} of {human(looks['nbytes'])}"
