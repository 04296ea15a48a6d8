"""The probe dropout: masks that belong to rows, and nothing else of the model changed."""

import numpy as np
import pytest
import torch
from probed_networks import K, Net, assert_same_state, images, state_of

from pipeline.errors import ConfigError, DataError
from pipeline.extract.model import Extractor
from pipeline.extract.probes import dropout
from pipeline.extract.probes.random_masks import kept, row_keys


def runs_of(found):
    return found["dropout_logits"].reshape(len(found["logits"]), -1, K)


class Replayed(torch.nn.Module):
    """What dropout does with given masks, written as its definition."""

    def __init__(self, masks, p):
        super().__init__()
        self.masks, self.p = masks, p

    def forward(self, x):
        return x * self.masks / (1 - self.p)


def test_runs_are_the_model_with_those_masks():
    net, x = Net(rate=0.4).eval(), images()
    seen = []
    net.dropped.register_forward_hook(lambda _, __, tokens: seen.append(tokens))
    found = runs_of(dropout(net, 3)(x))
    assert found.shape == (7, 3, K)
    tokens, *dropped = seen
    masks = [each != 0 for each in dropped]
    for run, mask in enumerate(masks):
        again = Net(rate=0.4).eval()
        again.drop = Replayed(mask, 0.4)
        with torch.no_grad():
            expected = again(x)["logits"]
        torch.testing.assert_close(found[:, run], expected, rtol=1e-5, atol=1e-6)
    share = 1 - torch.stack(masks).float().mean()
    assert abs(share - 0.4) < 4 * (0.24 / (3 * tokens.numel())) ** 0.5
    assert not torch.equal(masks[0], masks[1])


@pytest.mark.parametrize("rows", [1, 3, 6, 7])
def test_what_is_dropped_of_a_row_does_not_depend_on_the_batch_or_the_order(rows):
    net, x = Net(), images()
    probed = Extractor(dropout(net, 4))
    whole = runs_of(probed(x))
    cut = torch.cat([runs_of(probed(part)) for part in x.split(rows)])
    torch.testing.assert_close(cut, whole, rtol=1e-5, atol=1e-6)
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    torch.testing.assert_close(runs_of(probed(x[order])), whole[order], rtol=1e-5, atol=1e-6)
    torch.manual_seed(99)
    assert torch.equal(runs_of(probed(x)), whole)
    assert not torch.equal(runs_of(Extractor(dropout(net, 4, seed=1))(x)), whole)


@pytest.mark.parametrize("training", [False, True])
def test_it_leaves_no_trace(training):
    net, x = Net().train(training), images()
    before = state_of(net)
    with torch.inference_mode():
        dropout(net, 2)(x)
    assert_same_state(state_of(net), before)


def test_plain_outputs_are_those_of_the_model():
    net, x = Net(), images()
    plain, found = Extractor(net)(x), Extractor(dropout(net, 2))(x)
    assert all(torch.equal(found[name], each) for name, each in plain.items())


@pytest.mark.parametrize(
    ("module", "shape", "channels"),
    [
        (torch.nn.Dropout, (4, 3, 5), False),
        (torch.nn.Dropout1d, (4, 6, 5), True),
        (torch.nn.Dropout2d, (4, 6, 5, 5), True),
        (torch.nn.Dropout3d, (4, 6, 2, 2, 2), True),
        (torch.nn.AlphaDropout, (4, 30), False),
        (torch.nn.FeatureAlphaDropout, (4, 6, 5), True),
    ],
)
def test_every_module_drops_as_torch_does(module, shape, channels):
    """The values that torch's own draws have, and whole channels where it drops those."""
    rate = 0.4
    x = torch.ones(shape)
    net = torch.nn.Sequential(module(rate), torch.nn.Flatten())
    found = dropout(net, 50, logits="features")(x)["dropout_logits"].reshape(4, 50, *shape[1:])
    torch.manual_seed(0)
    theirs = torch.stack([module(rate).train()(x) for _ in range(50)], dim=1)
    torch.testing.assert_close(found.unique(), theirs.unique(), rtol=1e-5, atol=1e-6)
    stay = found == found.max()
    if channels:
        each = stay.flatten(3)
        assert torch.equal(each.all(dim=3), each.any(dim=3))
    count = stay.flatten(3)[..., 0].numel() if channels else stay.numel()
    assert abs(stay.float().mean() - (1 - rate)) < 4 * (0.24 / count) ** 0.5


