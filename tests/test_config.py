"""Jobs in YAML: what they mean, and that every mistake is named with its place."""

import re
from pathlib import Path

import pytest
import yaml

from pipeline import config
from pipeline.config import parse
from pipeline.detectors.mahalanobis import Mahalanobis
from pipeline.detectors.vim import ViM
from pipeline.errors import ConfigError, MissingInputError

SMALL = """\
name: small
store: feats.zarr
detectors: [msp]
"""

WHOLE = """\
version: 1
name: whole
store: data/feats.zarr
block: 48MiB
classes: 8
model: {import: "package.models:load", logits: true}
sources:
  - {split: id/train, data: {import: "package.images:digits", split: train}}
  - split: ood/far/photos
    data: {import: "package.images:photos", limit: null}
    model: {import: "package.models:other"}
declare:
  id/train:
    {rows: 50000, classes: 1000, arrays: {features: {shape: [49, 1024]}, logits: {shape: [1000]}}}
  id/test:
    rows: 10
    classes: 1000
    arrays: {features: {shape: [49, 1024], dtype: bfloat16, layout: TD}}
head: {weights: head.safetensors}
detectors:
  - msp
  - {name: mahalanobis, covariance: pinvh}
  - {name: mahalanobis, ridge: 1e-3, id: ridge}
  - {name: vim, dim: 64}
fit: {split: id/train}
nonfinite: skip
evaluate:
  {id: id/test, near: [ood/near/a], far: [ood/far/b], csid: [id/csid/c], baselines: [mean_pixel]}
resources: {cluster: "tcp://host:8786", workers: 4, memory: 4GiB, cache: scratch, dashboard: on}
report: {directory: results}
"""


@pytest.fixture
def job(tmp_path: Path):
    def write(text: str | bytes) -> Path:
        path = tmp_path / "job.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_the_smallest_job_takes_every_default(job):
    small = config.load(job(SMALL))
    assert list(small.detectors) == ["msp"]
    assert (small.head, small.nonfinite, small.fit.split) == ("auto", "raise", "id/train")
    assert small.evaluate is None
    assert not small.sources
    assert small.resources.model_dump() == {
        "cluster": "auto", "workers": "auto", "memory": "auto",
        "device_memory": "auto", "cache": None, "cache_limit": None,
        "dashboard": False,
    }  # fmt: skip
    assert small.resources.workers is None
    assert small.text == SMALL


def test_a_job_with_every_key(job):
    whole = config.load(job(WHOLE))
    assert whole.detectors["mahalanobis(covariance=pinvh)"] == Mahalanobis(covariance="pinvh")
    assert whole.detectors["ridge"] == Mahalanobis(ridge=0.001)
    assert whole.detectors["vim(dim=64)"] == ViM(dim=64)
    train, photos = whole.sources
    assert (train.model.factory, train.model.arguments) == ("package.models:load", {"logits": True})
    assert photos.model.factory == "package.models:other"
    assert photos.data.arguments == {"limit": None}
    declared = whole.declare["id/train"].arrays
    assert declared["features"].shape == (49, 1024)
    assert declared["features"].dtype == "float32"
    assert (declared["labels"].shape, declared["labels"].dtype) == ((), "int64")
    assert whole.declare["id/test"].arrays["features"].layout == "TD"
    assert whole.block_nbytes == 48 * 2**20
    assert whole.head == {"weights": "head.safetensors"}
    assert whole.resources.dashboard is True
    assert whole.evaluate is not None
    assert whole.evaluate.csid == ("id/csid/c",)


KINDS = """\
name: kinds
store: s
classes: 3
model: {timm: vit_tiny_patch16_224, taps: {features: norm}}
sources:
  - {split: id/train, data: {folder: photos/train, size: 256}, batch: auto, workers: 4}
  - split: id/test
    data: {huggingface: beans, split: test}
    model: {import: "package.models:load", folder: weights}
  - {split: ood/far/a, data: {webdataset: "far-*.tar"}, autocast: bfloat16, nonfinite: keep}
detectors: [msp]
"""


