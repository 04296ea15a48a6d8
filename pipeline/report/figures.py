"""Figures of the page as inline SVG, drawn by matplotlib and made to follow the page's colours.

Colours are drawn as stand-ins and come out as CSS variables, so one figure serves light and dark;
text takes the page's font. The same input gives the same bytes.
"""

import re
import warnings
from collections.abc import Sequence
from hashlib import sha256
from io import StringIO
from typing import Any
from xml.etree import ElementTree

import numpy as np
from matplotlib import style
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from pipeline.report.schema import Curve, Histogram

# Stand-in colour -> CSS variable of the page.
INK, MUTED, RULE, PAPER = "#010101", "#010102", "#010103", "#010104"
ID, NEAR, FAR, CSID, OTHER = "#010105", "#010106", "#010107", "#010108", "#010109"
VARIABLES = {
    **{INK: "--ink", MUTED: "--muted", RULE: "--rule", PAPER: "--paper"},
    **{ID: "--id", NEAR: "--near", FAR: "--far", CSID: "--csid", OTHER: "--muted"},
}
GROUP_COLOURS = {"near": NEAR, "far": FAR, "csid": CSID}
GROUP_MARKERS = {"near": "o", "far": "s", "csid": "^"}
DASHES: tuple[Any, ...] = (
    "-",
    (0, (5, 1.6)),
    (0, (1.4, 1.4)),
    (0, (6, 1.6, 1.4, 1.6)),
    (0, (3, 3)),
    (0, (8, 1.6, 1.4, 1.6, 1.4, 1.6)),
)
TAIL = 0.002  # share of each split's rows that may lie beyond either end of the drawn score axis
WIDTH, HEIGHT = 275, 190  # of the ridges; as high as the ROC panel beside them on a wide page
ROW_HEIGHT = 38
DECADE_TICKS = 5  # marks fit below the ridges
LABEL_WIDTH = 5  # of a character, about
DECADE_STEPS = (1, 2, 3, 5, 10, 20, 50, 100, 200)
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "featfold",
    "font.size": 10,
    "axes.linewidth": 0.8,
    "axes.edgecolor": RULE,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.formatter.use_mathtext": False,
    "axes.unicode_minus": False,
}


# The user's own matplotlib settings must not change the page.
house_style = style.context(STYLE, after_reset=True)


class Sets:
    """The out-of-distribution sets of a run in table order, each with colour, dash and marker.

    ``inside`` names the in-distribution splits whose scores form the silhouette.
    """

    def __init__(
        self, grouped: dict[str, list[str]], names: dict[str, str], inside: frozenset[str]
    ) -> None:
        pairs = [(group, member) for group, members in grouped.items() for member in members]
        self.order = [member for _, member in pairs]
        self.group = {member: group for group, member in pairs}
        self.names = names
        self.inside = inside

    def colour(self, member: str) -> str:
        """Hue by group."""
        return GROUP_COLOURS.get(self.group[member], OTHER)

    def dash(self, member: str) -> Any:
        """Line style by position, so that no two of six sets differ by colour alone."""
        return DASHES[self.order.index(member) % len(DASHES)]

    def marker(self, member: str) -> str:
        """Marker by group."""
        return GROUP_MARKERS.get(self.group[member], "D")

    def label(self, member: str) -> str:
        """Short name and group, cut to fit above a panel."""
        name = self.names[member]
        return f"{name if len(name) <= 34 else name[:33] + '…'} · {self.group[member]}"


