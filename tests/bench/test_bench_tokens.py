"""Made-up tokens: the data are what they say, whoever writes them and however often."""

import zlib

import numpy as np
import pytest

from pipeline.bench import tokens
from pipeline.bench.tokens import Recipe, make
from pipeline.chunk import Block
from pipeline.errors import ConfigError, ExistsRefusedError, LockedError
from pipeline.store import Store

SMALL = Recipe(rows=50, tokens=3, features=40, classes=4, seed=7)
SIZES = {"chunk_nbytes": 2_000, "block_nbytes": 6_000}


def written(path):
    split = Store.open(path).split("id/train")
    fields = frozenset(split.schema.arrays)
    parts = [
        {name: np.array(chunk[name]) for name in fields}
        for block in split.blocks
        for chunk in split.read(block, fields)
    ]
    return split, {name: np.concatenate([part[name] for part in parts]) for name in fields}


def test_rows_are_the_mean_of_their_class_and_noise(tmp_path):
    recipe = Recipe(rows=600, tokens=3, features=64, classes=3)
    make(tmp_path / "s.zarr", recipe, 1)
    split, found = written(tmp_path / "s.zarr")
    assert split.schema.classes == 3
    assert found["features"].shape == (600, 3, 64)
    assert found["logits"].shape == (600, 3)
    assert sorted(np.unique(found["labels"])) == [0, 1, 2]
    noise = found["features"] - recipe.means[found["labels"]][:, None]
    assert abs(noise.mean()) < 0.02
    assert abs(noise.std() - 1) < 0.02
    share_right = (found["logits"].argmax(axis=1) == found["labels"]).mean()
    assert 0.8 < share_right <= 1
    assert np.linalg.matrix_rank(noise.reshape(-1, 64)) == 64


def test_no_two_rows_are_alike_and_they_do_not_compress(tmp_path):
    make(tmp_path / "s.zarr", SMALL, 1, **SIZES)
    split, found = written(tmp_path / "s.zarr")
    assert len({row.tobytes() for row in found["features"]}) == SMALL.rows
    content = found["features"].tobytes()
    assert len(zlib.compress(content, 9)) > 0.85 * len(content)
    checksums = [split.checksums(b, frozenset({"features"}))["features"] for b in split.blocks]
    assert len(set(checksums)) == len(split.blocks) > 1


def test_processes_write_the_same_bytes(tmp_path):
    make(tmp_path / "one.zarr", SMALL, 1, **SIZES)
    make(tmp_path / "two.zarr", SMALL, 2, **SIZES)
    ours, theirs = (written(tmp_path / f"{name}.zarr")[1] for name in ("one", "two"))
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name])


def test_another_seed_makes_other_bytes():
    recipes = (Recipe(rows=5, tokens=0, features=8, classes=2, seed=seed) for seed in (0, 1))
    first, second = (recipe.block(Block(0, 0, 5)) for recipe in recipes)
    assert not np.array_equal(first["features"], second["features"])


def test_it_goes_on_where_it_was_and_then_is_complete(tmp_path):
    path = tmp_path / "s.zarr"
    told = []

    def stop_after_two(nbytes):
        told.append(nbytes)
        if len(told) == 3:  # the first tells what was there
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(path, SMALL, 1, stop_after_two, **SIZES)
    writer = Store.open(path).writer("id/train")
    left = len(writer.missing())
    assert 0 < left < len(writer.blocks)
    advanced = []
    assert make(path, SMALL, 1, advanced.append, **SIZES) == left
    assert sum(advanced) == SMALL.nbytes
    assert make(path, SMALL, 1, **SIZES) == 0
    make(tmp_path / "whole.zarr", SMALL, 1, **SIZES)
    np.testing.assert_array_equal(
        written(path)[1]["features"], written(tmp_path / "whole.zarr")[1]["features"]
    )


def test_another_recipe_is_refused(tmp_path):
    make(tmp_path / "s.zarr", SMALL, 1)
    with pytest.raises(ExistsRefusedError, match="recipe"):
        make(tmp_path / "s.zarr", Recipe(rows=50, tokens=3, features=40, classes=4, seed=8), 1)


def test_two_at_once_are_refused(tmp_path):
    make(tmp_path / "s.zarr", SMALL, 1)
    with Store.open(tmp_path / "s.zarr").lock(tokens.SPLIT), pytest.raises(LockedError):
        make(tmp_path / "s.zarr", SMALL, 1)


@pytest.mark.parametrize("dtype", tokens.DTYPES)
def test_dtypes_and_pooled_rows(tmp_path, dtype):
    recipe = Recipe(rows=9, tokens=0, features=5, classes=1, dtype=dtype)
    make(tmp_path / "s.zarr", recipe, 1)
    features = written(tmp_path / "s.zarr")[1]["features"]
    assert (features.shape, features.dtype) == ((9, 5), np.dtype(dtype))


@pytest.mark.parametrize("wrong", [{"rows": 0}, {"tokens": -1}, {"classes": 0}, {"dtype": "int8"}])
def test_wrong_recipes_are_refused(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Recipe(**wrong)
