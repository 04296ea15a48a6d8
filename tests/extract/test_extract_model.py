"""Extraction through any callable: rows stay in step, blocks are kept, models stay as they were."""

import functools
import gc
import weakref

import numpy as np
import pytest
import torch

from pipeline.chunk import ArraySpec, Block
from pipeline.errors import ConfigError, DataError
from pipeline.extract.filling import extract
from pipeline.extract.model import Description, Extractor, declare
from pipeline.extract.sources import Batch


class Rows:
    """A source over arrays; ids count from 100."""

    name = "rows"

    def __init__(self, inputs, labels=None):
        self.inputs = inputs
        self.labels = np.full(len(inputs), -1) if labels is None else labels
        self.reads = []

    def __len__(self):
        return len(self.inputs)

    def read(self, start, stop):
        self.reads.append((start, stop))
        ids = np.arange(100 + start, 100 + stop)
        return Batch(self.inputs[start:stop], self.labels[start:stop], ids)


class Memory:
    """A writer that keeps its blocks in memory."""

    name = "id/train"

    def __init__(self, rows, block_rows):
        starts = range(0, rows, block_rows)
        self.blocks = [Block(i, at, min(at + block_rows, rows)) for i, at in enumerate(starts)]
        self.written = {}

    def missing(self):
        return [block for block in self.blocks if block.index not in self.written]

    def write(self, index, contents):
        self.written[index] = contents

    def __getitem__(self, name):
        return np.concatenate([self.written[block.index][name] for block in self.blocks])


def images(rows, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, 3)).astype(np.float32)


@pytest.mark.parametrize("batch_rows", [1, 4, 10, 64])
@pytest.mark.parametrize("block_rows", [1, 7, 9, 10])
def test_any_batch_and_block_size_gives_every_row_once(batch_rows, block_rows):
    inputs, labels = images(10), np.arange(10) % 4
    writer = Memory(10, block_rows)
    extract(lambda x: 2 * x, Rows(inputs, labels), writer, batch_rows=batch_rows)
    np.testing.assert_array_equal(writer["features"], 2 * inputs)
    np.testing.assert_array_equal(writer["labels"], labels)
    np.testing.assert_array_equal(writer["ids"], np.arange(100, 110))
    assert writer["labels"].dtype == np.int64


def test_features_and_labels_stay_in_step_when_every_read_shuffles():
    """Two passes over a shuffling loader agree on 8 % of the rows (binli123/dsmil-wsi#19)."""
    generator = np.random.default_rng(3)
    labels = np.arange(200) % 10

    class Shuffling(Rows):
        def read(self, start, stop):
            drawn = generator.permutation(200)[: stop - start]
            return Batch(np.eye(10, dtype=np.float32)[labels[drawn]], labels[drawn], drawn)

    writer = Memory(200, 60)
    extract(torch.nn.Identity(), Shuffling(np.zeros(200)), writer)
    np.testing.assert_array_equal(writer["features"].argmax(axis=1), writer["labels"])
    np.testing.assert_array_equal(labels[writer["ids"]], writer["labels"])


def test_a_model_in_training_mode_is_evaluated_and_left_as_it_was():
    """Batch normalisation in training mode gives +-1 and moves its mean (pytorch/vision#2079)."""
    inputs = np.array([[0, 10], [2, 30]], np.float32)
    for batch_rows in (1, 2):
        norm = torch.nn.BatchNorm1d(2)
        frozen = torch.nn.BatchNorm1d(2).eval()
        model = torch.nn.Sequential(norm, torch.nn.Dropout(0.5), frozen)
        writer = Memory(2, 2)
        extract(model, Rows(inputs), writer, batch_rows=batch_rows)
        np.testing.assert_allclose(writer["features"], inputs, rtol=2e-5)
        assert norm.running_mean.tolist() == [0, 0]
        assert int(norm.num_batches_tracked) == 0
        assert [each.training for each in model.modules()] == [True, True, True, False]
        assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("wrap", [lambda call: call, functools.partial])
def test_bound_methods_and_partial_calls_are_evaluated_too(wrap):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(2)

        def tokens(self, x):
            return self.norm(x)

    net, inputs = Net(), np.array([[0, 10], [2, 30]], np.float32)
    np.testing.assert_allclose(Extractor(wrap(net.tokens))(inputs)["features"], inputs, rtol=2e-5)
    assert net.norm.training
    assert Extractor(wrap(net.tokens)).attributes()["model"].endswith("Net.tokens")


