"""Values: frozen dataclasses whose equality, hash, cache key and saved form are one content.

``@value`` makes a class whose instances are the computation they describe: two equal ones run once.
Numbers are normalised by their annotation (``Pooled(1) == Pooled(1.0)`` where a float is declared)
and sequences become tuples, so equal values always have equal digests.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import os
import types
import typing
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, dataclass_transform

import numpy as np

from pipeline import arrays, files
from pipeline.errors import ConfigError, CorruptError, MissingInputError

T = TypeVar("T")
SCALARS = (bool, float, int, str)
_CLASSES: dict[str, type] = {}
_MADE_BY_VALUE: set[type] = set()


@dataclass_transform(frozen_default=True)
def value(cls: type[T]) -> type[T]:
    """Make ``cls`` a frozen dataclass that compares, hashes and saves by its content.

    Fields and checks (``__post_init__``) of a base that is such a class are its own, too.
    """
    check = getattr(cls, "__post_init__", None)

    def settle(self: Any) -> None:
        for name, hint in hints(type(self)).items():
            try:
                object.__setattr__(self, name, _normalise(getattr(self, name), hint))
            except ConfigError as error:
                raise ConfigError(f"{name}: {error}") from None
        if check is not None:
            check(self)

    namespace = {
        "__post_init__": settle,
        "__eq__": lambda self, other: type(self) is type(other) and digest(self) == digest(other),
        "__hash__": lambda self: hash(digest(self)),
    }
    for name, member in namespace.items():
        setattr(cls, name, member)
    made = dataclasses.dataclass(frozen=True, eq=False)(cls)
    _CLASSES[_name(made)] = made
    _MADE_BY_VALUE.add(made)
    return made


def hints(cls: type) -> dict[str, Any]:
    """Return the resolved annotations of the dataclass fields of a value class."""
    found = cls.__dict__.get("_field_hints")
    if found is None:
        every = typing.get_type_hints(cls)
        found = {field.name: every[field.name] for field in dataclasses.fields(cls)}
        cls._field_hints = found  # type: ignore[attr-defined]
    return dict(found)


def whole_number(given: Any, what: str, least: int = 1) -> int:
    """Return ``given`` as an int; :class:`ConfigError` for anything but a whole number."""
    whole = isinstance(given, (int, np.integer)) and not isinstance(given, bool)
    if not whole or given < least:
        raise ConfigError(f"{what}: {given!r}; expected a whole number, at least {least}")
    return int(given)


def _normalise(entry: Any, hint: Any) -> Any:
    """Bring ``entry`` into the canonical form of its annotation; reject what does not fit."""
    if isinstance(entry, np.generic):
        entry = entry.item()
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = _option(entry, typing.get_args(hint))
    if isinstance(entry, np.ndarray):
        raise ConfigError("arrays in a value must be wrapped: Const(array)")
    if type(entry) in (list, tuple):
        return _normalise_each(entry, hint)
    if typing.get_origin(hint) is tuple:
        raise ConfigError(f"expected several entries, got {entry!r}")
    if isinstance(entry, Mapping):
        if hint in SCALARS:
            raise ConfigError(f"expected {hint.__name__}, got {entry!r}")
        inner = (typing.get_args(hint) or (Any,))[-1]
        return {key: _normalise(item, inner) for key, item in entry.items()}
    if hint is bool and entry in (0, 1):
        return bool(entry)
    if hint in (float, int) and isinstance(entry, bool):
        raise ConfigError(f"expected {hint.__name__}, got {entry!r}")
    if hint is float and isinstance(entry, (int, float)):
        return float(entry)
    if hint is int and isinstance(entry, (int, float)) and entry % 1 == 0:
        return int(entry)
    if hint in SCALARS and not isinstance(entry, hint):
        raise ConfigError(f"expected {hint.__name__}, got {entry!r}")
    return entry


def _option(entry: Any, union: tuple[Any, ...]) -> Any:
    """Return which annotation of a union an entry is to fit; Any where that cannot be told."""
    options = [option for option in union if option is not type(None)]
    if entry is None and len(options) < len(union):
        return Any
    if len(options) == 1:
        return options[0]
    if set(options) == {int, float}:  # each stays what it is
        return int if type(entry) is int else float
    return Any


def _normalise_each(entries: Sequence[Any], hint: Any) -> tuple[Any, ...]:
    """Bring the entries of a list or tuple into the form that ``tuple[...]`` declares for each."""
    if hint in SCALARS:
        raise ConfigError(f"expected {hint.__name__}, got {entries!r}")
    declared = typing.get_args(hint) if typing.get_origin(hint) is tuple else (Any, ...)
    if declared[-1:] == (...,):
        declared = declared[:1] * len(entries)
    if len(declared) != len(entries):
        raise ConfigError(f"expected {len(declared)} entries, got {entries!r}")
    return tuple(_normalise(*pair) for pair in zip(entries, declared, strict=True))


class Const:
    """A constant array that compares by digest and pickles as its digest.

    Its bytes live in a table of the process, or in a file of the directory that
    :func:`read_constants_from` names, where a worker process reads them once.
    """

    def __init__(self, array: Any) -> None:
        host = np.array(arrays.to_host(array), order="C")
        host.flags.writeable = False
        self.dtype, self.shape = host.dtype, host.shape
        content = hashlib.sha256(f"{host.dtype.str}{host.shape}".encode())
        content.update(host.reshape(-1).view(np.uint8).data)
        self.digest = content.hexdigest()
        self._host: np.ndarray[Any, Any] | None = _TABLE.setdefault(self.digest, host)
        self._placed: dict[Any, Any] = {}

    @classmethod
    def repeated(cls, row: np.ndarray[Any, Any], rows: int) -> Const:
        """Return ``rows`` equal rows that take the memory of one: a plan's stand-in for more."""
        one = cls(row)
        host = np.broadcast_to(one.array, (rows, *one.shape))
        made = cls.__new__(cls)
        made.digest = hashlib.sha256(f"{rows} times {one.digest}".encode()).hexdigest()
        made.dtype, made.shape = host.dtype, host.shape
        made._host, made._placed = _TABLE.setdefault(made.digest, host), {}
        return made

    def renamed(self, name: str) -> Const:
        """Return the same bytes under another digest: a plan's stand-in for an array to come."""
        made: Const = _const(
            hashlib.sha256(f"{self.digest} {name}".encode()).hexdigest(), self.dtype.str, self.shape
        )
        made._host = self.array
        return made

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """The array on the host, read-only."""
        if self._host is None:
            self._host = _lookup(self.digest)
        return self._host

    def like(self, x: Any) -> Any:
        """Return the array in the library and on the device of ``x``; copied there once."""
        key = (arrays.library(x), str(arrays.device_of(x)))
        if key not in self._placed:
            self._placed[key] = arrays.like(self.array, x)
        return self._placed[key]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Const) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Const({self.dtype.name}{list(self.shape)} {self.digest[:8]})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _const, (self.digest, self.dtype.str, self.shape)

    def save(self, directory: Path) -> None:
        """Write the bytes to ``directory``, atomically; a file that is there already is kept."""
        path = directory / f"{self.digest}.npy"
        if path.exists():
            with suppress(OSError):
                os.utime(path)  # of those used lately none is collected
        else:
            files.write_whole(
                path,
                lambda file: np.save(file, self.array, allow_pickle=False),
                self.array.nbytes,
            )


