from types import SimpleNamespace

import numpy as np
import pytest
import reference_formulas as reference

import pipeline as ff
from pipeline import detectors
from pipeline.content import value
from pipeline.detectors import (
    KNN,
    SHE,
    Energy,
    Ensemble,
    KLMatching,
    Mahalanobis,
    NNGuide,
    RelativeMahalanobis,
)
from pipeline.engine import Job, rehearse
from pipeline.errors import ConfigError, DataError, MissingInputError
from pipeline.inputs import detectors_by_id
from pipeline.store import ArraySplit
from pipeline.testing import DetectorLaws, drive, recipes
from pipeline.views import Labels, View

FITTED = SimpleNamespace(passes=1)
"""What has a number of passes, as a fitted detector does, and none to ask for."""


class TestEnsemble(DetectorLaws):
    detector = Ensemble((Mahalanobis(), Energy(), SHE()), weights=(1.0, 0.5, 2.0))

    def reference(self, train, test):
        x, y, logits = reference.fit_rows(train)

        def members(z, f):
            return [
                reference.mahalanobis(x, y, z),
                reference.energy(f),
                reference.she(x, y, logits, z, f),
            ]

        fit = members(x, logits)
        return sum(
            weight * (score - of_fit.mean()) / of_fit.std()
            for weight, score, of_fit in zip(
                self.detector.weights,
                members(reference.pooled(test), test["logits"]),
                fit,
                strict=True,
            )
        )


def test_scores_may_be_added_as_they_are():
    train, test = recipes.labelled().cut(), recipes.labelled(rows=40, seed=3, name="id/test").cut()
    both = (Mahalanobis(), Energy())
    scorer = drive.outcome(Ensemble(both, (2.0, -1.0), normalize="none"), train)
    alone = [drive.scores_of(drive.outcome(member, train), test) for member in both]
    np.testing.assert_allclose(drive.scores_of(scorer, test), 2 * alone[0] - alone[1], rtol=1e-14)


def test_members_share_their_passes():
    split = recipes.labelled().cut()
    fitted = ff.fit(
        {"e": Ensemble((Mahalanobis(), RelativeMahalanobis(), KLMatching()))}, split, workers=2
    )
    assert fitted["e"].passes == 2


def test_members_by_name_take_the_head_of_the_job():
    rows = recipes.labelled().arrays
    data = {name: rows[name] for name in ("features", "labels")}
    entry = {"name": "ensemble", "detectors": ["energy", {"name": "mahalanobis", "ridge": 0.1}]}
    (name,) = detectors_by_id(entry)
    assert name == "ensemble(detectors=energy + mahalanobis(ridge=0.1))"
    fitted = ff.fit(entry, data, head="lda", workers=2)
    assert np.isfinite(fitted[name](data)).all()
    assert fitted.logits is not None


def test_token_members_enter_with_their_image_score():
    rows = recipes.labelled()
    scorer = drive.outcome(Ensemble((Mahalanobis(pool="tokens"),), normalize="none"), rows.cut())
    alone = drive.scores_of(drive.outcome(Mahalanobis(pool="tokens"), rows.cut()), rows.cut())
    np.testing.assert_array_equal(drive.scores_of(scorer, rows.cut()), alone.max(axis=1))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"detectors": ()}, "needs members"),
        ({"detectors": ("energy",)}, "is not a detector"),
        ({"detectors": (FITTED,)}, "is not a detector"),
        ({"detectors": (Energy(),), "weights": (1, 2)}, "2 for 1 members"),
        ({"detectors": (Energy(),), "weights": (0,)}, "other than 0"),
        ({"detectors": (Energy(),), "weights": (float("nan"),)}, "finite"),
        ({"detectors": (Energy(),), "normalize": "rank"}, "normalize"),
        ({"detectors": (Energy(),), "scales": "test"}, "scales: 'test' is unknown"),
        (
            {"detectors": (detectors.make("kl_matching", fit_split="val"),)},
            "give fit_split to the ensemble",
        ),
    ],
)
def test_what_makes_no_ensemble_is_refused(options, says):
    with pytest.raises(ConfigError, match=says):
        Ensemble(**options)


def test_a_member_with_one_score_for_all_is_named():
    rows = recipes.labelled()
    flat = rows.with_arrays(logits=np.zeros_like(rows.arrays["logits"]))
    with pytest.raises(DataError, match="member 2 of the ensemble"):
        drive.outcome(Ensemble((Mahalanobis(), Energy())), flat.cut())


@value
class Unbounded:
    """A detector that finds every second row infinitely far."""

    def passes(self, schema):
        return UnboundedScorer(Labels())
        yield


@value
class UnboundedScorer:
    of: View

    @property
    def views(self):
        return (self.of,)

    def score(self, chunk):
        labels = self.of(chunk)
        return np.where(labels % 2 == 0, np.inf, 1.0 * labels)


