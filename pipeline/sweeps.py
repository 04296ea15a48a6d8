"""Sweeps: an option given as a list stands for one detector per entry, all fitted in one run.

Equal statistics run once, so a sweep over an option that only chooses from them costs no pass.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from pipeline import detectors
from pipeline.content import hints, replaced
from pipeline.detectors import Chosen
from pipeline.errors import ConfigError

OWN = ("name", "id")
"""Keys of an entry that are no options."""


def swept(cls: type[Any], options: Mapping[str, Any]) -> list[str]:
    """Return the options that hold a list although the detector takes one value."""
    known = hints(cls)
    return [
        name
        for name, given in options.items()
        if isinstance(given, (list, tuple)) and name in known and not _takes_several(known[name])
    ]


def combinations(
    cls: type[Any], options: Mapping[str, Any]
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the options of each member of a sweep, and those of them that are swept.

    The last option in the list varies fastest. Raises :class:`ConfigError` for an empty list.
    """
    names = swept(cls, options)
    for name in names:
        if not options[name]:
            raise ConfigError(f"{name}: an empty list leaves nothing to sweep; give it values")
    for values in product(*(options[name] for name in names)):
        chosen = dict(zip(names, values, strict=True))
        yield {**options, **chosen}, chosen


def members(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the detectors that an entry stands for, by id: one, or all of a sweep."""
    cls = detectors.load(entry["name"])
    options = {key: option for key, option in entry.items() if key not in OWN}
    if (given := entry.get("id")) is not None and not (isinstance(given, str) and given.strip()):
        raise ConfigError(f"{given!r} cannot name a detector; give an id such as 'mine'")
    return identified(
        given,
        [
            (detectors.make(entry["name"], **each), chosen)
            for each, chosen in combinations(cls, options)
        ],
    )


def identified(given: Any, made: list[tuple[Any, dict[str, Any]]]) -> dict[str, Any]:
    """Return detectors by id; members of a sweep carry its name, and their options in their id.

    Raises :class:`ConfigError` where two members are the same, or differ in an option alone that
    another one makes useless.
    """
    _refuse_unused(made)
    if len(made) == 1 and not made[0][1]:
        return {given or detectors.default_id(made[0][0]): made[0][0]}
    base = given or detectors.name_of(made[0][0])
    found = {_id(given, detector, chosen): _of_sweep(detector, base) for detector, chosen in made}
    if len(found) < len(made):
        raise ConfigError(f"a sweep of {base} holds one value twice: {', '.join(found)}")
    return found


def _refuse_unused(made: list[tuple[Any, dict[str, Any]]]) -> None:
    for detector, chosen in made:
        for option, setting in detectors.unused(detector).items():
            if option in chosen:
                raise ConfigError(
                    f"{option}: a sweep over it gives equal members, since it changes nothing with "
                    f"{setting}; leave one of them out"
                )


def _id(given: Any, detector: Any, chosen: Mapping[str, Any]) -> str:
    plain = detectors.plain(detector)
    own = {name: getattr(plain, name) for name in hints(type(plain)) if name in chosen}
    if given:
        return detectors.named(given, own)
    preset = {"preset": detector.preset} if getattr(detector, "preset", "") else {}
    differing = getattr(detector, "overrides", None) or detectors.options_of(detector)
    order = [name for name in (*hints(type(plain)), *differing) if name in {**differing, **own}]
    shown = {name: {**differing, **own}[name] for name in order}
    return detectors.named(detectors.name_of(detector), {**preset, **shown})


def _of_sweep(detector: Any, name: str) -> Chosen:
    if isinstance(detector, Chosen):
        return replaced(detector, sweep=name)
    return Chosen(detector, sweep=name)


def _takes_several(hint: Any) -> bool:
    """Tell whether an option is a sequence itself."""
    parts = (hint, *typing.get_args(hint))
    return any((typing.get_origin(part) or part) in (tuple, list, Any) for part in parts)
