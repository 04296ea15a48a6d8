"""AUROC from bins: its bounds hold the exact value, whatever the scores and the bins."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from pipeline import metrics
from pipeline.engine import run
from pipeline.errors import ConfigError
from pipeline.store import ArraySplit
from pipeline.testing.strategies import LAW
from pipeline.views import Stored

OF, POSITIVE = Stored("scores"), Stored("positive")


def auroc(scores, positive, **options):
    split = ArraySplit(arrays={"scores": scores, "positive": positive}, chunk_rows=7, block_rows=21)
    return run({"m": metrics.AUROC(of=OF, is_ood=POSITIVE, **options)}, split)["m"]["auroc"]


@LAW
@given(data=st.data(), bins=st.sampled_from([1, 2, 5, 1000]), whole=st.booleans())
def test_the_bounds_hold_the_exact_value(data, bins, whole):
    elements = st.integers(-3, 3) if whole else st.floats(allow_nan=False, allow_infinity=False)
    count = data.draw(st.integers(1, 80))
    scores = data.draw(npst.arrays(np.float64, count, elements=elements))
    positive = data.draw(npst.arrays(bool, count))
    exact, found = auroc(scores, positive), auroc(scores, positive, bins=bins)
    if exact.reason:
        assert found.reason == exact.reason
        return
    assert found.lower <= exact.value <= found.upper
    assert found.lower <= found.value <= found.upper
    if found.exact:
        assert found == exact
    if whole and bins == 1000:
        assert found == exact  # every bin holds one score: nothing is left open


def test_more_bins_bring_the_bounds_together():
    rng = np.random.default_rng(0)
    positive = rng.random(5000) < 0.3
    scores = 1e8 + rng.standard_normal(5000) + positive  # far from 0: coarse bins hold them all
    widths = []
    for bins in (10, 100, 1000):
        found = auroc(scores, positive, bins=bins, budget=2**12)
        assert found.lower <= auroc(scores, positive).value <= found.upper
        assert not found.exact
        widths.append(found.upper - found.lower)
        assert widths[-1] < 3 / bins
    assert widths == sorted(widths, reverse=True)


def test_options_are_checked():
    with pytest.raises(ConfigError, match="bins: 0"):
        metrics.AUROC(bins=0)
    with pytest.raises(ConfigError, match="expected 1 to 16,777,216"):
        metrics.AUROC(bins=10**12)
    with pytest.raises(ConfigError, match="exact and bins: these exclude each other"):
        metrics.AUROC(bins=5, exact=True)
    with pytest.raises(ConfigError, match="budget: 3 bytes"):
        metrics.AUROC(budget=3)
