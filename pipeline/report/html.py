"""The page: one offline HTML file with inline styles, figures and a few lines of script."""

import re
from dataclasses import dataclass
from itertools import groupby

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from pipeline.report import figures, matrices, tables, text
from pipeline.report.schema import DetectorFacts, Memory, PerClass, Results, StatisticFacts

# Drawing budgets keep the page under two megabytes, however many detectors and sets there are.
SETS_DRAWN_IN_ALL = 320
BINS_IN_ALL = 12_000
POINTS_IN_ALL = 24_000
CLASSES_LISTED = 50
WORST_CLASSES = 20


@dataclass(frozen=True)
class Panel:
    """What the page shows of one detector."""

    facts: DetectorFacts
    histogram: str
    roc: str


@dataclass(frozen=True)
class Bar:
    """Shares of the longest of projected, measured and allowed memory, in percent."""

    projected: float
    measured: float
    words: str
    exceeded: bool


def render(results: Results) -> str:
    """The report of one run as a complete HTML document; the same results give the same bytes."""
    environment = Environment(
        loader=PackageLoader("pipeline.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        size=text.size,
        duration=text.duration,
        percent=tables.percent,
        options=options_text,
        breakable=breakable,
        named=named,
    )
    headline = tables.headline_table(results)
    grouped, names = tables.groups(results), tables.ood_names(results)
    inside = (split["split"] for split in results["data"] if split["role"].startswith("id_"))
    sets = figures.Sets(grouped, names, frozenset(inside))
    classification, panels = results["classification"], _panels(results, sets)
    return environment.get_template("report.html.j2").render(
        results=results,
        verdict=text.verdict_line(results),
        headline=headline,
        spans=[(over, len(list(run))) for over, run in groupby(headline.columns, _over)],
        set_tables=tables.set_tables(results),
        long_names=any("(" in detector["id"] for detector in results["detectors"]),
        sets=sets,
        keys={member: figures.line_sample(sets, member) for member in sets.order},
        panels=panels,
        open_ends=any(figures.has_open_ends(record) for record in results["histograms"]),
        drawn=min(len(panels), _panels_drawn(sets)),
        classes=_listed_classes(classification["per_class"]) if classification else [],
        confusion=matrices.confusion(classification) if classification else "",
        agreement=_agreement(results),
        tied=bool(results.get("comparisons")),
        seeds=len(results.get("seeds", ())),
        bar=memory_bar(results["memory"]),
        kinds=[kinds_of(pass_["statistics"]) for pass_ in results["passes"]],
    )


def _agreement(results: Results) -> str:
    found = results.get("agreement")
    return matrices.agreement(found) if found and len(found["detectors"]) > 1 else ""


def _over(column: tables.Column) -> str:
    return column.over


def breakable(words: str) -> Markup:
    """Escaped text whose lines may break after an underscore, slash, comma or bracket.

    A number stays whole.
    """
    places = r"(?<=[_/,=])(?=\w)|(?<=\.)(?=[^\W\d])|(?<=\w\()(?=\w)"
    return Markup("<wbr>").join(re.split(places, words))


def named(words: str) -> Markup:
    """A detector's name with its options below it; lines break between options, not within one."""
    parts = re.fullmatch(r"([^\s()]+)(\(.+?\))( \(baseline\))?", words)
    if parts is None:
        return breakable(words)
    name, options, rest = parts.groups(default="")
    below = Markup('<span class="options">{}</span>').format(options)
    return breakable(name) + below + rest


def options_text(options: dict[str, object]) -> str:
    """Options as ``name=value`` pairs, or the word defaults."""
    return ", ".join(f"{name}={value}" for name, value in options.items()) or "defaults"


def kinds_of(statistics: list[StatisticFacts]) -> list[StatisticFacts]:
    """Statistics of a pass with those of one kind as one: how many, for whom, and all states."""
    alike: dict[str, list[StatisticFacts]] = {}
    for statistic in statistics:
        alike.setdefault(statistic["name"], []).append(statistic)
    return [
        {
            "name": f"{len(several)} {name}" if len(several) > 1 else name,
            "asked_by": list(dict.fromkeys(asker for one in several for asker in one["asked_by"])),
            "state_nbytes": sum(one["state_nbytes"] for one in several),
        }
        for name, several in alike.items()
    ]


def memory_bar(memory: Memory) -> Bar:
    """Projected and measured memory against the longest of them and the allowance."""
    measured, allowed = memory["measured_nbytes"], memory["allowed_nbytes"]
    projected = memory["projected_nbytes"]
    full = max(projected, measured or 0, allowed or 0, 1)
    words = "not measured" if measured is None else f"{text.size(measured)} measured"
    words += f", {text.size(projected)} projected"
    if allowed is not None:
        words += f", {text.size(allowed)} allowed"
    return Bar(
        round(100 * projected / full, 2),
        round(100 * (measured or 0) / full, 2),
        words,
        (measured or 0) > projected,
    )


def _panels(results: Results, sets: figures.Sets) -> list[Panel]:
    histograms = {record["detector"]: record for record in results["histograms"]}
    facts = {detector["id"]: detector for detector in results["detectors"]}
    order = [facts[detector] for detector, _ in tables.detector_order(results)]
    drawn = order[: _panels_drawn(sets)]
    lines = max(len(drawn) * len(sets.order), 1)
    max_bins, max_points = max(24, BINS_IN_ALL // lines), max(40, POINTS_IN_ALL // lines)
    panels = []
    for detector in drawn:
        record = histograms.get(detector["id"])
        curves = [curve for curve in results["curves"] if curve["detector"] == detector["id"]]
        ridges = figures.histogram(record, sets, max_bins) if record else ""
        panels.append(Panel(detector, ridges, figures.roc(curves, sets, max_points)))
    return panels + [Panel(detector, "", "") for detector in order[len(drawn) :]]


def _panels_drawn(sets: figures.Sets) -> int:
    return max(SETS_DRAWN_IN_ALL // max(len(sets.order), 1), 1)


def _listed_classes(per_class: list[PerClass]) -> list[PerClass]:
    """All classes when they are few, else those of the lowest recall."""
    if len(per_class) <= CLASSES_LISTED:
        return per_class

    def recall(entry: PerClass) -> float:
        return 2.0 if entry["recall"] is None else entry["recall"]

    return sorted(per_class, key=recall)[:WORST_CLASSES]
