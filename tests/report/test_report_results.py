"""``results.json``: round trip, undefined numbers, refusals, atomic writing."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import DataError, MissingInputError
from pipeline.report import check, read, write, write_report

Change = Callable[[dict[str, Any]], None]


def test_round_trip_keeps_every_number(results: dict[str, Any], tmp_path: Path) -> None:
    path = write(results, tmp_path)
    assert read(path) == results
    assert read(tmp_path) == results
    assert json.loads(path.read_text("utf-8")) == results


def test_unknown_keys_pass(results: dict[str, Any], tmp_path: Path) -> None:
    results["scores"][0]["seeds"] = [0, 1, 2]
    results["thresholds"] = {"msp": 0.5}
    write(results, tmp_path)
    again: dict[str, Any] = dict(read(tmp_path))
    assert again["scores"][0]["seeds"] == [0, 1, 2]
    assert again["thresholds"] == {"msp": 0.5}


def test_numpy_values_become_plain(results: dict[str, Any], tmp_path: Path) -> None:
    expected = copy.deepcopy(results)
    results["classification"]["confusion"] = np.asarray(results["classification"]["confusion"])
    results["data"][0]["rows"] = np.int64(700)
    results["curves"][0]["fpr"] = np.asarray(results["curves"][0]["fpr"])
    assert read(write(results, tmp_path)) == expected


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), np.float64("nan")])
def test_not_a_number_is_null_with_a_reason(
    results: dict[str, Any], tmp_path: Path, bad: float
) -> None:
    results["scores"][0]["metrics"]["auroc"] = {"value": bad, "reason": "no OOD row"}
    results["scores"][1]["metrics"]["auroc"] = {"value": bad, "lower": bad, "upper": bad}
    results["classification"]["per_class"][2]["recall"] = bad
    results["histograms"][0]["edges"][-1] = float("inf")
    text = write(results, tmp_path).read_text("utf-8")
    assert "NaN" not in text
    assert "Infinity" not in text
    again = read(tmp_path)
    assert again["scores"][0]["metrics"]["auroc"] == {"value": None, "reason": "no OOD row"}
    second = again["scores"][1]["metrics"]["auroc"]
    assert second["value"] is second["lower"] is second["upper"] is None
    assert "finite" in second["reason"]
    assert again["classification"] is not None
    assert again["classification"]["per_class"][2]["recall"] is None
    assert again["histograms"][0]["edges"][-1] is None


def drop(*path: str | int) -> Change:
    def change(results: dict[str, Any]) -> None:
        inner: Any = results
        for key in path[:-1]:
            inner = inner[key]
        del inner[path[-1]]

    return change


def put(value: Any, *path: str | int) -> Change:
    def change(results: dict[str, Any]) -> None:
        inner: Any = results
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put(2, "schema"), "schema version 2"),
        (drop("schema"), "schema version None"),
        (drop("scores"), "lacks the key 'scores'"),
        (drop("scores", 3, "metrics"), r"scores\[3\] lacks the key 'metrics'"),
        (drop("verdict", "passes"), "verdict lacks the key 'passes'"),
        (put("98", "scores", 0, "metrics", "auroc", "value"), "metrics.auroc.value: expected a nu"),
        (put(True, "data", 0, "rows"), r"data\[0\].rows: expected an integer, got True"),
        (put("yes", "detectors", 0, "baseline"), "expected true or false"),
        (put(None, "memory", "projected_nbytes"), "projected_nbytes: expected an integer"),
        (put({}, "passes"), "passes: expected a list"),
        (put([], "provenance"), "provenance: expected an object"),
        (put("nobody", "curves", 0, "detector"), r"curves\[0\].detector: 'nobody'"),
        (put("nobody", "comparisons", 0, "best"), r"comparisons\[0\].best: 'nobody'"),
        (put("nobody", "comparisons", 1, "others", 2, "detector"), r"\[1\].others: 'nobody'"),
        (put("nobody", "agreement", "detectors", 0), "agreement.detectors: 'nobody'"),
        (
            put([0.5], "agreement", "spearman", 0),
            r"agreement.spearman: expected (\d+) x \1 numbers",
        ),
        (put("msp", "detectors", 1, "id"), "share an id"),
        (put([1], "histograms", 0, "counts", "id/test"), "expected 64 counts, got 1"),
        (put("cubic", "histograms", 0, "scale"), "expected the scale log or linear, got 'cubic'"),
        (put({"id/test": [1]}, "histograms", 0, "beyond"), "2 numbers of rows beyond the edges"),
        (put([0.0], "curves", 0, "fpr"), "1 fpr values"),
        (put([[1]], "classification", "confusion"), "expected 8 x 8 counts"),
    ],
)
def test_read_and_write_refuse_what_breaks_the_schema(
    results: dict[str, Any], tmp_path: Path, change: Change, words: str
) -> None:
    change(results)
    with pytest.raises(DataError, match=words):
        write(results, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    (tmp_path / "results.json").write_text(json.dumps(results), "utf-8")
    with pytest.raises(DataError, match=words) as caught:
        read(tmp_path)
    assert "results.json" in str(caught.value)
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00\xff"])
def test_read_refuses_what_is_no_results_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "results.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=r"results\.json"):
        read(tmp_path)


def test_read_names_the_missing_file(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match=r"gone/results\.json"):
        read(tmp_path / "gone" / "results.json")
    with pytest.raises(MissingInputError, match=r"results\.json"):
        read(tmp_path)


def test_write_replaces_and_leaves_nothing_behind(
    factory: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    results = factory({"msp": 1.0}, far=[])
    write_report(results, tmp_path)
    results["name"] = "second"
    assert write_report(results, tmp_path) == tmp_path / "report.html"
    assert read(tmp_path)["name"] == "second"
    files = {path.name: path.read_text("utf-8") for path in tmp_path.iterdir()}
    assert sorted(files) == ["report.html", "report.md", "results.csv", "results.json"]
    assert "<title>second" in files["report.html"]
    assert files["report.md"].startswith("# second")
    assert files["results.csv"].count("\n") == 1 + 2 * 4


def test_refused_results_leave_the_old_report(
    factory: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    results = factory({"msp": 1.0}, far=[])
    write_report(results, tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    del results["memory"]
    with pytest.raises(DataError, match="memory"):
        write_report(results, tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_check_leaves_its_input_alone(results: dict[str, Any]) -> None:
    results["scores"][0]["metrics"]["auroc"]["value"] = float("nan")
    before = copy.deepcopy(results)
    check(results)
    assert results["scores"][0]["metrics"]["auroc"].keys() == (
        before["scores"][0]["metrics"]["auroc"].keys()
    )
    assert np.isnan(results["scores"][0]["metrics"]["auroc"]["value"])
