"""``featfold report --history``: all runs on one offline page that stays small."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.__main__ import main
from pipeline.errors import MissingInputError
from pipeline.report import write
from pipeline.report.history import history, write_history
from pipeline.report.runs import families

Runs = Callable[..., Path]


@pytest.fixture
def night(tmp_path: Path, results: dict[str, Any]) -> Runs:
    """Write a run of a day, with the AUROC of msp on the near set as given."""

    def made(day: int, auroc: float | None = 0.9, **provenance: Any) -> Path:
        run = tmp_path / "runs" / "demo" / f"202611{day:02d}T021500Z-0123abcd"
        score = next(s for s in results["scores"] if s["detector"] == "msp")
        score["metrics"]["auroc"] = {"value": auroc} | ({} if auroc else {"reason": "ties"})
        results["provenance"] |= provenance
        write({**results, "run": run.name, "histograms": [], "curves": []}, run)
        return run

    return made


def test_the_page_tells_every_run_and_what_has_changed(night: Runs, tmp_path: Path) -> None:
    night(1)
    night(2, 0.8, config="name: other\n")
    failed = tmp_path / "runs" / "demo" / "20261103T021500Z-0123abcd"
    failed.mkdir()
    (failed / "events.jsonl").write_text('{"kind": "run"}\n{"kind": "ended", "exit_code": 3}\n')
    (tmp_path / "runs" / "demo" / "20261104T021500Z-0123abcd").mkdir()
    page = write_history(tmp_path / "runs").read_text()
    rows = [re.sub(r"<[^>]*>", "|", row) for row in re.findall(r"<tr>.*?</tr>", page, re.S)][1:]
    assert [re.findall(r"202611(\d\d)T", row)[0] for row in rows] == ["04", "03", "02", "01"]
    assert "unknown" in rows[0]
    assert "|3|" in rows[1]
    assert "no results" in rows[1]
    assert "|0|" in rows[2]
    assert "|config|" in rows[2]
    assert "|1,550|" in rows[3]
    assert "538.3 MiB" in rows[3]
    assert "351.0 MiB" in rows[3]
    assert "12.3 s" in rows[3]
    assert '<b>80.00</b> <span class="warn">-10.00</span>' in page
    assert not re.search(r"https?://|src=|@import|url\(|<link", page)
    assert "default-src 'none'" in page


def test_lines_break_where_a_run_has_no_number(night: Runs, tmp_path: Path) -> None:
    for day, auroc in enumerate((0.9, 0.8, None, 0.7), 1):
        night(day, auroc)
    ((family, runs),) = families(tmp_path / "runs").items()
    found = history(family, runs)
    line = found.panels["msp"][0]
    assert line.values == [0.9, 0.8, None, 0.7]
    assert [len(stroke.split()) for stroke in line.strokes] == [2, 1]
    assert line.dots == [line.strokes[1].split(",")]
    assert line.change == ""
    assert line.spread == "70.00 to 90.00, 3 of 4 runs"


def test_years_of_nights_stay_below_two_megabytes(night: Runs, tmp_path: Path) -> None:
    content = (night(1) / "results.json").read_text()
    for number in range(500):
        run = tmp_path / "runs" / "demo" / f"20250101T{number:06d}Z-0123abcd"
        run.mkdir()
        (run / "results.json").write_text(content)
    page = write_history(tmp_path / "runs")
    assert page.stat().st_size < 2 * 2**20
    assert "200 of 501" in page.read_text()


def test_the_verb_says_where_the_page_is(
    night: Runs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    night(1)
    assert main(["report", "--history", str(tmp_path / "runs"), "--json"]) == 0
    page = Path(json.loads(capsys.readouterr().out)["html"])
    assert page.name == "history.html"
    assert page.is_file()
    assert main(["report", "--history", str(tmp_path / "nowhere")]) == 4
    assert "no such folder" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingInputError, match="holds no runs"):
        write_history(tmp_path / "empty")