def test_buffers_that_a_model_changes_while_evaluated_are_restored():
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))
            self.register_buffer("last", torch.zeros(1))

        def forward(self, x):
            self.calls += 1
            self.last = x.sum().reshape(1)
            return x + self.calls

    model = Counting()
    calls, last = model.calls, model.last
    extract(model, Rows(images(5)), writer := Memory(5, 5), batch_rows=2)
    np.testing.assert_allclose(writer["features"], images(5) + 1)
    assert model.calls is calls
    assert model.last is last
    assert calls.item() == 0


def test_a_model_that_fails_is_left_as_it_was_and_its_rows_are_named():
    class Failing(torch.nn.Module):
        def forward(self, x):
            raise RuntimeError("no such kernel")

    model = Failing()
    with pytest.raises(DataError, match=r"id/train rows 0-4: the model raised RuntimeError: no su"):
        extract(model, Rows(images(9)), Memory(9, 5), batch_rows=4)
    assert model.training


@pytest.mark.parametrize("model", [torch.nn.Identity(), lambda x: x, torch.nn.Flatten().forward])
def test_models_without_parameters_need_no_device(model):
    """Looking up the first parameter raises StopIteration (pytorch-ood#93)."""
    for device in (None, "cpu", torch.device("cpu")):
        extractor = Extractor(model, device=device)
        assert extractor.device == torch.device("cpu")
        writer = Memory(4, 3)
        extract(extractor, Rows(images(4)), writer)
        np.testing.assert_array_equal(writer["features"], images(4))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_inputs_go_to_where_the_model_is():
    model = torch.nn.Linear(3, 2).cuda()
    outputs = Extractor(model)(images(4))
    assert outputs["features"].device.type == "cuda"
    extract(model, Rows(images(4)), writer := Memory(4, 4))
    assert next(model.parameters()).device.type == "cuda"
    expected = images(4) @ model.weight.detach().cpu().numpy().T + model.bias.detach().cpu().numpy()
    np.testing.assert_allclose(writer["features"], expected, rtol=1e-3, atol=1e-4)


def test_bfloat16_is_handed_over_as_its_bits():
    ones = Extractor(lambda x: torch.ones(len(x), 3, dtype=torch.bfloat16))(np.zeros(2))
    assert declare(ones)["features"] == ArraySpec((3,), "bfloat16", "D")
    extract(lambda x: x.bfloat16(), Rows(images(6)), writer := Memory(6, 4))
    bits = writer["features"]
    assert bits.dtype == np.uint16
    widened = (bits.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(widened, torch.tensor(images(6)).bfloat16().float().numpy())
    with pytest.raises(ConfigError, match="float8_e4m3fn, which cannot be stored"):
        declare({"features": torch.zeros(2, 3).to(torch.float8_e4m3fn)})


def test_dtypes_are_kept():
    outputs = {
        name: torch.zeros(2, 1, dtype=getattr(torch, name))
        for name in ("float16", "float32", "float64", "int32", "bool", "uint8")
    }
    extract(lambda x: outputs, Rows(images(2)), writer := Memory(2, 2))
    for name in outputs:
        assert writer[name].dtype.name == name
    assert {name: spec.dtype for name, spec in declare(outputs).items() if name in outputs} == {
        name: name for name in outputs
    }


def test_layouts_are_declared_and_never_guessed():
    outputs = {"features": torch.zeros(2, 49, 8), "logits": torch.zeros(2, 5)}
    specs = declare(outputs, {"features": "TD"})
    assert specs["features"] == ArraySpec((49, 8), "float32", "TD")
    assert specs["logits"] == ArraySpec((5,), "float32", "K")
    assert declare({"features": torch.zeros(2, 5)})["features"] == ArraySpec((5,), "float32", "D")
    assert specs["labels"] == specs["ids"] == ArraySpec((), "int64")
    with pytest.raises(ConfigError, match=r"shape \(49, 8\): expected a layout of one letter"):
        declare(outputs)
    with pytest.raises(ConfigError, match="got 'NTD'"):
        declare(outputs, {"features": "NTD"})
    with pytest.raises(ConfigError, match="which the source provides"):
        declare({"labels": torch.zeros(2)})


def test_only_missing_blocks_are_read_and_written():
    source, writer = Rows(images(20)), Memory(20, 6)
    writer.written = {0: {"features": "kept"}, 2: {"features": "kept"}}
    seen = []
    extract(lambda x: x, source, writer, batch_rows=4, progress=lambda *at: seen.append(at))
    assert source.reads == [(6, 10), (10, 12), (18, 20)]
    assert seen == [(12, 20), (16, 20), (18, 20), (20, 20)]
    assert writer.written[0] == writer.written[2] == {"features": "kept"}
    source.reads.clear()
    extract(lambda x: x, source, writer)
    assert source.reads == []


def test_nothing_of_the_graph_or_of_larger_maps_stays_alive():
    weight = torch.ones(3, 1000, requires_grad=True)
    maps = []

    def first_column(x):
        whole = x @ weight
        maps.append(weakref.ref(whole))
        return whole[:, :1]

    extract(first_column, Rows(images(8)), writer := Memory(8, 8), batch_rows=2)
    gc.collect()
    assert [reference() for reference in maps] == [None] * 4
    features = writer["features"]
    assert features.shape == (8, 1)
    assert writer.written[0]["features"].base is None
    assert not Extractor(first_column)(images(2))["features"].requires_grad


def test_inputs_of_any_kind_are_taken():
    host = images(4)
    host.flags.writeable = False
    assert torch.equal(Extractor(lambda x: x)(host)["features"], torch.tensor(host))
    assert torch.equal(Extractor(lambda x: x)(torch.tensor(host))["features"], torch.tensor(host))


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda x: x[:1], r"shape \(1, 3\) for 2 inputs"),
        (lambda x: x.sum(), r"shape \(\) for 2 inputs"),
        (lambda x: (x, x), "gave a tuple as 'features'"),
        (lambda x: {"tokens": x.numpy()}, "gave a ndarray as 'tokens'"),
        (lambda x: None, "gave a NoneType"),
    ],
)
def test_outputs_that_are_not_rows_are_refused(model, message):
    with pytest.raises(DataError, match=message):
        Extractor(model)(images(2))