@house_style
def histogram(record: Histogram, sets: Sets, max_bins: int) -> str:
    """Ridges of scores: each OOD set over the ID silhouette, each scaled to its own peak.

    An end bin that also counts rows beyond the axis is cut at the peak of the other bins, where
    those hold most rows.
    """
    edges, counts = _finite_bins(record, max_bins)
    members = [member for member in sets.order if member in counts]
    inside = [split for split in counts if split in sets.inside]
    if len(edges) < 2 or not members:
        return ""
    low, high = _drawn_range(edges, [counts[split] for split in inside + members])
    together = sum((counts[split] for split in inside), np.zeros(len(edges) - 1))
    silhouette = _outline(edges, together, _open_ends(record, inside))
    foot = 30
    height = round(max(ROW_HEIGHT * len(members) + foot, HEIGHT))
    figure = blank(WIDTH, height)
    axes = figure.add_axes((6 / WIDTH, foot / height, 1 - 12 / WIDTH, 1 - foot / height))
    for base, member in enumerate(reversed(members)):
        _ridge(axes, base, silhouette, facecolor=(ID, 0.5), linewidth=0)
        colour = sets.colour(member)
        outline = _outline(edges, counts[member], _open_ends(record, [member]))
        line = {"edgecolor": colour, "linewidth": 1.3, "linestyle": sets.dash(member)}
        _ridge(axes, base, outline, facecolor=(colour, 0.14), **line)
        axes.axhline(base, color=RULE, linewidth=0.8)
        axes.text(low, base + 0.72, sets.label(member), color=INK, parse_math=False)
    axes.set(xlim=(low, high), ylim=(0, len(members)), yticks=[])
    axes.spines[:].set_visible(False)
    scale = _decades(axes, low, high) if _is_log(record) else _multiples(axes)
    _keep_inside(axes, low, high)
    axes.set_xlabel(f"score{scale} (higher = more OOD)", labelpad=2)
    shown = ", ".join(sets.names[member] for member in members)
    return svg(figure, f"Scores of {record['detector']}: ID rows against {shown}")


@house_style
def roc(curves: Sequence[Curve], sets: Sets, max_points: int) -> str:
    """ROC curves of one detector with the first point whose true-positive rate is >= 0.95."""
    drawn = [curve for curve in curves if curve["fpr"] and curve["ood"] in sets.order]
    if not drawn:
        return ""
    side = HEIGHT
    figure = blank(side, side)
    axes = figure.add_axes((34 / side, 34 / side, 1 - 42 / side, 1 - 42 / side))
    axes.plot([0, 1], [0, 1], color=RULE, linewidth=0.8)
    axes.axhline(0.95, color=MUTED, linewidth=0.7, linestyle=(0, (1, 2)))
    for curve in sorted(drawn, key=lambda one: sets.order.index(one["ood"])):
        colour, ood = sets.colour(curve["ood"]), curve["ood"]
        fpr, tpr = np.asarray(curve["fpr"], float), np.asarray(curve["tpr"], float)
        kept = np.unique(
            np.linspace(0, len(fpr) - 1, min(max_points, len(fpr))).round().astype(int)
        )
        axes.plot(fpr[kept], tpr[kept], color=colour, linewidth=1.5, linestyle=sets.dash(ood))
        reached = np.flatnonzero(tpr >= 0.95)
        if len(reached):
            point = reached[0]
            at = axes.plot(fpr[point], tpr[point], sets.marker(ood), color=colour, markersize=6)
            at[0].set(markeredgecolor=PAPER, markeredgewidth=1.2)
    axes.set(xlim=(-0.015, 1), ylim=(0, 1.015), xticks=[0, 0.5, 1], yticks=[0, 0.5, 0.95])
    axes.set_xticklabels(["0", "0.5", "1"])
    axes.set_yticklabels(["0", "0.5", ".95"])
    axes.set_xlabel("false-positive rate", labelpad=1)
    axes.set_ylabel("true-positive rate", labelpad=1)
    axes.spines[["right", "top"]].set_visible(False)
    shown = ", ".join(sets.names[curve["ood"]] for curve in drawn)
    return svg(figure, f"ROC curves of {drawn[0]['detector']} on {shown}")


@house_style
def line_sample(sets: Sets, member: str) -> str:
    """The line and marker of one set, for the key."""
    figure = blank(40, 14)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.plot([0, 1], [0, 0], color=sets.colour(member), linewidth=1.6, linestyle=sets.dash(member))
    axes.plot([0.5], [0], sets.marker(member), color=sets.colour(member), markersize=6)
    axes.set_axis_off()
    return svg(figure, f"Line of {sets.names[member]}, {sets.group[member]}")


