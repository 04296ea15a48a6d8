"""One fit under the clock, and the memory of its workers beside what was projected for it."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import detectors
from pipeline.chunk import Schema, Split
from pipeline.cluster import open_cluster, settle
from pipeline.content import value
from pipeline.engine import Job, Settings, Trace, rehearse, run_jobs
from pipeline.errors import FeatfoldError
from pipeline.fold import AnyStatistic
from pipeline.inputs import choose_head, fit_jobs
from pipeline.plan import Pass, describe
from pipeline.procedure import TRAIN, Passes
from pipeline.store import Store
from pipeline.workplace import projected

DETECTORS = ("mahalanobis", "relative_mahalanobis", "she", "kl_matching")
_ANSWER = """
import dataclasses, json, sys
from pipeline.bench.fitting import answer
print(json.dumps(dataclasses.asdict(answer(**json.loads(sys.argv[1])))))
"""
# Not a module that is run: workers would import that again, and hold more than those of a fit.
OF_TOKENS = ("mahalanobis", "relative_mahalanobis")
"""Detectors that can be fitted on tokens; the others pool in any case."""
SPLIT = "id/train"


@dataclass(frozen=True)
class Ran:
    """What one fit took."""

    pass_seconds: float
    """Folding and merging, all passes."""
    fit_seconds: float
    """The passes, and the linear algebra after each."""
    total_seconds: float
    """All of it: planning, and starting and stopping the workers, too."""
    passes: int
    read_nbytes: int
    peak_nbytes: int
    """Peak resident memory of the largest worker."""
    projected_nbytes: int


@value
class Alone:
    """A procedure that asks for one statistic, and ends with its result."""

    statistic: Any

    def passes(self, schema: Schema) -> Passes[Any]:
        results = yield {"alone": self.statistic}
        return results["alone"]


def chosen(names: Sequence[str], pool: str) -> dict[str, Any]:
    """Return detectors by name, on tokens where ``pool`` says so and they can."""
    made = {}
    for name in names:
        kind = detectors.load(name)
        options = {"pool": pool} if pool == "mean" or name in OF_TOKENS else {}
        known = {field.name for field in dataclasses.fields(kind)}
        made[name] = kind(**{key: given for key, given in options.items() if key in known})
    return made


def jobs_of(made: Mapping[str, Any], split: Split) -> dict[str, Job]:
    """Return the jobs that ``ff.fit`` would run."""
    return fit_jobs(made, split, choose_head(None, split.schema))


def alone(statistic: AnyStatistic, split: Split) -> dict[str, Job]:
    """Return the job of one statistic by itself."""
    return {"alone": Job(Alone(statistic), {TRAIN: (split,)})}


def passes_of(jobs: Mapping[str, Job]) -> list[Pass]:
    """Return the passes that jobs will need; nothing is read."""
    return rehearse(jobs)[0]


def statistics_of(passes: Sequence[Pass]) -> list[AnyStatistic]:
    """Return the distinct statistics of passes, in order."""
    asked = [s for pass_ in passes for work in pass_.works for s in work.statistics]
    return list(dict.fromkeys(asked))


def described(statistics: Sequence[AnyStatistic]) -> list[str]:
    """Return a name of each statistic; those that are alike are numbered."""
    names = [describe(s) for s in statistics]
    return [
        f"{name} {names[: i + 1].count(name)}" if names.count(name) > 1 else name
        for i, name in enumerate(names)
    ]


def timed(jobs: Mapping[str, Job], workers: int, scratch: Path, cluster: str = "local") -> Ran:
    """Run jobs in fresh workers with an empty cache in ``scratch``, and say what it took."""
    began = time.perf_counter()
    passes = passes_of(jobs)
    resources = settle(cluster, workers)
    projections, shrink = projected(passes, resources)
    trace = Trace()
    with (
        tempfile.TemporaryDirectory(prefix="bench-cache-", dir=scratch) as cache,
        open_cluster(resources, Path(cache), Settings(shrink)) as running,
    ):
        ready = time.perf_counter()
        run_jobs(jobs, running.execute, trace=trace)
        fit_seconds = time.perf_counter() - ready
        peak_nbytes = running.peak_nbytes()
    return Ran(
        sum(trace.seconds),
        fit_seconds,
        time.perf_counter() - began,
        len(trace.passes),
        trace.read_nbytes,
        peak_nbytes,
        max(projection.nbytes for projection in projections),
    )


def in_a_process(asked: Mapping[str, Any]) -> Ran:
    """Run :func:`timed` in a fresh process; ``asked`` are the arguments of :func:`answer`."""
    done = subprocess.run(
        [sys.executable, "-c", _ANSWER, json.dumps(asked)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise FeatfoldError(f"a fit in a fresh process failed:\n{done.stderr.strip()}")
    return Ran(**json.loads(done.stdout))


def answer(
    store: str, names: Sequence[str], pool: str, only: int | None, workers: int, scratch: str
) -> Ran:
    """Fit detectors on a store, or of their statistics the one at index ``only``."""
    split = Store.open(store).split(SPLIT)
    jobs = jobs_of(chosen(names, pool), split)
    if only is not None:
        jobs = alone(statistics_of(passes_of(jobs))[only], split)
    return timed(jobs, workers, Path(scratch))
