"""The table of detectors in the README, from the code: ``python -m pipeline.detector_table``.

What a detector needs, its passes and whether they may be taken up again are found by running it
over made-up rows; the size of its state by asking its statistics for d = 1,024 and k = 1,000.
"""

from __future__ import annotations

import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pipeline import detectors
from pipeline.chunk import ArraySpec
from pipeline.content import Const
from pipeline.engine import Job, Trace, rehearse, run_jobs
from pipeline.engine.serial import run_work
from pipeline.errors import ConfigError
from pipeline.fold import Partial
from pipeline.heads import Head, LDAHead, LinearHead, StoredHead
from pipeline.inputs import with_head
from pipeline.plan import Pass, Work
from pipeline.procedure import REHEARSING, TRAIN, Detector, Rows, Scorer
from pipeline.statistics import fields_of
from pipeline.store import DeclaredSplit
from pipeline.synthetic import SyntheticSplit

ROWS, TOKENS, D, K = 50_000, 49, 1024, 1000
"""The shape that states are given for."""
RUNS = 10
"""Runs of a model whose logits a probe wrote."""
FEW_TOKENS, FEW_D, FEW_K = 4, 16, 5
"""A shape that has the same passes in no time."""
BEGIN = "<!-- detectors: written by python -m pipeline.detector_table, do not edit -->"
END = "<!-- end of detectors -->"
HEADER = ("name", "paper", "score", "needs", "passes (lda)", "incremental", "state", "presets")
WEIGHTS = "head weights"
EXAMPLES: Mapping[str, Callable[[int], Mapping[str, Any]]] = {
    "ensemble": lambda _: {
        "detectors": (detectors.make("mahalanobis"), detectors.make("relative_mahalanobis"))
    },
    "weighted_energy": lambda k: {"weights": (1.0,) * k},
}
"""Options that a detector has no default for, by the number of classes."""
ARRAYS = ("features", "logits", "labels", "ids")


@dataclass(frozen=True)
class Entry:
    """What the table says of a detector."""

    name: str
    paper: str
    formula: str
    needs: tuple[str, ...]
    passes: int
    """Passes of its fit with stored logits, or with given weights where it needs them."""
    passes_lda: int
    incremental: bool
    """Whether no later pass depends on what an earlier one found."""
    state_nbytes: int
    bank_nbytes: int
    """Bytes that its bank keeps of each row."""
    presets: tuple[str, ...]

    def cells(self) -> tuple[str, ...]:
        """Return the cells of its row."""
        again = "-" if not self.passes else "yes" if self.incremental else "first pass"
        cells = (
            f"`{self.name}`", self.paper or "-", self.formula, ", ".join(self.needs),
            f"{self.passes} ({self.passes_lda})", again, self._state(),
            ", ".join(self.presets) or "-",
        )  # fmt: skip
        return tuple(cell.replace("|", "\\|") for cell in cells)

    def _state(self) -> str:
        if self.bank_nbytes:
            return f"bank, {decimal(self.bank_nbytes)} a row"
        return decimal(self.state_nbytes) if self.state_nbytes else "none"


def entry(name: str) -> Entry:
    """Return the row of a detector; :class:`ConfigError` where its class does not say its part."""
    cls = detectors.load(name)
    for attribute in ("paper", "formula"):
        if not hasattr(cls, attribute):
            raise ConfigError(
                f"{sys.modules[cls.__module__].__file__}: {cls.__name__} has no {attribute}; give "
                "it the ClassVars paper and formula, as in pipeline/detectors/she.py"
            )
    detector = _usual(name, FEW_K)
    weights = _needs_weights(detector)
    probed = detectors.probed_of(cls)
    few = _schema_split(FEW_TOKENS, FEW_D, FEW_K, probed)
    passes, scorer = _rehearsed(detector, few, weights=weights)
    statistics = [s for pass_ in passes for s in pass_]
    fields = {f for s in statistics for f in s.fields} | fields_of(*scorer.views)
    many = _large_passes(_usual(name, K), weights=weights, single=len(passes) < 2)
    states = {s for pass_ in many for s in pass_ if not isinstance(s, Rows)}
    schema = _schema_split(TOKENS, D, K, probed).schema
    banks = {s for pass_ in many for s in pass_ if isinstance(s, Rows)}
    return Entry(
        name, cls.paper, cls.formula,
        (*(f for f in (*ARRAYS, *probed) if f in fields), *((WEIGHTS,) if weights else ())),
        len(passes),
        len(_rehearsed(detector, few, lda=True)[0]),
        _independent(detector, few, weights),
        sum(statistic.state_nbytes(schema) for statistic in states),
        sum(8 * int(np.prod(rows.view.shape(schema))) for rows in banks),
        tuple(preset for preset in detectors.PRESETS if preset in detectors.presets_of(cls)),
    )  # fmt: skip


def methods(names: Sequence[str]) -> int:
    """Return the number of distinct first publications: variants of one share it."""
    papers = (detectors.load(name).paper for name in names)
    return len({paper.removeprefix("after ") for paper in papers if paper})


