"""Models by name: transformers from folders, timm and torchvision from their wheels."""

import importlib.util
import json
import subprocess
import sys
import textwrap

import pytest
import torch
import wheels
from PIL import Image
from vision_transformer import images

from pipeline.errors import ConfigError, DataError, MissingInputError
from pipeline.extract.model import Extractor
from pipeline.extract.models import timm, torchvision, transformers

TOKENS = {"layouts": {"features": "NTD"}, "prefix": {"cls": 1}}
VIT = {"features": "last_hidden_state"}


@pytest.fixture(scope="module")
def hugging_face():
    return pytest.importorskip("transformers")


@pytest.fixture
def folder(hugging_face, tmp_path):
    """A folder with a small classifier, as save_pretrained leaves it."""
    torch.manual_seed(0)
    config = hugging_face.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        image_size=16, patch_size=4, num_labels=7,
    )  # fmt: skip
    model = hugging_face.ViTForImageClassification(config).eval()
    model.save_pretrained(tmp_path / "vit")
    return tmp_path / "vit", model


def test_a_folder_gives_the_model_that_was_saved(folder):
    path, net = folder
    taps = {"features": "vit.layernorm"}
    model = transformers.load(str(path), taps=taps, head="classifier", **TOKENS)
    found = Extractor(model)({"pixel_values": images(3)})
    with torch.no_grad():
        expected = net(images(3), output_hidden_states=True)
    assert torch.equal(found["logits"], expected.logits)
    assert torch.equal(found["features"], net.vit(images(3)).last_hidden_state[:, 1:])
    attributes = Extractor(model).attributes()
    assert attributes["model"] == "transformers ViTForImageClassification"
    assert attributes["weights_sha256"] == Extractor(net).attributes()["weights_sha256"]
    assert attributes["transformers_version"]
    assert model.transform is None


def test_the_image_processor_of_a_folder_is_the_transform(folder):
    path, _ = folder
    settings = {
        "image_processor_type": "ViTImageProcessor", "do_resize": True, "do_rescale": True,
        "do_normalize": True, "rescale_factor": 1 / 255, "size": {"height": 16, "width": 16},
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "resample": 2,
    }  # fmt: skip
    (path / "preprocessor_config.json").write_text(json.dumps(settings))
    model = transformers.load(str(path), taps={"features": "vit.layernorm"}, **TOKENS)
    pixels = model.transform(Image.new("RGB", (50, 40), (0, 51, 255)))
    expected = torch.tensor([-1.0, -0.6, 1.0])[:, None, None].expand(3, 16, 16)
    torch.testing.assert_close(pixels, expected)
    assert '"size"' in Extractor(model).attributes()["transform"]


def test_a_configuration_alone_needs_random_weights(folder, hugging_face):
    path, _ = folder
    (path / "model.safetensors").unlink()
    options = {"taps": VIT, "architecture": "ViTModel", **TOKENS}
    with pytest.raises(MissingInputError, match=r"model.safetensors.*weights: pretrained"):
        transformers.load(str(path), **options)
    first, second = (transformers.load(str(path), "random", **options) for _ in range(2))
    a, b = (Extractor(model)(images(2))["features"] for model in (first, second))
    assert torch.equal(a, b)


def test_weights_that_do_not_fit_an_architecture_are_refused(folder):
    path, net = folder
    with pytest.raises(DataError, match=r"2 missing keys .pooler.*, 2 unexpected keys"):
        transformers.load(str(path), taps=VIT, architecture="ViTModel", **TOKENS)
    file = str(path / "model.safetensors")
    with pytest.raises(DataError, match="unexpected"):
        transformers.load(str(path), file, taps=VIT, architecture="ViTModel", **TOKENS)
    taps = {"features": "vit.layernorm"}
    torch.save(net.state_dict(), path / "own.pt")
    for weights in (file, str(path / "own.pt")):
        model = transformers.load(str(path), weights, taps=taps, **TOKENS)
        own = model.tapped.state_dict()
        assert all(torch.equal(each, own[name]) for name, each in net.state_dict().items())
    with pytest.raises(ConfigError, match="there is no file"):
        transformers.load(str(path), taps=taps, drop=["classifier"])
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(DataError, match="missing keys"):
        transformers.load(str(path), taps=taps, **TOKENS)


def test_what_transformers_does_not_have(folder, monkeypatch):
    path, _ = folder
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(MissingInputError, match="transformers: nobody/nothing"):
        transformers.load("nobody/nothing", taps=VIT)
    with pytest.raises(ConfigError, match="has no model 'ViTModle'"):
        transformers.load(str(path), taps=VIT, architecture="ViTModle")
    with pytest.raises(ConfigError, match="has no 'image_sise'"):
        transformers.load(str(path), taps=VIT, options={"image_sise": 3})
    with pytest.raises(ConfigError, match="'later' is no file, folder, pretrained or random"):
        transformers.load(str(path), "later", taps=VIT)


