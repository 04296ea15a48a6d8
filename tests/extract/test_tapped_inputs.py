"""Taps of what goes into a submodule: as it went in, and the tensor that is meant or none."""

import pytest
import torch
from torch import nn

from pipeline.errors import DataError
from pipeline.extract.model import Extractor
from pipeline.extract.taps import tapped


def inputs(rows=50):
    return torch.randn(rows, 3, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("rows", [1, 50])
def test_inputs_are_copied_before_the_submodule_writes_into_them(rows):
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Linear(3, 2))
    x = inputs(rows)
    with torch.no_grad():
        expected = model[0](x)
    found = Extractor(tapped(model, {"into": "1:input", "given": "0:input"}))(x)
    assert torch.equal(found["into"], expected)
    assert (found["into"] < 0).any()
    assert torch.equal(found["given"], x)
    assert not any(e._forward_pre_hooks or e._forward_hooks for e in model.modules())


def test_the_input_of_the_model_is_copied_before_it_is_written_into():
    x = inputs()
    found = Extractor(tapped(nn.Sequential(nn.ReLU(inplace=True)), {"features": ":input"}))(x)
    assert torch.equal(found["features"], inputs())


class Block(nn.Module):
    def forward(self, hidden, mask=None, places=None):
        return hidden.mul_(0)


class Calls(nn.Module):
    """Calls a block in one of the ways that libraries do."""

    def __init__(self, how):
        super().__init__()
        self.block, self.how = Block(), how

    def forward(self, x):
        hidden, mask = x.clone(), torch.ones_like(x)
        calls = {
            "keywords": lambda: self.block(mask=mask, hidden=hidden),
            "mixed": lambda: self.block(hidden, mask=mask),
            "positions": lambda: self.block(hidden, mask),
            "nested": lambda: self.block(hidden, places=(mask, mask)),
            "alone": lambda: self.block(hidden=hidden, mask=None),
        }
        return calls[self.how]()


@pytest.mark.parametrize("how", ["keywords", "mixed", "positions", "nested"])
def test_of_several_tensors_that_go_in_one_is_named(how):
    named = r"tap features \(block:input\): .*block:input:(hidden|mask)"
    with pytest.raises(DataError, match=named):
        Extractor(tapped(Calls(how), {"features": "block:input"}))(inputs())
    found = Extractor(tapped(Calls(how), {"features": "block:input:hidden"}))(inputs())
    assert torch.equal(found["features"], inputs())


@pytest.mark.parametrize("path", ["block:input", "block:input:hidden"])
def test_a_lone_tensor_needs_no_name(path):
    found = Extractor(tapped(Calls("alone"), {"features": path}))(inputs())
    assert torch.equal(found["features"], inputs())


@pytest.mark.parametrize(
    ("how", "path", "message"),
    [
        ("mixed", "block:input:hiden", "no item 'hiden' in items hidden, mask"),
        ("nested", "block:input:places", "items 0, 1; name one of them, such as .*places:0"),
        ("alone", "block:input:mask", "expected a tensor, got a NoneType"),
    ],
)
def test_inputs_that_are_none(how, path, message):
    with pytest.raises(DataError, match=message):
        Extractor(tapped(Calls(how), {"features": path}))(inputs())


def test_an_item_of_what_goes_in_is_named_by_its_way():
    found = Extractor(tapped(Calls("nested"), {"features": "block:input:places:1"}))(inputs())
    assert torch.equal(found["features"], torch.ones(50, 3))


def test_inputs_of_a_model_that_takes_several_by_name():
    class Two(nn.Module):
        def forward(self, ids, mask):
            return ids * mask

    given = {"mask": torch.ones(4, 3), "ids": inputs(4)}
    with pytest.raises(DataError, match=r"name one of them, such as :input:"):
        Extractor(tapped(Two(), {"features": ":input"}))(given)
    found = Extractor(tapped(Two(), {"features": ":input:ids"}))(given)
    assert torch.equal(found["features"], inputs(4))
