"""Hypothesis strategies: every constraint on drawn data is here, never in a law."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from pipeline.testing.recipes import Partition, regular

LAW = settings(
    max_examples=int(os.environ.get("FEATFOLD_EXAMPLES", "15")),
    deadline=None,
    database=None,
    derandomize="CI" in os.environ,
    phases=(Phase.generate, Phase.shrink),
    # One law runs for many subclasses: that is what the laws are for.
    suppress_health_check=[HealthCheck.differing_executors, HealthCheck.too_slow],
)


@st.composite
def partitions(draw: Any, rows: int) -> Partition:
    """Blocks of chunk sizes that add up to ``rows``: regular, ragged, single rows, empty ones."""
    size = draw(st.sampled_from((1, 7, max(1, rows - 1), rows, None)))
    if size is None:
        cuts = sorted(draw(st.lists(st.integers(0, rows), max_size=12)))
        sizes = [b - a for a, b in zip([0, *cuts], [*cuts, rows], strict=True)]
    else:
        sizes = [size for block in regular(rows, size) for size in block]
    ends = sorted(draw(st.lists(st.integers(0, len(sizes)), max_size=5)))
    blocks = zip([0, *ends], [*ends, len(sizes)], strict=True)
    return [sizes[start:stop] or [0] for start, stop in blocks]


orders = st.sampled_from(("drawn", "by class", "reversed"))
"""Orders of rows; class-sorted is the one in which stores of images usually are."""

OFFSETS = (0.0, 1.0, 1e3, 1e6)
"""Added to features: raw second moments fail from 1e3 on."""

offsets = st.sampled_from(OFFSETS)
