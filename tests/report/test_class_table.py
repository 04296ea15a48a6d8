"""The table of classes: which metrics it has, its means, and what it looks like."""

import io
import math

import numpy as np
import pytest
from rich.console import Console

import pipeline as ff
from pipeline.report.class_table import class_table


def measured(names):
    collection = ff.metrics.Collection(
        [
            ff.metrics.IoU(average=("macro", "none")),
            ff.metrics.Recall(average="none"),
            ff.metrics.Accuracy(),
        ],
        classes=names,
        prefix="val/",
    )
    collection.update(np.array([0, 1, 1, 0]), np.array([0, 1, 0, 0]))
    return collection.compute()


def test_a_column_for_each_metric_of_classes_and_means_where_there_are_some():
    table = class_table(measured(["road", "car_1", "a | b"]), ["road", "car_1", "a | b"], "val/")
    assert table.metrics == ("iou", "recall")
    assert table.values[0] == (2 / 3, 2 / 3)
    assert table.values[1] == (0.5, 1.0)
    assert all(map(math.isnan, table.values[2]))
    assert table.means[0] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert math.isnan(table.means[1])
    lines = table.markdown().splitlines()
    assert lines[0] == "| class | iou | recall |"
    assert lines[2] == "| road | 0.6667 | 0.6667 |"
    assert lines[4] == "| a \\| b | – | – |"
    assert lines[5] == "| mean | 0.5833 | – |"


def test_classes_without_names_go_by_their_numbers():
    assert class_table(measured(3), 3, "val/").classes == ("0", "1", "2")


def test_many_classes_fit_a_terminal_with_their_means():
    numbers = {f"iou_{c}": abs(c - 700) / 1000 for c in range(1000)} | {"iou_mean": 0.5}
    numbers["iou_700"] = math.nan
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(class_table(numbers, 1000).text())
    lines = console.export_text().splitlines()
    assert len(lines) == 1 + 20 + 1 + 1
    assert [line.split() for line in lines[1:4]] == [
        ["699", "0.0010"], ["701", "0.0010"], ["698", "0.0020"]
    ]  # fmt: skip
    assert lines[21].split() == ["mean", "0.5000"]
    assert lines[22] == "... 980 more, lowest iou first; --json and --out have all"


def test_few_classes_are_all_there_in_their_order():
    numbers = {f"iou_{c}": (60 - c) / 60 for c in range(60)} | {"iou_mean": 0.5}
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(class_table(numbers, 60).text())
    lines = console.export_text().splitlines()
    assert [line.split()[0] for line in lines] == ["class", *map(str, range(60)), "mean"]
