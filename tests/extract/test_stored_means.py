"""Means that were written with the tokens are read in their place: the same bits, fewer bytes."""

import numpy as np
import pytest
from test_masked_tokens import Texts, texts, words
from torch import nn

import pipeline as ff
from pipeline.chunk import ArraySpec
from pipeline.errors import DataError
from pipeline.extract.filling import extract_split
from pipeline.extract.passing import Manner
from pipeline.extract.sources import Batch
from pipeline.extract.taps import tapped
from pipeline.pooled import stored_means
from pipeline.store import Store

ROWS, T, D = 90, 5, 4


class Maps:
    """Rows that are tokens already."""

    name = "maps"

    def __init__(self, rows=ROWS):
        self.x = np.random.default_rng(0).standard_normal((rows, T, D)).astype("f4")

    def __len__(self):
        return len(self.x)

    def read(self, start, stop):
        ids = np.arange(start, stop)
        return Batch(self.x[start:stop], ids % 3, ids)


def store_of(tmp_path, name, pooled, source=None, **options):
    store = Store.create(tmp_path / name)
    model = tapped(
        nn.Sequential(nn.Identity()), {"features": "0"}, layouts={"features": "NTD"}, pooled=pooled
    )
    extract_split(
        store, "id/train", model, source or Maps(), classes=3, block_nbytes=2000, chunk_nbytes=900,
        **options,
    )  # fmt: skip
    return store


@pytest.mark.parametrize("cluster", ["threads", "local"])
def test_a_fit_reads_the_means_and_has_the_bits_of_the_tokens(tmp_path, cluster):
    plain = store_of(tmp_path, "plain", pooled=False).split("id/train")
    split = store_of(tmp_path, "pooled", pooled=True).split("id/train")
    assert stored_means(split) == "features"
    assert stored_means(plain) == ""
    options = {"cluster": cluster, "workers": 2}
    expected = ff.fit("mahalanobis", plain, cache=tmp_path / "a", **options)
    found = ff.fit("mahalanobis", split, cache=tmp_path / "b", **options)
    features = np.concatenate(
        [c["features"].copy() for b in plain.blocks for c in plain.read(b, {"features"})]
    )
    exact = ff.fit("mahalanobis", (features.astype("f8").mean(1), np.arange(ROWS) % 3))
    np.testing.assert_allclose(found["mahalanobis"](split), exact["mahalanobis"](features.mean(1)),
                               rtol=1e-5)  # fmt: skip
    assert found.read_nbytes == ROWS * 8 * (D + 1)  # means and labels, each once
    assert expected.read_nbytes == ROWS * (4 * T * D + 8)


def test_detectors_of_tokens_read_the_tokens(tmp_path):
    split = store_of(tmp_path, "pooled", pooled=True).split("id/train")
    given = {"name": "mahalanobis", "pool": "tokens"}
    found = ff.fit(given, split, cache=tmp_path / "b")
    plain = store_of(tmp_path, "plain", pooled=False).split("id/train")
    expected = ff.fit(given, plain, cache=tmp_path / "a")
    (one,), (other,) = found.values(), expected.values()
    assert np.array_equal(one(split), other(plain))
    largest = ff.fit({"name": "mahalanobis", "pool": "max"}, split, cache=tmp_path / "c")
    assert largest.read_nbytes == ROWS * (4 * T * D + 8)


def test_masked_tokens_have_masked_means(tmp_path):
    several = texts(60)
    for name, pooled in (("plain", False), ("pooled", True)):
        store = Store.create(tmp_path / name)
        extract_split(store, "id/train", words(pooled=pooled), Texts(several), classes=3)
    plain, split = (Store.open(tmp_path / name).split("id/train") for name in ("plain", "pooled"))
    assert stored_means(split) == "features"
    found = ff.fit("mahalanobis", split, cache=tmp_path / "a")["mahalanobis"]
    expected = ff.fit("mahalanobis", plain, cache=tmp_path / "b")["mahalanobis"]
    assert found.scorer == expected.scorer
    assert found.rows == expected.rows


def test_rows_that_are_not_finite_are_found_in_the_means_too(tmp_path):
    source = Maps()
    source.x[7, 2, 1] = np.nan
    source.x[30, :2, 0] = np.inf, -np.inf
    results = []
    for name, pooled in (("plain", False), ("pooled", True)):
        split = store_of(
            tmp_path, name, pooled, source=source, manner=Manner(7, nonfinite="keep")
        ).split("id/train")
        with pytest.raises(DataError, match=r"features are not finite, first row 7, columns \[1\]"):
            ff.fit("mahalanobis", split, cache=tmp_path / f"{name}.cache")
        found = ff.fit("mahalanobis", split, nonfinite="skip", cache=tmp_path / f"{name}.cache")
        results.append((found["mahalanobis"].scorer, found["mahalanobis"].rows))
    assert results[0] == results[1]
    assert results[0][1] == (ROWS - 2, ROWS)


def test_features_that_are_cast_are_pooled_as_they_are_stored(tmp_path):
    store = store_of(tmp_path, "half", pooled=True, manner=Manner(7, dtype="float16"))
    split = store.split("id/train")
    assert split.schema.arrays["features"].dtype == "float16"
    assert split.schema.arrays["pooled"] == ArraySpec((D,), "float64", "D")
    *_, chunk = split.read(split.blocks[0], {"features", "pooled"})
    np.testing.assert_allclose(chunk["pooled"], chunk["features"].astype("f8").mean(1), atol=1e-15)


@pytest.mark.parametrize(
    ("attribute", "dtype"),
    [
        (None, "float64"),
        ("mean of the tokens of other", "float64"),
        ("mean of the valid tokens of features", "float64"),
        ("max of the tokens of features", "float64"),
        ("mean of the tokens of features", "float32"),
    ],
)
def test_an_array_that_only_has_the_name_is_not_trusted(tmp_path, attribute, dtype):
    store = Store.create(tmp_path / "store")
    writer = store.create_split(
        "id/train",
        {"features": ArraySpec((T, D), "float32", "TD"), "pooled": ArraySpec((D,), dtype, "D"),
         "labels": ArraySpec((), "int64")},
        classes=3, attributes={"pooled": attribute} if attribute else {},
    )  # fmt: skip
    x = Maps().x
    wrong = np.zeros((ROWS, D), dtype)
    writer.append({"features": x, "pooled": wrong, "labels": np.arange(ROWS) % 3})
    split = store.split("id/train")
    assert stored_means(split) == ""
    found = ff.fit("mahalanobis", split, cache=tmp_path / "cache")["mahalanobis"]
    expected = ff.fit("mahalanobis", (x, np.arange(ROWS) % 3))["mahalanobis"]
    assert np.array_equal(found(x), expected(x))
