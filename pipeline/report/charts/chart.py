"""The look of charts: colours for light and dark, sizes in points, files that say what is shown.

A chart is a matplotlib figure made without pyplot; nothing of it is global, and the user's own
matplotlib settings change nothing. Hues are told apart by the colour-blind and differ in lightness.
"""

from __future__ import annotations

import functools
import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, ParamSpec, TypeVar, cast

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font

from pipeline import files
from pipeline.errors import ConfigError
from pipeline.procedure import Estimate
from pipeline.report import figures

P = ParamSpec("P")
T = TypeVar("T")

PIXELS_PER_INCH = 100
TITLE_POINTS, TEXT_POINTS, SMALL_POINTS = 11.0, 9.0, 8.0
MARGIN = 12.0
"""Points between the edge of a chart and what is in it."""
SVG = "http://www.w3.org/2000/svg"
FONTS = "font-family: system-ui, -apple-system, 'Segoe UI', Roboto, Arial, sans-serif"
"""What readers of an SVG see; widths are measured in DejaVu Sans, which is wider."""
DASHES, SUPERSCRIPTS = figures.DASHES, figures.SUPERSCRIPTS


STEPS = (0.0, 0.32, 0.6, 0.84, 1.0)
"""Where colours stand on a scale: most of them where most shares that are right lie."""


class Theme(NamedTuple):
    """Colours of a chart."""

    paper: str
    ink: str
    muted: str
    rule: str
    quiet: str
    """Of what serves as a background to something else."""
    right: str
    wrong: str
    hues: tuple[str, ...]
    """Of several curves, in this order."""
    rights: tuple[str, ...]
    """From nothing to all that is right, see :data:`STEPS`."""
    wrongs: tuple[str, ...]

    @property
    def of_right(self) -> LinearSegmentedColormap:
        """Colours of shares that are right."""
        return LinearSegmentedColormap.from_list(
            "right", list(zip(STEPS, self.rights, strict=True))
        )

    @property
    def of_wrong(self) -> LinearSegmentedColormap:
        """Colours of shares that are wrong."""
        return LinearSegmentedColormap.from_list(
            "wrong", list(zip(STEPS, self.wrongs, strict=True))
        )


def _ramp(colours: Sequence[str]) -> LinearSegmentedColormap:
    return LinearSegmentedColormap.from_list("ramp", list(zip(STEPS, colours, strict=True)))


THEMES = {
    "light": Theme(
        paper="#ffffff", ink="#1c2126", muted="#5c6670", rule="#d5d9dc", quiet="#8a949d",
        right="#1b63a5", wrong="#bf4d00",
        hues=("#1b63a5", "#bf4d00", "#00785a", "#8a3d8f", "#8a6d00", "#5c6670"),
        rights=("#ffffff", "#c9dcee", "#6ea3d2", "#1b63a5", "#0c3a66"),
        wrongs=("#ffffff", "#fbd9c0", "#f0995c", "#bf4d00", "#732f00"),
    ),
    "dark": Theme(
        paper="#15181b", ink="#e6e8ea", muted="#a2abb3", rule="#3a4148", quiet="#7d8790",
        right="#6cb2f0", wrong="#f5975b",
        hues=("#6cb2f0", "#f5975b", "#4cc7a3", "#d193d6", "#d9b64a", "#a2abb3"),
        rights=("#15181b", "#1d3850", "#2f6da3", "#6cb2f0", "#d3e9ff"),
        wrongs=("#15181b", "#4a2a16", "#9c5527", "#f5975b", "#ffe2cf"),
    ),
}  # fmt: skip


class Chart(Figure):
    """A figure, and what it shows as numbers."""

    theme: Theme
    facts: Mapping[str, Any]
    """For the file beside the figure; see :func:`plain`."""
    label: str = "Chart"
    """What a reader who does not see it is told."""


