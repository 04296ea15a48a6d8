"""The device of a model: found by one rule, refused before a read, and left as it was."""

import functools

import numpy as np
import pytest
import torch

import pipeline as ff
from pipeline.errors import ConfigError
from pipeline.extract import devices
from pipeline.extract.devices import placed, settled
from pipeline.extract.model import Extractor

CPU, META = torch.device("cpu"), torch.device("meta")
CUDA = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def linear(device="cpu"):
    return torch.nn.Linear(3, 2, device=device)


class Encoder:
    """A callable that holds a module, or a method of one."""

    def __init__(self, held):
        self.held = held

    def __call__(self, x):
        return self.held(x)

    def encode(self, x):
        return self.held(x)


GLOBAL = linear("meta")


def of_a_global(x):
    return GLOBAL(x)


def in_closure(device):
    module = linear(device)
    return lambda x: module(x)


@pytest.mark.parametrize(
    "model",
    [
        linear("meta"),
        linear("meta").forward,
        functools.partial(linear("meta")),
        Encoder(linear("meta")),
        Encoder(linear("meta").forward),
        Encoder(linear("meta")).encode,
        functools.partial(lambda net, x: net(x), linear("meta")),
        in_closure("meta"),
        of_a_global,
        torch.no_grad()(of_a_global),
    ],
)
def test_inputs_go_to_where_the_model_is(model):
    assert settled(model) == META


@pytest.mark.parametrize("model", [torch.nn.Identity(), lambda x: x, np.tanh, Encoder(None), len])
def test_models_without_parameters_take_any_device(model):
    assert settled(model) == CPU
    assert settled(model, "cpu") == CPU
    assert settled(model, "meta") == META


def spread():
    return torch.nn.Sequential(linear(), linear("meta"))


@pytest.mark.parametrize(
    ("model", "device", "message"),
    [
        (in_closure("cpu"), "meta", "go to meta, but the model is on cpu and is not moved"),
        (Encoder(linear()), "meta", "go to meta, but the model is on cpu and is not moved"),
        (of_a_global, "cpu", "go to cpu, but the model is on meta .* choose device meta"),
        (lambda x: x, "gpu", "'gpu' cannot be used here"),
        (linear(), 3.5, "3.5 cannot be used here"),
        pytest.param(
            linear(), "cuda", "'cuda' cannot be used here",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is one"),
        ),
    ],
)  # fmt: skip
def test_models_elsewhere_are_refused_before_a_read(model, device, message):
    def unread():
        raise AssertionError("a batch was read")
        yield

    with pytest.raises(ConfigError, match=message):
        ff.fit("mahalanobis", unread(), model=model, device=device)


def test_a_model_that_is_spread_stays_and_takes_its_first_device(monkeypatch):
    model = spread()
    assert settled(model) == CPU
    assert settled(model, "meta") == META  # one of its own
    offloaded = torch.nn.Sequential(linear("meta"), linear())
    assert settled(offloaded) == CPU
    before = [parameter.device for parameter in model.parameters()]
    with placed(model, META):
        assert [parameter.device for parameter in model.parameters()] == before
    monkeypatch.setattr(devices, "_existing", torch.device)  # as if there were one
    with pytest.raises(ConfigError, match=r"on cpu and meta .*as it is spread"):
        settled(model, "cuda:1")


def test_plain_attributes_go_along_and_come_back():
    """A tensor that is no buffer does not follow .to()."""
    model = torch.nn.Module()
    model.inner = torch.nn.Module()
    model.inner.scale, model.inner.label = torch.ones(3), "kept"
    model.inner.tables, model.inner.by_name = [torch.ones(2), "kept"], {"a": torch.ones(1)}
    scale, table, named = model.inner.scale, model.inner.tables[0], model.inner.by_name["a"]
    with placed(model, META):
        assert model.inner.scale.device == META
        assert model.inner.tables[0].device == model.inner.by_name["a"].device == META
    assert model.inner.scale is scale
    assert model.inner.tables[0] is table
    assert model.inner.by_name["a"] is named


def test_a_module_is_moved_for_the_extraction_and_put_back():
    class Told(torch.nn.Linear):
        moves = ()

        def to(self, device):
            self.moves += (str(device),)
            self._buffers["seen"] = self.seen.clone()  # as a real move does
            return self

    model = Told(3, 2)
    model.register_buffer("seen", torch.arange(3.0))
    seen = model.seen
    with pytest.raises(KeyError), placed(model, META):
        raise KeyError
    assert model.moves == ("meta", "cpu")
    assert model.seen is seen


