"""Detectors, one file each: ``load("mahalanobis")`` gives the class that the file is named for.

The list is the folder itself, and the entry points of group ``featfold.detectors`` of other
packages. ``pipeline.detectors.Mahalanobis`` works too, and ``make`` takes the options of a preset.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Any

from pipeline.chunk import Schema
from pipeline.content import value
from pipeline.errors import ConfigError, UnknownNameError
from pipeline.procedure import Passes, Scorer

GROUP = "featfold.detectors"
PRESETS = ("pytorch-ood-0.4", "openood-1.5")
"""Libraries whose scores a detector gives with the options of its preset of that name."""
FIT_SPLITS = ("id/train", "id/val")
MEMBERS = "detectors"
"""Option of a detector that is made of others."""
FIT_SPLIT = "fit_split"
"""What a preset calls the split that its library fits on."""


@value
class Chosen:
    """A detector with the preset that its options come from, and the split it is fitted on.

    Raises :class:`ConfigError` for a split that is tested on, or is out-of-distribution.
    """

    detector: Any
    preset: str = ""
    fit_split: str = ""
    """id/train or id/val; empty for that of the job."""
    sweep: str = ""
    """Name of the sweep that it is a member of."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "fit_split", fit_split_name(self.fit_split))

    def passes(self, schema: Schema) -> Passes[Scorer]:
        """Yield what the detector asks for; return its scorer."""
        return self.detector.passes(schema)  # type: ignore[no-any-return]

    @property
    def overrides(self) -> dict[str, Any]:
        """The options, and the fit split, in which it differs from its preset or the defaults."""
        return overrides(self.detector, self.preset, self.fit_split)


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
    raise UnknownNameError(
        f"unknown detector {name!r}: {_near(name, names())}known: {', '.join(names())}"
    )


def fit_split_name(given: str, option: str = FIT_SPLIT) -> str:
    """Return the whole name of a split that detectors may be fitted on; ``""`` is that of the job.

    Raises :class:`ConfigError` for a split that is tested on, or is out-of-distribution.
    """
    name = f"id/{given}" if f"id/{given}" in FIT_SPLITS else given
    if name in ("", *FIT_SPLITS):
        return name
    if name.startswith("ood/"):
        why = "out-of-distribution rows, and detectors are fitted on in-distribution ones"
    elif name.removeprefix("id/").split("/")[0] in ("test", "csid"):
        why = "rows that are tested on: a detector that has seen them proves nothing there"
    else:
        raise ConfigError(f"{option}: {given!r} is unknown; expected id/train or id/val")
    raise ConfigError(f"{option}: {given!r} holds {why}; expected id/train or id/val")


def make(name: str, *, preset: str = "", fit_split: str = "", **options: Any) -> Any:
    """Return the detector of a name with its options, beginning from those of a preset.

    With ``preset`` or ``fit_split`` the result is a :class:`Chosen`. Explicit options override the
    preset. Raises :class:`ConfigError` for a preset that the detector does not have, and for
    options that it does not take, or lacks.
    """
    cls = load(name)
    given = {**_preset_of(cls, name, preset), **options}
    split = fit_split or given.pop(FIT_SPLIT, "")
    given.pop(FIT_SPLIT, None)
    known = [field.name for field in dataclasses.fields(cls)]
    for key in given:
        if key not in known:
            raise ConfigError(
                f"{key}: {name} has no such option: {_near(key, known)}known: {', '.join(known)}"
            )
    if lacking := [key for key in required(cls) if key not in given]:
        raise ConfigError(f"{lacking[0]}: {name} needs this option")
    if MEMBERS in given:
        given[MEMBERS] = tuple(_member(entry) for entry in _listed(given[MEMBERS]))
    detector = cls(**given)
    return Chosen(detector, preset, split) if preset or split else detector


def required(cls: type[Any]) -> list[str]:
    """Return the options of a detector that have no default."""
    missing = dataclasses.MISSING
    return [
        field.name
        for field in dataclasses.fields(cls)
        if field.default is missing and field.default_factory is missing and field.name != "head"
    ]


def presets_of(cls: type[Any]) -> dict[str, dict[str, Any]]:
    """Return the options of a detector by the preset that sets them."""
    presets: Mapping[str, Mapping[str, Any]] = getattr(cls, "presets", {})
    return {name: dict(options) for name, options in presets.items()}


def probed_of(cls: type[Any]) -> dict[str, str]:
    """Return the arrays of a detector that a probe of the model writes.

    With what their rows are made of: K logits, SK those of s runs one after the other, D features.
    """
    return dict(getattr(cls, "probed", {}))


