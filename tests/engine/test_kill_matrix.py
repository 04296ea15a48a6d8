"""Real SIGKILLs of a worker, of the driver, of everything, while blocks are in flight.

Whatever died, the job that is run again ends with the same integers and the same bits, folds no
finished block again, and leaves neither processes nor files behind. See ``kills.py`` for the
number of kills and their seed.
"""

import os
import signal
import time

import pytest
from killable import BLOCKS, PASSES, Jobs, Outcome, strays
from kills import Moments, kills

KILLS = kills(usual=1)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    made = Jobs(tmp_path_factory.mktemp("matrix"))
    yield made
    for run in made.running:
        run.kill_all()


@pytest.fixture(scope="module")
def undisturbed(jobs):
    """Return the outcome of a job that nothing happened to, and the seconds that it folds."""
    found = {}
    for cluster in ("threads", "local"):
        run = jobs.start(jobs.home / cluster, cluster)
        run.wait_for_the_first_fold()
        began = time.monotonic()
        while sum(run.blocks("end").values()) < PASSES * BLOCKS:
            assert time.monotonic() < began + 60
            time.sleep(0.005)
        seconds = time.monotonic() - began
        run.finish()
        assert run.blocks("fold") == dict.fromkeys(range(BLOCKS), PASSES)
        found[cluster] = (Outcome.of(jobs.home / cluster), seconds)
    assert found["threads"][0] == found["local"][0]
    return found


def strike(victim, run, rng):
    """Kill; return what was in flight there."""
    if victim == "worker":
        flying = run.in_flight()
        if not flying:
            return []
        pid, _ = rng.choice(flying)
        os.kill(pid, signal.SIGKILL)
        return [block for process, block in run.in_flight() if process == pid]
    alive = run.process.poll() is None
    if victim == "driver":
        run.process.kill()
    else:
        os.killpg(run.process.pid, signal.SIGKILL)
    flying = [block for _, block in run.in_flight()]
    run.process.wait()
    run.wait_until_gone()
    return flying if alive else []


@pytest.mark.slow
@pytest.mark.timeout(120 + 60 * KILLS)
@pytest.mark.parametrize(
    ("victim", "cluster"),
    [("worker", "local"), ("driver", "local"), ("driver", "threads"), ("machine", "local")],
)
def test_a_kill_changes_no_bit_and_leaves_nothing_behind(
    jobs, undisturbed, tmp_path, victim, cluster
):
    expected, seconds = undisturbed[cluster]
    moments = Moments(f"{victim} of {cluster}", KILLS)
    for share, rng in moments:
        folder = tmp_path / f"draw{len(moments.hits) + moments.missed}"
        run = jobs.start(folder, cluster)
        run.wait_for_the_first_fold()
        time.sleep(share * seconds)
        flying = strike(victim, run, rng)
        if not flying:
            moments.miss()
            run.kill_all()
            continue
        kept = run.blocks("end")
        moments.hit(
            f"at {share * seconds:.2f} of {seconds:.2f} s, {sum(kept.values())} of "
            f"{PASSES * BLOCKS} folds kept, blocks {flying} in flight"
        )
        if victim == "worker":
            run.finish()
            assert set(run.blocks("fold").values()) <= {PASSES, PASSES + 1}
            run.wait_until_gone()
        again = jobs.start(folder, cluster).finish()
        done = run.blocks("end")
        twice = {b for b, n in again.blocks("fold").items() if done[b] + n > PASSES}
        assert not twice, "folded again"
        found = Outcome.of(folder)
        assert found.partials.keys() == expected.partials.keys()
        differing = [k for k, kept in found.partials.items() if kept != expected.partials[k]]
        assert not differing
        assert found == expected
        again.wait_until_gone()
        assert not strays(folder)
        assert not list(jobs.home.glob(".*"))
