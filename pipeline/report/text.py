"""Plain-text forms of one results file: the terminal, Markdown, CSV, and words for quantities."""

import csv
import io
import json
import re
from collections.abc import Iterable
from statistics import stdev

from rich import box
from rich.table import Table as RichTable
from rich.text import Text

from pipeline.report.schema import Results
from pipeline.report.tables import Table, headline_table, set_tables

NOT_MEASURED = "not measured"
LEAST_NAME = 12
"""Columns of the terminal that the names of detectors have at least."""
CSV_COLUMNS = (
    *("detector", "options", "ood", "group", "metric"),
    *("value", "lower", "upper", "exact", "n_id", "n_ood", "std"),
)


def size(nbytes: float | None) -> str:
    """Bytes in the binary unit that leaves one to four digits before the point."""
    if nbytes is None:
        return NOT_MEASURED
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(nbytes) < 1024:
            return f"{nbytes:.0f} B" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"


def duration(seconds: float) -> str:
    """Seconds as a person reads them: ``12.3 s``, ``3 min 12 s``, ``2 h 05 min``."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def verdict_line(results: Results) -> str:
    """How the run ended, in one line."""
    verdict, memory = results["verdict"], results["memory"]
    passes, peak = verdict["passes"], memory["measured_nbytes"]
    return " · ".join(
        [
            f"{verdict['status']} in {duration(verdict['seconds'])}",
            f"{passes} {'pass' if passes == 1 else 'passes'}",
            f"{size(verdict['bytes_read'])} read",
            f"peak {size(peak)}{' per worker' if peak is not None else ''}, "
            f"{size(memory['projected_nbytes'])} projected",
        ]
    )


def headline(results: Results) -> RichTable:
    """The headline for the terminal: group means and ID accuracy, baselines below the line."""
    table = headline_table(results, sets=False)
    out = RichTable(
        title=Text(f"{results['name']}: OOD detection (percent)"),
        caption=Text(f"{table.about}\n{_legend(results)}"),
        box=box.SIMPLE_HEAD,
        title_style="bold",
        caption_style="dim",
        pad_edge=False,
    )
    out.add_column("detector", overflow="fold", min_width=LEAST_NAME)
    for column in table.columns:
        group = column.group.replace("id", "ID")
        out.add_column(Text(f"{group}\n{column.arrowed}"), justify="right", no_wrap=True)
    styles = {"best": "bold", "second": "underline", "": ""}
    for place, row in enumerate(table.rows):
        last_detector = place + 1 < len(table.rows) and not row.baseline
        # A spread stands below its mean: beside it, names would have no room left.
        cells = [Text(one.text.replace(" ± ", "\n± "), style=styles[one.mark]) for one in row.cells]
        out.add_row(
            Text(row.name),
            *cells,
            end_section=last_detector and table.rows[place + 1].baseline,
            style="dim" if row.baseline else None,
        )
    return out


def _legend(results: Results) -> str:
    tied = "; ≈ cannot be told from the best" if results.get("comparisons") else ""
    seeds = len(results.get("seeds", ()))
    spread = f"; ± standard deviation over {seeds} seeds" if seeds else ""
    return f"best bold, second underlined{tied}; ↑ higher, ↓ lower is better{spread}"


def comma_separated(results: Results) -> str:
    """The long form: one line for each detector, out-of-distribution set and metric.

    ``std``: of the numbers of several seeds, of which ``value`` is the mean.
    """
    out = io.StringIO()
    sheet = csv.writer(out, lineterminator="\n")
    sheet.writerow(CSV_COLUMNS)
    options = {
        detector["id"]: json.dumps(detector["options"], sort_keys=True, ensure_ascii=False)
        for detector in results["detectors"]
    }
    for score in results["scores"]:
        name = score["detector"]
        of = (name, options[name], score["ood"], score["group"])
        for metric, value in score["metrics"].items():
            numbers = (value["value"], value.get("lower"), value.get("upper"))
            exact = str(value.get("exact", True)).lower()
            rows = (score["n_id"], score["n_ood"])
            seeds = value.get("seeds", ())
            spread = stdev(seeds) if len(seeds) > 1 else None
            sheet.writerow((*of, metric, *numbers, exact, *rows, spread))
    return out.getvalue()


def markdown(results: Results) -> str:
    """Verdict, headline and every set, ready to paste into a pull request."""
    parts = [f"# {_plain_markdown(results['name'])}", _plain_markdown(verdict_line(results))]
    if results["scores"]:
        parts.append("## Near and far OOD")
        parts += _markdown_table(headline_table(results))
        parts.append(
            f"Percent, {_legend(results)}. The baseline is a trivial score of the input and is not "
            "ranked."
        )
        for table in set_tables(results):
            parts += [f"## {_plain_markdown(table.title)}", f"{_plain_markdown(table.about)}."]
            parts += _markdown_table(table)
    else:
        parts.append("No out-of-distribution set was scored in this run.")
    if results["conventions"]:
        parts.append("## Conventions")
        parts.append("\n".join(f"- {_plain_markdown(line)}" for line in results["conventions"]))
    return "\n\n".join([*parts, f"Run {_plain_markdown(results['run'])}."]) + "\n"


def _markdown_table(table: Table) -> list[str]:
    heads = ["detector", *(column.heading for column in table.columns)]
    lines = [
        _bars(_plain_markdown(head) for head in heads),
        _bars(["---", *("---:" for _ in table.columns)]),
    ]
    around = {"best": "**{}**", "second": "<ins>{}</ins>", "": "{}"}
    for row in table.rows:
        cells = [around[one.mark].format(one.text) for one in row.cells]
        lines.append(_bars([_plain_markdown(row.name), *cells]))
    notes = [f"- {_plain_markdown(note)}" for note in table.notes]
    return ["\n".join(lines), *(["\n".join(notes)] if notes else [])]


def _bars(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _plain_markdown(text: str) -> str:
    escaped = re.sub(r"[\\`*\[\]|#~]|(?<![^\W_])_|_(?![^\W_])", r"\\\g<0>", " ".join(text.split()))
    return escaped.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
