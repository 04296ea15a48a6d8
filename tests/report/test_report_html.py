"""The page: offline, escaped, complete, small, the same bytes for the same results."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.report import check, write_report
from pipeline.report.html import breakable, kinds_of, named, render
from pipeline.report.matrices import shortened

VOID = {"meta", "br", "wbr"}


class Page(HTMLParser):
    """What a reader's browser would find: open elements, attributes, visible words."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    def values(self, name: str) -> list[str]:
        return [value for _, attribute, value in self.attributes if attribute == name]

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


def page(results: dict[str, Any]) -> Page:
    return Page(render(check(results)))


def test_page_is_whole_and_links_lead_somewhere(results: dict[str, Any], usual: str) -> None:
    found = Page(usual)
    ids = found.values("id")
    assert len(set(ids)) == len(ids)
    targets = [link.removeprefix("#") for link in found.values("href")]
    assert set(targets) <= set(ids)
    for section in ("headline", "sets", "detectors", "classification", "data", "memory"):
        assert section in ids
        assert section in targets
    for words in ("12.3 s", "351.0 MiB measured, 402.0 MiB projected", "lda head", "crc32c:"):
        assert words in found.text
    for words in (*results["conventions"], "featfold run configs/demo.yaml", "condition 3e9"):
        assert words in found.text


def test_page_asks_the_network_for_nothing(usual: str) -> None:
    assert not re.search(r"https?://|//[a-z]|@import|url\((?!#)", usual)
    found = Page(usual)
    assert not found.values("src")
    assert all(link.startswith("#") for link in found.values("href"))
    assert {"link", "img", "iframe", "object"}.isdisjoint(found.tags)
    policy = [value for value in found.values("content") if "default-src" in value]
    assert policy[0].startswith("default-src 'none'")


def test_page_holds_every_detector_with_its_figures(results: dict[str, Any], usual: str) -> None:
    found = Page(usual)
    labels = found.values("aria-label")
    for detector in results["detectors"]:
        assert found.values("data-value").count(detector["id"]) == 4
        assert f"ROC curves of {detector['id']} on digits_8_9, photo_patches, textures" in labels
        assert any(label.startswith(f"Scores of {detector['id']}: ID rows") for label in labels)
    assert "Confusion matrix of 8 classes on id/test" in labels
    assert "Spearman correlation between the scores of 9 detectors" in labels
    assert found.tags["svg"] == 9 * 2 + 3 + 2


def test_figures_follow_the_page_and_carry_text(usual: str) -> None:
    figures = re.findall(r"<svg.*?</svg>", usual, flags=re.S)
    for figure in figures:
        assert not re.search(r"#[0-9a-f]{6}\b", figure)
        assert "font-family" not in figure
        assert "<image" not in figure
    roc = next(figure for figure in figures if "ROC curves of msp" in figure)
    assert ">false-positive rate</text>" in roc
    assert roc.count("var(--near)") >= 2  # line and mark
    assert "stroke-dasharray" in roc


def test_roc_marks_the_first_point_at_95_percent(results: dict[str, Any], usual: str) -> None:
    curve = next(c for c in results["curves"] if c["detector"] == "msp" and "near" in c["ood"])
    position = int(np.argmax(np.asarray(curve["tpr"]) >= 0.95))
    fpr, tpr = curve["fpr"][position], curve["tpr"][position]
    roc = re.search(r'<svg[^>]*aria-label="ROC curves of msp.*?</svg>', usual, flags=re.S)
    assert roc is not None
    frame = re.search(r"M ([\d.]+) ([\d.]+) +L ([\d.]+) ([\d.]+) *\" clip-path", roc[0])
    assert frame is not None  # the first line is the chance diagonal, from (0, 0) to (1, 1)
    x0, y0, x1, y1 = map(float, frame.groups())
    marks = [
        (float(x), float(y))
        for x, y in re.findall(r'<use href="#[^"]+" x="([\d.]+)" y="([\d.]+)"[^>]*near', roc[0])
    ]
    expected = (x0 + fpr * (x1 - x0), y0 + tpr * (y1 - y0))
    assert marks == [pytest.approx(expected, abs=0.11)]


