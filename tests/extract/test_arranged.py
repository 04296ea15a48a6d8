"""Callables that are no module, or return tokens themselves: their layouts are declared beside."""

import sys
import textwrap

import numpy as np
import pytest
import torch

import pipeline as ff
from pipeline import config
from pipeline.errors import ConfigError, DataError
from pipeline.extract.filling import extract_split
from pipeline.extract.model import Extractor
from pipeline.extract.sources import Batch
from pipeline.fill import fill
from pipeline.job import Silent
from pipeline.store import Store

LAYER = torch.nn.Linear(3, 4)


def tokens_of(x):
    """Give five tokens, of which the first is that of the class, and logits."""
    tokens = LAYER(x)[:, None] * torch.arange(1, 6)[:, None]
    return {"tokens": tokens, "logits": tokens.mean(1)}


class Rows:
    """Twelve rows, with a mask of their tokens."""

    name = "rows"

    def __init__(self, masked=False):
        self.masked = masked

    def __len__(self):
        return 12

    def read(self, start, stop):
        ids = np.arange(start, stop)
        x = ids[:, None] + np.ones((1, 3), "float32")
        valid = np.arange(5) < 5 - ids[:, None] % 3
        return Batch({"x": x.astype("f4"), "valid": valid} if self.masked else x.astype("f4"),
                     ids % 2, ids)  # fmt: skip


def stored(split, name):
    return np.concatenate([c[name].copy() for b in split.blocks for c in split.read(b, {name})])


def test_outputs_of_a_function_are_laid_out_like_those_of_taps(tmp_path):
    model = ff.tapped(tokens_of, layouts={"tokens": "NTD"}, prefix={"cls": 1})
    store = Store.create(tmp_path / "store")
    extract_split(store, "id/train", model, Rows(), classes=2, batch_rows=5)
    split = store.split("id/train")
    with torch.no_grad():
        # In the same batches: products of another number of rows may round otherwise.
        batches = [(0, 5), (5, 10), (10, 12)]
        parts = [tokens_of(torch.as_tensor(Rows().read(*rows).inputs)) for rows in batches]
    tokens, logits = (np.concatenate([p[name] for p in parts]) for name in ("tokens", "logits"))
    np.testing.assert_array_equal(stored(split, "tokens"), tokens[:, 1:])
    np.testing.assert_array_equal(stored(split, "cls"), tokens[:, 0])
    np.testing.assert_array_equal(stored(split, "logits"), logits)
    specs = split.schema.arrays
    assert (specs["tokens"].layout, specs["cls"].layout) == ("TD", "D")
    said = store.attributes("id/train")
    assert said["model"].endswith("tokens_of")
    assert said["taps"] == "tokens: what the model returns NTD, without cls 1"
    assert said["weights_sha256"] == Extractor(tokens_of).attributes()["weights_sha256"]


def test_a_tensor_is_called_features_and_maps_become_tokens():
    model = ff.tapped(lambda x: x, layouts={"features": "NCHW"}, pooled=True)
    x = torch.arange(2 * 3 * 2 * 2.0).reshape(2, 3, 2, 2)
    found = Extractor(model)(x)["features"]
    assert torch.equal(found, x.flatten(2).transpose(1, 2))
    assert model.description.pooled == "features"


def test_masks_hold_for_functions(tmp_path):
    def masked(inputs):
        return tokens_of(inputs["x"])["tokens"]

    model = ff.tapped(masked, layouts={"features": "NTD"}, mask="valid", length=6)
    store = Store.create(tmp_path / "store")
    extract_split(store, "id/train", model, Rows(masked=True), classes=2)
    split = store.split("id/train")
    mask = stored(split, "mask")
    assert mask.sum(1).tolist() == [5 - i % 3 for i in range(12)]
    assert not stored(split, "features")[~mask.astype(bool)].any()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"layouts": {"toks": "NTD"}}, DataError, "no tensor 'toks'; it returns tokens, logits"),
        ({"layouts": {"tokens": "NCHW"}}, DataError, "5 axes|3 axes.*choose NTD or NDT"),
        ({"layouts": {"tokens": "NTD"}, "prefix": {"logits": 1}}, DataError, "itself returns logi"),
        ({"layouts": {"tokens": "T"}}, ConfigError, "one of ND, NTD"),
        ({"prefix": {"cls": 1}}, ConfigError, "no tap is a sequence"),
    ],
)
def test_what_does_not_fit_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        Extractor(ff.tapped(tokens_of, **options))(torch.ones(2, 3))


def test_a_layout_that_was_not_told_names_the_way(tmp_path):
    store = Store.create(tmp_path / "store")
    with pytest.raises(ConfigError, match=r"tapped\(.*layouts: \{tokens: NTD\} beside import:"):
        extract_split(store, "id/train", tokens_of, Rows(), classes=2)


def test_a_job_lays_out_what_import_makes(tmp_path, monkeypatch):
    code = """
    from test_arranged import Rows, tokens_of

    def model():
        return tokens_of

    def greedy(**options):
        assert options == {"prefix": 7}
        return tokens_of

    def rows():
        return Rows()
    """
    (tmp_path / "laid_out.py").write_text(textwrap.dedent(code))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.syspath_prepend(str(__import__("pathlib").Path(__file__).parent))
    text = """
    name: laid
    store: {}/store
    classes: 2
    model: {{import: "laid_out:model", layouts: {{tokens: NTD}}, prefix: {{cls: 1}}}}
    sources: [{{split: id/train, data: {{import: "laid_out:rows"}}}}]
    detectors: [knn]
    """
    text = textwrap.dedent(text).format(tmp_path)
    fill(config.parse(text, "laid.yaml"), Silent())
    specs = Store.open(tmp_path / "store").split("id/train").schema.arrays
    assert {name: specs[name].layout for name in ("tokens", "cls")} == {"tokens": "TD", "cls": "D"}
    greedy = text.replace("laid_out:model", "laid_out:greedy").replace(
        "layouts: {tokens: NTD}, prefix: {cls: 1}", "prefix: 7"
    )
    with pytest.raises(ConfigError, match="'tokens' have shape"):
        fill(config.parse(greedy.replace("/store\n", "/other\n"), "greedy.yaml"), Silent())
    sys.modules.pop("laid_out")
