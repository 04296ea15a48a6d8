"""Taps: outputs of submodules by name land where they should, bit for bit, and leave no hook."""

import functools
import gc
import pickle
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from vision_transformer import VisionTransformer, images

import pipeline as ff
from pipeline.errors import ConfigError, DataError, UnknownNameError
from pipeline.extract.model import Extractor, weights_sha256


def hooks_of(model):
    return sum(len(each._forward_hooks) for each in model.modules())


@pytest.fixture
def vit():
    torch.manual_seed(0)
    return VisionTransformer()


PREFIX = {"cls": 1, "registers": 4}
tapped = ff.tapped


def test_tokens_cls_and_registers_of_a_plain_transformer(vit):
    taps = {"features": "norm", "logits": "head", "early": "blocks.0"}
    model = tapped(vit, taps, layouts={"features": "NTD", "early": "NTD"}, prefix=PREFIX)
    x = images(5)
    outputs = Extractor(model)(x)
    vit.eval()
    with torch.no_grad():
        tokens, logits = vit.tokens(x), vit(x)
        patches = vit.patches(x).flatten(2).transpose(1, 2)
        early = vit.blocks[0](torch.cat([vit.first.expand(5, -1, -1), patches], 1))
    expected = {
        "features": tokens[:, 5:], "cls": tokens[:, 0], "registers": tokens[:, 1:5],
        "early": early[:, 5:], "early_cls": early[:, 0], "early_registers": early[:, 1:5],
        "logits": logits,
    }  # fmt: skip
    assert set(outputs) == set(expected)
    for name, rows in expected.items():
        assert torch.equal(outputs[name], rows), name
    assert model.description.layouts == {
        "features": "TD", "early": "TD", "cls": "D", "registers": "TD", "early_cls": "D",
        "early_registers": "TD",
    }  # fmt: skip


def test_a_transformer_of_hugging_face_from_a_configuration():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
             "intermediate_size": 32, "image_size": 16, "patch_size": 4}  # fmt: skip
    plain = transformers.ViTModel(transformers.ViTConfig(**sizes))
    with_registers = transformers.Dinov2WithRegistersModel(
        transformers.Dinov2WithRegistersConfig(**sizes, num_register_tokens=4)
    )
    x = images(3)
    for network, prefix in ((plain, {"cls": 1}), (with_registers, PREFIX)):
        skipped = sum(prefix.values())
        model = tapped(
            network, {"features": "last_hidden_state"}, layouts={"features": "NTD"}, prefix=prefix
        )
        outputs = Extractor(model)(x)
        mapping = Extractor(model)({"pixel_values": x})
        with torch.no_grad():
            expected = network.eval()(pixel_values=x).last_hidden_state
        assert torch.equal(outputs["features"], expected[:, skipped:])
        assert torch.equal(outputs["cls"], expected[:, 0])
        if skipped > 1:
            assert torch.equal(outputs["registers"], expected[:, 1:5])
        assert all(torch.equal(mapping[name], outputs[name]) for name in outputs)


@pytest.mark.parametrize(
    ("layout", "arrange"),
    [
        ("NTD", lambda t: t),
        ("NDT", lambda t: t.transpose(1, 2)),
        ("NCHW", lambda t: t.reshape(len(t), 2, 3, 4).permute(0, 3, 1, 2)),
        ("NHWC", lambda t: t.reshape(len(t), 2, 3, 4)),
    ],
)
def test_every_layout_becomes_tokens_row_by_row(layout, arrange):
    tokens = torch.arange(5 * 6 * 4.0).reshape(5, 6, 4)
    model = tapped(nn.Sequential(nn.Identity()), {"features": "0"}, layouts={"features": layout})
    found = Extractor(model)(arrange(tokens))["features"]
    assert torch.equal(found, tokens)
    assert found.is_contiguous()


def test_outputs_are_copied_before_later_layers_write_into_them():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True))
    x = torch.randn(50, 3)
    found = Extractor(tapped(model, {"before": "0", "after": ":"}))(x)
    with torch.no_grad():
        assert torch.equal(found["before"], model[0](x))
    assert (found["before"] < 0).any()
    assert torch.equal(found["after"], found["before"].relu())


