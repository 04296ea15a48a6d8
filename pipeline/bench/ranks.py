"""``featfold bench ranks``: metrics of scores beside one sort, and more scores than fit."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from rich.table import Table

from pipeline import metrics
from pipeline.bench.measuring import Outcome, Say, alternate, medians, spread, table
from pipeline.bench.scores import KINDS, MadeUpScores, halves
from pipeline.engine import run, run_jobs
from pipeline.errors import FeatfoldError
from pipeline.facts import installed
from pipeline.jobs import Job, Trace
from pipeline.machine import peak_rss_nbytes
from pipeline.plan import human
from pipeline.procedure import TRAIN
from pipeline.store import ArraySplit
from pipeline.views import Stored

EXACT_BUDGET_NBYTES = 128 * 2**20
BOUNDED_BUDGET_NBYTES = 32 * 2**20
BINS = 2**17
SORT, OURS, PEER = "np.sort of the scores", "auroc", "scikit-learn"
_ANSWER = """
import json, sys
from pipeline.bench.ranks import answer
print(json.dumps(answer(**json.loads(sys.argv[1]))))
"""


def bench(
    peer_rows: int, exact_rows: int, bounded_rows: int, repeat: int, say: Say = lambda text: None
) -> Outcome:
    """Time AUROC from memory beside a sort and scikit-learn; then what does not fit, by itself."""
    beside = _beside(peer_rows, repeat, say)
    asked = [("energy", exact_rows, True)] + [(kind, bounded_rows, False) for kind in KINDS]
    large = []
    for kind, rows, exact in asked:
        large.append(_in_a_process({"kind": kind, "rows": rows, "exact": exact}))
        say(f"{kind}, {rows:,} rows: {large[-1]['seconds']:.1f} s")
    numbers = {"beside": beside, "large": large}
    notes = [
        f"{peer_rows:,} float32 scores in memory, half of them positive, one thread; the sort is "
        "of the scores alone",
        "large: a fresh process each, whose peak it is; scores are drawn anew for every pass, "
        "which is part of the time and shown beside it",
        f"exact within {human(EXACT_BUDGET_NBYTES)} of scores; bounds within "
        f"{human(BOUNDED_BUDGET_NBYTES)}, and {BINS:,} bins",
    ]
    tables = {
        f"AUROC of {peer_rows:,} scores": _shown_beside(beside),
        "More scores than fit": _shown_large(large),
    }
    return Outcome("ranks", numbers, tables, notes)


def _beside(rows: int, repeat: int, say: Say) -> dict[str, Any]:
    negatives, positives = (_all_of(split) for split in halves("energy", rows))
    scores = np.concatenate((negatives, positives))
    is_ood = np.arange(len(scores)) >= len(negatives)
    order = np.random.default_rng(0).permutation(len(scores))
    scores, is_ood = scores[order], is_ood[order]
    found: dict[str, float] = {}
    sides = {
        SORT: lambda: _seconds(lambda: np.sort(scores)),
        OURS: lambda: _seconds(lambda: found.update(ours=_auroc(scores, is_ood))),
    }
    if (peer := _peer()) is not None:
        sides[PEER] = lambda: _seconds(lambda: found.update(peer=peer(is_ood, scores)))
    taken = alternate(sides, repeat, say)
    middle = medians(taken)
    return {
        "rows": rows,
        "seconds": taken,
        "auroc": found,
        "times_the_sort": middle[OURS] / middle[SORT],
        "times_faster": middle[PEER] / middle[OURS] if peer else None,
        "peer": {"scikit-learn": installed("scikit-learn")} if peer else None,
    }


def _peer() -> Callable[[Any, Any], float] | None:
    try:
        from sklearn.metrics import roc_auc_score
    except ImportError:
        return None
    return roc_auc_score  # type: ignore[no-any-return]


def _seconds(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _all_of(split: MadeUpScores) -> np.ndarray[Any, Any]:
    chunks = (chunk for block in split.blocks for chunk in split.read(block, frozenset()))
    return np.concatenate([chunk["scores"] for chunk in chunks])


def _auroc(scores: Any, is_ood: Any) -> float:
    split = ArraySplit(arrays={"scores": scores, "is_positive": is_ood}, classes=0)
    outcome = run({"auroc": metrics.AUROC(is_ood=Stored("is_positive"))}, split)["auroc"]
    return float(outcome["auroc"])


def _in_a_process(asked: Mapping[str, Any]) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", _ANSWER, json.dumps(asked)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise FeatfoldError(f"metrics in a fresh process failed:\n{done.stderr.strip()}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def answer(kind: str, rows: int, exact: bool) -> dict[str, Any]:
    """Measure metrics of made-up scores in this process, and say what it took.

    Exact: auroc, both average precisions and fpr95, from the same passes. Else bounds of auroc.
    """
    splits = halves(kind, rows)
    before_nbytes = peak_rss_nbytes()
    drawing = sum(_seconds(partial(_drain, split)) for split in splits)
    metric: Any = metrics.AUROC(budget=BOUNDED_BUDGET_NBYTES, bins=BINS)
    if exact:
        metric = metrics.Ranking(budget=EXACT_BUDGET_NBYTES, exact=True)
    trace, outcomes = Trace(), dict[str, Any]()
    jobs = {"it": Job(metric, {TRAIN: splits})}
    seconds = _seconds(lambda: outcomes.update(run_jobs(jobs, trace=trace)))
    return {
        "kind": kind,
        "rows": rows,
        "seconds": seconds,
        "drawing_seconds": drawing * len(trace.passes),
        "passes": len(trace.passes),
        "peak_nbytes": peak_rss_nbytes(),
        "before_nbytes": before_nbytes,
        "numbers": {
            name: {"value": n.value, "lower": n.lower, "upper": n.upper, "exact": n.exact}
            for name, n in outcomes["it"].items()
        },
    }


def _drain(split: MadeUpScores) -> None:
    for block in split.blocks:
        for _ in split.read(block, frozenset()):
            pass


def _shown_beside(beside: Mapping[str, Any]) -> Table:
    shown = table("", "median s", "range s", "times the sort")
    middle = medians(beside["seconds"])
    for name, seconds in beside["seconds"].items():
        times = f"{middle[name] / middle[SORT]:.1f}"
        shown.add_row(name, f"{middle[name]:.3f}", spread(seconds), times)
    if beside["times_faster"]:
        shown.add_row("times faster", f"{beside['times_faster']:.1f}", "", "", style="bold")
    return shown


def _shown_large(large: Sequence[Mapping[str, Any]]) -> Table:
    shown = table("scores", "rows", "number", "value", "width", "passes", "s", "drawing", "peak")
    for one in large:
        for place, (name, number) in enumerate(one["numbers"].items()):
            width = number["upper"] - number["lower"]
            rest = [
                str(one["passes"]), f"{one['seconds']:.1f}", f"{one['drawing_seconds']:.1f}",
                human(one["peak_nbytes"]),
            ]  # fmt: skip
            shown.add_row(
                one["kind"] if not place else "", f"{one['rows']:,}" if not place else "", name,
                f"{number['value']:.7f}", f"{width:.1e}" if width else "exact",
                *(rest if not place else [""] * len(rest)),
            )  # fmt: skip
    return shown
