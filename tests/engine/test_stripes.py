"""Statistics in stripes: several passes, the bits of one, and files that outlive a run."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from durable_store import BLOCK_ROWS, K, make, rows

from pipeline.content import replaced
from pipeline.engine import Dask, Job, Pin, Threads, Trace, rehearse, run_jobs, run_serial
from pipeline.errors import BudgetError
from pipeline.partials import Partials
from pipeline.plan import Room, check, project
from pipeline.statistics import ClassMoments, ClassScatters, PositionMoments
from pipeline.store import reader
from pipeline.testing import assert_same

CLASSES, POSITIONS, SMALL = ClassScatters(), PositionMoments(), ClassMoments()


@dataclass(frozen=True)
class Asks:
    """Asks for statistics turn by turn, and returns all results."""

    turns: tuple[tuple[Any, ...], ...]

    def passes(self, schema):
        found = []
        for turn in self.turns:
            found.append((yield {str(number): asked for number, asked in enumerate(turn)}))
        return found


BOTH = ((CLASSES, SMALL), (POSITIONS,))


@pytest.fixture
def store(tmp_path):
    return make(tmp_path / "feats.zarr", 9)


def jobs_of(store, turns=BOTH):
    return {"it": Job(Asks(turns), {"train": (store.split("id/train"),)})}


def room_for(jobs, groups):
    """Return room for so many classes or positions, and for what is folded beside them."""

    def cut(statistic):
        return (
            replaced(statistic, stripe=(0, groups)) if hasattr(statistic, "stripe") else statistic
        )

    def narrowed(work):
        return replace(work, statistics=tuple(map(cut, work.statistics)))

    passes, _ = rehearse(jobs)
    narrow = [replace(p, works=tuple(map(narrowed, p.works))) for p in passes]
    return Room(0, max(project(pass_, 0).nbytes for pass_ in narrow))


def stripes_of(passes):
    return [
        {type(s).__name__: getattr(s, "stripe", ()) for s in pass_.works[0].statistics}
        for pass_ in passes
    ]


def test_a_pass_that_does_not_fit_is_folded_stripe_by_stripe(store):
    jobs = jobs_of(store, BOTH[:1])
    room = room_for(jobs, 3)
    passes, outcomes = rehearse(jobs, room=room)
    assert stripes_of(passes) == [
        {"ClassScatters": (0, 2), "ClassMoments": ()},
        {"ClassScatters": (2, 5)},
    ]
    assert [(pass_.number, pass_.turn) for pass_ in passes] == [(1, (1, 2)), (2, (2, 2))]
    assert [set(pass_.asked_by.values()) for pass_ in passes] == [{("it",)}] * 2
    assert_same(outcomes["it"], rehearse(jobs)[1]["it"])
    assert all(project(pass_, 0).nbytes <= room.allowed_nbytes for pass_ in passes)
    assert rehearse(jobs, room=room_for(jobs, K))[0][0].turn == (1, 1)  # nothing is cut for nothing


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_every_executor_gives_the_bits_of_the_whole(store, tmp_path, dask_client, groups):
    jobs = jobs_of(store)
    expected = run_jobs(jobs, run_serial)["it"]
    room = room_for(jobs, groups)
    for place, execute in {
        "serial": run_serial,
        "threads": Threads(2),
        "files": Threads(2, tmp_path / "threads"),
        "dask": Dask(dask_client, tmp_path / "dask"),
    }.items():
        trace = Trace()
        found = run_jobs(jobs, execute, trace=trace, room=room)["it"]
        assert len(trace.passes) > len(BOTH), place
        assert_same(found, expected)


def test_stripes_of_an_earlier_run_are_not_read_again(store, tmp_path):
    jobs = jobs_of(store)
    room, execute = room_for(jobs, 2), Threads(2, tmp_path)
    first = run_jobs(jobs, execute, room=room)["it"]
    reader.reset_reads()
    assert_same(run_jobs(jobs, execute, room=room)["it"], first)
    assert not reader.READS
    store.writer("id/train").append(rows(BLOCK_ROWS, seed=9))
    jobs = jobs_of(store)
    reader.reset_reads()
    found = run_jobs(jobs, execute, room=room)["it"]
    chunks = {chunk for _, name, chunk in reader.READS if name == "features"}
    assert chunks == set(range(9 * BLOCK_ROWS // 8, 10 * BLOCK_ROWS // 8))
    assert_same(found, run_jobs(jobs, run_serial)["it"])


def test_later_stripes_of_pooled_tokens_read_the_copy_of_the_first(store, tmp_path):
    jobs = jobs_of(store, ((CLASSES,),))
    trace = Trace()
    reader.reset_reads()
    run_jobs(jobs, Threads(1, tmp_path), room=room_for(jobs, 1), trace=trace)
    assert len(trace.passes) == K
    assert {count for (_, name, _), count in reader.READS.items() if name == "features"} == {1}


def test_two_statistics_share_the_room_and_the_passes(store):
    jobs = jobs_of(store, ((CLASSES, POSITIONS),))
    room = room_for(jobs, 1)
    passes, found = rehearse(jobs, room=room)
    assert len(passes) == K
    assert_same(found["it"], rehearse(jobs)[1]["it"])
    assert all(project(pass_, 0).nbytes <= room.allowed_nbytes for pass_ in passes)


def test_a_pinned_fit_keeps_its_stripes(store, tmp_path):
    jobs = jobs_of(store, ((CLASSES,), (POSITIONS,)))
    room, execute, trace = room_for(jobs, 2), Threads(2, tmp_path), Trace()
    first = run_jobs(jobs, execute, room=room, trace=trace)["it"]
    store.writer("id/train").append(rows(BLOCK_ROWS, seed=9))
    pin = Pin(trace.turns, Partials(tmp_path / "partials"))
    jobs = jobs_of(store, ((CLASSES,), (POSITIONS,)))
    found = run_jobs(jobs, execute, room=room, pin=pin)["it"]
    assert_same(found[0], first[0])
    assert found[1]["0"].count.sum() > first[1]["0"].count.sum()


@pytest.mark.parametrize("statistic", [CLASSES, POSITIONS])
def test_what_is_too_large_for_one_stripe_is_refused(store, statistic):
    jobs = jobs_of(store, ((statistic,),))
    least = room_for(jobs, 1).allowed_nbytes
    passes, _ = rehearse(jobs, room=Room(0, least - 1))
    assert [pass_.turn for pass_ in passes] == [(1, 1)]  # cutting would not help
    name = type(statistic).__name__
    with pytest.raises(BudgetError, match=rf"worst statistic: {name}\(features, labels\)\[0:1\]"):
        check(passes, [project(pass_, 0) for pass_ in passes], least - 1)