def test_kinds_are_imports_of_ours(job):
    train, test, far = config.load(job(KINDS)).sources
    assert (train.data.factory, train.data.arguments) == (
        "pipeline.extract.data.folder:folder", {"path": "photos/train", "size": 256},
    )  # fmt: skip
    assert (train.model.factory, train.model.arguments["name"]) == (
        "pipeline.extract.models.timm:load", "vit_tiny_patch16_224",
    )  # fmt: skip
    assert test.model.arguments == {"folder": "weights"}
    assert test.data.arguments == {"path": "beans", "split": "test"}
    assert far.data.arguments == {"urls": "far-*.tar"}
    assert (train.batch, train.workers, train.autocast) == (None, 4, "none")
    assert (test.batch, test.workers, test.nonfinite, test.dtype) == (32, 1, "raise", "auto")
    assert (far.autocast, far.nonfinite) == ("bfloat16", "keep")


@pytest.mark.parametrize("text", [SMALL, WHOLE, KINDS])
def test_the_resolved_text_loads_to_the_same_job(job, text):
    first = config.load(job(text))
    again = config.load(job(first.resolved()))
    assert again.model_dump() == first.model_dump()
    assert again.detectors == first.detectors
    assert again.resolved() == first.resolved()


def test_resolved_text_keeps_what_yaml_would_take_for_something_else(job):
    names = ['"1e-3"', '"on"', '"2024"', '"1_000"', '"null"', '"1.5"', "no"]
    detectors = "".join(f"\n  - {{name: msp, id: {name}}}" for name in names)
    first = config.load(job(f"name: x\nstore: '1e5'\ndetectors:{detectors}\n"))
    assert list(first.detectors) == [name.strip('"') for name in names]
    again = config.load(job(first.resolved()))
    assert again.model_dump() == first.model_dump()


def test_overrides_have_the_last_word(job):
    path = job(WHOLE)
    changed = config.load(
        path, ["resources.workers=2", "detectors.1.covariance=ridge", "detectors.0=energy"]
    )
    assert changed.resources.workers == 2
    assert list(changed.detectors)[:2] == ["energy", "mahalanobis"]
    assert config.load(job(SMALL), ["resources.dashboard=yes"]).resources.dashboard is True


def test_a_wrong_override_is_named_as_one(job):
    path = job(WHOLE)
    with pytest.raises(ConfigError, match=r"command line resources\.workers: expected at least 1"):
        config.load(path, ["resources.workers=0"])
    with pytest.raises(ConfigError, match=r"command line resources\.wrkers: unknown key: did you"):
        config.load(path, ["resources.wrkers=1"])
    with pytest.raises(ConfigError, match=r"command line nothing: unknown key: known: version"):
        config.load(path, ["nothing.like.it=1"])


@pytest.mark.parametrize(
    "override",
    [
        "resources.workers",
        "=1",
        "detectors.9.id=a",
        "detectors.x=a",
        "name.x=1",
        "name=[",
        "a..b=1",
    ],
)
def test_an_override_that_cannot_be_applied_is_quoted(job, override):
    with pytest.raises(ConfigError, match=re.escape(repr(override))):
        config.load(job(WHOLE), [override])


@pytest.mark.parametrize(
    ("override", "keys", "expected"),
    [
        (
            "evaluate.near=[ood/near/a, ood/near/b]",
            ("evaluate", "near"),
            ["ood/near/a", "ood/near/b"],
        ),
        ("evaluate.near.0=ood/near/c", ("evaluate", "near"), ["ood/near/c"]),
        ("detectors.3={name: vim, dim: 5}", ("detectors", 3), {"name": "vim", "dim": 5}),
        ("store='1e5'", ("store",), "1e5"),
        ("store=a=b.zarr", ("store",), "a=b.zarr"),
        ("fit={split: id/val}", ("fit", "split"), "id/val"),
        ("detectors.1.ridge=1e-2", ("detectors", 1, "ridge"), 0.01),
        ("resources.cache=null", ("resources", "cache"), None),
    ],
)
def test_an_override_is_yaml_at_any_depth(job, override, keys, expected):
    found = yaml.safe_load(config.load(job(WHOLE), [override]).resolved())
    for key in keys:
        found = found[key]
    assert found == expected or expected.items() <= found.items()


def test_a_key_that_stands_twice_in_an_override_is_refused(job):
    with pytest.raises(
        ConfigError, match=r"command line resources\.workers: this key stands twice"
    ):
        config.load(job(SMALL), ["resources={workers: 1, workers: 2}"])


