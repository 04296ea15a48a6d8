"""Columns of tables: parsed once for all that are asked for, in files of their own."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pytest

from pipeline.errors import ConfigError, DataError, MissingInputError
from pipeline.store import columns, open_predictions
from pipeline.store.columns import table_rows


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = [f"{i % 3},{i % 2},{i}.5,{-i - 1}.5" for i in range(1000)]
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["a,b,logit_0,logit_1", *rows]) + "\n")
    return path


def test_a_table_is_parsed_once_for_all_its_columns(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[Any] = []
    real = pyarrow.csv.open_csv

    def open_csv(path: Any, **options: Any) -> Any:
        parsed.append(path)
        return real(path, **options)

    monkeypatch.setattr(pyarrow.csv, "open_csv", open_csv)
    split = open_predictions(table / "a", table / "b", classes=3, weights=table / "logit_0")
    assert parsed == [table]
    (chunk,) = split.read(split.blocks[0], frozenset({"predictions", "labels", "weights"}))
    np.testing.assert_array_equal(chunk["predictions"], np.arange(1000) % 3)
    np.testing.assert_array_equal(chunk["labels"], np.arange(1000) % 2)
    np.testing.assert_array_equal(chunk["weights"], np.arange(1000) + 0.5)


def test_threads_have_files_of_their_own(table: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: table_rows(table, {"it": "logit_*"})["it"], range(16)))
    assert len({rows.path for rows in found}) == 16
    expected = np.stack((np.arange(1000) + 0.5, -np.arange(1000) - 1.5), axis=1)
    for rows in found:
        np.testing.assert_array_equal(rows[0:1000], expected)


def test_a_column_that_is_not_on_this_machine_says_what_to_do(table: Path) -> None:
    rows = table_rows(table, {"labels": "a"})["labels"]
    rows.path.unlink()
    with pytest.raises(MissingInputError, match="set TMPDIR to a folder that all workers share"):
        rows[0:1]


def test_what_does_not_arrive_leaves_no_file(table: Path) -> None:
    table.write_text("a,b\n0,1\n,0\n")
    before = set(columns._folder().iterdir())
    with pytest.raises(DataError, match=r"labels: column 'a' .* lacks 1"):
        table_rows(table, {"predictions": "b", "labels": "a"})
    with pytest.raises(ConfigError, match=r"labels: .* has no column 'c'; it has a, b"):
        table_rows(table, {"predictions": "b", "labels": "c"})
    assert set(columns._folder().iterdir()) == before
