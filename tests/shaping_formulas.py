"""Activation shaping as in the papers: plain float64 numpy over whole arrays; and what its tests
share.
"""

import numpy as np
import reference_formulas as reference

from pipeline.content import Const
from pipeline.heads import LinearHead
from pipeline.testing import Data, DetectorLaws, drive, labelled

WEIGHT = 1.5 * np.eye(5, 12)
BIAS = 4.0 - 0.5 * np.arange(5)
HEAD = LinearHead(Const(WEIGHT), Const(BIAS))


class ShapingLaws(DetectorLaws):
    """Laws of detectors that compare the largest features with all: shifted rows are faint ones."""

    def far_ood(self):
        rows = labelled(rows=80, seed=1, name="ood/far/faint")
        features, logits = rows.arrays["features"], rows.arrays["logits"]
        return rows.with_arrays(features=features / np.float32(32), logits=logits / 32)


def energy_of(z, weight=WEIGHT, bias=BIAS):
    return reference.energy(z @ weight.T + bias)


def largest(z, k):
    """Tell which entries are the k largest of their row; of equal ones, the first."""
    kept = np.zeros(z.shape, bool)
    order = np.argsort(-z, axis=1, kind="stable")[:, :k]
    np.put_along_axis(kept, order, True, axis=1)
    return kept


def ratio(z, k):
    """Return the sum of each row over that of its k largest; 1 where that is not positive."""
    part = np.where(largest(z, k), z, 0.0).sum(axis=1)
    return np.where(part > 0, z.sum(axis=1) / np.where(part > 0, part, 1.0), 1.0)


def rows(features, logits=None, seed=0, classes=5):
    """Return labelled rows of pooled features."""
    x = np.asarray(features)
    labels = np.random.default_rng(seed).integers(0, classes, len(x))
    more = {} if logits is None else {"logits": logits}
    return Data({"features": x, "labels": labels, **more}, classes)


def scores(detector, train, test=None):
    """Return the scores of ``test`` rows, by default those that the detector was fitted on."""
    scorer = drive.outcome(detector, train.cut())
    return drive.scores_of(scorer, (train if test is None else test).cut())


def rectified(n=200, d=64, k=10, seed=0):
    """Return features as after a ReLU, one in three of them zero, and the weights of a head."""
    rng = np.random.default_rng(seed)
    z = np.maximum(rng.standard_normal((n, d)) + 0.45, 0.0)
    return z, rng.standard_normal((k, d)) / 8, rng.standard_normal(k)


def signed(n=200, d=64, seed=0):
    """Return features of both signs, as after a layer norm: their sums are 0 up to rounding."""
    z = np.random.default_rng(seed).standard_normal((n, d))
    z -= z.mean(axis=1, keepdims=True)
    return z / z.std(axis=1, keepdims=True)
