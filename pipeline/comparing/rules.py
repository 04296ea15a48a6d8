"""Rules of a regression gate: which change of a metric is one too many."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pipeline.comparing.differences import Comparison, Number
from pipeline.config.problems import did_you_mean
from pipeline.errors import ConfigError

_RULE = re.compile(r"\s*([A-Za-z][\w-]*)\s*([<>])\s*([-+]?(?:\d+\.?\d*|\.\d+))\s*")
SHORT = {"acc": "accuracy"}


@dataclass(frozen=True)
class Rule:
    """``METRIC<POINTS`` or ``METRIC>POINTS``: a difference, B - A in points, that fails a run."""

    text: str
    metric: str
    sign: str
    points: float

    def broken_by(self, number: Number) -> bool:
        """Tell whether a number changed too much, or is gone; bounds count at their worst."""
        if number.metric != self.metric:
            return False
        change = number.difference
        if change is None:
            return number.lost
        if self.sign == "<":
            return change - number.bound < self.points
        return change + number.bound > self.points

    def broken(self, comparison: Comparison) -> list[Number]:
        """Return the numbers that break the rule, those that only the earlier run has among them.

        Raises :class:`ConfigError` for a metric that neither run has.
        """
        numbers = [*comparison.numbers, *comparison.lost]
        known = list(dict.fromkeys(number.metric for number in numbers))
        if self.metric not in known:
            raise ConfigError(
                f"--fail-if: {self.text!r}: no number is called {self.metric!r}; "
                f"{did_you_mean(self.metric, known)}known: {', '.join(known) or 'none'}"
            )
        return [number for number in numbers if self.broken_by(number)]


def rule_of(text: str) -> Rule:
    """Return the rule that a text says; raises :class:`ConfigError` for other text.

    A rule that a run breaks when it is compared with itself is refused.
    """
    found = _RULE.fullmatch(text)
    if not found:
        raise ConfigError(
            f"--fail-if: {text!r}; expected METRIC<POINTS or METRIC>POINTS, such as 'auroc<-0.5'"
        )
    name, sign, number = found[1].lower().replace("-", "_"), found[2], float(found[3])
    if (sign == "<" and number > 0) or (sign == ">" and number < 0):
        raise ConfigError(
            f"--fail-if: {text!r} fails a run in which nothing has changed: the number is B - A in "
            f"percentage points; write '{name}{sign}{-number:g}'"
        )
    return Rule(text, SHORT.get(name, name), sign, number)
