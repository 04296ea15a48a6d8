"""Values of another kind than what is meant: an error that names the key, never a guess."""

import dataclasses

import numpy as np
import pytest

import pipeline as ff
from pipeline import config, detectors
from pipeline.chunk import ArraySpec
from pipeline.errors import ConfigError, FeatfoldError
from pipeline.store import ArraySplit

K, D = 3, 6
JOB = "name: a\nstore: s.zarr\ndetectors: [msp]\n"


@pytest.fixture(scope="module")
def rows():
    random = np.random.default_rng(0)
    y = random.integers(0, K, 60)
    return (random.standard_normal((60, D)) + 3 * np.eye(K, D)[y]).astype("f4"), y


@pytest.fixture(scope="module")
def fitted(rows):
    return ff.fit("msp", rows, workers=1)


@pytest.mark.parametrize(
    ("option", "given"),
    [
        *(("workers", w) for w in (True, False, "2", 1.5, 0, float("nan"))),
        *(("memory", m) for m in (True, "", " ", 1.5, "0", None, "GiB")),
        *(("classes", c) for c in ("4", True, False, 4.0, -1)),
        *(("cache", c) for c in (True, "", " ", 1)),
        *(("cluster", c) for c in (True, "", None)),
        *(("head", h) for h in (True, {"lda": {"ridge": "0.1"}}, {"lda": {"ridge": True}})),
        *(("head", h) for h in ({"lda": {"of": 3}}, {"weights": ""}, {"lda": {}, "weights": ""})),
    ],
)
def test_options_of_a_fit(rows, option, given):
    with pytest.raises(ConfigError, match=f"^{option}: "):
        ff.fit("msp", rows, **{option: given})


def test_whole_numbers_of_numpy_are_whole_numbers(rows):
    assert list(ff.fit("msp", rows, workers=np.int64(1), classes=np.int64(K))) == ["msp"]


@pytest.mark.parametrize("name", ["", " ", 1, None, True, "a/b", "/a"])
@pytest.mark.parametrize("group", ["near", "far", "csid"])
def test_names_of_sets(rows, fitted, group, name):
    with pytest.raises(ConfigError, match=f"^{group}: .* name"):
        ff.evaluate(fitted, rows[0], **{group: {name: rows[0]}})


@pytest.mark.parametrize("name", ["", " ", None, 3])
def test_names_of_splits(rows, name, tmp_path):
    with pytest.raises(ConfigError, match="name"):
        ArraySplit(rows[0], name=name)
    with pytest.raises(ConfigError, match="not the name of a split"):
        ff.Store.create(tmp_path / "s.zarr").create_split(name, {}, classes=3)


@pytest.mark.parametrize("given", ["plain", (1,), [""], None, True, [" "]])
def test_baselines(rows, fitted, given):
    with pytest.raises(ConfigError, match=r"^baselines: "):
        ff.evaluate(fitted, rows[0], near={"a": rows[0]}, baselines=given)


@pytest.mark.parametrize("given", ["no", 1, "", None])
def test_per_image(rows, fitted, given):
    with pytest.raises(ConfigError, match=r"^per_image: "):
        ff.score(fitted, rows[0], per_image=given)


@pytest.mark.parametrize("given", [True, "0.5", float("nan"), None])
def test_thresholds(rows, fitted, given):
    with pytest.raises(ConfigError, match="threshold for msp"):
        fitted.predict(rows[0], {"msp": given})


@pytest.mark.parametrize("name", ["", " ", 1, None, True])
def test_ids_of_detectors(rows, name):
    with pytest.raises(ConfigError, match="cannot name a detector"):
        ff.fit({name: "msp"}, rows)
    if name is not None:  # none is given
        with pytest.raises(ConfigError, match="cannot name a detector"):
            ff.fit({"name": "msp", "id": name}, rows)


@pytest.mark.parametrize(
    ("key", "given"),
    [
        *(("classes", c) for c in ("4", True, 4.5, None)),
        *(("rows", r) for r in ("60", True, 60.5)),
        *((key, n) for key in ("block_nbytes", "chunk_nbytes") for n in (True, "1", 1.5, 0)),
    ],
)
def test_declarations_of_splits(tmp_path, key, given):
    place = ff.Store.create(tmp_path / "s.zarr")
    usual = {"classes": K, "rows": 60}
    arrays = {"features": ArraySpec((D,), "float32", "D")}
    with pytest.raises(ConfigError, match=f"^{key}: "):
        place.create_split("id/train", arrays, **{**usual, key: given})


@pytest.mark.parametrize("shape", [6, "6", (True,), ("6",), None, {}])
def test_shapes_of_rows(shape):
    with pytest.raises(ConfigError, match=r"^shape: "):
        ArraySpec(shape, "float32", "D")


NEEDED = {
    "ash": {"variant": "b"},
    "weighted_energy": {"weights": (1.0,)},
    "ensemble": {"detectors": ("msp",)},
}