def test_a_slice_never_keeps_the_whole_map_alive(vit):
    maps = []
    vit.norm.register_forward_hook(lambda _, __, output: maps.append(weakref.ref(output)))
    model = tapped(vit, {"features": "norm"}, layouts={"features": "NTD"}, prefix=PREFIX)
    outputs = Extractor(model)(images(4))
    for name, output in outputs.items():
        assert output.untyped_storage().nbytes() == output.numel() * 4, name
        assert output.grad_fn is None
        assert not output.requires_grad
    gc.collect()
    assert [each() for each in maps] == [None]


class Several(nn.Module):
    """Gives tuples and mappings."""

    def __init__(self):
        super().__init__()
        self.pair, self.named, self.single = Gives("pair"), Gives("named"), Gives("single")

    def forward(self, x):
        self.pair(x), self.named(x), self.single(x)
        return {"logits": x[:, :2], "hidden": (x, x)}


class Gives(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how = how

    def forward(self, x):
        return {"pair": (x, 2 * x), "named": {"a": 3 * x, "b": x}, "single": (4 * x, None)}[
            self.how
        ]


def test_items_of_tuples_and_mappings():
    x = torch.randn(4, 3)
    taps = {"second": "pair:1", "a": "named:a", "only": "single", "k": "logits",
            "into": "pair:input", "output": ":logits"}  # fmt: skip
    found = Extractor(tapped(Several(), taps))(x)
    expected = {"second": 2 * x, "a": 3 * x, "only": 4 * x, "k": x[:, :2], "into": x,
                "output": x[:, :2]}  # fmt: skip
    assert all(torch.equal(found[name], rows) for name, rows in expected.items())
    for tap, message in (
        ("pair", r"gives a tuple with items 0, 1; name one of them, such as pair:0"),
        ("pair:2", r"no item '2' in items 0, 1"),
        ("named", "items a, b"),
        ("hidden", "expected a tensor, got a tuple"),
        ("piar", r"no item 'piar' in items logits, hidden; submodules of near names: pair"),
        ("single:1", "expected a tensor, got a NoneType"),
    ):
        with pytest.raises(DataError, match=message):
            Extractor(tapped(Several(), {"features": tap}))(x)


def test_submodules_that_are_not_there_are_refused_with_near_names(vit):
    with pytest.raises(UnknownNameError, match=r"'blocks.11'; near names: blocks.1, "):
        tapped(vit, {"features": "blocks.11"})
    with pytest.raises(UnknownNameError, match=r"head: .* 'haed'; near names: head"):
        tapped(vit, {"features": "norm"}, head="haed")


def test_what_did_not_run_or_ran_twice_is_named():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.layers = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            return self.layers(self.layers(x))

    model = Odd()
    with pytest.raises(DataError, match=r"tap features \(layer\): .* did not run .*names: layers"):
        Extractor(tapped(model, {"features": "layer"}))(torch.zeros(2, 3))
    with pytest.raises(DataError, match=r"tap features \(layers\): .* ran twice .*names: layer"):
        Extractor(tapped(model, {"features": "layers"}))(torch.zeros(2, 3))
    assert hooks_of(model) == 0


def test_hooks_are_removed_and_the_model_is_as_before_whatever_happens(vit):
    vit.blocks[1].eval()
    state = {name: tensor.clone() for name, tensor in vit.state_dict().items()}
    flags = [each.training for each in vit.modules()]
    own = vit.blocks[0].register_forward_hook(lambda *_: None)
    vit.head.weight.requires_grad_(False)
    random = torch.get_rng_state()
    model = tapped(vit, {"features": "norm", "early": "blocks.1"}, layouts={"early": "NTD"})
    extractor = Extractor(model)
    with pytest.raises(
        ConfigError, match=r"tap features \(norm\): it gives \(2, 21, 8\), .*layout"
    ):
        extractor(images(2))
    fine = Extractor(tapped(vit, {"features": "norm"}, layouts={"features": "NTD"}))
    with fine.ready():
        fine(images(2))
    vit.drop.register_forward_hook(failing)
    with pytest.raises(ZeroDivisionError), fine.ready():
        fine(images(2))
    vit.drop._forward_hooks.clear()
    assert [each.training for each in vit.modules()] == flags
    assert list(vit.blocks[0]._forward_hooks) == [own.id]
    assert hooks_of(vit) == 1
    assert all(torch.equal(tensor, state[name]) for name, tensor in vit.state_dict().items())
    assert not vit.head.weight.requires_grad
    assert vit.norm.weight.requires_grad
    assert torch.equal(torch.get_rng_state(), random)


def failing(*_):
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"layouts": {"features": "TD"}}, ConfigError, "expected the axes .* ND, NTD, NDT, NCHW"),
        ({"layouts": {"tokens": "NTD"}}, ConfigError, "there is no tap 'tokens'; taps: features"),
        ({"prefix": {"cls": 1}}, ConfigError, "no tap is a sequence"),
        ({"layouts": {"features": "NHWC"}, "prefix": {"cls": 1}}, ConfigError, "a map has none"),
        ({"layouts": {"features": "NTD"}, "prefix": {"cls": 0}}, ConfigError, "at least 1"),
        ({"layouts": {"features": "NTD"}, "prefix": {"features": 1}}, ConfigError, "two arrays"),
        ({"length": 4}, ConfigError, "beside the name of the mask"),
        ({"mask": "attention_mask", "length": 0}, ConfigError, "at least 1"),
        ({"pooled": True}, ConfigError, "no tap gives tokens"),
        ({"head": "norm"}, ConfigError, "norm is a LayerNorm, expected a torch.nn.Linear"),
        ({"head": "blocks"}, ConfigError, r"linear layers in it: blocks.0.attention.out_proj"),
    ],
)
def test_what_cannot_be_is_refused_before_a_forward_pass(vit, options, error, message):
    with pytest.raises(error, match=message):
        tapped(vit, {"features": "norm"}, **options)


