"""``featfold bench small``: a job that fits into memory, beside a library made for such jobs."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import api, detectors
from pipeline.bench.measuring import Outcome, Say, alternate, medians, spread, table
from pipeline.bench.served import served
from pipeline.chunk import ArraySpec, Split
from pipeline.content import Const
from pipeline.fitted import Fitted
from pipeline.heads import LinearHead
from pipeline.store import Store

NAMES = ("mahalanobis", "relative_mahalanobis", "kl_matching", "she", "vim")
PRECISIONS = ("float64", "float32")
PLACES = ("memory", "store")
SCORE = "score"
THREADS = 2
PEER = "peer: "


@dataclass(frozen=True)
class Shape:
    """How much data: the defaults are those of a usual benchmark's fit."""

    rows: int = 50_000
    features: int = 1024
    classes: int = 1000
    queries: int = 2048

    @property
    def dim(self) -> int:
        """Principal dimensions of vim."""
        return self.features // 2


def made(shape: Shape) -> dict[str, np.ndarray[Any, Any]]:
    """Return float32 features, labels, a linear head that mostly knows them, and its logits."""
    random = np.random.default_rng(0)
    means = random.standard_normal((shape.classes, shape.features), dtype=np.float32)
    labels = random.permutation(np.arange(shape.rows) % shape.classes)
    features = random.standard_normal((shape.rows, shape.features), dtype=np.float32)
    features += means[labels]
    weight = means * np.float32(8 / shape.features)
    bias = 0.1 * random.standard_normal(shape.classes, dtype=np.float32)
    return {
        "features": features,
        "labels": labels,
        "logits": features @ weight.T + bias,
        "weight": weight,
        "bias": bias,
        "queries": random.standard_normal((shape.queries, shape.features), dtype=np.float32),
    }


def bench(
    shape: Shape, repeat: int, peer: str | None, scratch: Path, say: Say = lambda text: None
) -> Outcome:
    """Time five fits together, in two precisions, from memory and from a store; then the peer's."""
    data = made(shape)
    with tempfile.TemporaryDirectory(prefix="bench-small-", dir=scratch) as inside:
        directory = Path(inside)
        places = {
            "memory": {name: data[name] for name in ("features", "labels", "logits")},
            "store": _stored(directory / "small.zarr", data, shape.classes),
        }
        head = LinearHead(Const(data["weight"]), Const(data["bias"]))
        sides = {
            f"fit, {precision}, {place}": partial(
                _fit_seconds, _detectors(precision, head, shape.dim), places[place], directory
            )
            for place in PLACES
            for precision in PRECISIONS
        }
        fitted = _fit({"mahalanobis": "mahalanobis"}, places["memory"], directory)
        sides[SCORE] = partial(_score_seconds, fitted, data["queries"], directory)
        if peer is None:
            return _outcome(shape, alternate(sides, repeat, say), {})
        with served(peer, data, shape.dim, directory) as (versions, task_seconds):
            for name in (*NAMES, SCORE):
                sides[PEER + name] = partial(task_seconds, name)
            return _outcome(shape, alternate(sides, repeat, say), versions)


def _detectors(precision: str, head: LinearHead, dim: int) -> dict[str, Any]:
    """Return the five detectors; those with a choice of precision take it."""
    found = {}
    for name in NAMES:
        kind = detectors.load(name)
        options = {"precision": precision} if "precision" in kind.__dataclass_fields__ else {}
        found[name] = kind(**options, **({"head": head, "dim": dim} if name == "vim" else {}))
    return found


def _stored(path: Path, data: Mapping[str, Any], classes: int) -> Split:
    arrays = {
        name: ArraySpec(data[name].shape[1:], str(data[name].dtype), layout)
        for name, layout in (("features", "D"), ("labels", ""), ("logits", "K"))
    }
    rows = len(data["labels"])
    store = Store.create(path)
    writer = store.create_split("id/train", arrays, classes=classes, rows=rows)
    for block in writer.missing():
        part = slice(block.start, block.stop)
        writer.write(block.index, {name: data[name][part] for name in arrays})
    return store.split("id/train")


def _fit(chosen: Mapping[str, Any], data: Any, directory: Path) -> Fitted:
    with tempfile.TemporaryDirectory(dir=directory) as cache:
        return api.fit(chosen, data, cluster="threads", workers=THREADS, cache=cache)


def _fit_seconds(chosen: Mapping[str, Any], data: Any, directory: Path) -> float:
    began = time.perf_counter()
    _fit(chosen, data, directory)
    return time.perf_counter() - began


def _score_seconds(fitted: Fitted, queries: Any, directory: Path) -> float:
    began = time.perf_counter()
    api.score(fitted, queries, cluster="threads", workers=THREADS, cache=directory / "scores")
    return time.perf_counter() - began


def _outcome(shape: Shape, taken: dict[str, list[float]], versions: Mapping[str, str]) -> Outcome:
    middle = medians(taken)
    peers = sum(middle[PEER + name] for name in NAMES) if versions else None
    ours = [f"fit, {precision}, {place}" for place in PLACES for precision in PRECISIONS]
    numbers: dict[str, Any] = {
        "shape": vars(shape),
        "threads": THREADS,
        "peer": dict(versions) or None,
        "seconds": taken,
        "median_seconds": middle,
        "peer_fits_seconds": peers,
        "fit_ratios": {name: middle[name] / peers for name in ours} if peers else None,
        "score_speedup": middle[PEER + SCORE] / middle[SCORE] if peers else None,
    }
    shown = table("", "median s", "range s", "of the peer's sum" if peers else "")
    for name, seconds in taken.items():
        share = f"{middle[name] / peers:.2f}" if peers and name in ours else ""
        shown.add_row(name, f"{middle[name]:.3f}", spread(seconds), share)
    if peers:
        shown.add_section()
        shown.add_row("peer: its five fits", f"{peers:.3f}", style="bold")
        shown.add_row("scoring: times faster", f"{numbers['score_speedup']:,.1f}", style="bold")
    title = (
        f"{shape.rows:,} x {shape.features:,} float32, {shape.classes:,} classes, "
        f"{THREADS} threads: {', '.join(NAMES)}"
    )
    notes = [
        "fit: all five together, an empty cache every time; float32 where a detector has a choice "
        "of precision",
        f"score: mahalanobis, {shape.queries:,} rows from memory",
    ]
    if peers:
        notes.append(
            f"peer: pytorch-ood {versions['pytorch-ood']}, torch {versions['torch']}, tensors in "
            "memory; its she computes logits, and its vim a pseudo-inverse, within the fit"
        )
    return Outcome("small", numbers, {title: shown}, notes)
