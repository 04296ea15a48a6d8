"""The chart that fits what a metric found: a matrix, a curve, a diagram, or bars of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.errors import ConfigError
from pipeline.metrics import ConfusionTable
from pipeline.metrics.bands import Drawn
from pipeline.metrics.calibration import ReliabilityDiagram
from pipeline.metrics.curves import ROCCurve
from pipeline.metrics.selective import RiskCoverageCurve
from pipeline.procedure import Estimate
from pipeline.report.charts.chart import Chart
from pipeline.report.charts.classes import class_bars, numbers_of_classes
from pipeline.report.charts.curves import precision_recall, risk_coverage, roc
from pipeline.report.charts.diagram import reliability
from pipeline.report.charts.matrix import confusion_matrix


def drawable(numbers: Mapping[str, Any], metrics: Sequence[str]) -> list[str]:
    """Return those of ``metrics``, names that keys begin with, of which there is a chart."""
    return [name for name in metrics if _is_object(numbers.get(name)) or _of_classes(numbers, name)]


def chart_of(
    numbers: Mapping[str, Any],
    metric: str,
    class_names: Sequence[str] | None = None,
    *,
    theme: str = "light",
) -> Chart:
    """Return the chart of one metric among ``numbers`` by key, as collections compute them.

    Raises :class:`ConfigError` for a metric that is one number: it needs no chart.
    """
    found = numbers.get(metric)
    if isinstance(found, ConfusionTable):
        return confusion_matrix(found, class_names, theme=theme)
    if isinstance(found, ReliabilityDiagram):
        return reliability(found, theme=theme)
    if isinstance(found, RiskCoverageCurve):
        return risk_coverage({metric: found}, theme=theme)
    if isinstance(found, Drawn):
        bands = {} if found.band is None else {metric: found.band}
        if isinstance(found.curve, ROCCurve):
            return roc({metric: found.curve}, bands=bands, theme=theme)
        return precision_recall({metric: found.curve}, bands=bands, theme=theme)
    if of_classes := _of_classes(numbers, metric):
        return class_bars(
            of_classes, metric=metric, mean=numbers.get(f"{metric}_mean"), theme=theme
        )
    raise ConfigError(
        f"there is no chart of {metric}: ask for it with average='none', or for confusion_matrix, "
        "roc, precision_recall, reliability or risk_coverage"
    )


def _is_object(found: Any) -> bool:
    return isinstance(found, ConfusionTable | ReliabilityDiagram | RiskCoverageCurve | Drawn)


def _of_classes(numbers: Mapping[str, Any], metric: str) -> list[Any]:
    own = {key: one for key, one in numbers.items() if isinstance(one, Estimate)}
    found = numbers_of_classes(own, metric)
    return [one for one in found if not one.name.startswith("threshold")]
