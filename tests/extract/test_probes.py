"""Probed models on their way: stacked, stored, resumed, shared out, fitted, and named in jobs."""

import gc
import resource

import numpy as np
import pytest
import torch
from probed_networks import K, Net, images
from torch.utils.data import DataLoader, TensorDataset

import pipeline as ff
from pipeline import config
from pipeline.errors import ConfigError, DataError, FeatfoldError, MissingInputError
from pipeline.extract.filling import Share, extract_split
from pipeline.extract.model import Extractor, weights_sha256
from pipeline.extract.probes import adascale, checkpoints, dropout, mahalanobis, odin
from pipeline.extract.sources import Batch
from pipeline.extract.taps import tapped
from pipeline.fill import model_of
from pipeline.store import Store

ROWS = 60


class Pictures:
    """Images of K classes, by range; the rows of ``breaks`` cannot be read at first."""

    name = "pictures"

    def __init__(self, rows=ROWS, breaks=None):
        self.images, self.labels, self.breaks = images(rows, seed=3), np.arange(rows) % K, breaks

    def __len__(self):
        return len(self.labels)

    def read(self, start, stop):
        if self.breaks is not None and stop > self.breaks:
            raise OSError("the disk is gone")
        return Batch(self.images[start:stop], self.labels[start:stop], np.arange(start, stop))


def stacked(net=None):
    net = net or tapped(
        Net(), {"features": "dropped"}, layouts={"features": "NTD"}, head="head",
        transform=torch.nn.Identity(),
    )  # fmt: skip
    return dropout(odin(odin(net), epsilon=0.1, array="odin_far"), 3)


ARRAYS = {"features", "logits", "odin_logits", "odin_far", "dropout_logits"}


def test_probes_are_stacked_and_each_gives_what_it_gives_alone():
    x = images()
    found = Extractor(stacked())(x)
    assert set(found) == ARRAYS
    assert torch.equal(found["odin_logits"], Extractor(odin(Net()))(x)["odin_logits"])
    assert torch.equal(found["odin_far"], Extractor(odin(Net(), epsilon=0.1))(x)["odin_logits"])
    assert torch.equal(found["dropout_logits"], Extractor(dropout(Net(), 3))(x)["dropout_logits"])


def test_two_arrays_of_one_name_are_refused():
    with pytest.raises(ConfigError, match="two probes write 'odin_logits'"):
        odin(odin(Net()))
    with pytest.raises(ConfigError, match="the model gives an array 'logits'"):
        odin(Net(), array="logits")(images())
    with pytest.raises(ConfigError, match="not an Extractor"):
        odin(Extractor(Net()))
    with pytest.raises(ConfigError, match="can be called"):
        odin(3)


def test_what_the_model_carries_is_carried_on():
    net = tapped(
        Net(), {"features": "dropped"}, layouts={"features": "NTD"}, head="head",
        attributes={"note": "mine"}, transform=torch.nn.Identity(),
    )  # fmt: skip
    probed = stacked(net)
    assert probed.transform is net.transform
    plain, extractor = Extractor(net), Extractor(probed)
    assert all(np.array_equal(a, b) for a, b in zip(plain.head, extractor.head, strict=True))
    said, own = extractor.attributes(), plain.attributes()
    assert own.items() <= said.items()
    assert said["weights_sha256"] == weights_sha256(Net())
    assert {key for key in said if key not in own} == {
        "probe_odin_logits", "probe_odin_far", "probe_dropout_logits",
    }  # fmt: skip
    assert "epsilon 0.1" in said["probe_odin_far"]
    assert Extractor(odin(Net())).attributes()["model"] == Extractor(Net()).attributes()["model"]


def test_bound_methods_and_callables_are_probed_like_modules():
    net, x = Net(), images()
    expected = Extractor(odin(net))(x)["odin_logits"]
    net.eval()
    for model in (net.forward, lambda batch: net(batch)):
        assert torch.equal(Extractor(odin(model))(x)["odin_logits"], expected)


