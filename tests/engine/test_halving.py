"""A device without room for a step is given half of it: the same bits, said once, or one error."""

import numpy as np
import pytest

from pipeline import engine
from pipeline.engine import Threads
from pipeline.errors import DeviceMemoryError
from pipeline.inputs import as_split, choose_head, detectors_by_id, fit_jobs
from pipeline.testing.fake_device import PLACE, fake_device

N, T, D, K = 600, 4, 16, 5
DETECTORS = ("mahalanobis", "she")


def jobs():
    rng = np.random.default_rng(0)
    labels = np.arange(N) % K
    tokens = rng.normal(size=(N, T, D)).astype("f4") + labels[:, None, None]
    split = as_split((tokens, labels))
    return fit_jobs(detectors_by_id(DETECTORS), split, choose_head(None, split.schema, split))


def fitted(limit_nbytes=2**62):
    """Return what fits come to in so much memory, what was said, and the most that was held."""
    said = []
    with fake_device(limit_nbytes) as device:
        found = engine.run_jobs(jobs(), Threads(1, place=PLACE, say=said.append))
        return found, said, device.peak_nbytes()


def test_steps_are_halved_until_they_fit_and_no_bit_changes():
    whole, quiet, most = fitted()
    assert not quiet
    halved, said, held = fitted(limit_nbytes=int(0.7 * most))
    assert halved == whole
    assert held <= int(0.7 * most)
    assert len(said) >= 1
    assert all("of id/train did not fit on the device: chunks are halved to" in s for s in said)


def test_what_does_not_fit_row_by_row_is_named():
    with pytest.raises(DeviceMemoryError, match=r"block 0 of id/train does not fit.*row by row"):
        fitted(limit_nbytes=2000)
