"""Metrics by the names that jobs, collections and tables call them."""

from __future__ import annotations

import dataclasses
import importlib
from difflib import get_close_matches
from typing import Any

from pipeline.errors import ConfigError, UnknownNameError

__all__ = ["make", "name_of", "named", "names", "stem_of"]

HOMES = {
    "per_class": {
        "accuracy": "Accuracy",
        "dice": "Dice",
        "f1": "F1",
        "fbeta": "FBeta",
        "hamming": "Hamming",
        "iou": "IoU",
        "npv": "NPV",
        "precision": "Precision",
        "recall": "Recall",
        "specificity": "Specificity",
        "top_k_accuracy": "TopKAccuracy",
    },
    "whole": {
        "balanced_accuracy": "BalancedAccuracy",
        "exact_match": "ExactMatch",
        "frequency_weighted_iou": "FrequencyWeightedIoU",
        "generalised_dice": "GeneralisedDice",
        "kappa": "Kappa",
        "mcc": "MCC",
    },
    "segmentation": {
        "image_dice": "ImageDice",
        "image_generalised_dice": "ImageGeneralisedDice",
        "image_iou": "ImageIoU",
        "image_precision": "ImagePrecision",
        "image_recall": "ImageRecall",
        "image_table": "ImageTable",
    },
    "calibration": {
        "ece": "ECE",
        "mce": "MCE",
        "reliability": "Reliability",
        "rmsce": "RMSCE",
    },
    "adaptive": {"ace": "ACE", "classwise_ece": "ClasswiseECE"},
    "probabilities": {"brier": "Brier", "mean_confidence": "MeanConfidence", "nll": "NLL"},
    "selective": {"aurc": "AURC", "aurra": "AURRA", "risk_coverage": "RiskCoverage"},
    "bootstrap": {"image_intervals": "ImageIntervals"},
    "confusion": {"confusion_matrix": "ConfusionMatrix"},
    "bands": {"precision_recall": "PrecisionRecall", "roc": "ROC"},
    "scores": {
        "aupr_trapezoid": "AUPRTrapezoid",
        "auroc": "AUROC",
        "average_precision": "AveragePrecision",
        "detection_accuracy": "DetectionAccuracy",
        "fpr_at_tpr": "FPRAtTPR",
        "max_f1": "MaxF1",
        "ranking": "Ranking",
        "tpr_at_fpr": "TPRAtFPR",
    },
}
"""Module -> name -> class."""
ELSEWHERE = {
    "ap": "average_precision",
    "auc": "auroc",
    "calibration_error": "ece",
    "cohen_kappa": "kappa",
    "jaccard": "iou",
    "jaccard_index": "iou",
    "log_loss": "nll",
    "matthews_corrcoef": "mcc",
    "mean_iou": "iou",
    "miou": "iou",
    "sensitivity": "recall",
    "subset_accuracy": "exact_match",
    "fpr95": "fpr_at_tpr",
}
"""Names that metrics go by in other libraries."""
OPTIONS_ELSEWHERE = {"ignore_index": "ignore", "k": "top_k", "n_bins": "bins"}
"""Options of metrics by what they are called in other libraries."""


def names() -> tuple[str, ...]:
    """Return the names of all metrics, in alphabetical order."""
    return tuple(sorted(name for classes in HOMES.values() for name in classes))


def named(name: str) -> type[Any]:
    """Return the class of a metric, e.g. ``"iou"``; an unknown name gets near ones."""
    for module, classes in HOMES.items():
        if name in classes:
            home = importlib.import_module(f"pipeline.metrics.{module}")
            return getattr(home, classes[name])  # type: ignore[no-any-return]
    raise UnknownNameError(
        f"unknown metric {name!r}: {_suggested(name)}known: {', '.join(names())}"
    )


def name_of(metric: Any) -> str:
    """Return the name of a metric, or of its class; of others what their class is called."""
    cls = metric if isinstance(metric, type) else type(metric)
    for classes in HOMES.values():
        for name, own in classes.items():
            if own == cls.__name__:
                return name
    return cls.__name__


def stem_of(metric: Any) -> str:
    """Return what the keys of a metric's numbers begin with: ``fpr_at_95tpr``, or its name."""
    own = getattr(metric, "name", None)
    return own if isinstance(own, str) else name_of(metric)


def make(name: str, **options: Any) -> Any:
    """Return the metric of a name with its options.

    Raises :class:`ConfigError` for an option that it does not take, or a value that is not known.
    """
    cls = named(name)
    known = [field.name for field in dataclasses.fields(cls)]
    for option in options:
        if option not in known:
            raise ConfigError(
                f"{option}: {name} has no such option: {_near(option, known)}known: "
                f"{', '.join(known)}"
            )
    return cls(**options)


def _suggested(name: str) -> str:
    """Return the name here of a class or of a metric of another library, or one spelt alike."""
    classes = {cls.lower(): own for known in HOMES.values() for own, cls in known.items()}
    plain = name.lower().replace("-", "_").removeprefix("multiclass").removeprefix("binary")
    joined = {other.replace("_", ""): own for other, own in ELSEWHERE.items()}
    same = (joined | classes).get(plain.replace("_", ""))
    return f"did you mean {same!r}? " if same else _near(plain, names())


def _near(name: str, known: Any) -> str:
    own = OPTIONS_ELSEWHERE.get(name)
    near = [own] if own in known else get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}? " if near else ""
