"""(a) Every statistic, detector and metric equals the CPU's; (d) repeated runs are equal."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from sites import CannotShow, Site, fits

from pipeline.content import constants_in

ROOT = Path(__file__).parents[2]
NEEDED = ("pytest", "hypothesis", "array_api_strict", "scipy")
TOLERANCE = 1e-9
"""Of sums of float64, relative to the largest entry; integers must be equal."""


def show(site: Site) -> dict[str, Any]:
    """Run the laws "array libraries agree" of the tests with the arrays of this device."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise CannotShow(f"not installed: {', '.join(missing)}")
    report = site.out / "laws.xml"
    # Elsewhere than on a GPU its laws are not collected: those of torch stand in for them.
    chosen = ["-m", "gpu", "tests"]
    if site.rehearsal:
        chosen = ["-k", "libraries_agree and torch", "tests/statistics"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly",
         f"--junitxml={report}", *chosen],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if not report.is_file():
        raise AssertionError(done.stdout[-2000:] + done.stderr[-2000:])
    suite = next(ElementTree.parse(report).getroot().iter("testsuite"))
    counts = {name: int(suite.get(name, 0)) for name in ("tests", "failures", "errors", "skipped")}
    if counts["failures"] + counts["errors"] or not counts["tests"]:
        raise AssertionError(f"{counts}: {done.stdout[-2000:]}")
    return counts


def repeated(site: Site) -> dict[str, Any]:
    """Fit ten times: integers are the same bits, floats are within the tolerance, or the same."""
    rng = np.random.default_rng(0)
    n = site.size(50_000, 2_000)
    labels = rng.integers(0, 10, n)
    features = rng.standard_normal((n, 64)).astype("f4") + labels[:, None]
    names = ("mahalanobis", "react", "vra", "she")
    states = [_held_by(fits(names, (features, labels), site.place)) for _ in range(10)]
    worst = 0.0
    for other in states[1:]:
        for a, b in zip(states[0], other, strict=True):
            same = np.equal(a, b)  # infinite bounds among them
            assert a.dtype.kind == "f" or same.all(), "integers differ between runs"
            if not same.all():
                worst = max(worst, float(np.abs(a - b)[~same].max() / np.abs(a[~same]).max()))
    assert worst <= TOLERANCE, f"floats differ by {worst} between runs"
    return {"runs": len(states), "largest_relative_difference": worst}


def _held_by(fitted: Any) -> list[np.ndarray[Any, Any]]:
    return [constant.array for constant in constants_in(fitted)]
