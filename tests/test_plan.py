"""The plan: what it projects holds, and what it refuses comes with remedies that are enough."""

import re
from pathlib import Path

import numpy as np
import pytest

from pipeline import detectors, plan
from pipeline.calibration import Calibration
from pipeline.chunk import ArraySpec, Block
from pipeline.engine import Job, Settings, pending_in_turn, rehearse
from pipeline.engine.schedule import Schedule
from pipeline.errors import BudgetError
from pipeline.evaluation import Ranked, Tabled
from pipeline.heads import LDAHead, StoredHead
from pipeline.partials import Partials
from pipeline.procedure import Scored
from pipeline.statistics import ClassScatters, Marginals
from pipeline.store import DeclaredSplit
from pipeline.testing import drive
from pipeline.testing.recipes import Shape
from pipeline.views import Labels

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


def test_statistics_of_one_kind_are_one_line_of_the_explanation():
    split = declared()
    scored = {}
    for name in ("msp", "max_logit", "energy", "mahalanobis"):
        scorer = drive.outcome(detectors.load(name)(), Shape(64, 49, 1024, 1000).data.cut())
        scored[name] = Job(Ranked(Scored(scorer), "id/test", 2**16), {"train": (split,)})
    passes, _ = rehearse(scored, stage="score")
    projections = [plan.project(pass_, RESERVED) for pass_ in passes]
    left = [plan.Pending(p.blocks, p.read_nbytes, 0) for p in passes]
    text = plan.explain(passes, projections, left, 1024 * MiB)
    three, one = (line.strip() for line in text.split("\n") if "ExactRanks" in line)
    assert three.startswith("3 ExactRanks(is_ood, logits)  states ")
    assert three.endswith("  for msp, max_logit, energy")
    assert re.fullmatch(r"ExactRanks\(features, is_ood\)  state \S+ MiB  for mahalanobis", one)


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
        (1023, "1023 B"),
        (1023 * MiB, "1023 MiB"),
        (1024, "1 KiB"),
        (5 * MiB, "5 MiB"),
        (2**40, "1 TiB"),
        (2**50, "1024 TiB"),
    ],
)
def test_bytes_are_written_for_people(count, text):
    assert plan.human(count) == text


RATES = Calibration(1e9, 2e11, 1e11, 4e9, 5e8)


def test_hours_lie_between_the_slower_side_and_both_together(planned):
    (pass_,), _ = planned
    left = plan.Pending(pass_.blocks, pass_.read_nbytes, 0)
    reading = pass_.read_nbytes / 1e9
    pooled = 2.0 * 50_000 * 1024**2 / 1e11 + pass_.read_nbytes / 4e9
    one, two = (plan.forecast(pass_, left, RATES, n, memory_nbytes=0) for n in (1, 2))
    assert one.least_seconds == pytest.approx(max(reading, pooled))
    assert two.least_seconds == pytest.approx(max(reading, pooled / 2))
    assert two.most_seconds == pytest.approx(
        2 * (reading + pooled / 2) + 0.05 * pass_.tasks, rel=1e-6
    )
    kept = plan.Pending(pass_.blocks, pass_.read_nbytes, 3 * 10**9, 10**9, 10**9)
    more = plan.forecast(pass_, kept, RATES, 2, memory_nbytes=0)
    assert more.most_seconds - two.most_seconds == pytest.approx(10)
    warm = plan.forecast(pass_, left, RATES, 1, memory_nbytes=2**50)
    assert warm.least_seconds == pytest.approx(pooled)
    half = plan.Pending(pass_.blocks // 2, pass_.read_nbytes // 2, 0)
    rest = plan.forecast(pass_, half, RATES, 1, memory_nbytes=0)
    assert rest.least_seconds == pytest.approx(one.least_seconds / 2)
    nothing = plan.forecast(pass_, plan.Pending(0, 0, 0), RATES, 1, memory_nbytes=0)
    assert nothing == plan.Span(0.0, 0.0)


def test_tokens_and_scores_count_their_own_products():
    split = declared(rows=1000)
    token_jobs = {"m": jobs(split, pool="tokens")["mahalanobis"]}
    (fit,), outcomes = rehearse(token_jobs)
    left = plan.Pending(fit.blocks, fit.read_nbytes, 0)
    span = plan.forecast(fit, left, RATES, 1, memory_nbytes=2**50)
    assert span.least_seconds > 2.0 * 49_000 * 1024**2 / 2e11
    table = {"s": Job(Tabled(Scored(outcomes["m"])), {"train": (split,)})}
    (score,), _ = rehearse(table, stage="score")
    left = plan.Pending(score.blocks, score.read_nbytes, 0)
    span = plan.forecast(score, left, RATES, 1, memory_nbytes=2**50)
    assert span.least_seconds > 2 * 2.0 * 49_000 * (1024**2 + 1000 * 1024) / 1e11


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "1 s"), (1.04, "1.0 s"), (9.96, "10 s"), (99, "99 s"), (101, "1.7 min"),
     (5990, "100 min"), (6100, "1.7 h"), (40 * 3600, "40 h"), (4e5, "4.6 days")],
)  # fmt: skip
def test_times_to_come_have_few_digits(seconds, text):
    assert str(plan.Span(seconds, seconds)) == text