def has_open_ends(record: Histogram) -> bool:
    """Whether end bins also count rows beyond the edges."""
    return any(any(ends) for ends in record.get("beyond", {}).values())


def _is_log(record: Histogram) -> bool:
    return record.get("scale") == "log"


def _open_ends(record: Histogram, splits: Sequence[str]) -> tuple[bool, bool]:
    """Whether the first and whether the last bin count rows of ``splits`` beyond the edges."""
    beyond = record.get("beyond", {})
    below, above = (any(beyond.get(split, (0, 0))[end] for split in splits) for end in (0, 1))
    return below, above


def _decades(axes: Any, low: float, high: float) -> str:
    """Mark whole decades of an axis of exponents; return what the axis label says of it."""
    step = next(step for step in DECADE_STEPS if (high - low) / step <= DECADE_TICKS)
    marks = np.arange(np.ceil(low / step), np.floor(high / step) + 1) * step
    axes.set_xticks(marks, [_power(int(mark)) for mark in marks])
    return ", log scale"


def _multiples(axes: Any) -> str:
    """Mark round scores; return the power of ten and the offset that the marks leave out."""
    axes.locator_params(axis="x", nbins=5)
    formatter = axes.xaxis.get_major_formatter()
    formatter.set_locs(axes.get_xticks())
    axes.xaxis.get_offset_text().set_visible(False)
    offset = formatter.get_offset()  # such as 1e8, +1e9 or 1e-6+1e9
    if power := re.match(r"1e(-?\d+)", offset):
        return f" × {_power(int(power[1]))} {offset[power.end() :]}".rstrip()
    return f" {offset}".rstrip()


def _keep_inside(axes: Any, low: float, high: float) -> None:
    """Move the marks' labels that the edges of the figure would cut to the inside."""
    for mark, label in zip(axes.get_xticks(), axes.get_xticklabels(), strict=True):
        half = LABEL_WIDTH * len(label.get_text()) / 2 - 6
        from_low = (mark - low) / (high - low) * (WIDTH - 12)
        if from_low < half:
            label.set_horizontalalignment("left")
        elif WIDTH - 12 - from_low < half:
            label.set_horizontalalignment("right")


def _power(exponent: int) -> str:
    return "10" + str(exponent).translate(SUPERSCRIPTS)


