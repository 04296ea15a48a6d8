import numpy as np
import pytest
import reference_formulas as reference

import pipeline as ff
from pipeline.detectors import MahalanobisODIN
from pipeline.errors import ConfigError, MissingInputError
from pipeline.testing import DetectorLaws, labelled, planted


def with_perturbed(data):
    """Features that moved a little towards the origin."""
    pooled = data.arrays["features"].mean(axis=1, dtype=np.float64)
    return data.with_arrays(mahalanobis_features=0.98 * pooled)


class TestMahalanobisODIN(DetectorLaws):
    detector = MahalanobisODIN()

    def id_train(self):
        return labelled()  # rows that are fitted on need not be probed

    def id_test(self):
        return with_perturbed(labelled(rows=90, seed=7, name="id/test"))

    def far_ood(self):
        return with_perturbed(planted())

    def reference(self, train, test):
        x, y, _ = reference.fit_rows(train)
        z = test["mahalanobis_features"]
        present = np.unique(y)
        means = np.stack([x[y == c].mean(axis=0) for c in present])
        centred = x - means[np.searchsorted(present, y)]
        s = centred.T @ centred / len(x)
        inverse = np.linalg.inv(s + 1e-6 * np.trace(s) / len(s) * np.eye(len(s)))
        apart = z[:, None, :] - means
        return np.einsum("ncd,de,nce->nc", apart, inverse, apart).min(axis=1)


def test_rows_that_were_not_probed_are_refused_when_they_are_scored():
    fitted = ff.fit("mahalanobis_odin", labelled().cut(), workers=1)
    with pytest.raises(MissingInputError, match=r"'mahalanobis_features'.*probe mahalanobis"):
        ff.score(fitted, labelled().cut(), workers=1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pool": "max"}, "pool: 'max'"),
        ({"pool": "tokens"}, "pool: 'tokens'"),
        ({"scale": 0.0}, "scale: 0.0"),
        ({"covariance": "full"}, "covariance: 'full'"),
    ],
)
def test_options_that_are_not_known_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        MahalanobisODIN(**options)