def test_the_environment_overrides_the_file_and_the_command_line_both(job, monkeypatch):
    monkeypatch.setenv("FEATFOLD__RESOURCES__WORKERS", "2")
    monkeypatch.setenv("FEATFOLD__DETECTORS__0", "energy")
    found = config.load(job(SMALL), ["detectors.0=vim"])
    assert (found.resources.workers, list(found.detectors)) == (2, ["vim"])
    assert config.load(job(found.resolved())).detectors.keys() == {"energy"}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("RESOURCES__WORKERS", "0", "FEATFOLD__RESOURCES__WORKERS resources.workers: expected at"),
        (
            "RESOURCES__WRKERS",
            "1",
            "FEATFOLD__RESOURCES__WRKERS resources.wrkers: unknown key: did",
        ),
        ("NOTHING__LIKE", "1", "FEATFOLD__NOTHING__LIKE nothing: unknown key"),
        ("NAME", "[", "'name=['"),
    ],
)
def test_a_wrong_variable_is_named(job, monkeypatch, name, value, words):
    monkeypatch.setenv(f"FEATFOLD__{name}", value)
    with pytest.raises(ConfigError, match=re.escape(words)):
        config.load(job(SMALL))


def test_a_head_may_have_options(job):
    assert config.load(job(with_lines("head: {lda: {ridge: 1e-1}}"))).head == {
        "lda": {"ridge": 0.1}
    }
    assert config.load(job(with_lines("head: stored"))).head == "stored"


def test_merge_keys_and_anchors_are_ordinary_yaml(job):
    text = """\
name: x
store: s
classes: 3
sources:
  - &first {split: id/train, data: {import: "a:b"}, model: {import: "m:n"}}
  - {<<: *first, split: id/test}
detectors: [msp]
"""
    first, second = config.load(job(text)).sources
    assert (first.split, second.split) == ("id/train", "id/test")
    assert second.model == first.model


def with_lines(*lines: str) -> str:
    return SMALL + "".join(f"{line}\n" for line in lines)


