"""The final layer: found, checked against the logits, saved with the features, and used again."""

import numpy as np
import pytest
import torch
from torch import nn
from vision_transformer import VisionTransformer, images

import pipeline as ff
from pipeline.errors import (
    ConfigError,
    CorruptError,
    DataError,
    ExistsRefusedError,
    MissingInputError,
    UnknownNameError,
)
from pipeline.extract.filling import extract_split
from pipeline.extract.final_layer import checked
from pipeline.extract.model import Extractor
from pipeline.extract.sources import Batch
from pipeline.extract.taps import tapped
from pipeline.store import Store

K, D = 5, 8


class Pictures:
    """Random images, labelled in turn."""

    name = "pictures"

    def __init__(self, rows=40):
        self.x = images(rows, seed=1)

    def __len__(self):
        return len(self.x)

    def read(self, start, stop):
        ids = np.arange(start, stop)
        return Batch(self.x[start:stop], ids % K, ids)


@pytest.fixture
def vit():
    torch.manual_seed(0)
    return VisionTransformer(classes=K)


TOKENS = {"taps": {"features": "norm"}, "layouts": {"features": "NTD"}}
PREFIX = {"cls": 1, "registers": 4}


@pytest.mark.parametrize("head", ["head", "auto"])
def test_a_head_on_the_class_token_is_saved_and_used(vit, tmp_path, head):
    store = Store.create(tmp_path / "store")
    model = tapped(vit, **TOKENS, prefix=PREFIX, head=head)
    extract_split(store, "id/train", model, Pictures(), classes=K)
    saved = store.head()
    np.testing.assert_array_equal(saved.weight, vit.head.weight.detach().numpy())
    np.testing.assert_array_equal(saved.bias, vit.head.bias.detach().numpy())
    assert (saved.attributes["how"], saved.attributes["field"]) == ("cls", "features")
    split = store.split("id/train")
    stored = ff.fit("energy", split, head="stored", cache=tmp_path / "a")["energy"](split)
    own = ff.fit("energy", split, head="model", cache=tmp_path / "b")["energy"](split)
    np.testing.assert_allclose(own, stored, rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        logits = vit.eval()(Pictures().x).double()
    np.testing.assert_allclose(own, -logits.logsumexp(1).numpy(), rtol=1e-5)
    fitted = ff.fit("energy", split, head="model", cache=tmp_path / "b")
    fitted.save(tmp_path / "saved")
    np.testing.assert_array_equal(ff.load(tmp_path / "saved")["energy"](split), own)
    vim = {"name": "vim", "pool": "cls"}
    assert ff.fit(vim, split, head="model", cache=tmp_path / "c")
    with pytest.raises(ConfigError, match="give both the same pool"):
        ff.fit("vim", split, head="model", cache=tmp_path / "c")


def test_auto_takes_the_saved_head_where_no_logits_are_stored(vit, tmp_path):
    store = Store.create(tmp_path / "store")
    extract_split(
        store, "id/train", tapped(vit, **TOKENS, prefix=PREFIX, head="head"), Pictures(), classes=K
    )
    plain = tapped(vit, **TOKENS, prefix=PREFIX)
    extract_split(store, "id/val", plain, Pictures(30), classes=K)
    split = store.split("id/val")
    assert "logits" not in split.schema.arrays
    found = ff.fit("energy", split, cache=tmp_path / "cache")["energy"](split)
    with torch.no_grad():
        expected = -vit.eval()(Pictures(30).x).double().logsumexp(1)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


class Averaging(nn.Module):
    """Maps, their mean, and a head: with or without another layer in between."""

    def __init__(self, between=False):
        super().__init__()
        self.maps = nn.Conv2d(3, D, 4, stride=4)
        self.between = nn.LayerNorm(D) if between else nn.Identity()
        self.fc = nn.Linear(D, K, bias=not between)

    def forward(self, x):
        return self.fc(self.between(self.maps(x).mean((2, 3))))


MAPS = {"taps": {"features": "maps"}, "layouts": {"features": "NCHW"}}


def test_a_head_on_the_mean_and_the_call_that_people_type():
    torch.manual_seed(0)
    net = Averaging()
    model = tapped(net, **MAPS, head="auto")
    loader = [Pictures().read(i, i + 8)[:2] for i in range(0, 40, 8)]
    fitted = ff.fit(["energy", "vim"], loader, model=model, head="model")
    with torch.no_grad():
        expected = -net(Pictures().x).double().logsumexp(1)
    scores = ff.score(fitted, loader, model=model)
    np.testing.assert_allclose(scores["energy"], expected, rtol=1e-5, atol=1e-6)
    assert np.isfinite(scores["vim"]).all()


def test_a_head_that_reads_something_else_is_refused_before_anything_is_written(tmp_path):
    torch.manual_seed(0)
    net = Averaging(between=True)
    store = Store.create(tmp_path / "store")
    with pytest.raises(DataError, match=r"does not give the stored logits .*{penultimate: head:in"):
        extract_split(store, "id/train", tapped(net, **MAPS, head="fc"), Pictures(), classes=K)
    assert store.splits() == ()
    assert store.head() is None
    model = tapped(
        net, {**MAPS["taps"], "penultimate": "fc:input"}, layouts=MAPS["layouts"], head="fc"
    )
    extract_split(store, "id/train", model, Pictures(), classes=K)
    assert store.head().attributes["field"] == "penultimate"
    assert (store.head().bias == 0).all()


def test_no_linear_layer_is_the_last_one():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    with pytest.raises(ConfigError, match="auto found no"):
        Extractor(tapped(model, {"features": "0"}, head="auto"))(torch.ones(2, 3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_are_checked_as_exactly_as_they_can_be(vit, dtype):
    extractor = Extractor(tapped(vit.to(dtype), **TOKENS, prefix=PREFIX, head="head"))
    outputs = extractor(images(4))
    found = checked(extractor, outputs, "here")
    assert found.of.how == "cls"
    assert found.weight.dtype == np.float32
    outputs["logits"] = outputs["logits"].flip(1)
    with pytest.raises(DataError, match="does not give the stored logits"):
        checked(extractor, outputs, "here")


class Carrying:
    """A callable that carries a head."""

    def __init__(self, head):
        self.head = head

    def __call__(self, x):
        return {"features": x, "logits": x[:, :2]}


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ((np.eye(2, 3, dtype="f4"), np.zeros(3, "f4")), r"weights \(2, 3\) and a bias \(3,\)"),
        ((np.eye(2, 4, dtype="f4"), np.zeros(2, "f4")), "none has its width"),
        ((np.eye(2, 3, dtype="f4"), np.ones(2, "f4")), "does not give the stored logits"),
    ],
)
def test_heads_of_any_callable_are_checked_too(head, message):
    loader = [(np.random.default_rng(0).standard_normal((9, 3)).astype("f4"), np.arange(9) % 2)]
    with pytest.raises(DataError, match=message):
        ff.fit("energy", loader, model=Carrying(head))
    good = (np.eye(2, 3, dtype="f4"), np.zeros(2, "f4"))
    assert ff.fit("vim", loader, model=Carrying(good), head="model", classes=2)
    assert Extractor(Carrying(nn.Linear(3, 2))).head is None  # a layer of that name


def test_a_store_has_one_head(tmp_path):
    store = Store.create(tmp_path / "store")
    assert store.head() is None
    weight, bias = np.arange(6, dtype="f4").reshape(2, 3), np.zeros(2, "f4")
    store.write_head(weight, bias, {"how": "mean", "field": "features"})
    store.write_head(weight, bias, {"how": "mean", "field": "features"})  # the same again
    for other in ((weight + 1, bias, {"how": "mean", "field": "features"}),
                  (weight, bias, {"how": "cls", "field": "features"})):  # fmt: skip
        with pytest.raises(ExistsRefusedError, match="has the head of another model"):
            store.write_head(*other)
    again = Store.open(store.path).head()
    np.testing.assert_array_equal(again.weight, weight)
    assert again.attributes == {"how": "mean", "field": "features"}


@pytest.mark.parametrize(
    ("weight", "bias", "message"),
    [
        (np.ones((2, 3), "f4"), np.ones(3, "f4"), r"weights \(k, d\) and a bias"),
        (np.ones((2, 3), int), np.ones(2), "must hold finite floats, got int64"),
        (np.full((2, 3), np.nan), np.ones(2), "finite"),
        (np.ones((0, 3)), np.ones(0), r"weights \(k, d\) and a bias"),
    ],
)
def test_heads_that_are_none_are_refused(tmp_path, weight, bias, message):
    store = Store.create(tmp_path / "store")
    with pytest.raises(DataError, match=message):
        store.write_head(weight, bias)
    assert store.head() is None


def test_a_damaged_head_is_noticed(tmp_path):
    store = Store.create(tmp_path / "store")
    store.write_head(np.ones((2, 3), "f4"), np.zeros(2, "f4"))
    (file,) = (path for path in (store.path / "head" / "weight" / "c").rglob("*") if path.is_file())
    content = bytearray(file.read_bytes())
    content[3] ^= 1
    file.write_bytes(content)
    with pytest.raises(CorruptError, match="the head"):
        store.head()


def test_what_no_head_was_saved_with(tmp_path):
    x, y = np.random.default_rng(0).standard_normal((20, 3)), np.arange(20) % 2
    with pytest.raises(MissingInputError, match=r"no head is saved with .*head: lda"):
        ff.fit("energy", (x, y), head="model")


def test_a_head_of_another_model_than_the_features_is_refused(vit, tmp_path):
    store = Store.create(tmp_path / "store")
    model = tapped(vit, **TOKENS, prefix=PREFIX, head="head")
    extract_split(store, "id/train", model, Pictures(), classes=K)
    torch.manual_seed(9)
    other = tapped(VisionTransformer(classes=K), **TOKENS, prefix=PREFIX)
    extract_split(store, "id/val", other, Pictures(), classes=K)
    with pytest.raises(DataError, match="the saved head is of weights_sha256"):
        ff.fit("energy", store.split("id/val"), head="model", cache=tmp_path / "cache")
    twin = tapped(other.tapped, **TOKENS, prefix=PREFIX, head="head")
    with pytest.raises(ExistsRefusedError, match="the head of another model"):
        extract_split(store, "id/test", twin, Pictures(), classes=K)


def test_the_same_call_twice_and_other_splits_keep_the_head(vit, tmp_path):
    store = Store.create(tmp_path / "store")
    model = tapped(vit, **TOKENS, prefix=PREFIX, head="head")
    for name in ("id/train", "id/train", "id/test"):
        extract_split(store, name, model, Pictures(), classes=K, batch_rows=7)
    assert store.head().weight.shape == (K, D)
    assert store.splits() == ("id/train", "id/test")


def test_a_head_that_is_not_there_names_linear_layers():
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    with pytest.raises(UnknownNameError, match=r"no submodule 'classifier'; its last .*: 0, 2"):
        tapped(net, {"features": "1"}, head="classifier")