def contents(store, name):
    split = store.split(name)
    chunks = [
        c for block in split.blocks for c in split.read(block, frozenset(split.schema.arrays))
    ]
    return {key: np.concatenate([c[key] for c in chunks]) for key in chunks[0].arrays}


def extracted(folder, source, model=None, **options):
    store = Store.open(folder) if Store.is_at(folder) else Store.create(folder)
    extract_split(
        store, "id/train", model or stacked(), source, classes=K, batch_rows=7,
        block_nbytes=20_000, chunk_nbytes=5_000, **options,
    )  # fmt: skip
    return store


def test_a_resumed_extraction_has_the_bits_of_an_uninterrupted_one(tmp_path):
    whole = contents(extracted(tmp_path / "whole", Pictures()), "id/train")
    with pytest.raises((OSError, DataError)):
        extracted(tmp_path / "half", Pictures(breaks=40))
    torch.manual_seed(5)  # whatever was drawn in between
    resumed = contents(extracted(tmp_path / "half", Pictures()), "id/train")
    shared = contents(extracted(tmp_path / "two", Pictures(), share=Share(workers=2)), "id/train")
    assert set(whole) == ARRAYS | {"labels", "ids"}
    for name, each in whole.items():
        np.testing.assert_array_equal(resumed[name], each)
        np.testing.assert_allclose(shared[name], each, rtol=1e-4, atol=1e-5)
    store = Store.open(tmp_path / "whole")
    schema = store.split("id/train").schema
    assert schema.spec("odin_logits").layout == "K"
    assert schema.spec("dropout_logits").shape == (3 * K,)


def test_a_changed_probe_does_not_go_on_with_the_split(tmp_path):
    extracted(tmp_path / "store", Pictures(), odin(Net()))
    with pytest.raises(FeatfoldError, match=r"probe_odin_logits.*epsilon"):
        extracted(tmp_path / "store", Pictures(), odin(Net(), epsilon=0.3))


@pytest.fixture
def weights(tmp_path):
    files = [tmp_path / "a.pt", tmp_path / "b.pt"]
    for seed, path in enumerate(files):
        torch.save(Net(seed=seed + 7).state_dict(), path)
    return [str(path) for path in files]


def loader(rows=ROWS, size=16):
    source = Pictures(rows)
    return DataLoader(TensorDataset(source.images, torch.tensor(source.labels)), batch_size=size)


@pytest.mark.parametrize("stream", [True, False])
def test_detectors_are_fitted_through_a_probed_model_as_all_others(weights, stream):
    model = checkpoints(adascale(stacked()), weights)
    names = ["odin", "mc_dropout", "deep_ensemble", "adascale", "mahalanobis", "msp"]
    head = {"lda": {"ridge": 0.1}}
    fitted = ff.fit(names, loader(), model=model, head=head, stream=stream)
    scores = ff.score(fitted, loader(30), model=model)
    assert set(scores) == set(names)
    assert all(each.shape == (30,) and np.isfinite(each).all() for each in scores.values())
    found = Extractor(model)(Pictures(30).images)
    p = torch.softmax(found["dropout_logits"].double().reshape(30, 3, K), dim=2).mean(dim=1)
    np.testing.assert_allclose(scores["mc_dropout"], 1 - p.amax(dim=1), rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "probe"),
    [("odin", "odin"), ("mc_dropout", "dropout"), ("deep_ensemble", "checkpoints"),
     ("adascale", "adascale")],
)  # fmt: skip
def test_a_model_that_is_not_probed_is_told_by_which_probe(name, probe):
    with pytest.raises(MissingInputError, match=f"the probe {probe} writes it at extraction"):
        ff.fit(name, loader(), model=Net(), head="lda")