def test_rows_that_a_member_finds_infinitely_far_have_no_part_in_the_scales():
    rows = recipes.labelled()
    labels = rows.arrays["labels"]
    odd = rows.take((labels >= 0) & (labels % 2 == 1))
    scorer = drive.outcome(Ensemble((Mahalanobis(), Unbounded())), rows.cut())
    alone = drive.scores_of(scorer.scored[0].scorer, odd.cut())
    assert scorer.centres == pytest.approx((alone.mean(), odd.arrays["labels"].mean()))
    assert scorer.weights[0] == pytest.approx(1 / alone.std())


def test_a_list_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="detectors: 'energy'; expected a list"):
        detectors.make("ensemble", detectors="energy")
    with pytest.raises(ConfigError, match="needs its name"):
        detectors.make("ensemble", detectors=[{"ridge": 1}])


@pytest.mark.parametrize("member", [KNN(), NNGuide(k=40)])
def test_a_plan_rehearses_with_members_that_look_at_more_neighbours_than_it(member):
    rows = recipes.labelled()
    passes, _ = rehearse({"it": Job(Ensemble((member, Energy())), {"train": (rows.cut(),)})})
    assert len(passes) == 2


def few_rows(rows, seed, name="id/train"):
    """Rows of features that are nearly as many as they: mahalanobis fits them closely."""
    rng = np.random.default_rng(seed)
    labels = np.arange(rows) % 3
    features = rng.standard_normal((rows, 40)) + 4 * np.eye(3, 40)[labels]
    return ArraySplit(features, labels, name=name, classes=3)


def spreads(fitted, rows):
    """Return the standard deviation of what each member adds to the scores of rows."""
    (one,) = fitted.values()
    alone = [
        drive.scores_of(scored.scorer, rows) * weight
        for scored, weight in zip(one.scorer.scored, one.scorer.weights, strict=True)
    ]
    return [each.std() for each in alone]


PAIR = {"name": "ensemble", "id": "e", "detectors": ["mahalanobis", "energy"]}


def test_members_are_scaled_by_validation_rows_where_there_are_some():
    train, val, test = (few_rows(rows, seed) for seed, rows in enumerate((60, 400, 400)))
    val = ArraySplit(val.arrays["features"], name="id/val", classes=3)  # labels do not matter
    held_out = ff.fit(PAIR, train, val=val, head="lda", workers=1)
    own_rows = ff.fit(PAIR, train, head="lda", workers=1)
    np.testing.assert_allclose(spreads(held_out, val), 1.0, rtol=1e-12)
    assert np.allclose(spreads(held_out, test), 1.0, rtol=0.2)
    close, other = spreads(own_rows, test)
    assert close > 3 * other
    assert "scaled by the rows of id/val" in held_out["e"].notes
    assert any(note.startswith("scaled by the fit rows: ") for note in own_rows["e"].notes)
    assert own_rows["e"].passes == held_out["e"].passes == 2


def test_scales_may_be_asked_for():
    train, val = few_rows(60, 0), few_rows(300, 1, "id/val")
    usual = ff.fit(PAIR, train, head="lda", workers=1)["e"]
    of_fit = ff.fit({**PAIR, "scales": "train"}, train, val=val, head="lda", workers=1)["e"]
    assert of_fit.scorer.weights == usual.scorer.weights
    with pytest.raises(MissingInputError, match=r"e: scales: val needs rows of id/val.*val="):
        ff.fit({**PAIR, "scales": "val"}, train, head="lda", workers=1)


def test_an_ensemble_that_is_fitted_on_validation_rows_is_scaled_by_them():
    train, val = few_rows(60, 0), few_rows(300, 1, "id/val")
    one = ff.fit({**PAIR, "fit_split": "val"}, train, val=val, head="lda", workers=1)["e"]
    assert any(note.startswith("scaled by the fit rows: ") for note in one.notes)
    np.testing.assert_allclose(spreads({"e": one}, val), 1.0, rtol=1e-12)


def test_members_that_are_ensembles_are_scaled_alike():
    train, val = few_rows(60, 0), few_rows(300, 1, "id/val")
    nested = {**PAIR, "detectors": [{k: v for k, v in PAIR.items() if k != "id"}, "msp"]}
    one = ff.fit(nested, train, val=val, head="lda", workers=1)["e"]
    assert "scaled by the rows of id/val" in one.notes
    assert "member 1: scaled by the rows of id/val" in one.notes


def test_validation_rows_of_another_kind_do_not_scale():
    train = few_rows(60, 0)
    tokens = ArraySplit(np.ones((20, 3, 40)), name="id/val", classes=3)
    one = ff.fit(PAIR, train, val=tokens, head="lda", workers=1)["e"]
    assert any(note.startswith("scaled by the fit rows: ") for note in one.notes)
