"""(g) Confusion metrics of 10^8 pixels by the same two workers: the integers of the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
from sites import Site
from workers import scheduler

import pipeline as ff

SIDE, CLASSES = 224, 21


def show(site: Site) -> dict[str, Any]:
    """Count on the workers and in this process."""
    n = site.size(2_000, 40)
    rng = np.random.default_rng(0)
    truth = rng.integers(0, CLASSES, (n, SIDE, SIDE), dtype="u1")
    wrong = rng.random((n, SIDE, SIDE), dtype="f4") < 0.2
    predicted = np.where(wrong, rng.integers(0, CLASSES, truth.shape, dtype="u1"), truth)
    files = [site.out / name for name in ("predictions.npy", "labels.npy")]
    for file, x in zip(files, (predicted, truth), strict=True):
        np.save(file, x)
    with scheduler(site) as cluster:
        there = ff.measure(["confusion_matrix"], *files, classes=CLASSES, cluster=str(cluster))
    here = np.bincount(
        truth.ravel().astype("i8") * CLASSES + predicted.ravel(), minlength=CLASSES**2
    )
    found = np.asarray(there["confusion_matrix"].counts)
    assert np.array_equal(found.ravel(), here), "counts differ from the CPU's"
    return {"pixels": int(truth.size), "equal": True}
