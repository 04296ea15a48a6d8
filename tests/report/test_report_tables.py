"""The headline and set tables, and their terminal, Markdown and CSV forms."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console

from pipeline.report import check, headline, verdict_line
from pipeline.report.html import render
from pipeline.report.tables import (
    Cell,
    Table,
    headline_table,
    set_tables,
    short_names,
)
from pipeline.report.text import comma_separated, duration, markdown, size


def column(table: Table, over: str, metric: str) -> dict[str, Cell]:
    place = [(one.over, one.metric) for one in table.columns].index((over, metric))
    return {row.detector: row.cells[place] for row in table.rows}


def metric_of(results: dict[str, Any], detector: str, ood: str, metric: str) -> float:
    (entry,) = [s for s in results["scores"] if (s["detector"], s["ood"]) == (detector, ood)]
    value = entry["metrics"][metric]["value"]
    assert isinstance(value, float)
    return value


def put_auroc(results: dict[str, Any], numbers: dict[str, float], ood: str) -> None:
    for entry in results["scores"]:
        if entry["ood"] == ood and entry["detector"] in numbers:
            number = numbers[entry["detector"]]
            entry["metrics"]["auroc"] = {"value": number, "lower": number, "upper": number}


def test_headline_averages_groups_and_carries_accuracy(results: dict[str, Any]) -> None:
    table = headline_table(check(results))
    assert [(one.over, one.metric) for one in table.columns] == [
        ("near · digits_8_9", "auroc"),
        ("near · digits_8_9", "fpr95"),
        ("far · mean of 2", "auroc"),
        ("far · mean of 2", "fpr95"),
        ("far · photo_patches", "auroc"),
        ("far · photo_patches", "fpr95"),
        ("far · textures", "auroc"),
        ("far · textures", "fpr95"),
        ("ID", "accuracy"),
    ]
    far = [metric_of(results, "she", f"ood/far/{name}", "fpr95") for name in TEXTURES]
    assert column(table, "far · mean of 2", "fpr95")["she"].value == pytest.approx(sum(far) / 2)
    accuracy = results["classification"]["overall"]["accuracy"]["value"]
    assert {cell.value for cell in column(table, "ID", "accuracy").values()} == {accuracy}


TEXTURES = ("photo_patches", "textures")


def test_best_and_second_follow_printed_digits_and_skip_the_baseline(
    results: dict[str, Any],
) -> None:
    numbers = dict.fromkeys((d["id"] for d in results["detectors"]), 0.5)
    numbers |= {"mean_pixel": 0.999, "vim": 0.98004, "she": 0.98001, "msp": 0.97, "energy": 0.96}
    put_auroc(results, numbers, "ood/near/digits_8_9")
    cells = column(headline_table(check(results)), "near · digits_8_9", "auroc")
    marks = {detector: cell.mark for detector, cell in cells.items() if cell.mark}
    assert marks == {"vim": "best", "she": "best", "msp": "second"}
    assert list(cells)[-1] == "mean_pixel"


def test_lower_is_best_for_false_positive_rates(results: dict[str, Any]) -> None:
    cells = column(headline_table(check(results)), "far · textures", "fpr95")
    ranked = {d: c.value for d, c in cells.items() if d != "mean_pixel" and c.value is not None}
    best = {d for d, value in ranked.items() if value == min(ranked.values())}
    assert {d for d, cell in cells.items() if cell.mark == "best"} == best


def test_what_cannot_be_told_from_the_best_is_marked(results: dict[str, Any]) -> None:
    columns = {(one["over"], one["metric"]): one for one in results["comparisons"]}
    for other in columns["far", "fpr95"]["others"]:
        other["tied"] = other["detector"] == "she"
    cells = column(headline_table(check(results)), "far · mean of 2", "fpr95")
    assert [name for name, cell in cells.items() if cell.tied] == ["she"]
    assert cells["she"].text.startswith("≈ ")
    assert not cells["msp"].text.startswith("≈")
    assert "≈ cannot be told from the best" in markdown(check(results))


def test_nothing_is_said_of_ties_without_comparisons(results: dict[str, Any]) -> None:
    del results["comparisons"], results["agreement"]
    assert "≈" not in markdown(check(results))


def test_a_covariate_shift_has_no_best(results: dict[str, Any]) -> None:
    for entry in results["scores"]:
        entry["group"] = {"near": "near", "far": "csid"}[entry["group"]]
    table = headline_table(check(results))
    marked = {
        column.group
        for place, column in enumerate(table.columns)
        if any(row.cells[place].mark for row in table.rows)
    }
    assert marked == {"near"}


def test_no_marks_where_all_agree(factory: Callable[..., dict[str, Any]]) -> None:
    table = headline_table(check(factory({"msp": 1.0}, far=[])))
    assert {cell.mark for row in table.rows for cell in row.cells} == {""}
    assert {one.group for one in table.columns} == {"near", "id"}


def test_undefined_spreads_to_the_mean_with_its_reason(results: dict[str, Any]) -> None:
    entry = next(
        s for s in results["scores"] if s["detector"] == "she" and s["ood"] == "ood/far/textures"
    )
    entry["metrics"]["auroc"] = {"value": float("nan"), "reason": "every row was void"}
    checked = check(results)
    table = headline_table(checked)
    assert column(table, "far · textures", "auroc")["she"].text == "undefined"
    mean = column(table, "far · mean of 2", "auroc")["she"]
    assert mean.value is None
    assert mean.reason == "because ood/far/textures is: every row was void"
    assert column(table, "far · mean of 2", "fpr95")["she"].value is not None
    assert "she, far · textures AUROC: undefined, every row was void" in table.notes
    assert "undefined, every row was void" in markdown(checked)


def test_detector_without_a_score_says_so(results: dict[str, Any]) -> None:
    results["scores"] = [s for s in results["scores"] if s["detector"] != "vim"]
    cell = column(headline_table(check(results)), "near · digits_8_9", "auroc")["vim"]
    assert (cell.text, cell.reason) == ("undefined", "no score on ood/near/digits_8_9")


def test_bounds_are_printed_and_rounded_up(results: dict[str, Any]) -> None:
    value = {"value": 0.9, "lower": 0.89991, "upper": 0.90001, "exact": False}
    results["scores"][0]["metrics"]["auroc"] = value
    cell = column(headline_table(check(results)), "near · digits_8_9", "auroc")["msp"]
    assert cell.text == "90.00 ±0.01"


def test_set_tables_hold_every_metric_and_count(results: dict[str, Any]) -> None:
    results["scores"][0]["n_ood"] = 198
    tables = set_tables(check(results))
    assert [table.title for table in tables] == [
        "ood/near/digits_8_9",
        "ood/far/photo_patches",
        "ood/far/textures",
    ]
    assert tables[0].about == "near-OOD, 250 ID rows, 198 to 200 OOD rows"
    assert [one.metric for one in tables[0].columns] == ["auroc", "aupr_in", "aupr_out", "fpr95"]
    assert len(tables[0].rows) == 9


def test_a_shifted_set_is_not_called_out_of_distribution(
    factory: Callable[..., dict[str, Any]],
) -> None:
    results = factory({"msp": 1.0}, near=["id/csid/blur"], far=["ood/far/b"])
    for score in results["scores"]:
        if score["ood"] == "id/csid/blur":
            score["group"] = "csid"
    far, shifted = set_tables(check(results))
    assert far.about == "far-OOD, 250 ID rows, 200 OOD rows"
    assert shifted.about == "csid, 250 ID rows, 200 shifted rows"
    assert "csid-OOD" not in render(check(results))
    assert "csid-OOD" not in markdown(check(results))


def test_groups_come_near_far_csid_then_others(factory: Callable[..., dict[str, Any]]) -> None:
    results = factory({"msp": 1.0}, near=["ood/a", "ood/b", "ood/c"], far=["ood/d"])
    for entry, group in zip(results["scores"], ["strange", "csid", "near", "far"], strict=False):
        entry["group"] = group
    results["scores"] = results["scores"][:4]
    table = headline_table(check(results))
    assert [one.group for one in table.columns][::2] == ["near", "far", "csid", "strange", "id"]


def test_short_names_stay_apart() -> None:
    assert short_names(["ood/near/a", "ood/far/b", "ood/near/a"]) == {
        "ood/near/a": "a",
        "ood/far/b": "b",
    }
    assert short_names(["ood/near/a", "ood/far/a"])["ood/far/a"] == "ood/far/a"


def test_csv_has_one_line_for_each_number(results: dict[str, Any]) -> None:
    results["detectors"][3]["options"] = {"covariance": "ridge", "ridge": 1e-6}
    results["scores"][0]["metrics"]["auroc"] = {"value": float("nan"), "reason": "none"}
    rows = list(csv.DictReader(comma_separated(check(results)).splitlines()))
    assert len(rows) == 9 * 3 * 4
    assert tuple(rows[0]) == (
        *("detector", "options", "ood", "group", "metric"),
        *("value", "lower", "upper", "exact", "n_id", "n_ood", "std"),
    )
    assert (rows[0]["value"], rows[0]["exact"]) == ("", "true")
    for row in rows[1:]:
        expected = metric_of(results, row["detector"], row["ood"], row["metric"])
        assert float(row["value"]) == expected
    ridge = next(row for row in rows if row["detector"] == "mahalanobis")
    assert json.loads(ridge["options"]) == {"covariance": "ridge", "ridge": 1e-6}


def test_markdown_has_every_detector_and_bolds_the_best(results: dict[str, Any]) -> None:
    put_auroc(results, {"vim": 0.99999, "she": 0.9998}, "ood/near/digits_8_9")
    text = markdown(check(results))
    table = text.split("## Near and far OOD")[1].split("##")[0]
    lines = {line.split(" | ")[0][2:]: line for line in table.splitlines() if line[:2] == "| "}
    for detector in results["detectors"]:
        assert detector["id"] + (" (baseline)" if detector["baseline"] else "") in lines
    assert lines["vim"].split(" | ")[1] == "**100.00**"
    assert lines["she"].split(" | ")[1] == "<ins>99.98</ins>"
    assert "**" not in lines["mean_pixel (baseline)"]
    assert len({line.count(" | ") for line in lines.values()}) == 1
    assert verdict_line(check(results)) in text


def test_markdown_escapes_names(factory: Callable[..., dict[str, Any]]) -> None:
    text = markdown(check(factory({"a|b*<c>`\n_d": 1.0}, near=["ood/near/x|y"])))
    assert "a\\|b\\*&lt;c&gt;\\` \\_d" in text
    assert "near · x\\|y" in text


def test_headline_prints_within_eighty_columns(results: dict[str, Any]) -> None:
    console = Console(width=80, record=True, color_system=None)
    with console.capture() as captured:
        console.print(headline(check(results)))
    printed = captured.get()
    for detector in results["detectors"]:
        assert detector["id"] in printed
    assert "mean_pixel (baseline)" in printed
    assert "far: mean of photo_patches, textures" in printed
    assert max(len(line) for line in printed.splitlines()) <= 80


def test_headline_takes_names_as_they_are(factory: Callable[..., dict[str, Any]]) -> None:
    results = factory({"[bold]x[/]": 1.0}, near=["ood/near/[red]"], far=[])
    results["name"] = "[/]"
    console = Console(width=100, record=True)
    with console.capture() as captured:
        console.print(headline(check(results)))
    assert "[bold]x[/]" in captured.get()
    assert "near: [red]" in captured.get()


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (175616000, "167.5 MiB"), (None, "not meas")],
)
def test_sizes(nbytes: int | None, text: str) -> None:
    assert size(nbytes).startswith(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (12.34, "12.3 s"),
        (59.96, "1 min 00 s"),
        (192, "3 min 12 s"),
        (3599.7, "1 h 00 min"),
        (7500, "2 h 05 min"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_tables_load_neither_matplotlib_nor_jinja() -> None:
    code = (
        "import sys, pipeline.report as r; r.headline; "
        "print([m for m in ('matplotlib', 'jinja2', 'torch', 'dask', 'zarr') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