def test_what_cannot_be_moved_says_so():
    with pytest.raises(ConfigError, match=r"cannot be moved to cpu .*meta tensor"):
        ff.fit("msp", [], model=linear("meta"), device="cpu")


class Noisy(torch.nn.Module):
    """Dropout, batch normalisation, a plain tensor, and a draw in every call."""

    def __init__(self):
        super().__init__()
        self.norm, self.drop = torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5)
        self.frozen = torch.nn.BatchNorm1d(3).eval()
        self.offset = torch.tensor([1.0, 2.0, 3.0])

    def forward(self, x):
        torch.rand(5, device=x.device)
        return self.frozen(self.drop(self.norm(x))) + self.offset


X = np.random.default_rng(0).standard_normal((40, 3)).astype("f4")
LOADER = [(X[:30], np.arange(30) % 2), (X[30:], np.arange(10) % 2)]


@pytest.mark.parametrize("device", [None, "cpu", pytest.param("cuda", marks=CUDA)])
@pytest.mark.parametrize("home", ["cpu", pytest.param("cuda", marks=CUDA)])
def test_a_fit_leaves_no_trace_on_a_model(home, device):
    model = Noisy().to(home)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    tensors = [*model.parameters(), *model.buffers(), model.offset]
    flags = [each.training for each in model.modules()]
    random = torch.get_rng_state()
    with torch.enable_grad():
        fitted = ff.fit("mahalanobis", LOADER, model=model, device=device)
        assert torch.is_grad_enabled()
    shifted = X + np.array([1, 2, 3], "f4")  # evaluated, all else is the identity
    expected = ff.fit("mahalanobis", (shifted, np.arange(40) % 2))
    np.testing.assert_allclose(
        fitted["mahalanobis"](shifted), expected["mahalanobis"](shifted), rtol=1e-3
    )
    assert torch.equal(torch.get_rng_state(), random)
    assert [each.training for each in model.modules()] == flags == [True, True, True, False]
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    now = [*model.parameters(), *model.buffers(), model.offset]
    assert all(a is b for a, b in zip(now, tensors, strict=True))
    assert {tensor.device.type for tensor in now[:-1]} == {home}
    assert all(parameter.grad is None for parameter in model.parameters())


def run(net, v):
    return net(v)


class Holds:
    """A callable with modules in a list, as ensembles are, one of them twice."""

    def __init__(self, *nets):
        self.nets = [*nets, nets[0]]

    def __call__(self, v):
        return self.nets[-1](v)


WRAPPED = [
    lambda net: lambda v: net(v),
    lambda net: functools.partial(run, net),
    lambda net: functools.partial(lambda v, model: model(v), model=net),
    Encoder,
    lambda net: Encoder(net).encode,
    Holds,
]


@pytest.mark.parametrize("wrap", WRAPPED)
def test_modules_around_which_there_is_a_callable_are_evaluated_and_left_as_they_were(wrap):
    """Rows and figures of batch normalisation in training mode: pytorch/vision#2079."""
    rows = np.array([[0, 10], [2, 30]], "f4")
    frozen = torch.nn.BatchNorm1d(2).eval()
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.Dropout(0.5), frozen)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for part in (rows, rows[:1]):
        found = Extractor(wrap(model))(part)["features"]
        np.testing.assert_allclose(found, part, rtol=2e-5)
    many = np.concatenate([X[:, :2], 3 * X[:, 1:]]) + 5
    ff.fit("mahalanobis", [(many, np.arange(len(many)) % 2)], model=wrap(model))
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert [each.training for each in model.modules()] == [True, True, True, False]
    assert all(each.requires_grad for each in model.parameters())


def test_flags_are_restored_when_a_callable_fails():
    norm = torch.nn.BatchNorm1d(2)

    def failing(v):
        raise KeyError(norm(v).shape)

    with pytest.raises(KeyError):
        Extractor(failing)(np.ones((2, 2), "f4"))
    assert norm.training


def test_a_plain_callable_is_called_once_for_a_batch_and_without_gradients():
    model = Noisy()
    seen = []

    def called(x):
        seen.append((model.training, torch.is_grad_enabled(), x.device))
        return x

    ff.fit("mahalanobis", LOADER, model=called)
    assert seen == [(False, False, CPU)] * 2
    assert model.training


def test_extractors_are_models_too():
    extractor = Extractor(torch.nn.Identity())
    assert ff.fit("mahalanobis", LOADER, model=extractor)["mahalanobis"].schema.rows == 40
