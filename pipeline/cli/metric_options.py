"""Metrics and their options as they are written on the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from pipeline.errors import ConfigError

SEVERAL = ("average", "ignore")
"""Options that may have several values, as in average=none+macro."""


def metrics_of(wanted: Sequence[str], shared: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of ``--metric`` by name: those with a mean of classes have each as well.

    Their own options come before the ``shared`` ones.
    """
    from pipeline import metrics

    made: dict[str, Any] = {}
    for text in wanted:
        name, _, given = text.partition(":")
        fields = metrics.named(name).__dataclass_fields__
        options = {key: entry for key, entry in shared.items() if key in fields} | _options(given)
        metric = metrics.make(name, **options)
        if "average" not in options and getattr(metric, "averages", ()) == ("macro",):
            metric = metrics.make(name, **options, average=("macro", "none"))
        key = text if name in made else name
        if key in made:
            raise ConfigError(f"--metric: {text} is there twice")
        made[key] = metric
    return made


def _options(text: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = part.partition("=")
        if not equals:
            raise ConfigError(f"--metric: {part!r}; expected OPTION=VALUE, as in fbeta:beta=2")
        several = value.split("+") if name.strip() in SEVERAL else [value]
        entries = tuple(yaml.safe_load(entry) for entry in several)
        options[name.strip()] = entries if len(entries) > 1 else entries[0]
    return options