@pytest.mark.parametrize(
    ("taps", "message"),
    [({}, "expected submodules"), ({"labels": "norm"}, "does not come from a tap"),
     ({"features": 3}, "expected the name"), ({"mask": "norm"}, "does not come from a tap")],
)  # fmt: skip
def test_taps_that_are_none(vit, taps, message):
    with pytest.raises(ConfigError, match=message):
        tapped(vit, taps)
    with pytest.raises(ConfigError, match="taps need a"):
        tapped(lambda x: x, {"features": "norm"})


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_a_scripted_module_takes_no_hooks():
    with pytest.raises(ConfigError, match="scripted has no hooks"):
        tapped(torch.jit.trace(nn.Linear(3, 3), torch.ones(1, 3)), {"features": ":"})


def test_layouts_that_do_not_match_are_refused_at_fit_and_at_score(vit):
    loader = [(images(8, seed), np.arange(8) % 2) for seed in range(2)]

    def model(layout, tap="norm"):
        return tapped(vit, {"features": tap}, layouts={"features": layout})

    for layout, message in (
        ("NCHW", r"gives \(8, 21, 8\), 3 axes, and its layout NCHW declares 4; choose NTD or NDT"),
        ("ND", "layout ND declares 2; choose NTD or NDT"),
    ):
        with pytest.raises(DataError, match=message):
            ff.fit("mahalanobis", loader, model=model(layout))
    with pytest.raises(ConfigError, match="which axes are tokens and features is never guessed"):
        ff.fit("mahalanobis", loader, model=tapped(vit, {"features": "norm"}))
    fitted = ff.fit("mahalanobis", loader, model=model("NTD"))
    assert np.isfinite(ff.score(fitted, loader, model=model("NTD"))["mahalanobis"]).all()
    for other, message in (
        (model("NDT"), r"rows \(21, 8\) TD; id/test has \(8, 21\) TD"),
        (model("NTD", "blocks.2"), "features of tap 'norm NTD'; those of id/test are of 'blocks.2"),
    ):
        with pytest.raises(DataError, match=message):
            ff.score(fitted, loader, model=other)


