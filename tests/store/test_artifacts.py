"""Saved values come back equal, and damage is found."""

import hashlib
import json
import subprocess
import sys

import numpy as np
import pytest

from pipeline.content import Const, constants_in, value
from pipeline.errors import ConfigError, CorruptError, ExistsRefusedError, MissingInputError
from pipeline.store import load, save


@value
class Pool:
    how: str = "mean"


@value
class Fitted:
    means: Const
    scale: float
    view: Pool = Pool()
    names: tuple[str, ...] = ()
    more: Const | None = None


MEANS = np.random.default_rng(0).standard_normal((4, 3))
FITTED = Fitted(Const(MEANS), 0.1, Pool("max"), ("a", "b"), Const(np.arange(5)))


def test_round_trip_is_equal_bit_for_bit(tmp_path):
    fitted = {"one": FITTED, "two": Fitted(Const(MEANS), float("-inf"))}
    save(fitted, tmp_path / "a/b", {"run": "x", "versions": {"numpy": "2"}})
    back, provenance = load(tmp_path / "a/b")
    assert back == fitted
    assert back["one"].means.array.tobytes() == MEANS.tobytes()
    assert provenance == {"run": "x", "versions": {"numpy": "2"}}
    assert sorted(p.name for p in (tmp_path / "a/b").iterdir()) == [
        "arrays.safetensors", "artifact.json"]  # fmt: skip
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["b"]


def test_equal_constants_are_stored_once(tmp_path):
    big = Const(np.ones(100_000))
    save({str(i): Fitted(big, i) for i in range(5)}, tmp_path / "a", {})
    assert (tmp_path / "a/arrays.safetensors").stat().st_size < 801_000


@pytest.mark.parametrize(
    "array",
    [np.float64(2.5), np.zeros((0, 3)), np.arange(4, dtype="u1"), np.array([True, False]),
     np.array([np.nan, -0.0, np.inf], "f2"), np.asfortranarray(MEANS), np.arange(3, dtype="u8")],
)  # fmt: skip
def test_constants_of_every_kind(tmp_path, array):
    save(Fitted(Const(array), 1), tmp_path / "a", {})
    back, _ = load(tmp_path / "a")
    assert back.means == Const(array)
    assert back.means.array.dtype == np.asarray(array).dtype
    assert back.means.array.shape == np.shape(array)


def test_a_value_without_arrays(tmp_path):
    save(Pool("cls"), tmp_path / "a", {})
    assert load(tmp_path / "a") == (Pool("cls"), {})


def test_nothing_is_overwritten_by_accident(tmp_path):
    save(FITTED, tmp_path / "a", {"n": 1})
    with pytest.raises(ExistsRefusedError, match="ask to overwrite"):
        save(Pool(), tmp_path / "a", {"n": 2})
    assert load(tmp_path / "a") == (FITTED, {"n": 1})
    save(Pool(), tmp_path / "a", {"n": 2}, overwrite=True)
    assert load(tmp_path / "a") == (Pool(), {"n": 2})
    assert [p.name for p in tmp_path.iterdir()] == ["a"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other/notes.txt").write_text("mine")
    with pytest.raises(ExistsRefusedError, match="not an artifact"):
        save(Pool(), tmp_path / "other", {}, overwrite=True)
    assert (tmp_path / "other/notes.txt").read_text() == "mine"


def test_what_cannot_be_saved_leaves_nothing_behind(tmp_path):
    text, foreign = Const(np.array(["a"])), Const(MEANS.astype(">f8"))
    for entry, provenance in (
        (FITTED, {"x": object()}),
        (Fitted(text, 1), {}),
        (Fitted(foreign, 1), {}),
        (object(), {}),
    ):
        with pytest.raises(ConfigError):
            save(entry, tmp_path / "a", provenance)
    assert not list(tmp_path.iterdir())


def test_damage_is_found(tmp_path):
    target = tmp_path / "a"
    save(FITTED, target, {})
    tree, arrays = target / "artifact.json", target / "arrays.safetensors"
    good = {path: path.read_bytes() for path in (tree, arrays)}

    def refused(path, content, error, message):
        path.write_bytes(content)
        with pytest.raises(error, match=message):
            load(target)
        path.write_bytes(good[path])

    refused(arrays, good[arrays][:-5], CorruptError, "is damaged")
    refused(arrays, b"", CorruptError, "is damaged")
    refused(arrays, good[arrays][:-1] + bytes([good[arrays][-1] ^ 1]), CorruptError, "changed")
    refused(tree, good[tree][:-9], CorruptError, "is damaged")
    refused(tree, good[tree].replace(b'"max"', b'"min"'), CorruptError, "do not match")
    refused(tree, good[tree].replace(b'"format": 1', b'"format": 9'), ConfigError, "format 9")
    refused(tree, b"[]", CorruptError, "is damaged")
    refused(tree, b"\xff\xfe", CorruptError, "is damaged")
    save(Pool(), tmp_path / "b", {})
    refused(arrays, (tmp_path / "b/arrays.safetensors").read_bytes(), CorruptError, "lacks")
    assert load(target)[0] == FITTED
    arrays.unlink()
    with pytest.raises(MissingInputError, match="incomplete"):
        load(target)
    with pytest.raises(MissingInputError, match="not an artifact"):
        load(tmp_path / "nothing")


def test_a_class_that_is_not_registered_is_named(tmp_path):
    save(Pool(), tmp_path / "a", {})
    head = json.loads((tmp_path / "a/artifact.json").read_text())
    assert head["value"]["class"].endswith(":Pool")
    code = f"from pipeline.store import load; load({str(tmp_path / 'a')!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "Pool is not a registered class" in done.stderr


def test_a_module_that_this_version_lacks_is_named(tmp_path):
    tree = {"class": "pipeline.detectors.newer:NewerScorer", "fields": {}}
    text = json.dumps(tree, separators=(",", ":"), sort_keys=True)
    save(Pool(), tmp_path / "a", {})
    head = json.loads((tmp_path / "a/artifact.json").read_text())
    head |= {"value": tree, "digest": hashlib.sha256(text.encode()).hexdigest()}
    (tmp_path / "a/artifact.json").write_text(json.dumps(head))
    with pytest.raises(ConfigError, match="newer:NewerScorer is not a registered class"):
        load(tmp_path / "a")


def test_constants_survive_the_file_being_removed(tmp_path):
    save(FITTED, tmp_path / "a", {})
    back, _ = load(tmp_path / "a")
    (tmp_path / "a/arrays.safetensors").unlink()
    assert {const.digest for const in constants_in(back)} == {
        const.digest for const in constants_in(FITTED)
    }
    np.testing.assert_array_equal(back.means.array, MEANS)


def test_the_store_imports_no_torch_and_no_dask():
    code = "import pipeline.store, sys; print({'torch', 'dask'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
