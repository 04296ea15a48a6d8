"""Tables of one results file: the near/far headline and every set in full.

A ``Table`` holds numbers, bounds and marks once; the terminal, Markdown and the page only print it.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from pipeline.report.results import NOT_A_NUMBER
from pipeline.report.schema import Results, Score, Value

LABELS = {
    "auroc": "AUROC",
    "aupr_in": "AUPR-in",
    "aupr_out": "AUPR-out",
    "fpr95": "FPR95",
    "accuracy": "ACC",
}
HEADLINE_METRICS = ("auroc", "fpr95")
GROUP_ORDER = ("near", "far", "csid")


@dataclass(frozen=True)
class Column:
    """A metric over one out-of-distribution set, over the mean of a group, or over the ID set."""

    over: str
    group: str
    metric: str

    @property
    def label(self) -> str:
        """The metric as tables print it."""
        name, full, _ = self.metric.partition("_full")
        return LABELS.get(name, name) + (" full" if full else "")

    @property
    def arrowed(self) -> str:
        """The label with the direction that is better."""
        return f"{self.label} {'↓' if self.lower_is_better else '↑'}"

    @property
    def heading(self) -> str:
        """What the column covers, then the metric with its direction."""
        return f"{self.over} {self.arrowed}".strip()

    @property
    def lower_is_better(self) -> bool:
        """Whether a small number wins the column."""
        return self.metric.startswith("fpr")

    @property
    def ranked(self) -> bool:
        """Whether best and second are marked.

        ID accuracy belongs to the head, not to a row; of a covariate shift, 50 % is best.
        """
        return self.group not in ("id", "csid")


@dataclass(frozen=True)
class Cell:
    """One number in [0, 1] with half the width of its bounds, or None with the reason."""

    value: float | None
    bound: float = 0.0
    reason: str = ""
    mark: str = ""  # "best", "second" or nothing
    tied: bool = False  # with the best: the difference may be chance
    seeds: tuple[float, ...] = ()  # the numbers whose mean it is

    @property
    def text(self) -> str:
        """Percent with two decimals, the bound rounded up; ``undefined`` where there is none.

        Behind a mean over seeds stands their standard deviation instead. ≈ before it: not told
        from the best of its column.
        """
        if self.value is None:
            return "undefined"
        bound = f" ±{math.ceil(self.bound * 1e4) / 100:.2f}" if self.bound > 5e-7 else ""
        if len(self.seeds) > 1:
            bound = f" ± {percent(stdev(self.seeds))}"
        return ("≈ " if self.tied else "") + percent(self.value) + bound


@dataclass(frozen=True)
class Row:
    """The cells of one detector; the trivial baseline takes no part in best and second."""

    detector: str
    baseline: bool
    cells: tuple[Cell, ...]

    @property
    def name(self) -> str:
        """The detector's id, with the word baseline where it is one."""
        return f"{self.detector} (baseline)" if self.baseline else self.detector


@dataclass(frozen=True)
class Table:
    """Rows of cells under columns, the baselines last."""

    title: str
    about: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    @property
    def notes(self) -> list[str]:
        """One sentence for each undefined cell."""
        return [
            f"{row.detector}, {column.over or self.title} {column.label}: undefined, {cell.reason}"
            for row in self.rows
            for column, cell in zip(self.columns, row.cells, strict=True)
            if cell.value is None
        ]


def percent(value: float) -> str:
    """A share as percent with two decimals, without the sign."""
    return f"{100 * value:.2f}"


def groups(results: Results) -> dict[str, list[str]]:
    """Out-of-distribution sets by group: near, far, csid, then others as they came."""
    found: dict[str, list[str]] = {}
    for score in results["scores"]:
        sets = found.setdefault(score["group"], [])
        if score["ood"] not in sets:
            sets.append(score["ood"])
    return dict(sorted(found.items(), key=lambda item: _group_rank(item[0])))


def _group_rank(group: str) -> int:
    return GROUP_ORDER.index(group) if group in GROUP_ORDER else len(GROUP_ORDER)


def short_names(splits: Iterable[str]) -> dict[str, str]:
    """Each split under its last path component, or under its whole path where two would agree."""
    paths = list(dict.fromkeys(splits))
    lasts = [path.rstrip("/").rpartition("/")[2] for path in paths]
    return {
        path: last if lasts.count(last) == 1 else path
        for path, last in zip(paths, lasts, strict=True)
    }


def ood_names(results: Results) -> dict[str, str]:
    """Short names of all out-of-distribution sets."""
    return short_names(score["ood"] for score in results["scores"])


def detector_order(results: Results) -> list[tuple[str, bool]]:
    """Detector ids and whether each is a baseline, baselines last."""
    pairs = [(detector["id"], detector["baseline"]) for detector in results["detectors"]]
    return sorted(pairs, key=lambda pair: pair[1])


