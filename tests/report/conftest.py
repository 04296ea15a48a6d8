"""A results file as a run would leave it, computed from drawn scores."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from pipeline.report import check
from pipeline.report.html import render

MiB = 2**20
NEAR = ["ood/near/digits_8_9"]
FAR = ["ood/far/photo_patches", "ood/far/textures"]
STRENGTH = {
    "msp": 1.6,
    "max_logit": 1.9,
    "energy": 1.9,
    "mahalanobis": 3.2,
    "relative_mahalanobis": 3.0,
    "kl_matching": 1.2,
    "she": 1.5,
    "vim": 3.4,
}


def rates(inside: np.ndarray, outside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """False- and true-positive rates at every threshold, OOD positive, from (0, 0) to (1, 1)."""
    thresholds = np.unique(np.concatenate([inside, outside]))[::-1]
    fpr = 1 - np.searchsorted(np.sort(inside), thresholds) / len(inside)
    tpr = 1 - np.searchsorted(np.sort(outside), thresholds) / len(outside)
    return np.append(0.0, fpr), np.append(0.0, tpr)


def exact(value: float) -> dict[str, Any]:
    return {"value": value, "lower": value, "upper": value, "exact": True}


def scored(
    detector: str, strength: float, near: list[str], far: list[str], rng: np.random.Generator
) -> tuple[list[dict[str, Any]], dict[str, Any], list[dict[str, Any]]]:
    sets = dict.fromkeys(near, ("near", strength))
    sets |= dict.fromkeys(far, ("far", 1.6 * strength))
    inside = rng.normal(0, 1, 250)
    outside = {split: rng.gamma(4, 0.5, 200) + shift - 2 for split, (_, shift) in sets.items()}
    edges = np.histogram_bin_edges(np.concatenate([inside, *outside.values()]), 64)
    counts = {"id/test": np.histogram(inside, edges)[0].tolist()}
    counts |= {split: np.histogram(drawn, edges)[0].tolist() for split, drawn in outside.items()}
    scores, curves = [], []
    for split, drawn in outside.items():
        fpr, tpr = rates(inside, drawn)
        precision = tpr * 200 / np.maximum(tpr * 200 + fpr * 250, 1)
        metrics = {
            "auroc": exact(float(np.trapezoid(tpr, fpr))),
            "aupr_in": exact(0.99 * float(np.trapezoid(tpr, fpr))),
            "aupr_out": exact(float(np.sum(np.diff(tpr) * precision[1:]))),
            "fpr95": exact(float(fpr[np.argmax(tpr >= 0.95)])),
        }
        scores.append(
            {"detector": detector, "ood": split, "group": sets[split][0]}
            | {"n_id": 250, "n_ood": 200, "metrics": metrics}
        )
        curves.append(
            {"detector": detector, "ood": split, "fpr": fpr.tolist(), "tpr": tpr.tolist()}
        )
    return scores, {"detector": detector, "edges": edges.tolist(), "counts": counts}, curves


def classified(classes: int, rng: np.random.Generator) -> dict[str, Any]:
    confusion = rng.poisson(0.25, (classes, classes)) + np.diag(rng.integers(24, 36, classes))
    right, true, guessed = np.diag(confusion), confusion.sum(1), confusion.sum(0)
    per_class = [
        {
            "class": c,
            "support": int(true[c]),
            "precision": float(right[c] / guessed[c]),
            "recall": float(right[c] / true[c]),
            "f1": float(2 * right[c] / (true[c] + guessed[c])),
            "iou": float(right[c] / (true[c] + guessed[c] - right[c])),
            "dice": float(2 * right[c] / (true[c] + guessed[c])),
        }
        for c in range(classes)
    ]
    return {
        "split": "id/test",
        "rows": int(confusion.sum()),
        "overall": {
            "accuracy": exact(float(right.sum() / confusion.sum())),
            "balanced_accuracy": exact(float((right / true).mean())),
            "f1_macro": exact(float(np.mean([row["f1"] for row in per_class]))),
        },
        "per_class": per_class,
        "confusion": confusion.tolist(),
        "logits": "lda head",
    }


def against_best(
    scores: list[dict[str, Any]], over: str, group: str, sets: list[str], metric: str
) -> dict[str, Any]:
    """Who is best on the mean over sets; numbers closer than 0.02 pass for chance."""
    means: dict[str, float] = {}
    for entry in scores:
        if entry["ood"] in sets:
            value = entry["metrics"][metric]["value"] / len(sets)
            means[entry["detector"]] = means.get(entry["detector"], 0.0) + value
    sign = -1 if metric == "fpr95" else 1
    best = max(
        (name for name in means if name != "mean_pixel"), key=lambda name: sign * means[name]
    )
    others = [
        {"detector": name, "difference": value - means[best], "error": 0.01, "p": 0.5}
        | {"tied": abs(value - means[best]) < 0.02}
        for name, value in means.items()
        if name != best
    ]
    return {"over": over, "group": group, "sets": sets, "metric": metric} | {
        "method": "DeLong" if sign > 0 else "bootstrap",
        "best": best,
        "others": others,
    }


def split_facts(split: str, role: str, rows: int, classes: int) -> dict[str, Any]:
    arrays = {"features": {"shape": [49, 1280], "dtype": "float32"}}
    counts = None
    if role.startswith("id"):
        arrays["labels"] = {"shape": [], "dtype": "int64"}
        counts = [rows // classes + (c < rows % classes) for c in range(classes)]
    return {"split": split, "role": role, "rows": rows, "void": 0} | {
        "nbytes": rows * 49 * 1280 * 4,
        "arrays": arrays,
        "class_counts": counts,
    }


def make_results(
    strengths: dict[str, float] = STRENGTH,
    near: list[str] = NEAR,
    far: list[str] = FAR,
    classes: int = 8,
) -> dict[str, Any]:
    rng = np.random.default_rng(7)
    detectors, scores, histograms, curves = [], [], [], []
    for name, strength in {**strengths, "mean_pixel": 0.4}.items():
        baseline = name == "mean_pixel"
        feature = name in ("mahalanobis", "relative_mahalanobis", "vim", "she")
        detectors.append(
            {"id": name, "name": name, "options": {"covariance": "ridge"} if feature else {}}
            | {"passes": 2 if feature else 1, "needs": ["features", "labels"]}
            | {"state_nbytes": 13 * MiB if feature else 2048, "baseline": baseline}
            | {"notes": ["ridge 1e-06, rank 1270 of 1280, condition 3e9"] if feature else []}
        )
        new_scores, histogram, new_curves = scored(name, strength, near, far, rng)
        scores += new_scores
        histograms.append(histogram)
        curves += new_curves
    columns = [(name, "near", [name]) for name in near] + [(name, "far", [name]) for name in far]
    columns += [(group, group, of) for group, of in (("near", near), ("far", far)) if len(of) > 1]
    comparisons = [
        against_best(scores, *column, metric) for column in columns for metric in ("auroc", "fpr95")
    ]
    gaps = np.array([*strengths.values(), 0.4])
    alike = 1 - np.abs(gaps[:, None] - gaps[None, :]) / 2
    ids = [split_facts("id/train", "id_train", 700, classes)]
    ids.append(split_facts("id/test", "id_test", 250, classes))
    data = ids + [split_facts(split, "near", 200, classes) for split in near]
    data += [split_facts(split, "far", 200, classes) for split in far]
    statistics = [
        {"name": "ClassMoments(view=Pooled(field='features', how='mean'), where=Valid())"}
        | {"asked_by": ["mahalanobis", "relative_mahalanobis", "vim"], "state_nbytes": 13 * MiB},
        {"name": "Marginals(view=Labels())", "asked_by": ["kl_matching"], "state_nbytes": 128},
    ]
    passes = [
        {"name": f"fit pass {number}", "blocks": 4, "nbytes": 175616000, "seconds": 1.25}
        | {"fields": ["features", "labels"], "statistics": statistics[: 3 - number]}
        for number in (1, 2)
    ]
    passes.append(
        {"name": "score and evaluate", "blocks": 9, "nbytes": 213248000, "seconds": 4.5}
        | {"fields": ["features", "labels"], "statistics": []}
    )
    return {
        "schema": 1,
        "name": "demo",
        "run": "20261130T015500Z-ab12cd34",
        "created": "2026-11-30T01:55:00Z",
        "verdict": {"status": "done", "seconds": 12.3, "bytes_read": 564480000, "passes": 3},
        "data": data,
        "detectors": detectors,
        "scores": scores,
        "histograms": histograms,
        "curves": curves,
        "comparisons": comparisons,
        "agreement": {
            "detectors": [*strengths, "mean_pixel"],
            "rows": 850,
            "spearman": alike.tolist(),
        },
        "classification": classified(classes, rng),
        "passes": passes,
        "memory": {
            "cluster": "2 processes",
            "workers": 2,
            "reserved_nbytes": 180 * MiB,
            "projected_nbytes": 402 * MiB,
            "allowed_nbytes": 1600 * MiB,
            "measured_nbytes": 351 * MiB,
            "parts": [
                {"name": "reserved by the process", "nbytes": 180 * MiB},
                {"name": "chunks and prefetch", "nbytes": 80 * MiB},
                {"name": "views", "nbytes": 34 * MiB},
                {"name": "states", "nbytes": 39 * MiB},
                {"name": "work", "nbytes": 43 * MiB},
                {"name": "merge", "nbytes": 26 * MiB},
            ],
        },
        "conventions": [
            "scores: higher = more out-of-distribution",
            "AUROC/FPR95: OOD is the positive class",
            "FPR95: first threshold with TPR >= 0.95, no interpolation",
            "AUPR is average precision (step), in/out both given",
        ],
        "provenance": {
            "featfold": "0.1.0",
            "python": "3.11.7",
            "platform": "Linux-6.1-x86_64",
            "versions": {"numpy": "2.4.0", "dask": "2026.7.1", "zarr": "3.1.6"},
            "config": "name: demo\nstore: demo.zarr\ndetectors: [msp, vim]\n",
            "command": "featfold run configs/demo.yaml",
            "store": "demo.zarr",
            "checksums": {split["split"]: "crc32c:5f0c11d2" for split in data},
        },
    }


_MADE = make_results()


@pytest.fixture
def results() -> dict[str, Any]:
    """Eight detectors and the baseline on one near and two far sets, eight classes."""
    return copy.deepcopy(_MADE)


@pytest.fixture
def factory() -> Callable[..., dict[str, Any]]:
    """Results with other detectors, sets or classes."""
    return make_results


@pytest.fixture(scope="session")
def usual() -> str:
    """The page of ``results``, rendered once."""
    return render(check(_MADE))
