import numpy as np
import pytest
import reference_formulas as reference
from shaping_formulas import BIAS, HEAD, WEIGHT, ShapingLaws, energy_of

from pipeline.content import Const
from pipeline.detectors import AdaSCALE
from pipeline.errors import ConfigError, DataError, MissingInputError
from pipeline.heads import LDAHead, LinearHead
from pipeline.testing import Data, drive, labelled


def with_perturbed(data, seed=0):
    """Features that moved at random with their input."""
    z = data.arrays["features"].astype(np.float64).mean(axis=1)
    noise = np.random.default_rng(seed + len(z)).standard_normal(z.shape)
    return data.with_arrays(adascale_features=z + 0.3 * noise * np.abs(z))


def shifts(z, moved, corrected, shifted, weight=10.0):
    """OpenOOD's Q': sums over the largest features, here by an argsort."""
    order = np.argsort(-z, axis=1, kind="stable")
    correction = np.take_along_axis(np.maximum(moved, 0), order[:, :corrected], axis=1)
    shift = np.take_along_axis(np.abs(z - moved), order[:, :shifted], axis=1)
    return correction.sum(axis=1) + weight * shift.sum(axis=1)


def ratio_of(z, own, known, low=75.0, high=85.0):
    above = 1 - (known[None, :] <= own[:, None]).mean(axis=1)
    percentile = low + above * (high - low)
    positive = np.maximum(z, 0)
    found = np.ones(len(z))
    for i, row in enumerate(positive):
        kept = max(1, len(row) - round(len(row) * percentile[i] / 100))
        part = np.sort(row)[::-1][:kept].sum()
        found[i] = row.sum() / part if part > 0 else 1.0
    return found


def ratios_of(train, test, **options):
    x, moved = (reference.pooled(train), train["adascale_features"])
    fitted = train["labels"] >= 0
    known = shifts(x, moved, 1, 1)[fitted]
    z = reference.pooled(test)
    return z, ratio_of(z, shifts(z, test["adascale_features"], 1, 1), known, **options)


class TestAdaSCALE(ShapingLaws):
    detector = AdaSCALE(head=HEAD)

    def id_train(self):
        return with_perturbed(labelled())

    def id_test(self):
        return with_perturbed(labelled(rows=90, seed=7, name="id/test"))

    def far_ood(self):
        return with_perturbed(super().far_ood())

    def reference(self, train, test):
        z, r = ratios_of(train, test)
        return energy_of(z * np.exp(r)[:, None])


class TestAdaSCALEOfLogitsOnLDA(TestAdaSCALE):
    detector = AdaSCALE(head=LDAHead(), variant="l", low=40, high=90)
    tolerance = 1e-8

    def reference(self, train, test):
        x, y, _ = reference.fit_rows(train)
        weight, bias = reference.linear_discriminant(x, y, 5)
        present = np.unique(y)
        z, r = ratios_of(train, test, low=40, high=90)
        return reference.energy((z @ weight[present].T + bias[present]) * (r * r)[:, None])


def rows(z, moved, labels=None):
    y = np.arange(len(z)) % 5 if labels is None else labels
    return Data({"features": z, "adascale_features": moved, "labels": y}, 5)


def test_percentages_of_many_features_are_those_of_openood():
    rng = np.random.default_rng(5)
    z = np.maximum(rng.standard_normal((80, 200)), 0)
    moved = np.maximum(z + 0.1 * rng.standard_normal(z.shape), 0)
    data = rows(z, moved)
    weight = rng.standard_normal((5, 200)) / 10
    head = LinearHead(Const(weight), Const(np.zeros(5)))
    scorer = drive.outcome(AdaSCALE(head=head), data.cut())
    own = shifts(z, moved, 10, 2)
    expected = energy_of(z * np.exp(ratio_of(z, own, own))[:, None], weight, np.zeros(5))
    np.testing.assert_allclose(drive.scores_of(scorer, data.cut()), expected, rtol=1e-10)


def test_a_sample_of_rows_does_not_depend_on_their_order():
    data = with_perturbed(labelled()).with_arrays(ids=np.arange(240))
    detector = AdaSCALE(head=HEAD, samples=50)
    one, other = (drive.outcome(detector, each.cut()) for each in (data, data.sorted_by_class()))
    assert one == other
    assert one.notes[0].startswith("shifts of 50 rows")


def test_rows_without_a_positive_feature_have_finite_scores():
    z = np.full((10, 12), -1.0)
    data = rows(z, z + 0.5)
    found = drive.scores_of(drive.outcome(AdaSCALE(head=HEAD), data.cut()), data.cut())
    np.testing.assert_allclose(found, energy_of(z * np.e, WEIGHT, BIAS))


def test_rows_that_were_not_probed_are_refused_and_the_probe_is_named():
    with pytest.raises(MissingInputError, match=r"'adascale_features'.*probe adascale writes it"):
        drive.outcome(AdaSCALE(head=HEAD), labelled().cut())


def test_perturbed_features_of_another_width_are_refused():
    with pytest.raises(DataError, match=r"\(12,\).*\(7,\)"):
        drive.outcome(AdaSCALE(head=HEAD), rows(np.ones((9, 12)), np.ones((9, 7))).cut())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"variant": "b"}, "variant: 'b'"),
        ({"low": 90.0}, "low: 90"),
        ({"high": 101.0}, "high: 101"),
        ({"weight": -1.0}, "weight: -1"),
        ({"samples": 0}, "samples: 0"),
    ],
)
def test_options_that_cannot_be_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        AdaSCALE(**options)