@pytest.mark.parametrize(
    "change",
    [
        lambda x, call: x[:, : 3 - call],
        lambda x, call: x[:, :1] if call else x,  # would broadcast without a word
        lambda x, call: x.double() if call else x,
        lambda x, call: {"features": x, **({"logits": x} if call else {})},
    ],
)
def test_batches_that_do_not_fit_together_are_refused(change):
    calls = iter(range(9))
    with pytest.raises(DataError, match=r"id/train from row 2: expected rows of .* got"):
        extract(lambda x: change(x, next(calls)), Rows(images(4)), Memory(4, 4), batch_rows=2)


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda at: Batch(images(3), np.zeros(4, int), np.zeros(4, int)), "gave {'inputs': 3"),
        (lambda at: Batch(images(4), np.zeros(4), np.zeros(4, int)), "expected labels of shape"),
        (lambda at: Batch(images(4), np.zeros((4, 1), int), np.zeros(4, int)), "expected labels"),
        (lambda at: Batch(images(4), np.zeros(4, int), list("abcd")), "expected ids of shape"),
    ],
)
def test_sources_out_of_step_are_refused(read, message):
    source = Rows(images(4))
    source.read = lambda start, stop: read(start)
    with pytest.raises(DataError, match=f"id/train rows 0-4: .*{message}"):
        extract(lambda x: x, source, Memory(4, 4))


def test_impossible_requests_are_refused():
    with pytest.raises(ConfigError, match="at least 1"):
        extract(lambda x: x, Rows(images(4)), Memory(4, 4), batch_rows=0)
    with pytest.raises(DataError, match="holds 4 rows, source 'rows' has 5"):
        extract(lambda x: x, Rows(images(5)), Memory(4, 4))


def test_attributes_tell_models_and_weights_apart():
    torch.manual_seed(0)
    first, second = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    found = Extractor(first).attributes()
    assert found == Extractor(first).attributes()
    assert found["weights_sha256"] != Extractor(second).attributes()["weights_sha256"]
    second.load_state_dict(first.state_dict())
    assert found["weights_sha256"] == Extractor(second).attributes()["weights_sha256"]
    assert found["model"] == "torch.nn.modules.linear.Linear"
    assert found["torch_version"] == torch.__version__
    odd = torch.nn.Module()
    odd.register_buffer("empty", torch.zeros(0, 2))
    odd.register_buffer("scale", torch.zeros((), dtype=torch.bfloat16))
    odd.register_buffer("mask", torch.ones(2, dtype=torch.bool))
    assert len(Extractor(odd).attributes()["weights_sha256"]) == 64


def test_a_description_goes_before_what_the_model_carries():
    model = torch.nn.Identity()
    model.description = Description({"model": "carried", "tap": "end"}, {"features": "TD"})
    assert Extractor(model).attributes()["tap"] == "end"
    assert Extractor(model).description.layouts == {"features": "TD"}
    given = Extractor(model, description=Description({"model": "given"}))
    assert given.attributes()["model"] == "given"
    model.description = "a text of the user's own"
    assert Extractor(model).attributes()["model"] == "torch.nn.modules.linear.Identity"