def _finite_bins(record: Histogram, max_bins: int) -> tuple[Any, dict[str, Any]]:
    """Edges and counts without open-ended bins, neighbours joined until at most ``max_bins``.

    The edges of a log scale come as exponents of ten.
    """
    edges = np.asarray([np.nan if e is None else e for e in record["edges"]], float)
    if _is_log(record):
        edges = np.log10(np.where(edges > 0, edges, np.nan))
    finite = np.flatnonzero(np.isfinite(edges[:-1]) & np.isfinite(edges[1:]) & (np.diff(edges) > 0))
    if not len(finite):
        return edges[:0], {}
    first, last = finite[0], finite[-1] + 1
    joined = -(-(last - first) // max_bins)
    starts = np.arange(first, last, joined)
    counts = {
        split: np.add.reduceat(np.asarray(numbers[:last], float), starts)
        for split, numbers in record["counts"].items()
    }
    return np.append(edges[starts], edges[last]), counts


def _drawn_range(edges: Any, counts: Sequence[Any]) -> tuple[float, float]:
    """The bins that hold all of each split but a small tail, as a pair of scores."""
    low, high = len(edges) - 1, 0
    for numbers in counts:
        if total := numbers.sum():
            below = np.cumsum(numbers) / total
            low = min(low, int(np.searchsorted(below, TAIL, side="right")))
            high = max(high, int(np.searchsorted(below, 1 - TAIL)) + 1)
    return (edges[low], edges[high]) if low < high else (edges[0], edges[-1])


def _ridge(axes: Any, base: int, outline: tuple[Any, Any], **look: Any) -> None:
    density, edges = outline
    axes.stairs(base + 0.66 * density, edges, baseline=base, fill=True, **look)


def _outline(edges: Any, counts: Any, open_ends: tuple[bool, bool]) -> tuple[Any, Any]:
    """Counts per unit of the axis at a peak of one, and their edges, between the outermost counts.

    Open ends are cut at the peak of the other bins where those hold at least half of the counts.
    """
    filled = np.flatnonzero(counts)
    if not len(filled):
        return np.zeros(1), edges[:2]
    first, last = filled[0], filled[-1] + 1
    density = counts / np.diff(edges)
    closed = slice(int(open_ends[0]), len(density) - int(open_ends[1]))
    most = 2 * counts[closed].sum() >= counts.sum()
    peak = density[closed].max() if most else density.max()
    return (density[first:last] / peak).clip(max=1), edges[first : last + 1]


def blank(width: float, height: float) -> Figure:
    """Return an empty figure of so many points."""
    figure = Figure(figsize=(width / 72, height / 72), dpi=72)
    FigureCanvasSVG(figure)
    return figure


def svg(figure: Figure, label: str) -> str:
    """The figure as one ``<svg>`` element with the page's colours and an accessible name."""
    out = StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    with warnings.catch_warnings():
        # Names in scripts the drawing font lacks are set by the reader's browser, not by it.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure.savefig(out, format="svg", metadata=nothing)
    text = out.getvalue()
    referenced = sorted(set(re.findall(r"(?:href=\"|url\()#([\w.-]+)", text)))
    prefix = sha256(label.encode()).hexdigest()[:8]  # ids are unique on the page
    unique = {name: f"f{prefix}-{place}" for place, name in enumerate(referenced)}
    root = ElementTree.fromstring(text)
    for element in list(root.iter()):
        element.tag = element.tag.rpartition("}")[2]
        element.attrib = {
            key.rpartition("}")[2]: _trimmed(key.rpartition("}")[2], item, unique)
            for key, item in element.attrib.items()
            if key != "id" or item in unique
        }
        element.tail = None
        element.text = element.text if element.tag == "text" else None
    _drop_unseen(root)
    for key in ("width", "height", "version"):
        root.attrib.pop(key, None)
    root.set("role", "img")
    root.set("aria-label", label)
    title = ElementTree.Element("title")
    title.text = label
    root.insert(0, title)
    return ElementTree.tostring(root, encoding="unicode")


def _drop_unseen(parent: ElementTree.Element) -> None:
    """Remove metadata, styles and invisible paths; replace bare groups by what they hold."""
    kept: list[ElementTree.Element] = []
    for child in list(parent):
        _drop_unseen(child)
        bare = child.tag in ("g", "defs") and not child.attrib
        unseen = child.tag in ("metadata", "style") or child.get("style") == "fill: none"
        if bare and child.tag == "g":
            kept += list(child)
        elif not unseen and not (bare and not len(child)):
            kept.append(child)
    parent[:] = kept


def _trimmed(key: str, item: str, unique: dict[str, str]) -> str:
    """One attribute with the page's colours, font and ids, and tenths in coordinates."""
    if key in ("d", "transform", "x", "y"):
        return re.sub(
            r"-?\d+\.\d+", lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), item
        )
    item = re.sub("|".join(unique) or "$^", lambda found: unique[found[0]], item)
    if key != "style":
        return " ".join(item.split())
    # Older matplotlib writes the `font` shorthand, newer ones write size and family apart.
    item = re.sub(r"font: (?:[\w.]+ )*?([\d.]+px)[^;]*", r"font-size: \1", item)
    item = re.sub(r"font-family: [^;]*(; )?", "", item)
    return re.sub("|".join(VARIABLES), lambda found: f"var({VARIABLES[found[0]]})", item)