def test_names_are_escaped(factory: Callable[..., dict[str, Any]]) -> None:
    evil = "<script>alert(1)</script>"
    results = factory({evil: 2.0, "a$b$&'\"": 1.0, "日本": 1.0}, near=[f"ood/near/{evil}"])
    results["name"] = evil
    results["detectors"][0]["notes"] = [evil]
    results["provenance"]["config"] = f"a: '{evil}'\n"
    text = render(check(results))
    found = Page(text)
    assert found.tags["script"] == 1
    assert "<script>alert" not in text
    assert found.text.count("alert(1)") > 10
    assert any("a$b$&'\"" in label for label in found.values("aria-label"))


def test_names_break_between_words_and_not_within_numbers() -> None:
    assert breakable("react(preset=openood-1.5, q=90.0)") == (
        "react(<wbr>preset=<wbr>openood-1.5, q=<wbr>90.0)"
    )
    assert breakable("ood/near/a_b pipeline.views<b>") == (
        "ood/<wbr>near/<wbr>a_<wbr>b pipeline.<wbr>views&lt;b&gt;"
    )


def test_options_stand_below_the_name_and_break_between_one_another() -> None:
    found = named("ensemble(detectors=vim + mahalanobis(normalize=1.0), weights=(2.0, 1.0))")
    assert found == (
        'ensemble<span class="options">'
        "(detectors=vim + mahalanobis(normalize=1.0), weights=(2.0, 1.0))</span>"
    )
    assert named("max_logit") == breakable("max_logit")
    assert named("mean_pixel (baseline)") == breakable("mean_pixel (baseline)")
    assert named("k(a=<b>) (baseline)") == (
        'k<span class="options">(a=&lt;b&gt;)</span> (baseline)'
    )


def test_long_names_leave_the_tables_of_sets_the_width_of_the_page(
    results: dict[str, Any], usual: str
) -> None:
    long = "relative_mahalanobis(preset=openood-1.5, precision=float32, normalize=1.0)"
    page = json.loads(json.dumps(results).replace('"relative_mahalanobis"', json.dumps(long)))
    assert '<div class="pair roomy">' in render(check(page))
    assert '<div class="pair roomy">' not in usual


def test_statistics_of_one_kind_are_one_row_of_a_pass(results: dict[str, Any]) -> None:
    ranks = [
        {"name": "ExactRanks(logits)", "asked_by": [name], "state_nbytes": 2**20}
        for name in ("msp", "energy")
    ]
    other = {"name": "ExactRanks(features)", "asked_by": ["vim"], "state_nbytes": 2**10}
    assert kinds_of([ranks[0], other, ranks[1]]) == [
        {"name": "2 ExactRanks(logits)", "asked_by": ["msp", "energy"], "state_nbytes": 2**21},
        other,
    ]
    results["passes"][-1]["statistics"] = [*ranks, other]
    assert "2 ExactRanks(<wbr>logits)" in render(check(results))


def test_long_names_leave_the_matrix_of_agreement_its_room() -> None:
    long = "ensemble(detectors=vim + mahalanobis, weights=(2.0, 1.0))"
    assert shortened("relative_mahalanobis") == "relative_mahalanobis"
    assert shortened(long) == "ensemble(detecto…ights=(2.0, 1.0))"
    assert len(shortened(long)) == 34


def test_user_settings_of_matplotlib_do_not_show(
    factory: Callable[..., dict[str, Any]],
) -> None:
    import matplotlib as mpl

    results = factory({"msp": 1.0}, far=[])
    before = render(check(results))
    with mpl.rc_context({"axes.facecolor": "red", "font.size": 30, "svg.fonttype": "path"}):
        assert render(check(results)) == before