def house_style(draw: Callable[P, T]) -> Callable[P, T]:
    """Make a function draw by matplotlib's defaults and the few that a chart changes."""

    @functools.wraps(draw)
    def drawn(*args: P.args, **options: P.kwargs) -> T:
        with style.context(STYLE, after_reset=True):
            return draw(*args, **options)

    return drawn


STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "featfold",
    "font.size": TEXT_POINTS,
    "axes.linewidth": 0.8,
    "axes.formatter.use_mathtext": False,
    "axes.unicode_minus": False,
    "hatch.linewidth": 0.6,
}


def theme_of(name: str) -> Theme:
    """Return the colours of a theme, ``light`` or ``dark``."""
    if name not in THEMES:
        raise ConfigError(f"theme: {name!r} is unknown; choose {' or '.join(THEMES)}")
    return THEMES[name]


def blank(width: float, height: float, theme: Theme, facts: Mapping[str, Any]) -> Chart:
    """Return an empty chart of so many points."""
    chart = Chart(figsize=(width / 72, height / 72), dpi=PIXELS_PER_INCH, facecolor=theme.paper)
    FigureCanvasAgg(chart)
    chart.theme, chart.facts = theme, facts
    return chart


def panel(chart: Chart, left: float, top: float, width: float, height: float) -> Axes:
    """Return axes of a size and place in points, from the upper left corner of a chart."""
    whole_width, whole_height = (72 * inches for inches in chart.get_size_inches())
    below = whole_height - top - height
    axes = chart.add_axes(
        (left / whole_width, below / whole_height, width / whole_width, height / whole_height)
    )
    axes.set_facecolor("none")
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(chart.theme.rule)
    axes.tick_params(
        which="both", colors=chart.theme.rule, labelcolor=chart.theme.muted,
        labelsize=SMALL_POINTS, length=3,
    )  # fmt: skip
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set(color=chart.theme.muted, size=SMALL_POINTS)
    return axes


def theme_in(axes: Axes) -> Theme:
    """Return the colours of the chart that axes are part of."""
    return cast(Chart, axes.figure).theme


def heading(chart: Chart, title: str, subtitle: str, left: float = MARGIN) -> None:
    """Write the title of a chart, and below it what else is to be known."""
    chart.label = f"{title}: {subtitle}" if subtitle else title
    width, height = (72 * inches for inches in chart.get_size_inches())
    for text, top, size, colour, weight in (
        (title, MARGIN, TITLE_POINTS, chart.theme.ink, "bold"),
        (subtitle, MARGIN + 1.5 * TITLE_POINTS, SMALL_POINTS, chart.theme.muted, "normal"),
    ):
        chart.text(
            left / width, 1 - top / height, text, size=size, color=colour, weight=weight,
            va="top", parse_math=False,
        )  # fmt: skip


HEADING = 1.5 * TITLE_POINTS + 1.4 * SMALL_POINTS + 8.0
"""Points that a heading takes below the margin."""


@functools.lru_cache(maxsize=4096)
def text_width(text: str, points: float, weight: str = "normal") -> float:
    """Return the width of a line of text in points."""
    font = get_font(findfont(FontProperties(weight=weight)))
    font.set_size(points, 72)
    with _any_script():
        font.set_text(text, 0.0)
    return float(font.get_width_height()[0]) / 64


def fitted(text: str, points: float, width: float, weight: str = "normal") -> str:
    """Return a line of text, with its middle left out where it is wider than so many points."""
    if text_width(text, points, weight) <= width:
        return text
    fits, too_many = 0, len(text)
    while too_many - fits > 1:
        kept = (fits + too_many) // 2
        if text_width(_without_middle(text, kept), points, weight) <= width:
            fits = kept
        else:
            too_many = kept
    return _without_middle(text, fits)


def _without_middle(text: str, kept: int) -> str:
    """Return the first and last letters of a text, so many of both together."""
    return f"{text[: (kept + 1) // 2]}…{text[len(text) - kept // 2 :]}"


