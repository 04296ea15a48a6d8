"""The probe odin: against the formula of the paper with plain torch, in every surrounding."""

import numpy as np
import pytest
import torch
from probed_networks import Bytes, K, Net, assert_same_state, images, state_of

from pipeline.errors import ConfigError, DataError, UnknownNameError
from pipeline.extract.model import Extractor
from pipeline.extract.probes import odin
from pipeline.extract.taps import tapped

T, EPSILON = 1000.0, 0.0014


def by_the_paper(net, x, temperature=T, epsilon=EPSILON, std=None, largest=None):
    """Liang et al. 2018: logits of x - epsilon sign(-grad log S_y(x; T))."""
    net, x = net.eval(), x.clone().requires_grad_()
    p = torch.softmax(net(x)["logits"] / temperature, dim=1)
    (gradient,) = torch.autograd.grad(-torch.log(p.max(dim=1).values).sum(), x)
    step = gradient.sign()
    if std is not None:
        step = step / torch.tensor(std).reshape(1, -1, 1, 1)
    if largest is not None:
        least = gradient.abs().flatten(1).sort(dim=1, descending=True).values[:, largest - 1]
        step = step * (gradient.abs() >= least.reshape(-1, 1, 1, 1))
    with torch.no_grad():
        return net(x - epsilon * step)["logits"]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 1.0, "epsilon": 0.1},
        {"epsilon": 0.2, "std": (0.2, 0.5, 1.0)},
        {"epsilon": 0.5, "largest": 1},
        {"epsilon": 0.5, "largest": 9, "std": (0.2, 0.5, 1.0)},
    ],
)
def test_logits_are_those_of_the_paper(options):
    net, x = Net(), images()
    found = Extractor(odin(net, **options))(x)
    assert set(found) == {"features", "logits", "odin_logits"}
    torch.testing.assert_close(
        found["odin_logits"], by_the_paper(net, x, **options), rtol=1e-5, atol=1e-6
    )
    plain = Extractor(net)(x)
    for name, each in plain.items():
        assert torch.equal(found[name], each)


@pytest.mark.parametrize("rows", [1, 3, 6, 7])
def test_rows_do_not_depend_on_the_batch(rows):
    net, x = Net(), images()
    probed = Extractor(odin(net, epsilon=0.1))
    found = torch.cat([probed(part)["odin_logits"] for part in x.split(rows)])
    torch.testing.assert_close(found, probed(x)["odin_logits"], rtol=1e-5, atol=1e-6)


def test_one_row_has_the_gradient_of_finite_differences():
    """Batch norm of torch, in evaluation mode, gets it wrong for a batch of one row."""
    net, x, width = Net().double().eval(), images(1).double(), 1e-5
    moved = torch.eye(x.numel(), dtype=torch.double).reshape(-1, *x.shape[1:]) * width
    with torch.no_grad():
        up, down = (-net(x + s * moved)["logits"].log_softmax(1).amax(dim=1) for s in (1, -1))
        expected = net(x - 0.01 * (up - down).sign().reshape(x.shape))["logits"]
    found = odin(net, temperature=1.0, epsilon=0.01)(x)["odin_logits"]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("surrounding", [torch.inference_mode, torch.no_grad, torch.enable_grad])
def test_it_works_in_every_mode_and_leaves_no_trace(training, surrounding):
    net, x = Net().train(training), images()
    net.conv.bias.requires_grad_(False)
    net.head.weight.grad = torch.ones_like(net.head.weight)
    before = state_of(net)
    with surrounding():
        given = x.clone().requires_grad_(surrounding is torch.enable_grad)
        found = odin(net)(given)
        enabled, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    assert (enabled, inference) == (surrounding is torch.enable_grad,
                                    surrounding is torch.inference_mode)  # fmt: skip
    assert_same_state(state_of(net), before)
    assert given.grad is None
    assert not any(each.requires_grad or each.is_inference() for each in found.values())
    torch.testing.assert_close(found["odin_logits"], by_the_paper(Net(), x), rtol=1e-5, atol=1e-6)
    torch.nn.functional.cross_entropy(net(x)["logits"], torch.zeros(7, dtype=torch.long)).backward()


def test_a_model_with_taps_keeps_its_graph_only_while_it_is_probed():
    net, x = Net(), images()
    model = tapped(net, {"features": "conv", "logits": "head"}, layouts={"features": "NCHW"})
    found = Extractor(odin(model))(x)
    torch.testing.assert_close(found["odin_logits"], by_the_paper(net, x), rtol=1e-5, atol=1e-6)
    assert found["features"].shape == (7, 16, 6)
    assert not model(x)["logits"].requires_grad