@pytest.mark.parametrize("module", [torch.nn.Dropout, torch.nn.AlphaDropout])
def test_a_rate_of_one_leaves_nothing(module):
    net = torch.nn.Sequential(module(1.0))
    assert not dropout(net, 2, logits="features")(torch.rand(3, 4))["dropout_logits"].any()


def test_masks_are_even_and_differ_between_rows_runs_and_calls():
    keys = row_keys(torch.arange(400.0)[:, None], seed=0)
    assert len(set(keys)) == 400
    drawn = kept(keys, (1000,), 0.3, "cpu").float()
    spread = (0.21 / 1000) ** 0.5
    assert abs(drawn.mean() - 0.7) < 4 * spread / 20
    assert abs(drawn.mean(dim=1).std() / spread - 1) < 0.2
    correlation = np.corrcoef(drawn.numpy())[np.triu_indices(400, 1)]
    assert abs(correlation.std() * 1000**0.5 - 1) < 0.05
    assert abs(np.corrcoef(drawn[:, :-1].flatten(), drawn[:, 1:].flatten())[0, 1]) < 0.01


def test_tiles_of_masks_do_not_matter(monkeypatch):
    keys = row_keys(images(), seed=3)
    whole = kept(keys, (5, 11), 0.5, "cpu")
    monkeypatch.setattr("pipeline.extract.probes.random_masks.TILE_ENTRIES", 16)
    assert torch.equal(kept(keys, (5, 11), 0.5, "cpu"), whole)


def test_windows_of_a_row_belong_to_it_and_rows_that_are_not_first_still_drop():
    class Windows(torch.nn.Module):
        def __init__(self, axis):
            super().__init__()
            self.axis, self.drop = axis, torch.nn.Dropout(0.5)

        def forward(self, x):
            if self.axis == "windows":
                return {"logits": self.drop(x.reshape(-1, 4)).reshape(len(x), -1)}
            return {"logits": self.drop(x.T).T}

    x = torch.rand(6, 8) + 1
    model = dropout(Windows("windows"), 2)
    assert torch.equal(torch.cat([model(row[None])["dropout_logits"] for row in x]),
                       model(x)["dropout_logits"])  # fmt: skip
    found = dropout(Windows("turned"), 40)(torch.rand(5, 8) + 1)["dropout_logits"]
    assert 0.4 < (found == 0).float().mean() < 0.6


def test_models_that_drop_nothing_are_refused():
    with pytest.raises(ConfigError, match=r"no torch\.nn\.Dropout, or alike"):
        dropout(torch.nn.Linear(2, 2))
    with pytest.raises(ConfigError, match="of a rate above 0"):
        dropout(Net(rate=0.0))
    assert not torch.equal(*runs_of(dropout(Net(rate=0.0), 2, p=0.5)(images())).unbind(dim=1))

    class Own(torch.nn.Dropout):
        def forward(self, x):
            return x

    with pytest.raises(ConfigError, match=r"what .*Own drops is not known"):
        dropout(torch.nn.Sequential(Own()))
    idle = torch.nn.Linear(2, 2)
    idle.spare = torch.nn.Dropout(0.5)
    with pytest.raises(DataError, match="none of its dropout modules ran"):
        dropout(idle, logits="features")(torch.rand(3, 2))
    flat = torch.nn.Sequential(torch.nn.Dropout1d(0.5))
    with pytest.raises(DataError, match="whole channels"):
        dropout(flat, logits="features")(torch.rand(3, 2))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"samples": 1}, "samples: 1"),
        ({"samples": "4"}, "samples: '4'"),
        ({"seed": -1}, "seed: -1"),
        ({"p": 1.0}, "p: 1.0"),
    ],
)
def test_options_that_cannot_be_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        dropout(Net(), **options)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_dropped_too(dtype):
    found = Extractor(dropout(Net().to(dtype), 3))(images())
    assert found["dropout_logits"].dtype == dtype
    assert not torch.equal(*runs_of(found)[:, :2].unbind(dim=1))
