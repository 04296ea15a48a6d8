"""Numbers of metrics, with whose rows they are of, and as loggers take them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pipeline.procedure import Estimate

__all__ = ["Numbers", "loggable"]


class Numbers(dict[str, Any]):
    """Numbers by key, each an estimate, or the table of a confusion matrix."""

    def __init__(self, numbers: Mapping[str, Any], scope: str, rows: int) -> None:
        super().__init__(numbers)
        self.scope = scope
        """Whose rows: ``all 2 ranks``, ``rank 0 of 2 alone`` or ``one process``."""
        self.rows = rows
        """Rows that count."""

    def __repr__(self) -> str:
        return f"Numbers({super().__repr__()}, of {self.rows} rows of {self.scope})"


def loggable(numbers: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers that are defined, as floats: what is undefined is left out, never NaN."""
    values = {key: float(one) for key, one in numbers.items() if isinstance(one, Estimate)}
    return {key: value for key, value in values.items() if not math.isnan(value)}
