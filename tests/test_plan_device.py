"""The plan of a worker with a device: its memory beside that of the host, and what is refused."""

import re
from dataclasses import replace

import pytest
from test_plan import MiB, declared, jobs

from pipeline import plan, workplace
from pipeline.cluster import Resources
from pipeline.engine import Job, rehearse
from pipeline.errors import BudgetError
from pipeline.planning import Planned
from pipeline.statistics import ClassScatters
from pipeline.testing import drive

ROW_NBYTES = 49 * 1024 * 4 + 1000 * 4 + 8
ROWS = declared().chunk_rows


@pytest.fixture(scope="module")
def pass_():
    (only,) = rehearse(jobs(declared()))[0]
    return only


def parts(projection):
    return {part.name: part.nbytes for part in projection.parts}


def resources(device_nbytes, allowed_nbytes=2**30):
    why = "as asked"
    return Resources("local", 2, allowed_nbytes, why, reserved_nbytes=70 * MiB,
                     device_nbytes=device_nbytes)  # fmt: skip


def test_a_device_holds_slots_states_views_work_and_constants(pass_):
    device = parts(plan.project_device(pass_))
    states = sum(s.state_nbytes(pass_.works[0].split.schema) for s in pass_.works[0].statistics)
    assert device["slots"] == 3 * ROWS * ROW_NBYTES
    assert device["states"] == states
    assert device.keys() == {"slack", "constants", "slots", "states", "views", "work"}
    halved = parts(plan.project_device(pass_, 1))
    assert halved["slots"] == 3 * (ROWS // 2) * ROW_NBYTES
    assert (halved["states"], halved["work"]) == (device["states"], device["work"])


def test_the_host_of_a_device_reads_pins_and_merges(pass_):
    alone, beside = plan.project(pass_, 0), plan.project(pass_, 0, on_device=True)
    assert alone.device is None
    assert beside.device == plan.project_device(pass_)
    host = parts(beside)
    assert host["chunk"] == parts(alone)["chunk"]
    assert host["pinned"] == 3 * ROWS * ROW_NBYTES
    assert not {"views", "work"} & host.keys()


def test_what_is_large_by_nature_is_cut_for_the_device_as_well():
    scatters = {"c": Job(drive.Ask(ClassScatters()), {"train": (declared(),)})}
    room = plan.Room(0, 2**40, 6, device_nbytes=600 * MiB)
    passes, _ = rehearse(scatters, room=room)
    assert len(passes) > 10
    assert all(plan.project_device(pass_, 6).nbytes <= 600 * MiB for pass_ in passes)
    assert len(rehearse(scatters, room=replace(room, device_nbytes=None))[0]) == 1


def test_the_smallest_shrink_that_fits_host_and_device_is_taken(pass_):
    least, most = (plan.project_device(pass_, shrink).nbytes for shrink in (3, 2))
    projections, shrink = workplace.projected([pass_], resources(most - 1))
    assert (shrink, projections[0].shrink) == (3, 3)
    assert projections[0].device.nbytes == least
    assert workplace.projected([pass_], resources(2**40))[1] == 0
    host = plan.project(pass_, 70 * MiB, 1, on_device=True).nbytes
    assert workplace.projected([pass_], resources(2**40, host))[1] == 1


def planned(pass_, given):
    projections, _ = workplace.projected([pass_], given)
    left = [plan.Pending(pass_.blocks, pass_.read_nbytes, 0)]
    client = plan.project_client([pass_], 0, 2)
    return Planned([pass_], projections, left, given, None, None, client, 2**40)


def test_the_plan_shows_the_device_beside_the_host(pass_):
    found = planned(pass_, resources(700 * MiB))
    text = " ".join(found.explain().split())
    device = found.projections[0].device
    assert f"device: projected {plan.human(device.nbytes)} of 700 MiB allowed: slack" in text
    assert text.index("memory: projected") < text.index("device: projected")
    told = found.to_dict()
    assert told["device_nbytes"] == 700 * MiB
    assert told["passes"][0]["device"] == {"projected_nbytes": device.nbytes,
                                           "parts": parts(device)}  # fmt: skip
    without = planned(pass_, resources(None))
    assert "device" not in without.explain()
    assert without.to_dict()["passes"][0]["device"] is None


def test_a_device_that_is_too_small_is_refused_with_remedies_that_are_enough():
    (tokens,) = rehearse(jobs(declared(), pool="tokens"))[0]
    least = plan.project_device(tokens, workplace.SHRINK_LIMIT).nbytes
    with pytest.raises(BudgetError) as refused:
        planned(tokens, resources(least - 20 * MiB)).check()
    message = str(refused.value)
    assert refused.value.exit_code == 3
    assert "on the device of each worker" in message
    assert re.search(r"worst statistic: ClassMoments\(features, labels\) with \d", message)
    assert "pool: mean for mahalanobis" in message
    (pooled,) = rehearse(jobs(declared()))[0]
    planned(pooled, resources(least - 20 * MiB)).check()
    leave = re.search("leave out (.*)", message)[1].split(", ")
    rest = {k: job for k, job in jobs(declared(), pool="tokens").items() if k not in leave}
    planned(*rehearse(rest)[0], resources(least - 20 * MiB)).check()
    enough = int(re.search(r"--device-memory (\d+)MiB", message)[1])
    planned(tokens, resources(enough * MiB)).check()


def test_a_host_that_is_too_small_for_a_device_is_refused_for_itself(pass_):
    with pytest.raises(BudgetError, match=r"(?s)per worker.*--memory \d+MiB"):
        planned(pass_, resources(2**40, 80 * MiB)).check()
