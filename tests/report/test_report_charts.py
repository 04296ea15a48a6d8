"""Charts: they say what they show, fit their frame whatever the names, and are small."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.image import imread
from matplotlib.text import Text

from pipeline.errors import ConfigError, DataError
from pipeline.metrics import histogram, one_side, precision_recall_curve, roc_curve
from pipeline.metrics.calibration import Reliability
from pipeline.metrics.confusion import ConfusionTable
from pipeline.metrics.selective import RiskCoverage, RiskCoverageCurve
from pipeline.procedure import Estimate
from pipeline.report import charts
from pipeline.report.charts.chart import THEMES, count, fitted, share, text_width, told
from pipeline.report.charts.matrix import class_names
from pipeline.statistics import Ranks
from pipeline.testing import Data
from pipeline.testing.drive import outcome

NAN = Estimate(math.nan, math.nan, math.nan, reason="class has no rows")
LONG = "a class whose name goes on for longer than any chart is wide, as some do, number {}"


def exactly(number: float) -> Estimate:
    return Estimate(number, number, number)


def table(classes: int, absent: tuple[int, ...] = (), seed: int = 0) -> ConfusionTable:
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 30, (classes, classes)) * (rng.random((classes, classes)) < 0.4)
    counts[np.diag_indices(classes)] += rng.integers(100, 900, classes)
    counts[list(absent)] = 0
    return ConfusionTable(counts)


def ranks(inside: Any, outside: Any) -> Ranks:
    inside, outside = (np.asarray(side, np.float64) for side in (inside, outside))
    values = np.unique(np.concatenate([inside, outside]))
    return Ranks(values, *((side == values[:, None]).sum(axis=1) for side in (inside, outside)))


RNG = np.random.default_rng(0)
SETS = {
    "near": ranks(RNG.normal(0, 1, 300), RNG.normal(1, 1, 200)),
    LONG.format(2): ranks(RNG.normal(0, 1, 300), RNG.normal(3, 1, 100)),
    "c": ranks(RNG.normal(0, 1, 300), RNG.normal(2, 1, 50)),
}
ONE, NONE = ranks([1.0], [1.0]), ranks([1.0], [])
AREAS = {name: Estimate(0.75, 0.7251, 0.7749, exact=False) for name in SETS}


def bars(classes: int, undefined: tuple[int, ...] = (), name: str = "class {}") -> Any:
    numbers = [
        charts.ClassNumber(
            name.format(c), NAN if c in undefined else exactly((c + 1) / (classes + 1)), 10**6 + c
        )
        for c in range(classes)
    ]
    return charts.class_bars(numbers, metric="IoU", mean=exactly(0.5), title="IoU of each class")


def diagram(labels: Any, scores: Any, **options: Any) -> Any:
    data = Data({"labels": np.asarray(labels), "logits": np.asarray(scores)}, 2)
    return outcome(Reliability(task="binary", kind="probabilities", **options), data.cut())


def histograms(sets: dict[str, Ranks]) -> Any:
    first = next(iter(sets.values()))
    return histogram(
        {"id": one_side(first, "id"), **{n: one_side(r, "ood") for n, r in sets.items()}}
    )


def scores(sets: dict[str, Ranks], **options: Any) -> Any:
    marks = {name: charts.threshold_of(r) for name, r in sets.items()}
    return charts.score_histograms(histograms(sets), "id", thresholds=marks, **options)


def curve(sets: dict[str, Ranks], draw: Any, of: Any, **options: Any) -> Any:
    areas = {name: AREAS.get(name, NAN) for name in sets}
    return draw({name: of(r) for name, r in sets.items()}, areas=areas, **options)


SPREAD = ranks(np.exp(RNG.normal(0, 3, 200)), np.exp(RNG.normal(6, 3, 200)))
P, Y = RNG.random(500), RNG.random(500) < 0.5
RISKS = RiskCoverageCurve(np.linspace(0.01, 1, 90), np.linspace(0.0, 0.3, 90))
VOC = [f"name{c}" for c in range(21)]

CHARTS: dict[str, Callable[[], charts.Chart]] = {
    "matrix of 2": lambda: charts.confusion_matrix(table(2), ["no", "yes"]),
    "matrix of 21": lambda: charts.confusion_matrix(table(21, absent=(3, 4, 9)), VOC),
    "matrix, long names": lambda: charts.confusion_matrix(
        table(30), [LONG.format(c) for c in range(30)], by="prediction"
    ),
    "matrix of 50": lambda: charts.confusion_matrix(table(50), by="all"),
    "matrix of 150": lambda: charts.confusion_matrix(table(150, absent=tuple(range(30, 40)))),
    "matrix, counts": lambda: charts.confusion_matrix(table(10), by="count", theme="dark"),
    "matrix of blocks, counts": lambda: charts.confusion_matrix(table(101), by="count"),
    "matrix of nothing": lambda: charts.confusion_matrix(ConfusionTable(np.zeros((4, 4), int))),
    "bars of 2": lambda: bars(2),
    "bars of 21": lambda: bars(21, (3, 4)),
    "bars of 150": lambda: bars(150, (7,), LONG),
    "bars, all undefined": lambda: bars(3, (0, 1, 2)),
    "ROC": lambda: curve(SETS, charts.roc, roc_curve),
    "ROC, logarithmic": lambda: curve(SETS, charts.roc, roc_curve, log_rate=True),
    "ROC of one tie": lambda: curve({"x": ONE}, charts.roc, roc_curve),
    "ROC of one side": lambda: curve({"x": NONE}, charts.roc, roc_curve, theme="dark"),
    "precision": lambda: curve(SETS, charts.precision_recall, precision_recall_curve),
    "precision of one tie": lambda: curve(
        {"x": ONE}, charts.precision_recall, precision_recall_curve
    ),
    "precision of one side": lambda: curve(
        {"x": NONE, "y": ONE}, charts.precision_recall, precision_recall_curve
    ),
    "risk": lambda: charts.risk_coverage({"msp": RISKS, LONG: RISKS}, areas={"msp": exactly(0.1)}),
    "risk of one point": lambda: charts.risk_coverage(
        {"msp": RiskCoverageCurve(np.ones(1), np.array([0.3]))}
    ),
    "risk of no error": lambda: charts.risk_coverage(
        {"msp": RiskCoverageCurve(np.array([0.5, 1.0]), np.zeros(2))}
    ),
    "risk of nothing": lambda: charts.risk_coverage(
        {"msp": RiskCoverageCurve(np.zeros(0), np.zeros(0))}
    ),
    "reliability": lambda: charts.reliability(diagram(Y.astype(int), P)),
    "reliability of one element": lambda: charts.reliability(
        diagram([1], [1.0], of="positive", bins=3), theme="dark"
    ),
    "scores": lambda: scores(SETS),
    "scores, logarithmic counts": lambda: scores(SETS, log_counts=True, theme="dark"),
    "scores, logarithmic": lambda: scores({"x": SPREAD}),
    "scores of one tie": lambda: scores({"x": ONE}),
    "scores of one side": lambda: scores({"x": NONE}),
}


@pytest.fixture(params=CHARTS, scope="module")
def chart(request: Any) -> charts.Chart:
    return CHARTS[request.param]()


def texts(chart: charts.Chart) -> list[Text]:
    """Return the pieces of text that are drawn: labels of ticks beyond an axis are not."""
    chart.canvas.draw()
    beyond = set()
    for axis in (one for axes in chart.axes for one in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        for tick in (*axis.majorTicks, *axis.minorTicks):
            if not low <= tick.get_loc() <= high:
                beyond |= {tick.label1, tick.label2}
    found: list[Any] = chart.findobj(Text)
    return [t for t in found if t.get_visible() and t.get_text().strip() and t not in beyond]


def test_all_text_is_within_the_frame(chart: charts.Chart) -> None:
    frame = chart.bbox.padded(1)
    for one in texts(chart):
        box = one.get_window_extent()
        assert frame.x0 <= box.x0 <= box.x1 <= frame.x1, one
        assert frame.y0 <= box.y0 <= box.y1 <= frame.y1, one


def test_what_is_shown_is_json(chart: charts.Chart, tmp_path: Path) -> None:
    charts.save(chart, tmp_path / "chart.svg")
    facts = json.loads((tmp_path / "chart.json").read_text())
    assert facts["figure"]
    assert "NaN" not in (tmp_path / "chart.json").read_text()


def test_svg_is_small_well_formed_and_named(chart: charts.Chart) -> None:
    text = charts.svg(chart)
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert root.get("aria-label") == chart.label
    assert len(text) < 90_000
    assert charts.svg(chart) == text
    ids = {element.get("id") for element in root.iter()}
    uses = [name.partition(")")[0] for name in text.split("url(#")[1:]]
    assert set(uses) <= ids


def test_png_has_the_size_in_points(tmp_path: Path) -> None:
    chart = CHARTS["ROC"]()
    charts.save(chart, tmp_path / "chart.png")
    pixels = imread(tmp_path / "chart.png")
    width, height = (round(100 * inches) for inches in chart.get_size_inches())
    assert pixels.shape[:2] == pytest.approx((height, width), abs=1)
    twice = charts.png(chart, scale=2.0)
    assert len(twice) > (tmp_path / "chart.png").stat().st_size
    with pytest.raises(ConfigError, match=r"chart.pdf: charts are written as .svg or .png"):
        charts.save(chart, tmp_path / "chart.pdf")


def test_pyplot_and_its_settings_have_no_part() -> None:
    code = (
        "import sys, matplotlib; matplotlib.rcParams['font.size'] = 30;"
        "import numpy as np; from pipeline.report import charts;"
        "from pipeline.metrics.confusion import ConfusionTable;"
        "made = charts.confusion_matrix(ConfusionTable(np.eye(3, dtype=int)));"
        "print('matplotlib.pyplot' in sys.modules, matplotlib.rcParams['font.size'], "
        "charts.svg(made).count('font-size: 30'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "30.0", "0"]


def luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("name", THEMES)
def test_text_and_lines_stand_out(name: str) -> None:
    theme = THEMES[name]
    for colour in (theme.ink, theme.muted, theme.wrong):
        assert contrast(colour, theme.paper) > 4.5
    for colour in (*theme.hues, theme.right):
        assert contrast(colour, theme.paper) > 3
    for ramp in (theme.rights, theme.wrongs):
        steps = [luminance(colour) for colour in ramp]
        assert steps == sorted(steps, reverse=name == "light")


@pytest.mark.parametrize("by", ["label", "prediction", "all"])
def test_cells_of_the_matrix_are_shares(by: str) -> None:
    found = table(6, absent=(2,))
    chart = charts.confusion_matrix(found, list("abcdef"), by=by)
    cells = np.array(chart.facts["cells"])
    np.testing.assert_array_equal(cells, found.normalised(by))
    written = [one.get_text() for one in texts(chart)]
    for number in cells[np.isfinite(cells) & (cells > 0)]:
        assert share(float(number)) in written
    assert chart.facts["absent_classes"] == ["c"]
    assert np.isnan(cells[2]).all() == (by == "label")


def test_blocks_are_means_over_labels_of_sums_over_predictions() -> None:
    found = table(101, absent=(3,))
    chart = charts.confusion_matrix(found)
    cells = np.array(chart.facts["cells"])
    assert cells.shape == (34, 34)
    assert chart.facts["classes_of_a_cell"] == 3
    shares = found.normalised()
    assert cells[1, 0] == pytest.approx(shares[[4, 5], 0:3].sum(axis=1).mean())  # 3 is absent
    assert cells[5, 7] == pytest.approx(shares[15:18, 21:24].sum(axis=1).mean())
    np.testing.assert_allclose(cells.sum(axis=1), 1.0)
    assert np.array(charts.confusion_matrix(found, by="count").facts["cells"]).sum() == (
        found.counts.sum()
    )


def test_absent_classes_are_hatched_and_not_zero() -> None:
    chart = charts.confusion_matrix(table(5, absent=(1, 2)), list("abcde"))
    patches = [p for p in chart.axes[0].patches if p.get_hatch()]
    assert [p.get_bbox().bounds for p in patches] == [(0, 1, 5, 2)]  # type: ignore[attr-defined]
    assert charts.svg(chart).count("<pattern") == 1


def test_top_confusions() -> None:
    counts = np.array([[90, 10, 0], [3, 5, 2], [0, 0, 0]])
    found = charts.top_confusions(ConfusionTable(counts), ["<cat>", "dog", "cow"], most=2)
    assert [(one.truth, one.predicted, one.elements, one.share) for one in found] == [
        ("<cat>", "dog", 10, 0.1),
        ("dog", "<cat>", 3, 0.3),
    ]
    assert charts.confusions_text(found) == (
        "true   predicted  elements  of the true class\n"
        "<cat>  dog              10             10.0 %\n"
        "dog    <cat>             3             30.0 %\n"
    )
    page = charts.confusions_html(found)
    assert "<td>&lt;cat&gt;</td><td>dog</td><td>10</td><td>10.0 %</td>" in page
    ElementTree.fromstring(page)
    assert charts.top_confusions(ConfusionTable(np.eye(3, dtype=int))) == []


def test_bars_are_sorted_and_say_what_is_undefined() -> None:
    results = {
        "iou_a": exactly(0.2), "iou_b": exactly(0.9), "iou_c": NAN, "iou_mean": exactly(0.55),
        "iou_classes_averaged": exactly(2.0), "dice_a": exactly(0.1),
    }  # fmt: skip
    numbers = charts.numbers_of_classes(results, "iou", {"a": 7, "b": 8})
    assert [(one.name, one.support) for one in numbers] == [("a", 7), ("b", 8), ("c", None)]
    chart = charts.class_bars(numbers, metric="iou", mean=results["iou_mean"])
    assert [one.name for one in chart.facts["classes"]] == ["b", "a", "c"]
    written = [one.get_text() for one in texts(chart)]
    assert {"0.900", "0.200", "–", "mean 0.550", "7", "3 classes  ·  1 undefined"} <= set(written)
    with pytest.raises(DataError, match="average='none'"):
        charts.class_bars([], metric="iou")


def test_many_bars_leave_out_the_middle_and_keep_all_in_the_file() -> None:
    chart = bars(150)
    assert len(chart.facts["classes"]) == 150
    written = [one.get_text() for one in texts(chart)]
    assert "90 classes between" in written
    assert "class 149" in written
    assert "class 0" in written
    assert "class 75" not in written


def test_curves_keep_their_marked_point_and_prevalence() -> None:
    chart = CHARTS["ROC"]()
    near = chart.facts["curves"]["near"]
    first = np.flatnonzero(near["tpr"] >= 0.95)[0]
    assert near["fpr_at_marked_tpr"] == near["fpr"][first]
    assert chart.facts["areas"] == AREAS
    prevalence = CHARTS["precision"]().facts["curves"]["near"]["prevalence"]
    assert prevalence == pytest.approx(200 / 500)
    assert "undefined: one class has no element" in [
        one.get_text() for one in texts(CHARTS["ROC of one side"]())
    ]


def test_bands_are_shaded() -> None:
    found = roc_curve(SETS["near"])
    band = charts.Band(found.fpr, found.tpr - 0.05, found.tpr + 0.05)
    chart = charts.roc({"near": found}, bands={"near": band})
    assert len(chart.axes[0].collections) == 1
    assert chart.facts["bands"]["near"] is band


def test_thresholds_are_the_first_to_find_the_share() -> None:
    found = charts.threshold_of(ranks(range(20), range(10, 30)), 0.9)
    assert found == charts.Threshold(12.0, 18 / 20, 8 / 20)
    assert math.isnan(charts.threshold_of(NONE).score)
    (one,) = (t.get_text() for t in texts(scores({"x": SPREAD})) if "missed" in t.get_text())
    mark = charts.threshold_of(SPREAD)
    assert one == (
        f"at {mark.score:.4g}: {100 * (1 - mark.found):.1f} % missed, "
        f"{100 * mark.raised:.1f} % of id raised"
    )


def test_reliability_says_its_errors() -> None:
    found = diagram(Y.astype(int), P)
    chart = charts.reliability(found)
    (line,) = (t.get_text() for t in texts(chart) if "ECE" in t.get_text())
    assert line == f"ECE {told(found.ece)}  ·  MCE {told(found.mce)}  ·  500 elements"
    assert chart.facts["ece"] == found.ece


def test_the_risk_of_a_metric_is_drawn_as_it_is() -> None:
    data = Data({"labels": Y.astype(int), "logits": P}, 2)
    found = outcome(RiskCoverage(task="binary", kind="probabilities"), data.cut())
    chart = charts.risk_coverage({"msp": found})
    np.testing.assert_array_equal(chart.facts["curves"]["msp"]["risk"], found.risk)


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.0, ""), (1.0, "100"), (0.9749, "97"), (0.0994, "9.9"), (0.0995, "10"), (0.00951, "1.0"),
     (0.00094, "0.09"), (0.00001, "<.01"), (math.nan, "")],
)  # fmt: skip
def test_shares_in_cells(number: float, text: str) -> None:
    assert share(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (999, "999"), (1000, "1.0k"), (9949, "9.9k"), (9951, "10k"), (999_499, "999k"),
     (999_501, "1.0M"), (4.2e9, "4.2G"), (3e13, "30T")],
)  # fmt: skip
def test_counts_in_cells(number: float, text: str) -> None:
    assert count(number) == text


def test_names_are_fitted_and_stay_apart() -> None:
    long = LONG.format(7)
    short = fitted(long, 8, 100)
    assert text_width(short, 8) <= 100 < text_width(long, 8)
    assert (short[:5], short[-2:]) == ("a cla", " 7")
    assert fitted("abc", 8, 1) == "…"
    assert fitted("日本語 $x$", 8, 500) == "日本語 $x$"
    chart = charts.confusion_matrix(table(3), [f"{LONG} {c} and so on and on" for c in "abc"])
    labels = [t.get_text() for t in chart.axes[0].get_yticklabels()]
    assert len(set(labels)) == 3


def test_numbers_are_told_with_their_bounds() -> None:
    assert told(Estimate(0.5, 0.49, 0.51, exact=False)) == "0.500 (0.4900 to 0.5100)"
    assert (told(exactly(0.5)), told(NAN), told(0.25)) == ("0.500", "undefined", "0.250")


def test_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="by: 'rows' is unknown"):
        charts.confusion_matrix(table(2), by="rows")
    with pytest.raises(ConfigError, match="theme: 'blue' is unknown; choose light or dark"):
        charts.confusion_matrix(table(2), theme="blue")
    with pytest.raises(DataError, match="3 names for 2 classes"):
        class_names(["a", "b", "c"], 2)