def test_gaussians_of_one_split_perturb_the_rows_of_another(tmp_path):
    store = extracted(tmp_path / "store", Pictures(), Net())
    fitted = ff.fit("mahalanobis_odin", store.split("id/train"), workers=1)
    fitted.save(tmp_path / "gaussians")
    moved, still = (mahalanobis(Net(), tmp_path / "gaussians", each) for each in (0.01, 1e-12))
    for name, model in (("id/test", moved), ("id/val", still)):
        extract_split(store, name, model, Pictures(30), classes=K, batch_rows=7)
    scores, plain = (
        ff.score(fitted, store.split(name), workers=1)["mahalanobis_odin"]
        for name in ("id/test", "id/val")
    )
    usual = ff.fit("mahalanobis", store.split("id/train"), workers=1)
    expected = ff.score(usual, store.split("id/val"), workers=1)["mahalanobis"]
    np.testing.assert_allclose(plain, expected, rtol=1e-5)
    assert (scores < plain).all(), "moved towards the nearest class"
    with pytest.raises(MissingInputError, match="probe mahalanobis writes it"):
        ff.score(fitted, store.split("id/train"), workers=1)


JOB = """\
name: probed
store: store
classes: 5
sources:
  - split: id/train
    data: {import: "test_probes:Pictures"}
    model:
      import: "probed_networks:Net"
      rate: 0.2
      probes:
        - {name: odin, epsilon: 0.1}
        - {name: dropout, samples: 3}
detectors: [odin, mc_dropout]
"""


def test_a_job_names_probes():
    (source,) = config.parse(JOB, "job.yaml").sources
    model = model_of(source)
    assert set(Extractor(model)(images())) == {
        "features", "logits", "odin_logits", "dropout_logits",
    }  # fmt: skip
    assert model.probes[0].epsilon == 0.1
    plain = JOB.replace(JOB[JOB.index("      probes:") : JOB.index("detectors:")], "")
    (source,) = config.parse(plain, "job.yaml").sources
    assert "probes" not in source.model.model_dump_json(), "stores of before would be refused"
    assert isinstance(model_of(source), Net)


@pytest.mark.parametrize(
    ("old", "new", "place", "words"),
    [
        ("name: odin", "name: odni", "11:18", "unknown probe 'odni': did you mean 'odin'? known:"),
        ("epsilon", "epsilom", "11:24", "no such option: did you mean 'epsilon'? known: temp"),
        ("{name: odin, epsilon: 0.1}", "odin", "11:11", "expected a mapping with the name"),
    ],
)
def test_wrong_probes_are_told_with_their_line(old, new, place, words):
    text = JOB.replace(old, new)
    with pytest.raises(ConfigError) as caught:
        config.parse(text, "job.yaml")
    assert f"job.yaml:{place}" in str(caught.value)
    assert words in str(caught.value)


def test_probes_of_a_kind_are_known_to_the_configuration():
    head, _, _ = JOB.partition("    model:")
    text = head + "    model: {timm: x, probes: [{name: odin}]}\ndetectors: [odin]\n"
    (source,) = config.parse(text, "job.yaml").sources
    assert source.model.probes == ({"name": "odin"},)
    assert "probes" not in source.model.arguments
    with pytest.raises(ConfigError, match=r"model\.probes: expected a list"):
        config.parse(text.replace("[{name: odin}]", "odin"), "job.yaml")


def test_a_value_that_a_probe_does_not_take_is_told_before_any_row_is_read():
    (source,) = config.parse(JOB.replace("epsilon: 0.1", "epsilon: -1"), "job.yaml").sources
    with pytest.raises(ConfigError, match="epsilon: -1"):
        model_of(source)


def tensors_alive():
    gc.collect()
    return sum(issubclass(type(each), torch.Tensor) for each in gc.get_objects())


def test_memory_is_flat_over_batches():
    probed = Extractor(adascale(stacked()))
    x = images(16)
    with probed.ready():
        for _ in range(30):
            probed(x)
        tensors = tensors_alive()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for _ in range(100):
            found = probed(x)
        assert not any(each.requires_grad for each in found.values())
        del found
        assert tensors_alive() <= tensors
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 * 1024
