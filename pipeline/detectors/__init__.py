"""Detectors, one file each: ``load("mahalanobis")`` gives the class that the file is named for.

The list is the folder itself, and the entry points of group ``featfold.detectors`` of other
packages. ``pipeline.detectors.Mahalanobis`` works too.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Any

from pipeline.errors import UnknownNameError

GROUP = "featfold.detectors"


def names() -> tuple[str, ...]:
    """Return the names of all detectors, those of plug-ins included, in alphabetical order."""
    own = {module.name for module in pkgutil.iter_modules(__path__)}
    return tuple(sorted(own | set(entry_points(group=GROUP).names)))


def load(name: str) -> type[Any]:
    """Return the detector class of a name, e.g. ``"kl_matching"``; unknown names get near ones."""
    if any(module.name == name for module in pkgutil.iter_modules(__path__)):
        module = importlib.import_module(f"{__name__}.{name}")
        return getattr(module, module.__all__[0])  # type: ignore[no-any-return]
    for plugin in entry_points(group=GROUP, name=name):
        return plugin.load()  # type: ignore[no-any-return]
    near = get_close_matches(name, names(), n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise UnknownNameError(f"unknown detector {name!r}: {hint}known: {', '.join(names())}")


def name_of(detector: Any) -> str:
    """Return the registered name of a detector, or the name of its class for any other."""
    module = type(detector).__module__
    own = module.removeprefix(f"{__name__}.")
    return own if own != module else type(detector).__name__


def options_of(detector: Any) -> dict[str, Any]:
    """Return the options of a detector that have no default, or differ from it."""
    return {
        field.name: getattr(detector, field.name)
        for field in dataclasses.fields(detector)
        if getattr(detector, field.name) != field.default and field.name != "head"
    }


def default_id(detector: Any) -> str:
    """Return what names a detector in tables: its name, and the options that are not default."""
    options = ", ".join(f"{name}={given}" for name, given in options_of(detector).items())
    return name_of(detector) + (f"({options})" if options else "")


def __getattr__(attribute: str) -> Any:
    for name in names():
        if attribute != name and attribute.lower() == name.replace("_", ""):
            return load(name)
    raise AttributeError(f"module {__name__!r} has no attribute {attribute!r}")