def headline_table(results: Results, sets: bool = True) -> Table:
    """The table in the shape of OpenOOD: near and far means, each set, ID accuracy.

    A group of one set has no mean of its own: its columns carry the set's name. ``sets=False``
    leaves the single sets out.
    """
    names = ood_names(results)
    means: list[tuple[Column, list[str]]] = []
    singles: list[tuple[Column, list[str]]] = []
    for group, members in groups(results).items():
        one = len(members) == 1
        over = f"{group} · {names[members[0]] if one else f'mean of {len(members)}'}"
        means += [(Column(over, group, metric), members) for metric in HEADLINE_METRICS]
        if sets and not one:
            singles += [
                (Column(f"{group} · {names[member]}", group, metric), [member])
                for member in members
                for metric in HEADLINE_METRICS
            ]
    spans = means + singles
    scores = _by_detector(results)
    tied = _ties(results)
    columns = [column for column, _ in spans]
    rows = [
        Row(
            detector,
            baseline,
            tuple(_mean(scores, tied, detector, of, column.metric) for column, of in spans),
        )
        for detector, baseline in detector_order(results)
    ]
    accuracy = _accuracy(results)
    if accuracy is not None:
        columns.append(Column("ID", "id", "accuracy"))
        rows = [replace(row, cells=(*row.cells, accuracy)) for row in rows]
    return _marked(Table("near and far OOD", _members_line(results), tuple(columns), tuple(rows)))


def set_tables(results: Results) -> list[Table]:
    """One table for each out-of-distribution set with every metric of every detector."""
    scores, tied = _by_detector(results), _ties(results)
    tables = []
    for group, members in groups(results).items():
        for member in members:
            entries = [score for score in results["scores"] if score["ood"] == member]
            metrics = list(dict.fromkeys(name for entry in entries for name in entry["metrics"]))
            columns = tuple(Column("", group, metric) for metric in metrics)
            rows = tuple(
                Row(
                    detector,
                    baseline,
                    tuple(_mean(scores, tied, detector, [member], metric) for metric in metrics),
                )
                for detector, baseline in detector_order(results)
            )
            kind, rows_of_it = ("csid", "shifted") if group == "csid" else (f"{group}-OOD", "OOD")
            about = (
                f"{kind}, {_spread(entry['n_id'] for entry in entries)} ID rows, "
                f"{_spread(entry['n_ood'] for entry in entries)} {rows_of_it} rows"
            )
            tables.append(_marked(Table(member, about, columns, rows)))
    return tables


def _members_line(results: Results) -> str:
    names = ood_names(results)
    lines = []
    for group, members in groups(results).items():
        shown = ", ".join(names[member] for member in members)
        lines.append(f"{group}: {shown}" if len(members) == 1 else f"{group}: mean of {shown}")
    return "; ".join(lines)


def _spread(numbers: Iterable[int]) -> str:
    low, high = min(found := list(numbers)), max(found)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _by_detector(results: Results) -> dict[tuple[str, str], Score]:
    return {(score["detector"], score["ood"]): score for score in results["scores"]}


def _ties(results: Results) -> set[tuple[str, str, tuple[str, ...]]]:
    """(detector, metric, sets) of all numbers that cannot be told from the best there."""
    return {
        (other["detector"], one["metric"], tuple(one["sets"]))
        for one in results.get("comparisons", ())
        for other in one["others"]
        if other["tied"]
    }


def _accuracy(results: Results) -> Cell | None:
    classification = results["classification"]
    value = classification["overall"].get("accuracy") if classification else None
    return cell(value) if value else None


def cell(value: Value) -> Cell:
    """The table cell of one recorded number."""
    number = value["value"]
    if number is None or not math.isfinite(number):
        return Cell(None, reason=value.get("reason", NOT_A_NUMBER))
    lower, upper = value.get("lower"), value.get("upper")
    bound = max(
        0.0 if lower is None else number - lower,
        0.0 if upper is None else upper - number,
    )
    return Cell(number, bound, seeds=tuple(value.get("seeds", ())))


def _mean(
    scores: dict[tuple[str, str], Score],
    tied: set[tuple[str, str, tuple[str, ...]]],
    detector: str,
    members: Sequence[str],
    metric: str,
) -> Cell:
    alike = (detector, metric, tuple(members)) in tied
    found = []
    for member in members:
        score = scores.get((detector, member))
        value = score["metrics"].get(metric) if score else None
        found.append(cell(value) if value else Cell(None, reason=f"no score on {member}"))
        if found[-1].value is None and len(members) > 1:
            return Cell(None, reason=f"because {member} is: {found[-1].reason}")
    if len(found) == 1:
        return replace(found[0], tied=alike)
    mean = fmean(one.value for one in found if one.value is not None)
    seeds = tuple(map(fmean, zip(*(one.seeds for one in found), strict=True)))
    return Cell(mean, fmean(one.bound for one in found), tied=alike, seeds=seeds)


def _marked(table: Table) -> Table:
    """Mark best and second of each column, ties on the printed digits alike."""
    marks: dict[tuple[int, float], str] = {}
    for place, column in enumerate(table.columns):
        ranked = [row.cells[place].value for row in table.rows if not row.baseline]
        values = sorted(
            {_printed(value) for value in ranked if value is not None},
            reverse=not column.lower_is_better,
        )
        if column.ranked and len(values) > 1:
            marks[place, values[0]] = "best"
            marks[place, values[1]] = "second"
    rows = tuple(
        row
        if row.baseline
        else replace(
            row,
            cells=tuple(
                one
                if one.value is None
                else replace(one, mark=marks.get((place, _printed(one.value)), ""))
                for place, one in enumerate(row.cells)
            ),
        )
        for row in table.rows
    )
    return replace(table, rows=rows)


def _printed(value: float) -> float:
    return float(percent(value))