WRONG = {
    "int": (True, "3", "", {}, [1], 1.5),
    "float": (True, "3", "", {}, [1]),
    "bool": ("yes", "", {}, [True], 2, 1.5),
    "str": (True, 3, {}, ["a"]),
    "tuple": (True, "3", {}, 1.5),
}
"""Values that are not of a kind."""


@pytest.mark.parametrize("name", detectors.names())
def test_options_of_detectors(name):
    """Of another kind than declared they are refused by name, whatever the option is."""
    for field in dataclasses.fields(detectors.load(name)):
        if field.name == "head" or "Const" in field.type:
            continue
        kinds = [WRONG[kind] for kind in WRONG if kind in field.type]
        for given in kinds[0]:
            if all(repr(given) in map(repr, others) for others in kinds):
                with pytest.raises(ConfigError, match=f"^{field.name}: "):
                    detectors.make(name, **{**NEEDED.get(name, {}), field.name: given})


@pytest.mark.parametrize(
    ("text", "key", "says"),
    [
        ("classes: '4'", "classes", "expected an integer, got the text '4'; leave out its quotes"),
        ("classes: true", "classes", "expected an integer, got true"),
        ("version: true", "version", "expected an integer, got true"),
        ("resources: {dashboard: '1'}", "dashboard", "expected true or false, got '1'"),
        ("resources: {dashboard: 1}", "dashboard", "expected true or false, got 1"),
        ("resources: {memory: ''}", "memory", "expected a size"),
        ("resources: {memory: 1.5}", "memory", "expected a size"),
        ("resources: {cache_limit: ''}", "cache_limit", "expected a size"),
        ("block: ' '", "block", "expected a size"),
        ("resources: {cache: ''}", "cache", "expected some text"),
        ("report: {directory: ' '}", "directory", "expected some text"),
        ("seeds: [' ']", "seeds", "expected some text"),
        ("evaluate: {near: [ood/near/a], baselines: ['']}", "baselines", "expected some text"),
        ("declare: {id/train: {rows: '9', classes: 3, arrays: {}}}", "rows", "the text '9'"),
        ("declare: {id/train: {rows: 9, classes: '3', arrays: {}}}", "classes", "the text '3'"),
        (
            "declare: {id/train: {rows: 9, classes: 3, arrays: {features: {shape: ['4']}}}}",
            "shape", "the text '4'",
        ),
        ("head: {lda: {ridge: '0.1'}}", "ridge", "expected a number, got the text '0.1'"),
        ("head: {lda: {ridge: true}}", "ridge", "expected a number, got true"),
        ("head: {weights: ''}", "head", "FILE"),
    ],
)  # fmt: skip
def test_keys_of_jobs(tmp_path, text, key, says):
    path = tmp_path / "job.yaml"
    path.write_text(f"{JOB}{text}\n")
    with pytest.raises(ConfigError) as refused:
        config.load(path)
    (line,) = [line for line in str(refused.value).splitlines() if says in line]
    assert key in line
    assert "job.yaml:4:" in line


@pytest.mark.parametrize(
    ("entry", "key", "says"),
    [
        ("{name: knn, normalize: 'maybe'}", "normalize", "expected a valid boolean, got 'maybe'"),
        ("{name: knn, normalize: '1'}", "normalize", "expected true or false, got '1'"),
        ("{name: knn, normalize: 1}", "normalize", "expected true or false, got 1"),
        ("{name: knn, k: [1, true]}", "k", "expected a number, got true"),
        ("{name: weighted_energy, weights: ['1', 2]}", "weights", "the text '1'"),
        ("{name: weighted_energy, weights: [true, 1]}", "weights", "expected a number, got true"),
        ("{name: ensemble, detectors: [msp], weights: ['1']}", "weights", "the text '1'"),
        ("{name: ensemble, detectors: [msp], weights: [true]}", "weights", "got true"),
        (
            "{name: ensemble, detectors: [{name: energy, temperature: '2'}]}",
            "detectors[0]", "temperature: expected float, got '2'",
        ),
        ("{name: msp, id: ' '}", "id", "expected text"),
    ],
)  # fmt: skip
def test_options_of_detectors_in_jobs(tmp_path, entry, key, says):
    path = tmp_path / "job.yaml"
    path.write_text(f"name: a\nstore: s.zarr\ndetectors: [{entry}]\n")
    with pytest.raises(ConfigError) as refused:
        config.load(path)
    assert says in str(refused.value)
    assert key in str(refused.value)


@pytest.mark.parametrize(("word", "means"), [("yes", True), ("off", False), ("false", False)])
def test_truths_of_detectors_may_be_written_as_people_do(tmp_path, word, means):
    path = tmp_path / "job.yaml"
    path.write_text(f"name: a\nstore: s.zarr\ndetectors: [{{name: knn, normalize: {word}}}]\n")
    ((_, made),) = config.load(path).detectors.items()
    assert made.normalize is means


def test_a_store_of_blanks_is_no_store(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text("name: a\nstore: ' '\ndetectors: [msp]\n")
    with pytest.raises(FeatfoldError, match="expected some text"):
        config.load(path)
