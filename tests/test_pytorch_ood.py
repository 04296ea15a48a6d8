"""Fitted Gaussians in pytorch-ood: its own code, given ours, has our scores."""

import subprocess
import sys

import numpy as np
import peers
import pytest
import torch

import pipeline as ff
from pipeline.errors import ConfigError
from pipeline.pytorch_ood import to_pytorch_ood

PEER = {"mahalanobis": "Mahalanobis", "relative_mahalanobis": "RMD"}


@pytest.fixture(autouse=True)
def importable():
    peers.pytorch_ood("detector")


def rows(d=6, k=3, n=400):
    rng = np.random.default_rng(4)
    labels = rng.integers(0, k, n)
    mixing = rng.standard_normal((d, d))
    z = rng.standard_normal((n, d)) @ mixing + 3 * rng.standard_normal((k, d))[labels] + 50
    return z, labels, 2 * z[:40] - 40


@pytest.mark.parametrize("name", PEER)
@pytest.mark.parametrize("options", [{}, {"covariance": "pinvh"}, {"covariance": "oas"}])
def test_their_scores_are_ours(name, options):
    z, labels, test = rows()
    fitted = ff.fit({"id": name, "name": name, **options}, (z, labels))
    theirs = to_pytorch_ood(fitted[name])
    assert type(theirs) is peers.peer(PEER[name])
    scores = theirs.predict_features(torch.tensor(test)).numpy()
    np.testing.assert_allclose(scores, fitted[name](test), rtol=1e-9)
    np.testing.assert_allclose(theirs.mu, [z[labels == c].mean(0) for c in range(3)], rtol=1e-9)
    np.testing.assert_allclose(theirs.cov @ theirs.precision, np.eye(6), atol=1e-9)


@pytest.mark.parametrize("name", PEER)
def test_with_their_preset_it_is_what_they_fit(name):
    z, labels, test = rows()
    fitted = ff.fit({"id": name, "name": name, "preset": "pytorch-ood-0.4"}, (z, labels))
    given = to_pytorch_ood(fitted[name])
    own = peers.peer(PEER[name])(None)
    torch.set_default_dtype(torch.float64)
    try:
        own.fit_features(torch.tensor(z), torch.tensor(labels))
    finally:
        torch.set_default_dtype(torch.float32)
    for attribute in ("mu", *(["background_mu"] if name.startswith("rel") else [])):
        torch.testing.assert_close(getattr(given, attribute), getattr(own, attribute))
    x = torch.tensor(test)
    torch.testing.assert_close(given.predict_features(x), own.predict_features(x))


@pytest.mark.parametrize("name", PEER)
def test_a_direction_that_does_not_vary_and_a_class_without_rows(name):
    z, labels, test = rows()
    z, test = np.pad(z, ((0, 0), (0, 2))), np.pad(test, ((0, 0), (0, 2)))
    fitted = ff.fit({"id": name, "name": name, "covariance": "pinvh"}, (z, labels * 2), classes=9)
    theirs = to_pytorch_ood(fitted[name])
    assert theirs.mu.shape == (3, 8)
    np.testing.assert_allclose(
        theirs.predict_features(torch.tensor(test)), fitted[name](test), rtol=1e-9
    )


def test_an_encoder_maps_of_theirs_and_float32_rows():
    z, labels, test = rows()
    fitted = ff.fit("mahalanobis", (z, labels))
    theirs = to_pytorch_ood(fitted["mahalanobis"], encoder=lambda x: x[..., None, None])
    scores = theirs.predict(torch.tensor(test, dtype=torch.float32))
    expected = fitted["mahalanobis"](test.astype("f4"))
    np.testing.assert_allclose(scores, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("she", {}, "no fitted twin of SHE; choose a fitted mahalanobis"),
        ("mahalanobis", {"normalize": 1.0}, "normalize: 1.0; fit with"),
        ("relative_mahalanobis", {"pool": "tokens"}, "pool: tokens"),
    ],
)
def test_what_they_do_not_have_is_refused(name, options, says):
    z, labels, _ = rows()
    fitted = ff.fit({"id": name, "name": name, **options}, (z[:, None].repeat(2, 1), labels))
    with pytest.raises(ConfigError, match=says):
        to_pytorch_ood(fitted[name])


def test_without_pytorch_ood_it_says_what_to_install(monkeypatch):
    z, labels, _ = rows()
    fitted = ff.fit("mahalanobis", (z, labels))
    monkeypatch.setitem(sys.modules, "pytorch_ood", None)
    with pytest.raises(ConfigError, match="pip install pytorch-ood"):
        to_pytorch_ood(fitted["mahalanobis"])


def test_nothing_of_torch_is_loaded_before_it_is_asked_for():
    code = "import sys, pipeline.pytorch_ood as m; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]
