"""How often the detectors read the data, alone and together."""

import numpy as np
import pytest

from pipeline import detectors
from pipeline.content import Const, value
from pipeline.engine import Job, Trace, run_jobs
from pipeline.heads import LDAHead, LinearHead, StoredHead
from pipeline.statistics import fields_of
from pipeline.testing import drive, labelled
from pipeline.views import Tokens

NAMES = (
    "energy", "kl_matching", "mahalanobis", "max_logit", "msp", "relative_mahalanobis", "she", "vim"
)  # fmt: skip
LINEAR = LinearHead(Const(np.eye(5, 12)), Const(np.ones(5)))


def passes_of(chosen):
    """Fit together; return how many statistics each pass computed."""
    split = labelled().cut([[7] * 20, [100]])
    trace = Trace()
    run_jobs({name: Job(d, {"train": (split,)}) for name, d in chosen.items()}, trace=trace)
    return [len(work.statistics) for pass_ in trace.passes for work in pass_.works]


@value
class NeedsNeighbours:
    """A detector of another package, with an option that has no default."""

    k: int
    ridge: float = 1e-6


def test_an_option_without_default_names_the_row():
    assert detectors.options_of(NeedsNeighbours(3)) == {"k": 3}
    assert detectors.default_id(NeedsNeighbours(3, 0.1)) == "NeedsNeighbours(k=3, ridge=0.1)"


def test_every_detector_is_listed_and_its_class_named_in_camel_case():
    assert set(NAMES) <= set(detectors.names())
    for name in NAMES:
        assert detectors.load(name).__name__.lower() == name.replace("_", "")


@pytest.mark.parametrize(
    ("name", "head", "passes"),
    [
        ("msp", StoredHead(), 0),
        ("msp", LDAHead(), 1),
        ("max_logit", LINEAR, 0),
        ("energy", LDAHead(), 1),
        ("kl_matching", StoredHead(), 1),
        ("kl_matching", LDAHead(), 2),
        ("she", StoredHead(), 1),
        ("she", LDAHead(), 2),
        ("vim", LINEAR, 2),
        ("vim", LDAHead(), 2),
    ],
)
def test_passes_alone(name, head, passes):
    assert len(passes_of({name: detectors.load(name)(head=head)})) == passes


def test_all_detectors_on_an_lda_head_take_two_passes_and_share_the_moments():
    takes_head = ("energy", "kl_matching", "max_logit", "msp", "she", "vim")
    chosen = {
        name: detectors.load(name)(**({"head": LDAHead()} if name in takes_head else {}))
        for name in NAMES
    }
    assert passes_of(chosen) == [1, 4]


def test_detectors_of_logits_open_no_features():
    split = labelled().cut()
    for name in ("msp", "max_logit", "energy", "kl_matching"):
        detector = detectors.load(name)()
        assert fields_of(*drive.outcome(detector, split).views) == {"logits"}
        for request in drive.requests_of(detector, split):
            assert request.fields == {"logits", "labels"}


@pytest.mark.parametrize("name", ["mahalanobis", "relative_mahalanobis"])
def test_two_regularisations_share_one_statistic(name):
    make = detectors.load(name)
    assert passes_of({"a": make(), "b": make(covariance="pinvh"), "c": make(ridge=1e-3)}) == [1]


@pytest.mark.parametrize("name", ["mahalanobis", "relative_mahalanobis"])
def test_tokens_are_another_statistic(name):
    make = detectors.load(name)
    asked = drive.requests_of(make(pool="tokens"), labelled().cut())
    assert [request.of for request in asked] == [Tokens()]