def test_integers_are_moved_where_they_have_become_floats():
    net = Bytes()
    raw = torch.randint(0, 256, (5, 8, 8, 3), dtype=torch.uint8)
    with pytest.raises(ConfigError, match=r"inputs of torch.uint8.*at: conv1"):
        Extractor(odin(net))(raw)
    for at in ("net", "net.conv"):
        found = Extractor(odin(net, at=at))(raw)
        floats = (raw.permute(0, 3, 1, 2).float() - 127) / 128
        expected = by_the_paper(net.net, floats)
        torch.testing.assert_close(found["odin_logits"], expected, rtol=1e-5, atol=1e-6)


def test_inputs_by_name_are_moved_where_one_of_them_is_floats():
    net, x = Net(), images()

    class Named(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, pixel_values, ids):
            return self.net(pixel_values)

    batch = {"pixel_values": x, "ids": torch.arange(7)}
    found = Extractor(odin(Named()))(batch)
    torch.testing.assert_close(found["odin_logits"], by_the_paper(net, x), rtol=1e-5, atol=1e-6)
    with pytest.raises(ConfigError, match="pixel_values, ids, 2 are floats"):
        odin(Named())({"pixel_values": x, "ids": x})


def test_a_lone_tensor_of_logits_is_named():
    linear = torch.nn.Linear(4, K)
    found = odin(linear, logits="features")(torch.randn(3, 4))
    assert found["odin_logits"].shape == (3, K)
    with pytest.raises(ConfigError, match="needs 'logits', the model gives features"):
        odin(linear)(torch.randn(3, 4))


def test_a_callable_may_be_probed_and_its_device_is_found():
    net, x = Net(), images()
    net.eval()

    def model(batch):
        return {"logits": net(batch)["logits"]}

    probed = Extractor(odin(model))
    assert probed.device == torch.device("cpu")
    found = probed(x)
    torch.testing.assert_close(found["odin_logits"], by_the_paper(net, x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_steps_that_a_half_would_lose_are_refused(dtype):
    with pytest.raises(ConfigError, match=f"inputs of {dtype}, in which small steps are lost"):
        Extractor(odin(Net().to(dtype)))(images())


def test_autocast_does_not_round_the_step_away():
    net, x = Net(), images()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = Extractor(odin(net))(x)
    assert found["logits"].dtype == torch.bfloat16
    torch.testing.assert_close(found["odin_logits"], by_the_paper(net, x), rtol=1e-5, atol=1e-6)


def test_models_without_gradients_are_refused():
    net, x = Net(), images()
    for model in (
        lambda x: {"logits": net(x.detach())["logits"]},
        torch.no_grad()(lambda x: net(x)),
        lambda x: {"logits": torch.ones(len(x), K, requires_grad=True)},
    ):
        with pytest.raises(DataError, match="probe odin: no gradient reaches the inputs"):
            odin(model)(x)


def test_places_that_are_not_there_or_do_not_run_once_are_refused():
    net, x = Net(), images()
    with pytest.raises(UnknownNameError, match="no submodule 'con'; near names: conv"):
        odin(net, at="con")
    net.spare = torch.nn.Linear(1, 1)
    with pytest.raises(DataError, match="spare did not run"):
        odin(net, at="spare")(x)
    twice = torch.nn.Sequential(net.conv, net.conv)
    twice[0] = twice[1] = torch.nn.Linear(4, 4)
    with pytest.raises(DataError, match="ran twice"):
        odin(twice, at="0", logits="features")(torch.randn(2, 4))
    assert not any(m._forward_pre_hooks for m in (*net.modules(), *twice.modules()))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": 0}, "temperature: 0"),
        ({"epsilon": -1.0}, "epsilon: -1"),
        ({"epsilon": "0.1"}, "epsilon: '0.1'"),
        ({"largest": 0}, "largest: 0"),
        ({"std": (1.0, 0.0)}, "std: "),
    ],
)
def test_options_that_cannot_be_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        odin(Net(), **options)
    with pytest.raises(ConfigError, match="std has 2 channels"):
        odin(Net(), std=(1.0, 2.0))(images())


def test_a_row_that_is_not_finite_stays_alone():
    x = images()
    x[2, 0, 0, 0] = np.nan
    found = odin(Net())(x)["odin_logits"]
    clean = odin(Net())(images())["odin_logits"]
    assert torch.isnan(found[2]).all()
    others = [0, 1, 3, 4, 5, 6]
    assert torch.equal(found[others], clean[others])