_TABLE: weakref.WeakValueDictionary[str, np.ndarray[Any, Any]] = weakref.WeakValueDictionary()
_LOADED: dict[str, np.ndarray[Any, Any]] = {}  # read from files: kept from task to task
_DIRECTORIES: list[Path] = []


def read_constants_from(directory: str | Path, wanted: Iterable[Const] = ()) -> None:
    """Make this process look for constants in ``directory``, and let go of all but ``wanted``."""
    if Path(directory) not in _DIRECTORIES:
        _DIRECTORIES.append(Path(directory))
    kept = {constant.digest for constant in wanted}
    for key in set(_LOADED) - kept:
        _LOADED.pop(key, None)


def _lookup(key: str) -> np.ndarray[Any, Any]:
    """Return the bytes of a constant from the table of this process, else from a file."""
    known = _TABLE.get(key)
    if known is not None:
        return known
    for path in (directory / f"{key}.npy" for directory in _DIRECTORIES):
        if path.exists():
            loaded = Const(np.load(path, allow_pickle=False))
            if loaded.digest != key:
                raise CorruptError(f"{path}: bytes and name do not match; delete it and run again")
            _LOADED[key] = loaded.array
            return loaded.array
    places = ", ".join(str(directory) for directory in _DIRECTORIES)
    raise MissingInputError(f"constant {key[:12]} is not in any of: {places or '(none)'}")


def _const(key: str, dtype: str, shape: tuple[int, ...]) -> Const:
    made = Const.__new__(Const)
    made.digest, made.dtype, made.shape = key, np.dtype(dtype), shape
    made._host, made._placed = _TABLE.get(key), {}
    return made


