"""The handshake before a sync: threads with a real store of torch.distributed stand for ranks."""

from __future__ import annotations

import threading
import time
import warnings

import pytest
import torch.distributed as dist

from pipeline.ddp import live
from pipeline.ddp.live import Ranks, meet
from pipeline.errors import FeatfoldError, NotJoinedError


@pytest.fixture(params=["hash", "tcp", "file"])
def store(request, tmp_path):
    if request.param == "hash":
        return dist.HashStore()
    if request.param == "file":
        return dist.FileStore(str(tmp_path / "store"), -1)
    made = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return dist.PrefixStore("group", made)


class Rank(threading.Thread):
    """A rank of some that syncs after a while; keeps what came of it."""

    def __init__(self, store, rank, size=2, timeout=20.0, delay=0.0, record=None, warn=30.0):
        super().__init__()
        self.here = Ranks(rank, size, store, timeout)
        self.delay, self.record, self.warn = delay, record or {"rank": rank}, warn
        self.outcome: object = None
        self.seconds = 0.0

    def run(self) -> None:
        time.sleep(self.delay)
        start = time.monotonic()
        try:
            self.outcome = meet(self.here, self.record, self.warn)
        except Exception as error:
            self.outcome = error
        self.seconds = time.monotonic() - start


def together(*ranks: Rank) -> list[object]:
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    return [rank.outcome for rank in ranks]


def test_ranks_meet_and_see_all_records(store):
    for number in (1, 2, 3):
        for meeting in together(*(Rank(store, r, 3, delay=0.02 * r) for r in range(3))):
            assert meeting.number == number
            assert meeting.records == [{"rank": 0}, {"rank": 1}, {"rank": 2}]


def test_a_rank_that_does_not_come_is_named_by_the_time_out_that_was_set(store):
    (error,) = together(Rank(store, 0, timeout=0.5))
    assert isinstance(error, NotJoinedError)
    assert isinstance(error, TimeoutError)
    assert "ranks [1] did not join metric sync 1 within 0.5 s" in str(error)
    assert "every rank" in str(error)


def test_the_time_out_is_kept(store):
    rank = Rank(store, 0, timeout=0.5)
    together(rank)
    assert 0.5 <= rank.seconds < 2


def test_all_who_wait_name_the_same_ranks(store):
    errors = together(Rank(store, 0, 4, timeout=0.4), Rank(store, 2, 4, timeout=20))
    assert all("ranks [1, 3] did not join metric sync 1" in str(error) for error in errors)


def test_a_late_rank_is_told_and_does_not_wait(store):
    first, late = Rank(store, 0, timeout=0.3), Rank(store, 1, timeout=20, delay=0.8)
    errors = together(first, late)
    assert all(isinstance(error, NotJoinedError) for error in errors)
    assert "this is rank 1, which was late" in str(errors[1])
    assert late.seconds < 0.2


def test_after_a_sync_that_was_given_up_the_next_is_held(store):
    together(Rank(store, 0, timeout=0.2))
    (told,) = together(Rank(store, 1))
    assert "metric sync 1" in str(told)
    meetings = together(Rank(store, 0), Rank(store, 1))
    assert [m.number for m in meetings] == [2, 2]


def test_a_rank_that_comes_at_the_last_moment_decides_alike_for_all(store):
    """Whoever is first, time-out or last rank: never one that goes on and one that gives up."""
    kinds = set()
    for number in range(40):
        ranks = Rank(store, 0, timeout=0.02), Rank(store, 1, delay=0.017 + 0.0002 * number)
        outcomes = together(*ranks)
        kinds.add(type(outcomes[0]))
        assert type(outcomes[0]) is type(outcomes[1]), outcomes
    assert kinds  # of both kinds as a rule, whatever the machine


def test_a_warning_names_who_is_missing_before_the_error(store):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        together(Rank(store, 0, 3, timeout=0.6, warn=0.1), Rank(store, 1, 3, timeout=5, warn=0.1))
    (only,) = caught
    assert str(only.message).startswith("ranks [2] did not join metric sync 1 for 0 s")
    assert live.WARN_SECONDS == 30


def test_a_rank_that_is_interrupted_tells_the_others(store, monkeypatch):
    def interrupt(*_):
        raise InterruptedError

    monkeypatch.setattr(live, "_warn", interrupt)
    errors = together(Rank(store, 0, 3, warn=0.1), Rank(store, 1, 3, warn=50, timeout=20))
    assert isinstance(errors[0], InterruptedError)
    assert "metric sync 1 was given up: InterruptedError on rank 0" in str(errors[1])


def test_what_earlier_meetings_left_is_removed():
    made = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    sizes = []
    for _ in range(5):
        together(Rank(made, 0), Rank(made, 1))
        sizes.append(made.num_keys())
    assert sizes[1:] == sizes[1:2] * 4


def test_a_store_that_is_gone_is_named():
    made = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", made.port, is_master=False)
    del made
    (error,) = together(Rank(client, 1))
    assert isinstance(error, FeatfoldError)
    assert "cannot be reached" in str(error)