def table(names: Sequence[str]) -> str:
    """Return the table of detectors in Markdown."""
    lines = [HEADER, ("---",) * len(HEADER), *(entry(name).cells() for name in names)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def own() -> tuple[str, ...]:
    """Return the names of the detectors of this package, those of plug-ins left out."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(detectors.__path__)))


def written(text: str) -> str:
    """Return a text with the table between its marks brought up to date."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ConfigError(f"there is no place for the table: expected {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{table(own())}\n\n{END}{after}"


def decimal(nbytes: int) -> str:
    """Return bytes with three digits, in powers of 1000."""
    for power, unit in ((9, "GB"), (6, "MB"), (3, "kB")):
        if nbytes >= 10**power:
            return f"{nbytes / 10**power:.3g} {unit}"
    return f"{nbytes} B"


def _usual(name: str, classes: int) -> Detector:
    """Return a detector with its defaults, and for what has none an example, or a preset."""
    cls = detectors.load(name)
    example = EXAMPLES[name](classes) if name in EXAMPLES else {}
    needed = set(detectors.required(cls)) - set(example)
    able = [p for p, options in detectors.presets_of(cls).items() if needed <= set(options)]
    if needed and not able:
        raise ConfigError(f"{name} has no default and no preset for {', '.join(sorted(needed))}")
    return detectors.plain(detectors.make(name, preset=able[0] if needed else "", **example))  # type: ignore[no-any-return]


def _needs_weights(detector: Detector) -> bool:
    try:
        probed = detectors.probed_of(type(detector))
        _rehearsed(detector, _schema_split(FEW_TOKENS, FEW_D, FEW_K, probed))
    except ConfigError:  # stored logits are not enough
        return True
    return False


def _schema_split(tokens: int, d: int, k: int, probed: Mapping[str, str]) -> DeclaredSplit:
    """Return a split of some shape; arrays that probes wrote by what their rows are made of."""
    widths = {"K": k, "SK": RUNS * k, "D": d}
    arrays = {
        "features": ArraySpec((tokens, d), "float32", "TD"),
        "logits": ArraySpec((k,), "float32", "K"),
        "labels": ArraySpec((), "int64"),
        **{name: ArraySpec((widths[each],), "float32") for name, each in probed.items()},
    }
    return DeclaredSplit.of("id/train", arrays, classes=k, rows=ROWS)


def _job(detector: Detector, split: DeclaredSplit, head: Head) -> Job:
    return Job(with_head(detector, head), {TRAIN: (split,)})


def _head(split: DeclaredSplit, *, weights: bool, lda: bool) -> Head:
    if lda:
        return LDAHead()
    if not weights:
        return StoredHead()
    shape = split.schema.classes, split.schema.spec("features").shape[-1]
    drawn = np.random.default_rng(0).standard_normal(shape)
    return LinearHead(Const(drawn), Const(np.zeros(shape[0])))


def _rehearsed(
    detector: Detector,
    split: DeclaredSplit,
    *,
    weights: bool = False,
    lda: bool = False,
    seed: int = 0,
    as_planned: bool = True,
) -> tuple[list[set[Any]], Scorer]:
    """Return what each pass asks for over made-up rows, and the scorer.

    ``as_planned`` they stand for the rows of the split; else a detector sees how few there are.
    """
    trace = Trace()

    def execute(pass_: Pass) -> Sequence[Partial]:
        return [run_work(_made_up(work, seed)) for work in pass_.works]

    job = _job(detector, split, _head(split, weights=weights, lda=lda))
    token = REHEARSING.set(as_planned)
    try:
        outcomes: Mapping[str, Any] = run_jobs({"it": job}, execute, trace=trace)
    finally:
        REHEARSING.reset(token)
    return [_asked(pass_) for pass_ in trace.passes], outcomes["it"]


def _independent(detector: Detector, split: DeclaredSplit, weights: bool) -> bool:
    """Tell whether later passes ask for the same whatever the rows of the first one are.

    A plan leaves out linear algebra, and few rows may need no further pass: both are asked.
    """
    for as_planned in (True, False):
        one, other = (
            _rehearsed(detector, split, weights=weights, seed=seed, as_planned=as_planned)[0]
            for seed in (0, 1)
        )
        if one[1:] != other[1:]:
            return False
    return True


def _made_up(work: Work, seed: int) -> Work:
    made_up = SyntheticSplit.of(work.split, every_class=True)
    return replace(work, split=replace(made_up, seed=seed))


def _asked(pass_: Pass) -> set[Any]:
    return {asked for work in pass_.works for asked in (*work.statistics, *work.rows)}


def _large_passes(detector: Detector, *, weights: bool, single: bool) -> list[set[Any]]:
    """Return what each pass asks for at d = 1,024 and k = 1,000.

    What the first pass asks for depends on no result: only further ones are rehearsed for it.
    """
    split = _schema_split(TOKENS, D, K, detectors.probed_of(type(detector)))
    job = _job(detector, split, _head(split, weights=weights, lda=False))
    if not single:
        return [_asked(pass_) for pass_ in rehearse({"it": job})[0]]
    asked = next(job.procedure.passes(job.schema), None)
    return [set(asked.values())] if asked else []


def main() -> None:
    """Write the table into the README of the checkout, or print it where there is none."""
    readme = Path(__file__).parents[1] / "README.md"
    if readme.is_file():
        readme.write_text(written(readme.read_text()))
    else:
        print(table(own()))


if __name__ == "__main__":
    main()