def test_same_results_give_the_same_bytes(
    factory: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    results = factory({"msp": 1.0, "vim": 2.0})
    write_report(results, tmp_path / "a")
    write_report(results, tmp_path / "b")
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_large_runs_stay_small(factory: Callable[..., dict[str, Any]]) -> None:
    strengths = {f"detector_{number}": 1 + number / 10 for number in range(24)}
    far = [f"ood/far/set_{number}" for number in range(15)]
    results = factory(strengths, far=far, classes=300)
    text = render(check(results))
    assert len(text.encode()) < 2_000_000
    found = Page(text)
    assert "the 20 of lowest recall among 300" in found.text
    assert "Figures of the first 20 of 25 detectors" in found.text
    assert "Confusion matrix of 300 classes on id/test" in found.values("aria-label")
    assert set(strengths) < set(found.values("data-value"))


def test_what_was_not_recorded_is_said(results: dict[str, Any]) -> None:
    results["classification"] = None
    results["curves"] = []
    results |= {"comparisons": [], "agreement": None}
    results["detectors"] = results["detectors"][:2]
    for key in ("scores", "histograms"):
        results[key] = [r for r in results[key] if r["detector"] in ("msp", "max_logit")]
    found = page(results)
    assert "No classification was evaluated in this run" in found.text
    assert "No ROC curves were recorded in this run." in found.text
    assert "No score histograms" not in found.text
    assert not any(label.startswith("ROC") for label in found.values("aria-label"))
    assert "ACC" not in found.text
    results["histograms"], results["scores"], results["passes"] = [], [], []
    results["agreement"] = None
    found = page(results)
    assert "No score histograms were recorded in this run." in found.text
    assert found.text.count("No out-of-distribution set was scored in this run.") == 2
    assert "Nothing was read in this run" in found.text
    assert found.tags["svg"] == 0


def test_undefined_numbers_are_shown_with_their_reason(
    factory: Callable[..., dict[str, Any]],
) -> None:
    results = factory({"msp": 1.0})
    results["scores"][0]["metrics"]["auroc"] = {"value": float("nan"), "reason": "all scores tie"}
    results["classification"]["per_class"][1]["precision"] = None
    overall = results["classification"]["overall"]
    overall["f1_macro"] = {"value": None, "reason": "class 1 was never predicted"}
    found = page(results)
    assert "msp, near · digits_8_9 AUROC: undefined, all scores tie" in found.text
    assert "Precision is undefined where no row was predicted as the class" in found.text
    assert "F1 macro undefined (class 1 was never predicted)" in found.text
    assert found.values("class").count("undefined") == 4
    assert "nan" not in found.text.split("Config")[0].lower().split()


def test_exceeded_and_unmeasured_memory(results: dict[str, Any]) -> None:
    results |= {"histograms": [], "curves": [], "classification": None}
    results["memory"]["measured_nbytes"] = 2 * results["memory"]["projected_nbytes"]
    assert "The projection was exceeded." in page(results).text
    results["memory"]["measured_nbytes"] = results["memory"]["allowed_nbytes"] = None
    found = page(results)
    assert "Memory per worker: not measured, 402.0 MiB projected." in found.text
    assert "The projection was exceeded." not in found.text


@pytest.mark.parametrize(
    ("edges", "counts"),
    [
        ([0.0, 1.0], [5]),
        ([0.0, 0.0, 0.0], [3, 4]),
        ([0.0, 1.0, 2.0], [0, 0]),
        ([float("-inf"), 0.0, 1.0, float("inf")], [1, 5, 2]),
        ([-1e300, 0.0, 1e300], [1, 1]),
        ([1e9, 1e9 + 1e-6], [3]),
    ],
)
def test_odd_histograms_draw(
    factory: Callable[..., dict[str, Any]], edges: list[float], counts: list[int]
) -> None:
    results = factory({"msp": 1.0})
    for record in results["histograms"]:
        record["edges"] = edges
        record["counts"] = dict.fromkeys(record["counts"], counts)
    assert page(results).tags["article"] == 2
    for record in results["histograms"]:  # an older file has neither key
        record |= {"scale": "log", "beyond": {split: [1, 2] for split in record["counts"]}}
    assert page(results).tags["article"] == 2


END_BINS = "Rows beyond the axis count in its end bins"


def with_edges(
    factory: Callable[..., dict[str, Any]], edges: Any, scale: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    results = factory({"msp": 1.0}, far=[])
    results["histograms"] = results["histograms"][:1]
    record: dict[str, Any] = results["histograms"][0]
    record |= {"edges": list(edges), "scale": scale}
    record["counts"] = {split: [1] * (len(edges) - 1) for split in record["counts"]}
    return results, record


def test_a_log_scale_has_decades_and_says_so(factory: Callable[..., dict[str, Any]]) -> None:
    results, record = with_edges(factory, np.geomspace(1e-12, 1, 61), "log")
    found = page(results)
    assert "score, log scale (higher = more OOD)" in found.words
    decades = re.compile("10[⁻⁰¹²³⁶⁹]+")
    marks = [word for word in found.words if decades.fullmatch(word)]
    assert marks == ["10⁻¹²", "10⁻⁹", "10⁻⁶", "10⁻³", "10⁰"]
    del record["scale"]
    found = page(results)
    assert "score (higher = more OOD)" in found.words
    assert not any(decades.fullmatch(word) for word in found.words)


@pytest.mark.parametrize(
    ("low", "high", "words", "mark"),
    [
        (0, 4e8, "score × 10⁸ (higher = more OOD)", "3"),
        (-4e-7, 0, "score × 10⁻⁷ (higher = more OOD)", "-3"),
        (1e9, 1e9 + 4, "score +1e9 (higher = more OOD)", "3"),
        (-100, 26, "score (higher = more OOD)", "-50"),
    ],
)
def test_a_linear_axis_says_its_power_of_ten_once(
    factory: Callable[..., dict[str, Any]], low: float, high: float, words: str, mark: str
) -> None:
    found = page(with_edges(factory, np.linspace(low, high, 61), "linear")[0])
    assert words in found.words
    assert mark in found.words
    assert not any(re.match(r"\+?1e", word) for word in found.words)


def test_rows_beyond_the_axis_are_told_and_set_no_peak(
    factory: Callable[..., dict[str, Any]],
) -> None:
    results, record = with_edges(factory, np.geomspace(1e-12, 1, 61), "log")
    even = page(results)
    assert END_BINS not in even.text
    for counts in record["counts"].values():
        counts[0] = 50
    record["beyond"] = {split: [49, 0] for split in record["counts"]}
    found = page(results)
    assert END_BINS in found.text
    # The first bin is as high as the others, so the ridges are those of even counts.
    assert found.values("d") == even.values("d")
    record["beyond"] = {split: [0, 0] for split in record["counts"]}
    scaled = page(results)
    assert END_BINS not in scaled.text
    assert scaled.values("d") != even.values("d")
    for counts in record["counts"].values():
        counts[0] = 100
    true_to_scale = page(results).values("d")
    record["beyond"] = {split: [99, 0] for split in record["counts"]}
    assert page(results).values("d") == true_to_scale  # most rows lie beyond the axis


def test_odd_curves_and_classes_draw(factory: Callable[..., dict[str, Any]]) -> None:
    results = factory({"msp": 1.0}, classes=1)
    results["curves"][0] |= {"fpr": [], "tpr": []}
    results["curves"][1] |= {"fpr": [0.0, 0.0, 1.0], "tpr": [0.0, 0.5, 0.9]}
    results["classification"]["confusion"] = [[0]]
    assert page(results).tags["article"] == 2
