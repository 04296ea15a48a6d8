"""YAML as plain data that remembers where each key and value stands.

Scalars follow YAML 1.2: ``no``, ``on`` and ``22:30`` are text, ``1e-3`` is a number.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pipeline.errors import ConfigError, MissingInputError

Keys = tuple[str | int, ...]
DEEPEST = 20
COMMAND_LINE = "command line"

_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|\.[0-9]+(?:[eE][-+]?[0-9]+)?"
    r"|[0-9]+[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))\Z|\.(?:nan|NaN|NAN)\Z"
)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - how PyYAML has it


class _Dumper(yaml.SafeDumper):
    """Quotes what either version of YAML would not read back as text."""


for _tag, _pattern, _first in (
    ("null", re.compile(r"(?:~|null|Null|NULL|)\Z"), ["~", "n", "N", ""]),
    ("bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)\Z"), list("tTfF")),
    ("int", re.compile(r"[-+]?(?:0|[1-9][0-9_]*)\Z"), list("-+0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
    ("merge", re.compile(r"<<\Z"), ["<"]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", _pattern, _first)
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+.0123456789"))


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong: where, under which key, and what to do about it."""

    place: str
    keys: Keys
    text: str

    def __str__(self) -> str:
        return ": ".join(part for part in (f"{self.place} {dotted(self.keys)}".strip(), self.text))


@dataclass
class Document:
    """The data of a YAML file, and the place, ``file:line:column``, of every key and value."""

    name: str
    text: str
    tree: Any = None
    keys: dict[Keys, str] = field(default_factory=dict)
    values: dict[Keys, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def place(self, keys: Keys, *, of_key: bool = False) -> str:
        """Return where a value, or its key, stands; for a missing one, where it would belong."""
        for stop in range(len(keys), -1, -1):
            whole = stop == len(keys)
            found = (self.keys if of_key and whole else self.values).get(keys[:stop])
            if found is not None:
                return found
        return f"{self.name}:1:1"

    def known(self, keys: Keys) -> Keys:
        """Return the longest beginning of ``keys`` that the document has."""
        return next(keys[:n] for n in range(len(keys), -1, -1) if not n or keys[:n] in self.values)

    def override(self, assignments: Iterable[str], place: str = COMMAND_LINE) -> None:
        """Set values given as ``a.b.0.c=value``, where the value is YAML; ``place`` says where."""
        for assignment in assignments:
            dotted_keys, equals, text = assignment.partition("=")
            if not equals or not all(dotted_keys.split(".")):
                raise ConfigError(f"{assignment!r}: expected key=value, e.g. resources.workers=2")
            given = parse(text, f"{assignment!r}, its value")
            keys = self._set(dotted_keys.split("."), given.tree, assignment, place)
            self.problems += [Problem(place, (*keys, *p.keys), p.text) for p in given.problems]

    def _set(self, steps: list[str], given: Any, assignment: str, place: str) -> Keys:
        parent: Any = self.tree
        keys: Keys = ()
        for step in steps[:-1]:
            key = _key(parent, step, assignment)
            keys = (*keys, key)
            if isinstance(parent, dict) and parent.get(key) is None:
                parent[key] = {}
                self.keys[keys] = self.values[keys] = place
            parent = parent[key]
        key = _key(parent, steps[-1], assignment)
        parent[key] = given
        keys = (*keys, key)
        for places in (self.keys, self.values):
            for stale in [known for known in places if known[: len(keys)] == keys]:
                del places[stale]
            places[keys] = place
        return keys


def _key(parent: Any, step: str, assignment: str) -> Any:
    if isinstance(parent, list):
        if step.isdigit() and int(step) < len(parent):
            return int(step)
        raise ConfigError(f"{assignment!r}: {step!r} is not one of 0 to {len(parent) - 1}")
    if not isinstance(parent, dict):
        raise ConfigError(f"{assignment!r}: what holds {step!r} is {parent!r}, not a mapping")
    return step


def read(path: str | Path) -> Document:
    """Return the document in ``path``.

    Raises :class:`MissingInputError` where there is no file, :class:`ConfigError` with line and
    column where it is not YAML. Duplicate keys are among the problems of the document.
    """
    try:
        raw = Path(path).read_bytes()
    except FileNotFoundError:
        raise MissingInputError(f"{path}: there is no such file; give the YAML of a job") from None
    except OSError as error:
        raise MissingInputError(f"{path}: cannot be read ({error.strerror})") from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise ConfigError(
            f"{path}:{line}:1: not UTF-8 ({error.reason}); save it as UTF-8"
        ) from None
    return parse(text, str(path))


def parse(text: str, name: str) -> Document:
    """Return the document of a YAML text; see :func:`read`."""
    document = Document(name, text)
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is not None:
            document.tree = _build(document, loader, node, ())
    except yaml.MarkedYAMLError as error:
        raise ConfigError(_broken(name, error)) from None
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise ConfigError(f"{name}:{line}:1: not YAML: {error.reason}") from None
    return document


def dump(tree: Any) -> str:
    """Return plain data as YAML that :func:`parse` reads back."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def dotted(keys: Keys) -> str:
    """Return keys as people write them: ``detectors[0].ridge``."""
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys)
    return text.removeprefix(".")


def _broken(name: str, error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
    what = str(error.problem or error.context)
    remedy = "; indent with spaces, not tabs" if "'\\t'" in what else ""
    return f"{where}: not YAML: {what}{remedy}"


def _build(document: Document, loader: _Loader, node: yaml.Node, keys: Keys) -> Any:
    """Return the data of a node, noting where it and all within it stand."""
    document.values[keys] = _place(document, node)
    if len(keys) > DEEPEST:
        raise yaml.MarkedYAMLError(problem="nested too deeply", problem_mark=node.start_mark)
    if isinstance(node, yaml.SequenceNode):
        return [_build(document, loader, item, (*keys, n)) for n, item in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        return _build_mapping(document, loader, node, keys)
    return loader.construct_object(node, deep=True)


def _build_mapping(
    document: Document, loader: _Loader, node: yaml.MappingNode, keys: Keys
) -> dict[str, Any]:
    _note_duplicates(document, node, keys)
    loader.flatten_mapping(node)
    made: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = key_node.value
        if not isinstance(key, str):
            raise yaml.MarkedYAMLError(problem="a key is text", problem_mark=key_node.start_mark)
        document.keys[(*keys, key)] = _place(document, key_node)
        made[key] = _build(document, loader, value_node, (*keys, key))
    return made


def _note_duplicates(document: Document, node: yaml.MappingNode, keys: Keys) -> None:
    first: dict[Any, str] = {}
    for key_node, _ in node.value:
        place = _place(document, key_node)
        if not isinstance(key_node, yaml.ScalarNode):
            continue
        if key_node.value in first:
            text = f"this key stands twice, first in {first[key_node.value]}; keep one"
            document.problems.append(Problem(place, (*keys, key_node.value), text))
        first.setdefault(key_node.value, place)


def _place(document: Document, node: yaml.Node) -> str:
    return f"{document.name}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"
