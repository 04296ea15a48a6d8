"""The plan: what it projects holds, and what it refuses comes with remedies that are enough."""

import re

import numpy as np
import pytest

from pipeline import detectors, plan
from pipeline.chunk import ArraySpec
from pipeline.engine import Job, rehearse
from pipeline.errors import BudgetError
from pipeline.heads import StoredHead
from pipeline.store import DeclaredSplit

MiB = 2**20
RESERVED = 70 * MiB
NAMES = ("msp", "mahalanobis", "relative_mahalanobis", "kl_matching", "she")


def declared(rows=50_000):
    arrays = {
        "features": ArraySpec((49, 1024), "float32", "TD"),
        "logits": ArraySpec((1000,), "float32", "K"),
        "labels": ArraySpec((), "int64"),
    }
    return DeclaredSplit.of("id/train", arrays, classes=1000, rows=rows)


def jobs(split, **options):
    made = {name: detectors.load(name)() for name in NAMES}
    made["mahalanobis"] = detectors.load("mahalanobis")(**options)
    return {name: Job(detector, {"train": (split,)}) for name, detector in made.items()}


@pytest.fixture(scope="module")
def planned():
    passes, _ = rehearse(jobs(declared()))
    return passes, [plan.project(pass_, RESERVED) for pass_ in passes]


def test_a_declared_split_is_planned_without_data(planned):
    passes, projections = planned
    assert [pass_.name for pass_ in passes] == ["fit-pass1"]
    assert passes[0].read_nbytes == 50_000 * (49 * 1024 * 4 + 1000 * 4 + 8)
    assert passes[0].works[0].fields == {"features", "logits", "labels"}
    assert passes[0].blocks == len(declared().blocks) > 1
    assert RESERVED < projections[0].nbytes < 600 * MiB


def test_the_explanation_names_passes_bytes_states_and_memory(planned):
    passes, projections = planned
    left = [plan.Pending(p.blocks, p.read_nbytes, 0) for p in passes]
    text = plan.explain(passes, projections, left, 1024 * MiB)
    for fragment in ("fit-pass1", "9.53 GiB", "ClassMoments(features, labels)", "mahalanobis",
                     "state 23.6 MiB", "reserved 70 MiB", "of 1 GiB allowed"):  # fmt: skip
        assert fragment in text


def test_eight_times_the_rows_cost_one_more_partial(planned):
    passes, _ = rehearse(jobs(declared(400_000)))
    more, less = plan.project(passes[0], RESERVED), planned[1][0]
    (states,) = (part.nbytes for part in less.parts if part.name == "states")
    assert more.nbytes - less.nbytes <= states
    assert passes[0].read_nbytes == 8 * planned[0][0].read_nbytes


def test_a_refusal_names_the_worst_statistic_and_remedies_that_are_enough(planned):
    passes, projections = planned
    with pytest.raises(BudgetError) as refused:
        plan.check(passes, projections, 100 * MiB)
    message = str(refused.value)
    assert "100 MiB are allowed" in message
    assert re.search(r"worst statistic: ClassMoments\(features, labels\) with \d", message)
    enough = int(re.search(r"--memory (\d+)MiB", message)[1])
    plan.check(passes, projections, enough * MiB)


def test_leaving_out_the_worst_is_offered_where_it_is_enough(planned):
    passes, projections = planned
    allowed = projections[0].nbytes - 10 * MiB
    with pytest.raises(BudgetError, match="leave out mahalanobis, relative_mahalanobis"):
        plan.check(passes, projections, allowed)
    rest = {k: job for k, job in jobs(declared()).items() if not k.endswith("mahalanobis")}
    passes, _ = rehearse(rest)
    plan.check(passes, [plan.project(passes[0], RESERVED)], allowed)


def test_smaller_chunks_are_offered_where_they_are_enough(planned):
    passes, projections = planned
    with pytest.raises(BudgetError) as refused:
        plan.check(passes, projections, projections[0].nbytes - 10 * MiB)
    rows = int(re.search(r"chunks of (\d+) rows", str(refused.value))[1])
    split = declared()
    smaller = DeclaredSplit(split.schema, split.blocks, rows)
    passes, _ = rehearse(jobs(smaller))
    plan.check(passes, [plan.project(passes[0], RESERVED)], projections[0].nbytes - 10 * MiB)


def test_arrays_that_nobody_asks_for_are_not_read():
    passes, _ = rehearse({"msp": Job(detectors.load("kl_matching")(head=StoredHead()),
                                     {"train": (declared(),)})})  # fmt: skip
    assert passes[0].works[0].fields == {"logits", "labels"}


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1.02e+03 B"),
        (1024, "1 KiB"),
        (5 * MiB, "5 MiB"),
        (2**40, "1.02e+03 GiB"),
    ],
)
def test_bytes_are_written_for_people(count, text):
    assert plan.human(count) == text


def test_planning_is_deterministic(planned):
    passes, _ = rehearse(jobs(declared()))
    assert [pass_.works for pass_ in passes] == [pass_.works for pass_ in planned[0]]
    assert np.isfinite(planned[1][0].nbytes)