@pytest.mark.parametrize("blocks", [1, 2, 7, 8, 9, 64, 65, 8_000, 8_750, 9_000, 66_240])
def test_a_pass_has_at_most_ten_thousand_tasks(blocks):
    split = DeclaredSplit(
        declared(rows=8).schema, tuple(Block(i, i, i + 1) for i in range(blocks)), 1
    )
    work = plan.Work(split, (Marginals(of=Labels(), by=Labels()),))
    assert work.folds + work.merges <= plan.TASKS_LIMIT
    assert plan.levels_in_a_task(work) == 0 or 8 * work.folds * 1.15 > plan.TASKS_LIMIT
    schedule = Schedule(work, Partials(Path("nowhere")))
    assert work.folds == len(schedule.folds)
    assert work.merges == len(schedule.steps) - len(schedule.folds)


def test_what_the_first_pass_keeps_is_not_read_again_by_the_second(tmp_path):
    vim = {"vim": Job(detectors.load("vim")(head=LDAHead()), {"train": (declared(),)})}
    passes, _ = rehearse(vim)
    first, second = pending_in_turn(passes, Settings(), tmp_path)
    assert first.copies_nbytes == 50_000 * 1024 * 8
    assert first.read_nbytes == 50_000 * (49 * 1024 * 4 + 8)
    assert second.read_nbytes == 50_000 * (1024 * 8 + 8)
    assert second.copies_nbytes == 0


def test_scores_are_disk_as_well(tmp_path):
    split = declared()
    scorer = rehearse(jobs(split))[1]["msp"]
    passes, _ = rehearse({"s": Job(Tabled(Scored(scorer)), {"train": (split,)})}, stage="score")
    (left,) = pending_in_turn(passes, Settings(), tmp_path)
    assert (left.outputs_nbytes, left.partials_nbytes) == (8 * 50_000, 0)


def test_the_client_holds_what_was_merged_and_stripes_whole():
    split, room = declared(), plan.Room(0, 500 * MiB)
    per_class = {"c": Job(drive.Ask(ClassScatters()), {"train": (split,)})}
    passes, _ = rehearse(per_class, room=room)
    assert all(plan.project(pass_, 0, 6).nbytes <= 500 * MiB for pass_ in passes)
    assert len(passes) > 10
    client = plan.project_client(passes, RESERVED, 2)
    whole = ClassScatters().state_nbytes(split.schema)
    parts = {part.name: part.nbytes for part in client.parts}
    assert parts["states"] == parts["results"] == whole > 8e9
    assert parts["reserved"] == RESERVED
    with pytest.raises(BudgetError, match=r"(?s)the client needs 15[.\d]* GiB.*asked for by c"):
        plan.check_client(client, 8 * 2**30)
    plan.check_client(client, client.nbytes)


def test_the_cost_of_stripes_is_told(tmp_path):
    split = declared()
    per_class = {"c": Job(drive.Ask(ClassScatters()), {"train": (split,)})}
    passes, _ = rehearse(per_class, room=plan.Room(0, 3 * 2**30))
    left = pending_in_turn(passes, Settings(), tmp_path)
    projections = [plan.project(pass_, 0) for pass_ in passes]
    text = plan.wrapped([plan.explain(passes, projections, left, 3 * 2**30),
                         plan.summary(passes, left, [])])  # fmt: skip
    n = len(passes)
    again = (n - 1) * 50_000 * (1024 * 8 + 8)
    assert f"fit-pass2 (stripe 2 of {n})" in text
    assert "ClassScatters(features, labels)[0:" in text
    assert f"stripes: {n - 1} further passes for ClassScatters(features, labels)" in text
    assert f"{plan.human(again)} to read" in " ".join(text.split())


def test_planning_is_deterministic(planned):
    passes, _ = rehearse(jobs(declared()))
    assert [pass_.works for pass_ in passes] == [pass_.works for pass_ in planned[0]]
    assert np.isfinite(planned[1][0].nbytes)
