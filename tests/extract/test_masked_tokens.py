"""Tokens of variable length: masks by the name of an input, padded to one shape, and pooled."""

import numpy as np
import pytest
import torch
from torch import nn

import pipeline as ff
from pipeline.chunk import Chunk
from pipeline.errors import ConfigError, DataError
from pipeline.extract.filling import extract_split
from pipeline.extract.model import Extractor
from pipeline.extract.sources import Batch
from pipeline.extract.taps import tapped
from pipeline.store import Store
from pipeline.views import Pooled

D = 6


class Words(nn.Module):
    """Embeddings of words, whatever the mask says."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.table = nn.Embedding(50, D, dtype=dtype)
        self.head = nn.Linear(D, 3, dtype=dtype)

    def forward(self, input_ids, attention_mask):
        tokens = self.table(input_ids)
        valid = attention_mask[:, :, None].to(tokens.dtype)
        return self.head((tokens * valid).sum(1) / valid.sum(1))


def texts(rows, seed=0):
    generator = np.random.default_rng(seed)
    return [generator.integers(1, 50, size=generator.integers(1, 9)) for _ in range(rows)]


def padded(several, length=None):
    """Pad with word 0, as a tokenizer does, to the longest unless told otherwise."""
    width = length or max(map(len, several))
    ids = np.zeros((len(several), width), np.int64)
    for row, text in zip(ids, several, strict=True):
        row[: len(text)] = text
    return {
        "input_ids": ids,
        "attention_mask": (np.arange(width) < [[len(t)] for t in several]) * 1,
    }


class Texts:
    """A source whose batches are as long as their longest text."""

    name = "texts"

    def __init__(self, several):
        self.several = several

    def __len__(self):
        return len(self.several)

    def read(self, start, stop):
        ids = np.arange(start, stop)
        return Batch(padded(self.several[start:stop]), ids % 3, ids)


def words(**options):
    torch.manual_seed(0)
    given = {"layouts": {"features": "NTD"}, "mask": "attention_mask", "length": 8, **options}
    return tapped(Words(given.pop("dtype", torch.float32)), {"features": "table"}, **given)


def rows_of(split, name):
    return np.concatenate([c[name].copy() for b in split.blocks for c in split.read(b, {name})])


@pytest.mark.parametrize("batch_rows", [1, 7, 39, 40])
def test_batches_of_any_length_have_one_shape_and_nothing_of_padding_is_stored(
    tmp_path, batch_rows
):
    several, model = texts(40), words()
    store = Store.create(tmp_path / "store")
    extract_split(store, "id/train", model, Texts(several), classes=3, batch_rows=batch_rows)
    split = store.split("id/train")
    features, mask = rows_of(split, "features"), rows_of(split, "mask")
    assert features.shape == (40, 8, D)
    assert mask.dtype == np.bool_
    np.testing.assert_array_equal(mask.sum(1), [len(text) for text in several])
    table = model.tapped.table.weight.detach().numpy()
    for row, text in zip(features, several, strict=True):
        np.testing.assert_array_equal(row[: len(text)], table[text])
        assert (row[len(text) :] == 0).all()


def test_detectors_read_the_valid_tokens_alone():
    several = texts(60)
    loader = [(padded(several[i : i + 9]), np.arange(60)[i : i + 9] % 3) for i in range(0, 60, 9)]
    model = words()
    table = model.tapped.table.weight.detach().double().numpy()
    means = np.stack([table[text].mean(0) for text in several])
    found = ff.fit("mahalanobis", loader, model=model)
    expected = ff.fit("mahalanobis", (means, np.arange(60) % 3))
    scores = ff.score(found, loader, model=model)["mahalanobis"]
    np.testing.assert_allclose(scores, expected["mahalanobis"](means), rtol=1e-6)


def test_prefix_tokens_leave_the_mask_as_well():
    outputs = Extractor(words(prefix={"cls": 1}, length=9))(padded(texts(5)))
    lengths = [len(text) - 1 for text in texts(5)]
    assert outputs["features"].shape == (5, 9, D)
    assert outputs["mask"].sum(1).tolist() == lengths
    assert outputs["cls"].shape == (5, D)


def test_padding_is_never_taken_for_the_prefix():
    """A tokenizer that pads on the left has padding where the first token is expected."""
    ids, mask = np.arange(1, 9).reshape(2, 4), np.array([[1, 1, 1, 1], [0, 0, 1, 1]])
    for prefix, row in (({"cls": 1}, 1), ({"cls": 1, "registers": 2}, 1)):
        with pytest.raises(DataError, match=rf"row {row} of the batch .*padding_side") as told:
            Extractor(words(prefix=prefix))({"input_ids": ids, "attention_mask": mask})
        assert f"the first {sum(prefix.values())} " in str(told.value)
    empty = np.array([[1, 1, 1, 0], [0, 0, 0, 0]])  # a row without tokens has no padding before
    found = Extractor(words(prefix={"cls": 1}))({"input_ids": ids, "attention_mask": empty})
    assert found["mask"].sum(1).tolist() == [2, 0]
    left = Extractor(words())({"input_ids": ids, "attention_mask": mask})
    assert left["mask"].sum(1).tolist() == [4, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("batch_rows", [1, 7, 40])
def test_the_pooled_copy_has_the_bits_that_detectors_would_compute(tmp_path, dtype, batch_rows):
    store = Store.create(tmp_path / "store")
    model = words(dtype=dtype, pooled=True)
    extract_split(store, "id/train", model, Texts(texts(40)), classes=3, batch_rows=batch_rows)
    split = store.split("id/train")
    arrays = {"features", "mask", "pooled"}
    (chunk,) = (
        Chunk(c.schema, c.start, c.rows, {n: c[n].copy() for n in arrays})
        for c in split.read(split.blocks[0], arrays)
    )
    assert chunk["pooled"].dtype == np.float64
    np.testing.assert_array_equal(chunk["pooled"], Pooled("mean")(chunk))


@pytest.mark.parametrize(
    ("mask", "length", "message"),
    [
        (np.ones((2, 4)) * -1e4, 8, "expected 0 and 1"),
        (np.ones((2, 4, 4)), 8, r"expected flags \(n, t\)"),
        (np.ones((2, 4)), 3, "rows of 4 tokens do not fit a length of 3"),
        (np.ones((2, 3)), 8, r"it gives \(2, 4\) rows and tokens, and the mask has \(2, 3\)"),
    ],
)
def test_masks_that_are_none_are_refused(mask, length, message):
    class Anything(Words):
        def forward(self, input_ids, attention_mask):
            return self.table(input_ids)

    options = {"layouts": {"features": "NTD"}, "mask": "attention_mask", "length": length}
    model = tapped(Anything(), {"features": "table"}, **options)
    with pytest.raises(DataError, match=message):
        Extractor(model)({"input_ids": np.ones((2, 4), np.int64), "attention_mask": mask})


def test_a_mask_that_no_input_has():
    with pytest.raises(DataError, match="no input is called 'mask'; inputs: input_ids, attention"):
        Extractor(words(mask="mask"))(padded(texts(2)))
    model = tapped(nn.Sequential(nn.Identity()), {"features": "0"}, mask="m")
    with pytest.raises(DataError, match="no input is called 'm'; inputs: one tensor"):
        Extractor(model)(torch.zeros(2, 3))


def test_inputs_by_name_reach_functions_whole():
    seen = []

    def model(inputs):
        seen.append(sorted(inputs))
        return inputs["x"] + inputs["y"]

    x = np.ones((4, 3), np.float32)
    assert torch.equal(Extractor(model)({"x": x, "y": x})["features"], torch.tensor(2 * x))
    assert seen == [["x", "y"]]
    with pytest.raises(DataError, match=r"same number of rows, got {'x': 4, 'y': 2}"):
        Extractor(model)({"x": x, "y": x[:2]})
    with pytest.raises(ConfigError, match="cannot be used here"):
        Extractor(model, device="gpu")