def to_tree(entry: Any) -> Any:
    """Return the canonical content of a value as a tree that JSON can hold."""
    if isinstance(entry, Const):
        return {"const": entry.digest, "dtype": entry.dtype.str, "shape": list(entry.shape)}
    if dataclasses.is_dataclass(entry) and not isinstance(entry, type):
        fields = {f.name: to_tree(getattr(entry, f.name)) for f in dataclasses.fields(entry)}
        version = {"version": entry.version} if hasattr(entry, "version") else {}
        return {"class": _name(type(entry)), **version, "fields": fields}
    if isinstance(entry, Mapping):
        return {"map": [[to_tree(key), to_tree(entry[key])] for key in sorted(entry)]}
    if isinstance(entry, (tuple, list)):
        return [to_tree(item) for item in entry]
    if isinstance(entry, (set, frozenset)):
        return sorted(to_tree(item) for item in entry)
    if isinstance(entry, float):
        return {"float": entry.hex()}
    if entry is None or isinstance(entry, (str, int, bool)):
        return entry
    raise ConfigError(f"a value holds numbers, strings, sequences, Const and values, not {entry!r}")


def from_tree(tree: Any, constants: Mapping[str, Const]) -> Any:
    """Rebuild a value from :func:`to_tree`; ``constants`` maps digests to their arrays."""
    if isinstance(tree, list):
        return tuple(from_tree(item, constants) for item in tree)
    if not isinstance(tree, dict):
        return tree
    if "const" in tree:
        return constants[tree["const"]]
    if "float" in tree:
        return float.fromhex(tree["float"])
    if "map" in tree:
        return {from_tree(key, constants): from_tree(item, constants) for key, item in tree["map"]}
    cls = _class(tree["class"])
    if tree.get("version") != getattr(cls, "version", None):
        raise ConfigError(
            f"{tree['class']} was saved as version {tree.get('version')}, this is "
            f"{getattr(cls, 'version', None)}: fit again"
        )
    return cls(**{name: from_tree(item, constants) for name, item in tree["fields"].items()})


def digest(entry: Any) -> str:
    """Return the sha256 of the canonical content of a value, as hexadecimal digits."""
    known = getattr(entry, "_digest", None)
    if known is not None:
        return str(known)
    if type(entry) not in _MADE_BY_VALUE:
        return _digest_of_tree(entry)
    made = _digest_of_value(entry)
    object.__setattr__(entry, "_digest", made)
    return made


_PLAIN = (str, int, types.NoneType)
_SEEN: dict[tuple[Any, ...], str] = {}  # by digests of parts, so that no array is kept with them
_SEEN_LIMIT = 4096


def _digest_of_value(entry: Any) -> str:
    """Return the digest of a value made by :func:`value`.

    Statistics ask for views by making them, for every chunk again; most have been seen before.
    """
    key: list[Any] = [type(entry)]
    for name in hints(type(entry)):
        part = getattr(entry, name)
        if isinstance(part, _PLAIN):
            key += (type(part), part)
        elif isinstance(part, Const):
            key += (Const, part.digest)
        elif type(part) in _MADE_BY_VALUE:
            key += (type(part), digest(part))
        else:
            return _digest_of_tree(entry)
    made = _SEEN.get(tuple(key))
    if made is None:
        if len(_SEEN) >= _SEEN_LIMIT:
            _SEEN.clear()
        made = _SEEN[tuple(key)] = _digest_of_tree(entry)
    return made


def _digest_of_tree(entry: Any) -> str:
    text = json.dumps(to_tree(entry), separators=(",", ":"), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def constants_in(entry: Any) -> Iterator[Const]:
    """Yield every constant within a value, a sequence or a mapping."""
    if isinstance(entry, Const):
        yield entry
    elif dataclasses.is_dataclass(entry) and not isinstance(entry, type):
        for field in dataclasses.fields(entry):
            yield from constants_in(getattr(entry, field.name))
    elif isinstance(entry, Mapping):
        for item in entry.values():
            yield from constants_in(item)
    elif isinstance(entry, (tuple, list, set, frozenset)):
        for item in entry:
            yield from constants_in(item)


def replaced(entry: T, **changes: Any) -> T:
    """Return a copy of a value with some fields changed."""
    make: Callable[..., T] = dataclasses.replace
    return make(entry, **changes)


def _name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _class(name: str) -> type:
    """Return the value class of a saved name; only modules of this package are imported for it."""
    if name not in _CLASSES and name.startswith("pipeline."):
        with suppress(ModuleNotFoundError):  # saved by another version
            importlib.import_module(name.partition(":")[0])
    if name not in _CLASSES:
        raise ConfigError(
            f"{name} is not a registered class: import the plug-in that defines it first, or use "
            "the version of featfold that saved it"
        )
    return _CLASSES[name]