def overrides(detector: Any, preset: str, fit_split: str = "") -> dict[str, Any]:
    """Return the options, and the fit split, that differ from a preset, or from the defaults."""
    usual = presets_of(type(detector)).get(preset, {})
    differing = {
        field.name: getattr(detector, field.name)
        for field in dataclasses.fields(detector)
        if getattr(detector, field.name) != usual.get(field.name, field.default)
        and field.name != "head"
    }
    split = {FIT_SPLIT: fit_split} if fit_split != fit_split_name(usual.get(FIT_SPLIT, "")) else {}
    return split | differing


def unused(detector: Any) -> dict[str, str]:
    """Return the options that change nothing, each with the setting of another that makes it so.

    Detectors name them in a property ``unused``, if they have any.
    """
    chosen, found = plain(detector), {}
    preset = presets_of(type(chosen)).get(getattr(detector, "preset", ""), {})
    for option, setting in getattr(chosen, "unused", {}).items():
        name = setting.partition(":")[0]
        of_preset = name in preset and preset[name] == getattr(chosen, name)
        found[option] = f"{setting} of preset {detector.preset}" if of_preset else setting
    return found


def plain(detector: Any) -> Any:
    """Return the detector itself, whatever it was chosen with."""
    return detector.detector if isinstance(detector, Chosen) else detector


def name_of(detector: Any) -> str:
    """Return the registered name of a detector, or the name of its class for any other."""
    cls = type(plain(detector))
    own = cls.__module__.removeprefix(f"{__name__}.")
    if own != cls.__module__:
        return own
    home = f"{cls.__module__}:{cls.__qualname__}"
    plugins = [p.name for p in entry_points(group=GROUP) if p.value.replace(" ", "") == home]
    return plugins[0] if plugins else cls.__name__


def options_of(detector: Any) -> dict[str, Any]:
    """Return the options of a detector that have no default, or differ from it."""
    return overrides(plain(detector), "")


def default_id(detector: Any) -> str:
    """Return what names a detector in tables: its name, preset, and the options that differ."""
    if isinstance(detector, Chosen):
        preset = {"preset": detector.preset} if detector.preset else {}
        options = {**preset, **detector.overrides}
    else:
        options = options_of(detector)
    return named(name_of(detector), options)


def shown(given: Any) -> str:
    """Return an option as tables show it: members of an ensemble by their ids."""
    if isinstance(given, tuple) and given and all(hasattr(entry, "passes") for entry in given):
        return " + ".join(default_id(entry) for entry in given)
    return str(given)


def named(name: str, options: Mapping[str, Any]) -> str:
    """Return a name with options behind it, as tables show it."""
    listed = ", ".join(f"{key}={shown(given)}" for key, given in options.items())
    return name + (f"({listed})" if listed else "")


def _preset_of(cls: type[Any], name: str, preset: str) -> dict[str, Any]:
    if not preset:
        return {}
    if not isinstance(preset, str):
        raise ConfigError(f"preset: expected one of {', '.join(PRESETS)}, got {preset!r}")
    presets = presets_of(cls)
    if preset not in presets:
        if preset in PRESETS:
            has = f"it has {', '.join(presets)}" if presets else "it has none"
            raise ConfigError(f"preset: {name} has no preset {preset!r}: {has}")
        raise ConfigError(
            f"preset: {preset!r} is unknown: {_near(preset, PRESETS)}known: {', '.join(PRESETS)}"
        )
    return presets[preset]


def _listed(given: Any) -> list[Any]:
    if not isinstance(given, (list, tuple)):
        raise ConfigError(f"{MEMBERS}: {given!r}; expected a list, such as [mahalanobis, energy]")
    return list(given)


def _member(entry: Any) -> Any:
    """Return a member of an ensemble: a detector, or one by its name and options."""
    if isinstance(entry, str):
        return make(entry)
    if isinstance(entry, Mapping):
        if not isinstance(entry.get("name"), str):
            raise ConfigError(f"{MEMBERS}: a member needs its name, such as {{'name': 'msp'}}")
        return make(**entry)
    return entry


def _near(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=1)
    return f"did you mean {near[0]!r}? " if near else ""


def __getattr__(attribute: str) -> Any:
    for name in names():
        if attribute != name and attribute.lower() == name.replace("_", ""):
            return load(name)
    raise AttributeError(f"module {__name__!r} has no attribute {attribute!r}")
