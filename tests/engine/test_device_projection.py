"""What a whole fit holds on a device, beside its projection; what is merged stays on the host."""

import numpy as np
import pytest

from pipeline.engine import Settings, Threads, rehearse, run_jobs
from pipeline.fold import fold, merge
from pipeline.heads import StoredHead
from pipeline.inputs import detectors_by_id, fit_jobs
from pipeline.plan import project_device
from pipeline.plan.memory import DEVICE_SLACK_NBYTES
from pipeline.store import ArraySplit
from pipeline.testing.fake_device import PLACE, fake_device
from pipeline.testing.memory_laws import GENEROUS
from pipeline.testing.recipes import Shape

KERNELS_NBYTES = 3 * 2**20
DETECTORS = {
    "pooled": ["mahalanobis", "relative_mahalanobis", "kl_matching", "she", "msp"],
    "tokens": [{"name": "mahalanobis", "pool": "tokens"}, "kl_matching", "she"],
}


@pytest.fixture(scope="module")
def split():
    arrays = dict(Shape(600, 16, 256, 20).data.arrays)
    del arrays["scores"]
    return ArraySplit(arrays=arrays, classes=20, chunk_rows=64, block_rows=200)


@pytest.fixture(params=DETECTORS)
def jobs(split, request):
    return fit_jobs(detectors_by_id(DETECTORS[request.param]), split, StoredHead())


@pytest.mark.parametrize("shrink", [0, 2])
def test_a_fit_holds_what_is_projected_and_not_wildly_less(jobs, split, shrink):
    (pass_,) = rehearse(jobs)[0]
    projected = project_device(pass_, shrink).nbytes - DEVICE_SLACK_NBYTES
    with fake_device() as device:
        run_jobs(jobs, Threads(1, settings=Settings(shrink), place=PLACE))
        peak = device.peak_nbytes()
    assert peak <= projected + KERNELS_NBYTES
    assert projected <= GENEROUS * peak
    assert device.staged_nbytes == pass_.read_nbytes  # every byte crosses once


def test_states_come_home_once_and_are_merged_and_solved_there(jobs, split):
    (pass_,) = rehearse(jobs)[0]
    (work,) = pass_.works
    with fake_device() as device:
        partials = [fold(work.statistics, split, b, work.rows, PLACE) for b in split.blocks]
        crossed = device.put_nbytes, device.staged_nbytes, device.fetched_nbytes
        device.reset_peak()
        left = device.used_nbytes()
        total = merge(work.statistics, partials)
        for statistic, state in zip(work.statistics, total.states, strict=True):
            statistic.finalize(state)
        assert (device.put_nbytes, device.staged_nbytes, device.fetched_nbytes) == crossed
        assert device.peak_nbytes() == left
    assert all(isinstance(array, np.ndarray) for state in total.states for array in state)