def test_a_square_output_that_is_read_the_other_way_round_is_refused():
    """Shapes agree; what was declared does not."""
    net = nn.Sequential(nn.Identity())
    loader = [(torch.randn(6, 4, 4), np.arange(6) % 2)]
    first, second = (
        tapped(net, {"features": "0"}, layouts={"features": n}) for n in ("NTD", "NDT")
    )
    fitted = ff.fit("mahalanobis", loader, model=first)
    with pytest.raises(DataError, match="features of tap '0 NTD'; those of id/test are of '0 NDT'"):
        ff.score(fitted, loader, model=second)


def test_batches_of_1_and_16_give_the_same_features(vit):
    model = Extractor(
        tapped(vit, {"features": "norm", "logits": "head"}, layouts={"features": "NTD"})
    )
    x = images(16)
    whole = model(x)
    for name, rows in whole.items():
        single = torch.cat([model(x[i : i + 1])[name] for i in range(16)])
        torch.testing.assert_close(single, rows, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_models_are_left_as_they_are_and_take_images(vit, dtype):
    half = vit.to(dtype)
    outputs = Extractor(tapped(half, {"features": "norm"}, layouts={"features": "NTD"}))(images(2))
    with torch.no_grad():
        assert torch.equal(outputs["features"], half.eval().tokens(images(2).to(dtype)))
    assert {each.dtype for each in half.parameters()} == {dtype}


@pytest.mark.parametrize("wrap", [lambda call: call, functools.partial])
def test_methods_of_modules_are_tapped_too(vit, wrap):
    model = tapped(wrap(vit.tokens), {"features": ":"}, layouts={"features": "NTD"})
    found = Extractor(model)(images(3))["features"]
    with torch.no_grad():
        assert torch.equal(found, vit.eval().tokens(images(3)))


def test_hashes_name_the_weights_whatever_is_tapped(vit):
    plain = Extractor(vit).attributes()
    found = Extractor(tapped(vit, {"features": "norm"}, transform=failing)).attributes()
    assert found["weights_sha256"] == plain["weights_sha256"]
    assert found["model"] == plain["model"] == "vision_transformer.VisionTransformer"
    assert found["taps"] == "features: norm"
    assert found["transform"] == "<function failing>"  # no address, which changes by process


def test_tables_that_a_model_keeps_can_be_trained_with_afterwards():
    """What inference mode makes cannot be saved for backward."""

    class Rotary(nn.Linear):
        angles = None

        def forward(self, x):
            if self.angles is None:
                self.angles = torch.arange(3.0, device=x.device)
            return super().forward(x) * self.angles

    model = Rotary(3, 3)
    extractor = Extractor(model)
    with extractor.ready():
        extractor(torch.ones(2, 3))
    model(torch.ones(2, 3)).sum().backward()
    assert model.weight.grad is not None


def test_a_model_that_is_compiled_is_run_as_it_was_written(vit):
    def features(network, tap):
        model = tapped(network, {"features": tap}, layouts={"features": "NTD"})
        return Extractor(model)(images(2))["features"]

    expected = features(vit, "norm")
    compiled = torch.compile(vit, backend="eager")
    assert torch.equal(features(compiled, "_orig_mod.norm"), expected)
    assert torch.equal(features(compiled, "norm"), expected)
    assert weights_sha256(compiled) == weights_sha256(vit)
    vit.blocks.compile(backend="eager")
    assert torch.equal(features(vit, "blocks.1"), features(VisionTransformerLike(vit), "blocks.1"))


class VisionTransformerLike(VisionTransformer):
    """The same layers, none of them compiled."""

    def __init__(self, other):
        super().__init__()
        self.load_state_dict(other.state_dict())


def test_models_are_sent_to_workers_whole(vit):
    model = tapped(vit, {"features": "norm"}, layouts={"features": "NTD"}, prefix=PREFIX)
    sent = pickle.loads(pickle.dumps(model))  # as share_out does
    assert sent.taps[0].module is sent.tapped.norm
    first, second = Extractor(model)(images(2)), Extractor(sent)(images(2))
    assert all(torch.equal(rows, second[name]) for name, rows in first.items())
