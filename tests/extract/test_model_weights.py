"""Weights of files: all names or none, clear words for what is wrong, and never a pickle."""

import pickle

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from vision_transformer import VisionTransformer, images

from pipeline.errors import ConfigError, CorruptError, DataError, MissingInputError
from pipeline.extract import build
from pipeline.extract.model import Extractor
from pipeline.extract.models.module import load
from pipeline.extract.models.weights import load_into, read

MODULE = "vision_transformer:VisionTransformer"
TAPS = {"taps": {"features": "norm", "logits": "head"}, "layouts": {"features": "NTD"}}


def trained(seed=5):
    torch.manual_seed(seed)
    return VisionTransformer()


def saved(path, state):
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path)
    return str(path)


@pytest.mark.parametrize("name", ["w.safetensors", "w.pt", "w.pth"])
def test_a_file_gives_the_model_that_was_saved(tmp_path, name):
    net = trained().eval()
    model = load(MODULE, weights=saved(tmp_path / name, net.state_dict()), head="head", **TAPS)
    outputs = Extractor(model)(images(3))
    with torch.no_grad():
        assert torch.equal(outputs["logits"], net(images(3)))
    assert (
        Extractor(model).attributes()["weights_sha256"]
        == (Extractor(net).attributes()["weights_sha256"])
    )


def test_a_checkpoint_with_one_mapping_of_tensors_means_that(tmp_path):
    state = trained().state_dict()
    path = saved(tmp_path / "w.pt", {"epoch": 3, "state_dict": state, "name": "vit"})
    assert read(path).keys() == state.keys()
    both = saved(tmp_path / "both.pt", {"state_dict": state, "ema": state})
    with pytest.raises(ConfigError, match="several sets of weights, state_dict, ema"):
        read(both)
    with pytest.raises(DataError, match="no mapping of names to tensors"):
        read(saved(tmp_path / "list.pt", [1, 2]))


class Dangerous:
    """Runs when it is unpickled by a loader that allows it."""

    def __reduce__(self):
        return exec, ("raise SystemExit('it ran')",)


def test_nothing_of_a_pickle_is_run(tmp_path):
    torch.save({"a": torch.zeros(1), "b": Dangerous()}, tmp_path / "w.pt")
    (tmp_path / "w.pth").write_bytes(pickle.dumps(Dangerous(), protocol=2))
    torch.save(trained(), tmp_path / "whole.pt")
    for name in ("w.pt", "w.pth", "whole.pt"):
        with pytest.raises(DataError, match="holds more than tensors, and nothing of it was run"):
            read(tmp_path / name)


def test_files_that_are_none_or_damaged(tmp_path):
    with pytest.raises(MissingInputError, match="there is no file"):
        load(MODULE, weights=str(tmp_path / "none.safetensors"), **TAPS)
    for name in ("w.safetensors", "w.pt"):
        path = tmp_path / name
        saved(path, trained().state_dict())
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        with pytest.raises(CorruptError, match="weights: "):
            read(path)
        path.write_bytes(b"")
        with pytest.raises(CorruptError, match="weights: "):
            read(path)


def test_names_that_are_missing_or_unexpected_are_counted_and_nothing_is_loaded(tmp_path):
    state = trained().state_dict()
    wrong = {name: each for name, each in state.items() if not name.startswith("blocks.2")}
    wrong |= {"extra.weight": torch.zeros(2), "head.bias": torch.zeros(9)}
    net = trained(seed=6)
    before = {name: each.clone() for name, each in net.state_dict().items()}
    with pytest.raises(DataError) as caught:
        load_into(net, saved(tmp_path / "w.safetensors", wrong))
    message = str(caught.value)
    assert "12 missing" not in message
    count = len([name for name in state if name.startswith("blocks.2")])
    assert f"{count} missing (blocks.2.norm.weight, blocks.2.norm.bias, " in message
    assert "1 unexpected (extra.weight)" in message
    assert "1 of another shape (head.bias (9,) for (5,))" in message
    assert all(torch.equal(each, before[name]) for name, each in net.state_dict().items())


def test_names_that_are_not_needed_are_dropped_when_asked(tmp_path):
    state = {**trained().state_dict(), "decoder.weight": torch.zeros(2)}
    path = saved(tmp_path / "w.safetensors", state)
    net = trained(seed=6)
    load_into(net, path, drop=["decoder."])
    assert torch.equal(net.head.weight, state["head.weight"])
    with pytest.raises(ConfigError, match=r"no name in .* begins with 'encoder'"):
        load_into(net, path, drop=["encoder"])
    with pytest.raises(ConfigError, match="there is no file"):
        load(MODULE, drop=["decoder."], **TAPS)


def test_tied_weights_may_be_there_once(tmp_path):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.into, self.out = nn.Linear(3, 3), nn.Linear(3, 3)
            self.out.weight = self.into.weight

    state = Tied().state_dict()
    net = Tied()
    del state["out.weight"]
    load_into(net, saved(tmp_path / "w.safetensors", state))
    assert torch.equal(net.out.weight, state["into.weight"])


def test_weights_that_are_drawn_are_the_same_at_every_call():
    random = torch.get_rng_state()
    first, second = (load(MODULE, **TAPS) for _ in range(2))
    assert torch.equal(first.tapped.head.weight, second.tapped.head.weight)
    assert not first.tapped.training
    assert torch.equal(torch.get_rng_state(), random)


def test_what_a_configuration_gets_wrong():
    with pytest.raises(ConfigError, match=r"taps: name the submodules .* the model has patches, "):
        load(MODULE)
    with pytest.raises(ConfigError, match="the factory made a list"):
        load("builtins:list", taps={"features": "norm"})
    with pytest.raises(ConfigError, match="'gpu' cannot be used here"):
        load(MODULE, device="gpu", **TAPS)
    with pytest.raises(ConfigError, match="got an unexpected keyword argument 'tap'"):
        build("pipeline.extract.models.module:load", factory=MODULE, tap={})


@pytest.mark.parametrize("weights", ["pretrained", "random"])
def test_a_factory_of_ones_own_makes_its_own_weights(weights):
    with pytest.raises(ConfigError, match=f"weights: {weights} says nothing of vision_transformer"):
        load("vision_transformer:VisionTransformer", weights=weights, taps={"features": "norm"})
