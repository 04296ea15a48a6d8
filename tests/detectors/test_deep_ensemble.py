import numpy as np
import pytest

from pipeline.detectors import DeepEnsemble
from pipeline.errors import ConfigError, MissingInputError
from pipeline.testing import DetectorLaws, drive, labelled, planted

MEMBERS = 3


def with_members(data):
    """Logits (m, k) of members that are not equally sure."""
    f = data.arrays["logits"]
    noise = np.random.default_rng(3).standard_normal((len(f), MEMBERS, f.shape[1]))
    found = f[:, None, :] * np.array([0.8, 1.0, 1.2])[:, None] + 0.3 * noise
    return data.with_arrays(checkpoint_logits=found.reshape(len(f), -1))


class TestDeepEnsemble(DetectorLaws):
    detector = DeepEnsemble()

    def id_train(self):
        return with_members(labelled())

    def id_test(self):
        return with_members(labelled(rows=90, seed=7, name="id/test"))

    def far_ood(self):
        return with_members(planted())

    def reference(self, train, test):
        """Lakshminarayanan et al. 2017: entropy of the mean of the members' probabilities."""
        p = np.exp(test["checkpoint_logits"]).reshape(-1, MEMBERS, 5)
        q = (p / p.sum(axis=2, keepdims=True)).mean(axis=1)
        return -np.sum(q * np.log(q), axis=1)


def test_rows_that_were_not_probed_are_refused_and_the_probe_is_named():
    with pytest.raises(MissingInputError, match=r"'checkpoint_logits'.*probe checkpoints writes"):
        drive.outcome(DeepEnsemble(), labelled().cut())


def test_a_measure_that_is_not_known_is_refused():
    with pytest.raises(ConfigError, match="measure: 'mean' is unknown"):
        DeepEnsemble(measure="mean")
