"""The job in a YAML file: read, checked as a whole, and every problem named with its place."""

from __future__ import annotations

import os
import re
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from pipeline.config import document
from pipeline.config.detector import DetectorConfig
from pipeline.config.document import Document, Keys, Problem
from pipeline.config.factories import Factory
from pipeline.config.job import STORED, JobConfig
from pipeline.config.problems import did_you_mean, words
from pipeline.config.sections import (
    Declared,
    Evaluate,
    Report,
    Resources,
    Source,
)
from pipeline.errors import ConfigError

__all__ = ["Declared", "DetectorConfig", "Evaluate", "Factory", "JobConfig", "Report"]
__all__ += ["Resources", "Source", "load", "parse"]

VARIABLES = "FEATFOLD__"
"""``FEATFOLD__RESOURCES__WORKERS=2`` in the environment sets ``resources.workers``."""


def load(path: str | Path, overrides: Iterable[str] = (), *, stored: bool = True) -> JobConfig:
    """Return the job of a YAML file; ``overrides`` are ``a.b.0.c=value``, the value being YAML.

    Variables of the environment that begin with :data:`VARIABLES` have a word, and ``overrides``
    the last one. Unless ``stored``, it need not name a store.

    Raises :class:`MissingInputError` where there is no file, :class:`ConfigError` with one line
    ``file:line:column key: problem`` for everything that is wrong.
    """
    return _job(document.read(path), overrides, stored, os.environ)


def parse(text: str, name: str, overrides: Iterable[str] = ()) -> JobConfig:
    """Return the job of a YAML text that errors call ``name``; see :func:`load`."""
    return _job(document.parse(text, name), overrides)


def _job(
    found: Document,
    overrides: Iterable[str],
    stored: bool = True,
    variables: Mapping[str, str] = types.MappingProxyType({}),
) -> JobConfig:
    if not isinstance(found.tree, dict):
        what = "the file is empty" if found.tree is None else "expected a mapping of keys"
        raise ConfigError(f"{found.place(())}: {what}; a job needs at least name, store, detectors")
    for name in sorted(name for name in variables if name.startswith(VARIABLES)):
        keys = name.removeprefix(VARIABLES).lower().replace("__", ".")
        found.override([f"{keys}={variables[name]}"], name)
    found.override(overrides)
    problems = list(found.problems)
    try:
        config = JobConfig.model_validate(found.tree, context={STORED: stored})
    except ValidationError as error:
        problems += [_problem(found, dict(one)) for one in error.errors(include_url=False)]
    if problems:
        raise ConfigError(_listed(found, problems))
    config._text = found.text
    return config


def _listed(found: Document, problems: list[Problem]) -> str:
    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
    ordered = sorted(problems, key=_line_and_column)
    return "\n  ".join([f"{found.name} is not a valid job, {count}:", *map(str, ordered)])


def _line_and_column(problem: Problem) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r":(\d+)", problem.place)[-2:])


def _problem(found: Document, error: dict[str, Any]) -> Problem:
    """Return an error of the models with its place in the document."""
    context = error.get("ctx", {})
    unknown = error["type"] == "extra_forbidden"
    keys: Keys = error["loc"]
    of_key = unknown or "[key]" in keys or context.get("of_key", False)
    if error["type"] != "missing":
        keys = found.known(keys)
    text = _unknown(error["loc"]) if unknown else words(error, keys)
    if context.get("other") is not None:
        text += f" (the first: {found.place(context['other'])})"
    return Problem(found.place(keys, of_key=of_key), keys, text)


def _unknown(keys: Keys) -> str:
    known = [info.alias or name for name, info in _model(keys[:-1]).model_fields.items()]
    return f"unknown key: {did_you_mean(keys[-1], known)}known: {', '.join(known)}"


def _model(keys: Keys) -> type[BaseModel]:
    """Return the model of what lies at ``keys`` in a job."""
    hint: Any = JobConfig
    for key in keys:
        if isinstance(hint, type) and issubclass(hint, BaseModel):
            hint = hint.model_fields[str(key)].annotation
        else:  # a list or a mapping of one kind of thing
            hint = next(a for a in reversed(typing.get_args(hint)) if a is not Ellipsis)
        if isinstance(hint, types.UnionType):  # a section that may be left out
            hint = next(a for a in typing.get_args(hint) if a is not type(None))
    return hint  # type: ignore[no-any-return]
