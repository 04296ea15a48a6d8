"""All runs below a folder as one offline page: quality, rows, bytes, memory, time, exit codes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from jinja2 import Environment, PackageLoader, StrictUndefined

from pipeline.errors import FeatfoldError, MissingInputError
from pipeline.report import text
from pipeline.report.results import read, write_text
from pipeline.report.runs import families, is_finished
from pipeline.report.schema import Results
from pipeline.report.tables import GROUP_ORDER, LABELS, percent

PAGE = "history.html"
EVENTS = "events.jsonl"
RUNS_LISTED, RUNS_DRAWN, LINES_DRAWN = 200, 400, 60
"""Most rows of the table of a job, points of a line, and lines: the page stays small."""
DRAWN = ("auroc", "fpr95")
WIDTH, HEIGHT, MARGIN = 220, 34, 5


@dataclass(frozen=True)
class Night:
    """One run, and what is not as it was in the finished run before it."""

    run: str
    exit_code: int | None
    """None where nothing tells: it runs, or was killed."""
    results: Results | None
    error: str
    changed: str

    @property
    def rows(self) -> int:
        """Rows of all splits that it read."""
        return sum(split["rows"] for split in self.results["data"]) if self.results else 0

    @property
    def accuracy(self) -> float | None:
        """ID accuracy of the head."""
        classes = self.results["classification"] if self.results else None
        value = classes["overall"].get("accuracy") if classes else None
        return value["value"] if value else None


@dataclass(frozen=True)
class Line:
    """The mean of a metric of a detector over a group of sets, run by run."""

    detector: str
    group: str
    metric: str
    values: Sequence[float | None]

    @property
    def label(self) -> str:
        """What the line is of."""
        return f"{self.group} {LABELS[self.metric]}"

    @property
    def known(self) -> list[float]:
        """The numbers that there are."""
        return [value for value in self.values if value is not None]

    @property
    def last(self) -> str:
        """The newest number in percent."""
        return "not now" if self.values[-1] is None else percent(self.values[-1])

    @property
    def change(self) -> str:
        """The newest minus the one before it, in points."""
        before, after = (*self.values, None, None)[max(0, len(self.values) - 2) :][:2]
        moved = before is not None and after is not None and abs(after - before) >= 5e-5
        return f"{100 * (after - before):+.2f}" if moved else ""  # type: ignore[operator]

    @property
    def worse(self) -> bool:
        """Whether the newest number is worse than the one before it."""
        return self.change.startswith("+" if self.metric.startswith("fpr") else "-")

    @property
    def spread(self) -> str:
        """The least and the largest number in percent."""
        least, most = (percent(one(self.known, default=0.0)) for one in (min, max))
        runs = f"{len(self.known)} of {len(self.values)} runs"
        return f"{least} to {most}, {runs}" if least != most else f"{least} in {runs}"

    @property
    def strokes(self) -> list[str]:
        """The line as points of polylines, broken where a run has no number."""
        low, high = min(self.known, default=0.0), max(self.known, default=1.0)
        pieces: list[list[str]] = [[]]
        for place, value in enumerate(self.values):
            if value is None:
                pieces.append([])
                continue
            x = MARGIN + (WIDTH - 2 * MARGIN) * (place / max(len(self.values) - 1, 1))
            share = (value - low) / (high - low) if high - low > 1e-9 else 0.5
            pieces[-1].append(f"{x:.1f},{HEIGHT - MARGIN - (HEIGHT - 2 * MARGIN) * share:.1f}")
        return [" ".join(piece) for piece in pieces if piece]

    @property
    def dots(self) -> list[list[str]]:
        """Where single numbers are drawn, and the newest one."""
        alone = [stroke for stroke in self.strokes if " " not in stroke]
        newest = self.strokes[-1:] if self.values[-1] is not None else []
        ends = dict.fromkeys([*alone, *(stroke.split()[-1] for stroke in newest)])
        return [end.split(",") for end in ends]


@dataclass(frozen=True)
class History:
    """The runs of one job, the oldest first."""

    name: str
    nights: Sequence[Night]
    lines: Sequence[Line]

    @property
    def panels(self) -> dict[str, list[Line]]:
        """The lines of every detector, those of the newest run first."""
        found: dict[str, list[Line]] = {}
        for line in self.lines[:LINES_DRAWN]:
            found.setdefault(line.detector, []).append(line)
        return found

    @property
    def finished(self) -> int:
        """Runs that have results."""
        return sum(night.results is not None for night in self.nights)


def write_history(folder: Path) -> Path:
    """Write ``history.html`` into a folder of runs; return its path.

    Raises :class:`MissingInputError` where there are no runs.
    """
    found = [history(family, runs) for family, runs in families(folder).items() if runs]
    if not found:
        raise MissingInputError(f"{folder} holds no runs; name the folder that jobs write them to")
    environment = Environment(
        loader=PackageLoader("pipeline.report"), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters.update(size=text.size, duration=text.duration, percent=percent)
    page = environment.get_template("history.html.j2").render(
        folder=folder.resolve().name, jobs=found, listed=RUNS_LISTED, lines_drawn=LINES_DRAWN,
        width=WIDTH, height=HEIGHT,
    )  # fmt: skip
    path = folder / PAGE
    write_text(path, page)
    return path


def history(family: Path, runs: Sequence[Path]) -> History:
    """Return the runs of a job, with the lines of its detectors over them."""
    nights: list[Night] = []
    before: Results | None = None
    for run in runs:
        results, error = None, ""
        try:
            results = read(run) if is_finished(run) else None
        except FeatfoldError as fault:
            error = str(fault)
        code = _exit_code(run)
        code = 0 if code is None and results else code
        changed = _changed(before, results) if before and results else ""
        nights.append(Night(run.name, code, results, error, changed))
        before = results or before
    drawn = [night.results for night in nights if night.results][-RUNS_DRAWN:]
    return History(family.name, nights, _lines(drawn))


def _lines(runs: Sequence[Results]) -> list[Line]:
    """Return a line for each group and metric of every detector of the newest run first."""
    means = [_means(results) for results in runs]
    keys = dict.fromkeys(key for mean in reversed(means) for key in mean)
    return [Line(*key, [mean.get(key) for mean in means]) for key in keys]


def _means(results: Results) -> dict[tuple[str, str, str], float | None]:
    found: dict[tuple[str, str, str], list[float | None]] = {}
    for score in sorted(results["scores"], key=lambda score: _rank(score["group"])):
        for metric in DRAWN:
            if metric in score["metrics"]:
                key = (score["detector"], score["group"], metric)
                found.setdefault(key, []).append(score["metrics"][metric]["value"])
    return {
        key: None if None in values else fmean(v for v in values if v is not None)
        for key, values in found.items()
    }


def _rank(group: str) -> int:
    return GROUP_ORDER.index(group) if group in GROUP_ORDER else len(GROUP_ORDER)


def _changed(before: Results, after: Results) -> str:
    """Return which of config, data and versions are not as they were."""
    then, now = before["provenance"], after["provenance"]
    differs = {
        "config": then["config"] != now["config"],
        "data": then["checksums"] != now["checksums"],
        "version": (then["featfold"], then["versions"]) != (now["featfold"], now["versions"]),
    }
    return ", ".join(what for what, other in differs.items() if other)


def _exit_code(run: Path) -> int | None:
    """Return the exit code that the events of a run end with, where they tell of it."""
    with suppress(OSError, ValueError, KeyError, IndexError, TypeError):
        code = json.loads((run / EVENTS).read_text("utf-8").splitlines()[-1])["exit_code"]
        return int(code)
    return None
