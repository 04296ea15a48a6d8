"""Fitted detectors called by pytorch-ood's interface, and by OpenOOD's evaluation protocol."""

import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from peers import pytorch_ood

import pipeline as ff
from pipeline.extract.shims import as_openood, as_pytorch_ood

K, D, PIXELS = 3, 8, 12


@pytest.fixture(scope="module")
def net():
    torch.manual_seed(0)
    return Net()


class Net(torch.nn.Module):
    """A network as OpenOOD's: logits, and features if they are asked for."""

    def __init__(self):
        super().__init__()
        self.encoder = torch.nn.Sequential(torch.nn.Linear(PIXELS, D), torch.nn.ReLU())
        self.fc = torch.nn.Linear(D, K)

    def forward(self, x, return_feature=False):
        z = self.encoder(x)
        return (self.fc(z), z) if return_feature else self.fc(z)


@pytest.fixture(scope="module")
def fitted(net):
    x = images(300)
    with torch.no_grad():
        logits, z = net(x, return_feature=True)
    arrays = {"features": z, "logits": logits, "labels": logits.argmax(dim=1)}
    return ff.fit(["mahalanobis", "energy", "she"], arrays)


def images(count, seed=1):
    return torch.randn(count, PIXELS, generator=torch.Generator().manual_seed(seed))


def expected(net, fitted, x):
    with torch.no_grad():
        logits, z = net(x, return_feature=True)
    return fitted({"features": z, "logits": logits})


@pytest.mark.parametrize("name", ["mahalanobis", "energy", "she"])
def test_pytorch_ood_calls_a_fitted_detector_as_one_of_its_own(net, fitted, name):
    api = pytorch_ood("api")
    detector = as_pytorch_ood(fitted[name], net.encoder, net.fc)
    assert isinstance(detector, api.FeaturesDetector)
    assert detector.fit([(images(2), torch.zeros(2))]) is detector
    x = images(20, 2)
    scores = detector.to("cpu")(x)
    assert scores.shape == (20,)
    assert not scores.requires_grad
    np.testing.assert_array_equal(scores.numpy(), expected(net, fitted[name], x))
    with torch.no_grad():
        z = net.encoder(x)
    np.testing.assert_array_equal(detector.predict_features(z), scores)


def test_without_an_encoder_or_logits_it_says_so(net, fitted):
    api = pytorch_ood("api")
    with pytest.raises(api.ModelNotSetException):
        as_pytorch_ood(fitted["mahalanobis"]).predict(images(2))
    with pytest.raises(ff.errors.FeatfoldError, match="logits"):
        as_pytorch_ood(fitted["she"], net.encoder).predict(images(2))


def test_pytorch_ood_ranks_the_scores(net, fitted):
    """Its own metrics take what the detector gives."""
    detector = as_pytorch_ood(fitted["mahalanobis"], net.encoder)
    metrics = pytorch_ood("metrics").OODMetrics()
    metrics.update(detector(images(50, 3)), torch.zeros(50, dtype=torch.long))
    metrics.update(detector(5 + 5 * images(50, 4)), -torch.ones(50, dtype=torch.long))
    assert metrics.compute()["AUROC"] > 0.9


@pytest.fixture
def openood(monkeypatch):
    """The one class of OpenOOD that is inherited from: it is not on PyPI."""

    class BasePostprocessor:
        def __init__(self, config):
            self.config = config

        def setup(self, net, id_loader_dict, ood_loader_dict):
            pass

    package, module = ModuleType("openood"), ModuleType("openood.postprocessors")
    module.BasePostprocessor = BasePostprocessor
    monkeypatch.setitem(sys.modules, "openood", package)
    monkeypatch.setitem(sys.modules, "openood.postprocessors", module)
    return BasePostprocessor


def test_openoods_evaluator_calls_a_fitted_detector_as_a_postprocessor(net, fitted, openood):
    """Does what its Evaluator does: checks the class, sets up, asks for confidences."""
    made = as_openood(fitted["she"])
    assert isinstance(made, openood)
    assert not made.APS_mode
    x, labels = images(25, 5), torch.arange(25) % K
    loader = [
        {"data": x[start : start + 10], "label": labels[start : start + 10]}
        for start in range(0, 25, 10)
    ]
    made.setup(net, {"train": loader, "val": loader}, {"val": loader})
    predicted, confidence, truth = made.inference(net, loader, progress=False)
    np.testing.assert_array_equal(confidence, -expected(net, fitted["she"], x))
    np.testing.assert_array_equal(truth, labels)
    with torch.no_grad():
        np.testing.assert_array_equal(predicted, net(x).argmax(dim=1))
