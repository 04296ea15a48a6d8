"""The report of a run: ``results.json`` and the CSV, Markdown, terminal and HTML made from it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.report.averages import averaged
from pipeline.report.results import check, read, write, write_text
from pipeline.report.schema import SCHEMA, Results
from pipeline.report.text import comma_separated, headline, markdown, verdict_line

__all__ = ["SCHEMA", "Results", "check", "headline", "read", "verdict_line", "write"]
__all__ += ["averaged", "write_report", "write_text"]


def write_report(results: Mapping[str, Any], directory: Path | str) -> Path:
    """Write results.json, results.csv, report.md and report.html; return the page's path.

    Each file is renamed into place when complete, ``results.json`` first, so that no trouble
    with a figure loses a number. Raises DataError when the results do not follow the schema.
    """
    from pipeline.report.html import render  # matplotlib loads only where a page is wanted

    folder = Path(directory)
    checked = check(results)
    write(checked, folder)
    write_text(folder / "results.csv", comma_separated(checked))
    write_text(folder / "report.md", markdown(checked))
    page = folder / "report.html"
    write_text(page, render(checked))
    return page