BROKEN = {
    "empty file": ("", "1:1", ["empty", "name, store, detectors"]),
    "only comments": ("# nothing\n", "1:1", ["empty"]),
    "not a mapping": ("- name\n", "1:1", ["mapping"]),
    "two documents": ("a: 1\n---\nb: 2\n", "2:1", ["another document"]),
    "tab": ("name: x\n\tstore: y\n", "2:1", ["not YAML", "spaces, not tabs"]),
    "unclosed": ("name: [x\nstore: y\n", "2:6", ["not YAML"]),
    "python tag": ("name: !!python/name:os.system\n", "1:7", ["could not determine"]),
    "recursion": ("name: &a [*a]\n", "1:7", ["nested too deeply"]),
    "key that is a list": ("? [a]\n: b\n", "1:3", ["a key is text"]),
    "not UTF-8": (b"name: x\nstore: \xff\n", "2:1", ["UTF-8"]),
    "control character": ("name: x\nstore: \x00\n", "2:1", ["special characters"]),
    "unknown key": (with_lines("resorces: {}"), "4:1", ["resorces", "mean 'resources'", "fit"]),
    "unknown inner key": (
        with_lines("resources:", "  wrokers: 2"),
        "5:3",
        ["resources.wrokers", "mean 'workers'", "dashboard"],
    ),
    "unknown key of an optional section": (
        with_lines("evaluate: {nera: []}"), "4:12", ["evaluate.nera", "mean 'near'"],
    ),
    "unknown key in a list": (
        with_lines("sources: [{splt: 1, split: id/train, data: {import: 'a:b'}}]"),
        "4:12",
        ["sources[0].splt", "mean 'split'"],
    ),
    "duplicate key": (SMALL + "name: again\n", "4:1", ["twice", "job.yaml:1:1"]),
    "missing required": ("store: s\ndetectors: [msp]\n", "1:1", ["name: is missing"]),
    "wrong type": (with_lines("fit: id/train"), "4:6", ["fit", "a mapping", "'id/train'"]),
    "number for text": ("name: 2024\nstore: s\ndetectors: [msp]\n", "1:7", ["string", "2024"]),
    "name that is a path": ("name: a/b\nstore: s\ndetectors: [msp]\n", "1:7", ["letters", "a/b"]),
    "wrong version": (with_lines("version: 2"), "4:10", ["expected 1, got 2"]),
    "no detectors": ("name: x\nstore: s\ndetectors: []\n", "3:12", ["at least one"]),
    "detectors not a list": ("name: x\nstore: s\ndetectors: msp\n", "3:12", ["a list", "'msp'"]),
    "unknown detector": (
        "name: x\nstore: s\ndetectors: [msp, mahalanobos]\n",
        "3:18",
        ["detectors[1]", "mean 'mahalanobis'", "kl_matching"],
    ),
    "detector without name": ("name: x\nstore: s\ndetectors: [{id: a}]\n", "3:13", ["its name"]),
    "unknown option": (
        "name: x\nstore: s\ndetectors:\n  - {name: mahalanobis, ridgee: 1}\n",
        "4:25",
        ["detectors[0].ridgee", "mean 'ridge'", "covariance"],
    ),
    "option of another type": (
        "name: x\nstore: s\ndetectors:\n  - {name: vim, dim: many}\n",
        "4:22",
        ["detectors[0].dim", "integer", "got 'many'"],
    ),
    "truth for a number": (
        "name: x\nstore: s\ndetectors: [{name: energy, temperature: true}]\n",
        "3:41",
        ["temperature", "expected a number, got true"],
    ),
    "option out of range": (
        "name: x\nstore: s\ndetectors: [{name: vim, dim: 0}]\n",
        "3:30",
        ["detectors[0].dim: 0; expected at least 1"],
    ),
    "option value unknown": (
        "name: x\nstore: s\ndetectors: [{name: mahalanobis, covariance: lasso}]\n",
        "3:45",
        ["detectors[0].covariance", "'lasso'", "pinvh"],
    ),
    "head of one detector": (
        "name: x\nstore: s\ndetectors: [{name: msp, head: lda}]\n", "3:25", ["at top level"],
    ),
    "duplicate id": (
        "name: x\nstore: s\ndetectors:\n  - msp\n  - {name: energy, id: msp}\n",
        "5:24",
        ["two detectors are called 'msp'", "job.yaml:4:5"],
    ),
    "the same detector twice": (
        "name: x\nstore: s\ndetectors: [msp, msp]\n", "3:18", ["called 'msp'", "job.yaml:3:13"],
    ),
    "bad size": (with_lines("resources: {memory: 8 GiBs}"), "4:21", ["'8 GiBs'", "512MiB"]),
    "truth for a size": (with_lines("resources: {memory: true}"), "4:21", ["size", "True"]),
    "list for a size": (with_lines("resources: {memory: [1GB]}"), "4:21", ["or auto", "['1GB']"]),
    "block of any size": (with_lines("block: auto"), "4:8", ["block: expected a size", "'auto'"]),
    "block of no size": (with_lines("block: 0"), "4:8", ["block: expected a size", "got 0"]),
    "options of a head": (with_lines("head: {lda: {rigde: 1}}"), "4:13", ["head.lda: expected"]),
    "option of a head": (
        with_lines("head: {lda: {ridge: -1}}"), "4:21", ["head.lda.ridge", "above 0, got -1"],
    ),
    "bad cluster": (with_lines("resources: {cluster: slrm}"), "4:22", ["'slrm'", "threads, local"]),
    "negative workers": (with_lines("resources: {workers: -1}"), "4:22", ["at least 1", "-1"]),
    "workers in words": (with_lines("resources: {workers: all}"), "4:22", ["or auto", "'all'"]),
    "unknown head": (with_lines("head: ldaa"), "4:7", ["'lda'", "weights", "'ldaa'"]),
    "head with a wrong key": (with_lines("head: {weight: a}"), "4:7", ["weights: FILE"]),
    "nonfinite": (with_lines("nonfinite: ignore"), "4:12", ["'raise' or 'skip'", "'ignore'"]),
    "source without data": (
        with_lines("classes: 3", "sources:", "  - {split: id/train, model: {import: 'a:b'}}"),
        "6:5",
        ["sources[0].data: is missing"],
    ),
    "source without model": (
        with_lines("classes: 3", "sources:", "  - {split: id/train, data: {import: 'a:b'}}"),
        "6:5",
        ["sources[0]", "no model", "top level"],
    ),
    "sources without classes": (
        with_lines("sources: [{split: id/train, data: {import: 'a:b'}, model: {import: 'a:b'}}]"),
        "4:10",
        ["classes is missing"],
    ),
    "factory that is no path": (
        with_lines("model: {import: package.module}"), "4:17", ["package.module:factory"],
    ),
    "data of no kind": (
        with_lines("classes: 3", "model: {import: 'a:b'}", "sources:",
                   "  - {split: id/train, data: {foldr: photos}}"),
        "7:30",
        ["sources[0].data.foldr", "mean 'folder'", "import, folder, huggingface, webdataset"],
    ),
    "a model where data belong": (
        with_lines("model: {folder: photos}"), "4:9", ["model.folder", "import, timm, torchvision"],
    ),
    "two kinds of data": (
        with_lines("classes: 3", "model: {import: 'a:b'}", "sources:",
                   "  - {split: id/train, data: {folder: a, webdataset: b}}"),
        "7:41",
        ["folder and webdataset", "one of them"],
    ),
    "option that a kind lacks": (
        with_lines("classes: 3", "model: {import: 'a:b'}", "sources:",
                   "  - {split: id/train, data: {folder: a, labeled: off}}"),
        "7:41",
        ["sources[0].data.labeled", "mean 'labelled'", "transform, size, crop"],
    ),
    "a kind by two keys": (
        with_lines("classes: 3", "model: {import: 'a:b'}", "sources:",
                   "  - {split: id/train, data: {folder: a, path: b}}"),
        "7:41",
        ["folder says it already"],
    ),
    "a kind of nothing": (
        with_lines("model: {timm: ''}"), "4:15", ["model.timm", "expected some text"],
    ),
    "batch of none": (
        with_lines("classes: 3", "model: {import: 'a:b'}", "sources:",
                   "  - {split: id/train, data: {folder: a}, batch: none}"),
        "7:49",
        ["sources[0].batch", "a number of rows, or auto, got 'none'"],
    ),
    "autocast to anything": (
        with_lines("classes: 3", "model: {import: 'a:b'}", "sources:",
                   "  - {split: id/train, data: {folder: a}, autocast: fp16}"),
        "7:52",
        ["'none', 'bfloat16' or 'float16', got 'fp16'"],
    ),
    "two sources of one split": (
        with_lines(
            "classes: 3", "model: {import: 'a:b'}", "sources:",
            "  - {split: id/train, data: {import: 'a:b'}}",
            "  - {split: id/train, data: {import: 'a:b'}}",
        ),
        "8:13",
        ["has a source", "job.yaml:7:13"],
    ),
    "split name": (with_lines("fit: {split: id/trian}"), "4:14", ["mean 'id/train'", "ood/val"]),
    "octal": (with_lines("classes: 0o17"), "4:10", ["'0o17'", "decimal digits"]),
    "leading zero": (
        with_lines("resources: {workers: 010}"), "4:22", ["or auto", "'010'"],
    ),
    "hexadecimal": (with_lines("classes: 0x1F"), "4:10", ["'0x1F'", "decimal digits"]),
    "quoted number": (with_lines("classes: '10'"), "4:10", ["leave out its quotes"]),
    "sexagesimal": (with_lines("classes: 22:30"), "4:10", ["the text '22:30'"]),
    "date": (with_lines("classes: 2024-01-01"), "4:10", ["the text '2024-01-01'"]),
    "yes for a number": (with_lines("classes: yes"), "4:10", ["the text 'yes'"]),
    "no for a head": (with_lines("head: no"), "4:7", ["stored", "'no'"]),
    "null for text": ("name: null\nstore: s\ndetectors: [msp]\n", "1:7", ["string", "None"]),
    "duplicate key within": (
        with_lines("resources: {workers: 1, memory: 1GB, workers: 2}"),
        "4:38",
        ["resources.workers", "twice", "job.yaml:4:13"],
    ),
    "merge of nothing": (with_lines("fit: {<<: 3}"), "4:11", ["not YAML"]),
    "unknown anchor": (with_lines("fit: *usual"), "4:6", ["undefined alias"]),
    "declared split name": (
        with_lines("declare:", "  train: {rows: 1, classes: 1, arrays: {}}"), "5:3", ["id/train"],
    ),
    "declared dtype": (
        with_lines("declare:", "  id/train:", "    {rows: 9, classes: 2,",
                   "    arrays: {features: {shape: [3], dtype: float23}}}"),
        "7:24",
        ["declare.id/train.arrays.features", "float23", "bfloat16"],
    ),
    "declared rows": (
        with_lines("declare:", "  id/test: {rows: 0, classes: 1, arrays: {}}"),
        "5:19",
        ["at least 1"],
    ),
    "declared labels": (
        with_lines("declare: {id/test: {rows: 1, classes: 1, arrays: {labels: {dtype: float32}}}}"),
        "4:50",
        ["labels must be integers"],
    ),
    "near that is no OOD": (
        with_lines("evaluate: {near: [ood/near/a, id/test]}"), "4:31", ["near[1]", "ood/"],
    ),
    "listed twice": (
        with_lines("evaluate: {far: [ood/far/a, ood/far/a]}"), "4:29", ["in this list already"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_job_names_file_line_column_and_remedy(job, case):
    text, place, words = BROKEN[case]
    path = job(text)
    with pytest.raises(ConfigError) as caught:
        config.load(path)
    message = str(caught.value)
    assert caught.value.exit_code == 2
    assert f"{path}:{place}" in message.splitlines()[-1]
    for word in words:
        assert word in message
    assert "1 problem:" in message or len(message.splitlines()) == 1


def test_all_problems_are_named_at_once_in_the_order_of_the_file(job):
    path = job("""\
name: x
store: s
stor: t
detectors:
  - {name: vim, dimm: 3, dim: many}
  - nothing_like_it
resources: {workers: 0, memory: lots}
nonfinite: maybe
""")
    with pytest.raises(ConfigError) as caught:
        config.load(path)
    head, *lines = str(caught.value).splitlines()
    assert head == f"{path} is not a valid job, 7 problems:"
    places = [line.split()[0].removeprefix(f"{path}:") for line in lines]
    assert places == ["3:1", "5:17", "5:31", "6:5", "7:22", "7:33", "8:12"]


def test_numbers_may_be_written_as_people_do(job):
    text = SMALL.replace("[msp]", "[{name: mahalanobis, ridge: 1e-3}, {name: vim, dim: 1_000}]")
    made = config.load(job(text)).detectors
    assert list(made) == ["mahalanobis(ridge=0.001)", "vim(dim=1000)"]


@pytest.mark.parametrize(
    ("word", "truth"), [("on", True), ("off", False), ("yes", True), ("true", True)]
)
def test_a_truth_may_be_written_as_people_do(job, word, truth):
    made = config.load(job(with_lines(f"resources: {{dashboard: {word}}}")))
    assert made.resources.dashboard is truth


def test_there_must_be_a_file(tmp_path):
    with pytest.raises(MissingInputError, match="no such file") as caught:
        config.load(tmp_path / "none.yaml")
    assert caught.value.exit_code == 4
    with pytest.raises(MissingInputError, match="cannot be read"):
        config.load(tmp_path)


def test_resolved_text_is_plain_yaml(job):
    tree = yaml.safe_load(config.load(job(WHOLE)).resolved())
    assert tree["detectors"][2] == {"name": "mahalanobis", "id": "ridge", "ridge": 0.001}
    assert tree["resources"]["workers"] == 4
    assert tree["sources"][0]["model"]["import"] == "package.models:load"


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("{name: knn, k: '3'}", "detectors[0].k: expected a number, got the text '3'"),
        ("{name: knn, max_bank: true}", "detectors[0].max_bank: expected a number, got true"),
        ("{name: dfm, components: true}", "detectors[0].components: expected a number, got true"),
        ("{name: msp, id: head}", "detectors[0].id: 'head' cannot name a detector"),
        ("{name: weighted_energy}", "weighted_energy needs the option weights"),
        ("{name: ensemble, detectors: [{name: gen, preset: [a]}]}", "preset: expected one of"),
        ("{name: ensemble, detectors: [{name: knn, k: true}]}", "k: expected int, got True"),
    ],
)
def test_what_an_option_must_not_be_is_named(entry: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(f"name: x\nstore: s\ndetectors:\n  - {entry}\n", "job.yaml")
    assert words in str(caught.value)


def test_every_choice_of_a_section_is_named() -> None:
    text = "name: x\nstore: s\ndetectors: [{name: knn, k: [1, 2]}]\nselect: {metric: f1}\n"
    with pytest.raises(ConfigError, match="'auroc', 'aupr_in', 'aupr_out' or 'fpr95', got 'f1'"):
        parse(text, "job.yaml")