def share(number: float) -> str:
    """Return a share in percent as short as it can be told: 97, 4.2, 0.03; nothing for zero."""
    percent = 100 * number
    if percent == 0 or math.isnan(percent):
        return ""
    if percent >= 9.95:
        return f"{percent:.0f}"
    return (
        f"{percent:.1f}" if percent >= 0.095 else f"{percent:.2f}" if percent >= 0.005 else "<.01"
    )


def count(number: float) -> str:
    """Return a count in at most four characters: 950, 1.2k, 35k, 4.1M."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * size:
            of = number / size
            return f"{of:.1f}{unit}" if of < 9.95 else f"{of:.0f}{unit}"
    return f"{number:.0f}"


def counted(number: int, what: str = "element") -> str:
    """Return a number of things in words: 1 element, 2,000 elements, no element."""
    return f"{number:,} {what}{'s' if number > 1 else ''}" if number else f"no {what}"


def power(exponent: int) -> str:
    """Return a power of ten as it is written."""
    return "10" + str(exponent).translate(SUPERSCRIPTS)


def told(estimate: Estimate | float, digits: int = 3) -> str:
    """Return a number, with its bounds where it is not exact."""
    number = float(estimate)
    if math.isnan(number):
        return "undefined"
    text = f"{number:.{digits}f}"
    if not isinstance(estimate, Estimate) or estimate.exact:
        return text
    return f"{text} ({estimate.lower:.{digits + 1}f} to {estimate.upper:.{digits + 1}f})"


def plain(found: Any) -> Any:
    """Return numbers, estimates, arrays and tuples of these as JSON can hold them."""
    if isinstance(found, Estimate):
        fields = ("value", "lower", "upper", "exact", "reason")
        return {name: plain(getattr(found, name)) for name in fields}
    if isinstance(found, Mapping):
        return {str(key): plain(item) for key, item in found.items()}
    if hasattr(found, "_asdict"):
        return plain(found._asdict())
    if isinstance(found, np.ndarray):
        return plain(found.tolist())
    if isinstance(found, (list, tuple)):
        return [plain(item) for item in found]
    if isinstance(found, np.generic):
        return plain(found.item())
    if isinstance(found, float) and not math.isfinite(found):
        return None if math.isnan(found) else str(found)
    return found


@house_style
def svg(chart: Chart) -> str:
    """Return a chart as one small ``<svg>`` document with an accessible name."""
    width, height = (72 * inches for inches in chart.get_size_inches())
    head = f'<svg xmlns="{SVG}" width="{width:.0f}pt" height="{height:.0f}pt" style="{FONTS}" '
    return figures.svg(chart, chart.label).replace("<svg ", head, 1)


@house_style
def png(chart: Chart, scale: float = 1.0) -> bytes:
    """Return a chart as PNG, at 100 pixels an inch or a multiple of it."""
    out = BytesIO()
    with _any_script():
        chart.savefig(out, format="png", dpi=PIXELS_PER_INCH * scale)
    return out.getvalue()


def save(chart: Chart, path: str | Path) -> None:
    """Write a chart as SVG or PNG, as ``path`` ends, and beside it as JSON what it shows."""
    path = Path(path)
    made = {".svg": lambda: svg(chart).encode(), ".png": lambda: png(chart)}
    if path.suffix.lower() not in made:
        raise ConfigError(f"{path}: charts are written as {' or '.join(made)}")
    facts = json.dumps(plain(chart.facts), indent=1, ensure_ascii=False).encode()
    for name, content in ((path, made[path.suffix.lower()]()), (path.with_suffix(".json"), facts)):
        files.write_whole(name, functools.partial(_write, content), len(content), REMEDY)


REMEDY = "name another folder for the figures"


def _write(content: bytes, file: BinaryIO) -> None:
    file.write(content)


@contextmanager
def _any_script() -> Iterator[None]:
    """Let names be in scripts that the drawing font lacks: a reader of the SVG has others."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield
