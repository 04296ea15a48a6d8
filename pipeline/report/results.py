"""Writing and reading ``results.json``, checked against its schema.

The ``TypedDict`` classes of :mod:`pipeline.report.schema` are walked, so what they say is what is
enforced.
"""

import json
import math
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import (
    Any,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from pipeline import files
from pipeline.errors import DataError, MissingInputError
from pipeline.report.schema import SCHEMA, Results

FILE_NAME = "results.json"
NOT_A_NUMBER = "the computation gave no finite number"


def write(results: Mapping[str, Any], directory: Path | str) -> Path:
    """Write ``results.json`` into ``directory`` by atomic rename and return its path.

    A NaN or infinite ``value`` becomes null and gains a ``reason``; any other becomes null.
    Raises DataError when the content does not follow the schema; nothing is written then.
    """
    path = Path(directory) / FILE_NAME
    write_text(path, _dump(check(results, str(path))))
    return path


def read(path: Path | str) -> Results:
    """Read and check ``results.json``, given as the file or as the run directory that holds it.

    Raises MissingInputError when there is none, DataError when it is not JSON, has another
    schema version, or lacks or mistypes a key (the message names the key).
    """
    file = Path(path)
    file = file / FILE_NAME if file.is_dir() else file
    try:
        content = json.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        raise MissingInputError(
            f"{file}: no such file; expected the {FILE_NAME} of a finished run or its directory"
        ) from None
    except ValueError as error:
        raise DataError(f"{file}: not a JSON document ({error}); run the job again") from None
    return check(content, str(file))


def check(content: Any, where: str = FILE_NAME) -> Results:
    """Return ``content`` as plain JSON values if it follows the schema, else raise DataError."""
    tree = _plain(content)
    version = tree.get("schema") if isinstance(tree, dict) else None
    if version != SCHEMA:
        raise DataError(
            f"{where}: schema version {version!r}, this featfold reads {SCHEMA}; "
            "use the featfold version that wrote the file or run the job again"
        )
    _follow(tree, Results, where, "")
    results = cast(Results, tree)
    _refer(results, where)
    return results


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text beside ``path``, flush it to the disk and rename it into place."""
    content = text.encode("utf-8", errors="backslashreplace")
    remedy = "name another directory for the runs"
    files.write_whole(path, lambda file: file.write(content), len(content), remedy)


def _plain(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        plain = {str(key): _plain(item) for key, item in tree.items()}
        if plain.get("value", 0) is None and not plain.get("reason"):
            plain["reason"] = NOT_A_NUMBER
        return plain
    if isinstance(tree, (list, tuple)):
        return [item if type(item) in (int, str) else _plain(item) for item in tree]
    if hasattr(tree, "tolist"):  # arrays and array scalars
        return _plain(tree.tolist())
    if isinstance(tree, float) and not math.isfinite(tree):
        return None
    return tree


_LEAVES: dict[Any, tuple[tuple[type, ...], str]] = {
    float: ((float, int), "a number"),
    int: ((int,), "an integer"),
    str: ((str,), "a string"),
    bool: ((bool,), "true or false"),
}


def _follow(tree: Any, hint: Any, where: str, key: str) -> None:
    """Raise DataError unless ``tree`` has the type ``hint``; ``key`` is the path to it."""
    origin = get_origin(hint)
    if hint is Any:
        return
    if origin in (Union, types.UnionType):  # only "something or null" occurs in the schema
        if tree is not None:
            _follow(tree, next(a for a in get_args(hint) if a is not type(None)), where, key)
    elif is_typeddict(hint):
        _expect(isinstance(tree, dict), tree, "an object", where, key)
        for name, inner in get_type_hints(hint).items():
            if name in tree:
                _follow(tree[name], inner, where, f"{key}.{name}" if key else name)
            elif name in hint.__required_keys__:
                raise DataError(f"{where}: {key or 'the document'} lacks the key {name!r}")
    elif origin is dict:
        _expect(isinstance(tree, dict), tree, "an object", where, key)
        for name, item in tree.items():
            _follow(item, get_args(hint)[1], where, f"{key}.{name}")
    elif origin is list:
        _expect(isinstance(tree, list), tree, "a list", where, key)
        kinds, _ = _LEAVES.get(get_args(hint)[0], ((), ""))
        if all(type(item) in kinds for item in tree):  # long lists of numbers, at full speed
            return
        for position, item in enumerate(tree):
            _follow(item, get_args(hint)[0], where, f"{key}[{position}]")
    else:
        kinds, words = _LEAVES[hint]
        fits = isinstance(tree, kinds) and (hint is bool or not isinstance(tree, bool))
        _expect(fits, tree, words, where, key)


def _expect(fits: bool, got: Any, words: str, where: str, key: str) -> None:
    if not fits:
        shown = repr(got) if len(repr(got)) <= 60 else repr(got)[:57] + "..."
        raise DataError(f"{where}: {key}: expected {words}, got {shown}")


def _refer(results: Results, where: str) -> None:
    """Raise DataError unless whatever names a detector names a declared one."""
    ids = [detector["id"] for detector in results["detectors"]]
    if len(set(ids)) != len(ids):
        raise DataError(f"{where}: two detectors share an id among {ids}; give each its own `id`")
    for key, name in _named(results):
        if name not in ids:
            raise DataError(f"{where}: {key}: {name!r} is not among the detectors {ids}")
    _agree(results, where)


def _named(results: Results) -> Iterator[tuple[str, str]]:
    """Yield every place that names a detector, and the name."""
    for key in ("scores", "histograms", "curves"):
        for position, entry in enumerate(cast(list[dict[str, Any]], results[key])):
            yield f"{key}[{position}].detector", entry["detector"]
    for position, comparison in enumerate(results.get("comparisons", ())):
        yield f"comparisons[{position}].best", comparison["best"]
        for other in comparison["others"]:
            yield f"comparisons[{position}].others", other["detector"]
    if agreement := results.get("agreement"):
        yield from (("agreement.detectors", name) for name in agreement["detectors"])


def _agree(results: Results, where: str) -> None:
    """Raise DataError unless lengths that belong together agree."""
    if classification := results["classification"]:
        k = len(classification["per_class"])
        matrix = classification["confusion"]
        if len(matrix) != k or any(len(row) != k for row in matrix):
            raise DataError(
                f"{where}: classification.confusion: expected {k} x {k} counts, one row and "
                "column for each entry of per_class"
            )
    if agreement := results.get("agreement"):
        k = len(agreement["detectors"])
        if len(agreement["spearman"]) != k or any(len(row) != k for row in agreement["spearman"]):
            raise DataError(
                f"{where}: agreement.spearman: expected {k} x {k} numbers, one row and column for "
                "each of its detectors"
            )
    for histogram in results["histograms"]:
        for split, counts in histogram["counts"].items():
            if len(counts) + 1 != len(histogram["edges"]):
                raise DataError(
                    f"{where}: histogram of {histogram['detector']!r} on {split!r}: expected "
                    f"{len(histogram['edges']) - 1} counts, got {len(counts)}"
                )
        if (scale := histogram.get("scale", "linear")) not in ("log", "linear"):
            raise DataError(
                f"{where}: histogram of {histogram['detector']!r}: expected the scale log or "
                f"linear, got {scale!r}"
            )
        for split, ends in histogram.get("beyond", {}).items():
            if len(ends) != 2:
                raise DataError(
                    f"{where}: histogram of {histogram['detector']!r} on {split!r}: expected "
                    f"2 numbers of rows beyond the edges, got {len(ends)}"
                )
    for curve in results["curves"]:
        if len(curve["fpr"]) != len(curve["tpr"]):
            raise DataError(
                f"{where}: curve of {curve['detector']!r} on {curve['ood']!r}: "
                f"{len(curve['fpr'])} fpr values, {len(curve['tpr'])} tpr values"
            )


def _dump(results: Results) -> str:
    """JSON with one line for each entry of a top-level list, so that files diff and grep well."""
    lines = []
    for key, item in results.items():
        if isinstance(item, list) and item:
            body = ",\n".join(f"  {_compact(entry)}" for entry in item)
            lines.append(f" {_compact(key)}: [\n{body}\n ]")
        else:
            lines.append(f" {_compact(key)}: {_compact(item)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _compact(item: Any) -> str:
    return json.dumps(item, ensure_ascii=False, allow_nan=False)
