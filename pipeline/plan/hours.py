"""Hours: the time of a pass, from what this machine was measured to read, sum and multiply."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pipeline.bank import Bank, searches
from pipeline.calibration import Calibration
from pipeline.chunk import Schema
from pipeline.content import Const, constants_in, replaced
from pipeline.fold import AnyStatistic, closure
from pipeline.plan.passes import Pass, Pending, Work
from pipeline.views import Tokens

TASK_SECONDS = 0.05
"""What a task costs beside its rows: its share of the scheduler, and the end of a block."""
SLACK = 2.0
"""How far a pass may stay behind reading first and computing then, each at the measured rate."""


@dataclass(frozen=True)
class Span:
    """From the least to the most time that is expected."""

    least_seconds: float
    most_seconds: float

    def __add__(self, other: Span) -> Span:
        return Span(
            self.least_seconds + other.least_seconds, self.most_seconds + other.most_seconds
        )

    def __str__(self) -> str:
        least, most = lasting(self.least_seconds), lasting(self.most_seconds)
        return most if least == most else f"{least} to {most}"


def forecast(
    pass_: Pass, left: Pending, rates: Calibration, workers: int, memory_nbytes: int
) -> Span:
    """Return the time of what is left of a pass.

    At least the longer of reading and computing, which go on side by side; reading counts where the
    data cannot be in memory already. At most both, one after the other, with some slack, and what
    goes to disk.
    """
    share = left.read_nbytes / pass_.read_nbytes if pass_.read_nbytes else 0.0
    reading = (left.read_nbytes + left.banks_nbytes) / rates.read_bytes_per_second
    work = sum(_compute_seconds(work, rates) for work in pass_.works)
    computing = share * work / min(workers, max(1, left.blocks))
    tasks = TASK_SECONDS * pass_.tasks * left.blocks / max(1, pass_.blocks)
    writing = left.disk_nbytes / rates.write_bytes_per_second
    read_at_least = reading if left.read_nbytes > memory_nbytes else 0.0
    return Span(max(read_at_least, computing), SLACK * (reading + computing) + writing + tasks)


def _compute_seconds(work: Work, rates: Calibration) -> float:
    """Return the time of one thread for all rows: every byte once, scatters, fitted matrices."""
    schema = work.split.schema
    seconds = work.read_nbytes / rates.sum_bytes_per_second
    for statistic in work.statistics:
        flops = _scatter_flops(statistic, schema)
        narrow = getattr(statistic, "products", "float64") == "float32"
        seconds += flops / (rates.float32_flops if narrow else rates.float64_flops)
    for matrix, tokens in _matrices(work).items():
        # A symmetric product, which rates count, takes half the multiplications of a general one.
        products = 2.0 * schema.rows * tokens * _size(matrix)
        seconds += 2 * products / rates.float64_flops
    return seconds


def _size(matrix: Const | Bank) -> int:
    entries = (matrix.entries, matrix.width) if isinstance(matrix, Bank) else matrix.shape
    return math.prod(entries)


def _matrices(work: Work) -> dict[Const | Bank, int]:
    """Return the fitted matrices that rows are multiplied with, and how many rows an image is.

    Banks in files are among them.
    """
    found: dict[Const | Bank, int] = {}
    requests: tuple[Any, ...] = (*work.statistics, *work.rows)
    for request in requests:
        tokens = [view for view in closure(request.views) if isinstance(view, Tokens)]
        each = max((view.shape(work.split.schema)[0] for view in tokens), default=1)
        constants = [constant for constant in constants_in(request) if len(constant.shape) == 2]
        banks = [view.bank for view in searches(request.views)]  # type: ignore[attr-defined]
        for matrix in (*constants, *banks):
            found[matrix] = max(each, found.get(matrix, 0))
    return found


def _scatter_flops(statistic: AnyStatistic, schema: Schema) -> float:
    """Return 2 n d^2 of a statistic with a scatter, of the groups in its stripe; else 0."""
    cut = hasattr(statistic, "stripe")
    if not cut and not hasattr(statistic.empty(schema), "scatter"):
        return 0.0
    whole = replaced(statistic, stripe=()) if cut else statistic
    *tokens, features = whole.of.shape(schema)  # type: ignore[attr-defined]
    share = statistic.state_nbytes(schema) / whole.state_nbytes(schema)
    return float(2.0 * share * schema.rows * math.prod(tokens) * features**2)


def lasting(seconds: float) -> str:
    """Return a time to come for people, with no more digits than a forecast deserves."""
    for unit, length in (("s", 1), ("min", 60), ("h", 3600)):
        if seconds < 100 * length:
            count = seconds / length
            return f"{count:.1f} {unit}" if 1 <= count < 9.95 else f"{max(1, round(count))} {unit}"
    return f"{seconds / 86400:.1f} days"