@pytest.mark.parametrize("load", [timm.load, torchvision.load])
@pytest.mark.skipif(importlib.util.find_spec("torchvision") is not None, reason="it is installed")
def test_what_is_not_installed_names_its_extra(load):
    with pytest.raises(MissingInputError, match=r"pip install 'featfold\[models\]'"):
        load("resnet18", weights="random", taps={"features": "layer4"})


BY_NAME = """
import sys
import numpy as np
import torch
from PIL import Image

{before}
import pytest
import timm as library
import torchvision as vision
from pipeline.errors import ConfigError, UnknownNameError
from pipeline.extract.final_layer import checked
from pipeline.extract.model import Extractor
from pipeline.extract.models import timm, torchvision

photo = Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 120, 3), np.uint8))

taps = {{"features": "norm", "logits": "head"}}
options = {{"num_classes": 5, "depth": 2, "img_size": 64}}
given = dict(taps=taps, layouts={{"features": "NTD"}}, prefix={{"cls": 1}}, options=options)
model = timm.load("vit_tiny_patch16_224", weights="random", head="head", **given)
x = torch.stack([model.transform(photo)])
assert x.shape == (1, 3, 64, 64)
outputs = Extractor(model)(x)
plain = model.tapped.eval()
with torch.no_grad():
    tokens, logits = plain.forward_features(x), plain(x)
assert torch.equal(outputs["features"], tokens[:, 1:])
assert torch.equal(outputs["cls"], tokens[:, 0])
assert torch.equal(outputs["logits"], logits)
assert checked(Extractor(model), outputs, "here").of.how == "cls"
attributes = Extractor(model).attributes()
assert attributes["timm_version"] == library.__version__
assert "Resize(size=" in attributes["transform"] and "0x" not in attributes["transform"]
torch.save(plain.state_dict(), sys.argv[1])
again = timm.load("vit_tiny_patch16_224", weights=sys.argv[1], **given)
assert torch.equal(Extractor(again)(x)["features"], outputs["features"])
with pytest.raises(UnknownNameError, match="did you mean .*vit_tiny_patch16_224"):
    timm.load("vit_tinny_patch16_224", weights="random", taps=taps)
with pytest.raises(ConfigError, match="expected a file"):
    timm.load("vit_tiny_patch16_224", taps=taps)
with pytest.raises(ConfigError, match="options: timm"):
    timm.load("resnet18", weights="random", taps=taps, options={{"dept": 3}})

given = dict(taps={{"features": "layer4"}}, layouts={{"features": "NCHW"}}, head="auto")
model = torchvision.load("resnet18", weights="random", **given)
x = torch.stack([model.transform(photo)])
outputs = Extractor(model)(x)
plain = model.tapped.eval()
with torch.no_grad():
    maps = torch.nn.Sequential(*list(plain.children())[:-2])(x)
    assert torch.equal(outputs["features"], maps.flatten(2).transpose(1, 2))
    assert torch.equal(outputs["logits"], plain(x))
assert checked(Extractor(model), outputs, "here").of.how == "mean"
attributes = Extractor(model).attributes()
assert attributes["torchvision_version"] == vision.__version__
assert "resize_size=[256]" in attributes["transform"]
with pytest.raises(UnknownNameError, match="did you mean resnet18"):
    torchvision.load("resnet_18", weights="random", **given)
with pytest.raises(UnknownNameError, match="has no 'IMAGENET1K_V3' .* IMAGENET1K_V1"):
    torchvision.load("resnet18", weights="IMAGENET1K_V3", **given)
other = dict(taps={{"features": "features"}}, layouts={{"features": "NCHW"}})
torch.save(vision.models.mobilenet_v2().state_dict(), sys.argv[1])
with pytest.raises(ConfigError, match="preset: .* IMAGENET1K_V1, IMAGENET1K_V2"):
    torchvision.load("mobilenet_v2", weights=sys.argv[1], **other)
model = torchvision.load("mobilenet_v2", weights=sys.argv[1], preset="IMAGENET1K_V1", **other)
assert "resize_size=[256]" in model.description.attributes["transform"]
"""

WITHOUT_OPERATORS = """
sys.path.append({timm!r})
sys.path.append({torchvision!r})
# The wheel of torchvision is for a CUDA build of torch: its operators, which no model here uses,
# are declared and never called.
operators = torch.library.Library("torchvision", "DEF")
for name in ("nms", "qnms"):
    operators.define(name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def test_models_of_timm_and_torchvision_in_a_process_of_their_own(tmp_path):
    """Where they are not installed, from their wheels."""
    before = ""
    if importlib.util.find_spec("torchvision") is None:
        if not torch.__version__.startswith("2.13."):
            pytest.skip(f"the wheel of torchvision is for torch 2.13, not {torch.__version__}")
        before = WITHOUT_OPERATORS.format(
            timm=str(wheels.unpacked("timm", "1.0.31")),
            torchvision=str(wheels.unpacked("torchvision", "0.28.0")),
        )
    code = textwrap.dedent(BY_NAME).format(before=before)
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "weights.pt")],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
