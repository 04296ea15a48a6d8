"""Presets and fit splits: what a detector is made with, fitted on, and recorded as."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import pipeline as ff
from pipeline import config, detectors, job
from pipeline.chunk import ArraySpec, Schema
from pipeline.content import value
from pipeline.detectors import Chosen
from pipeline.detectors.energy import Energy
from pipeline.detectors.kl_matching import KLMatching
from pipeline.detectors.mahalanobis import Mahalanobis
from pipeline.errors import ConfigError, DataError, MissingInputError, UnknownNameError
from pipeline.planning import plan
from pipeline.procedure import Passes
from pipeline.store import Store

OURS, THEIRS = "pytorch-ood-0.4", "openood-1.5"
K, D = 3, 6
NEEDED = {"weights": (1.0, 0.5)}
"""Options that have no default, and that no preset can know."""


@value
class Listed:
    """A detector with one option that it needs, and presets for everything."""

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        OURS: {"variant": "s", "percentiles": (85, 90)},
        THEIRS: {"variant": "b", "share": 1, "fit_split": "val"},
    }

    variant: str
    share: float = 0.5
    percentiles: tuple[float, ...] = ()

    def passes(self, schema: Schema) -> Passes[Any]:
        return Energy().passes(schema)


@pytest.fixture(autouse=True)
def _listed(monkeypatch):
    """Let ``listed`` be the name of a detector; give the others presets that are known here."""
    load = detectors.load
    monkeypatch.setattr(detectors, "load", lambda name: Listed if name == "listed" else load(name))
    monkeypatch.setattr(detectors, "name_of", _named(detectors.name_of))
    monkeypatch.setattr(KLMatching, "presets", {THEIRS: {"fit_split": "val"}}, raising=False)
    monkeypatch.setattr(Mahalanobis, "presets", {OURS: {"ridge": 1e-3}}, raising=False)
    monkeypatch.setattr(Energy, "presets", {}, raising=False)


def _named(name_of):
    return lambda made: "listed" if isinstance(detectors.plain(made), Listed) else name_of(made)


def test_a_preset_gives_its_options_and_explicit_ones_override_it():
    made = detectors.make("listed", preset=OURS)
    assert made == Chosen(Listed("s", percentiles=(85.0, 90.0)), OURS)
    assert made.overrides == {}
    other = detectors.make("listed", preset=THEIRS, share=0.25)
    assert other == Chosen(Listed("b", share=0.25), THEIRS, "id/val")
    assert other.overrides == {"share": 0.25}
    assert detectors.make("listed", variant="p") == Listed("p")


def test_the_fit_split_of_a_preset_may_be_overridden_too():
    made = detectors.make("listed", preset=THEIRS, fit_split="train")
    assert made.fit_split == "id/train"
    assert made.overrides == {"fit_split": "id/train"}


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"preset": OURS}, f"listed(preset={OURS})"),
        ({"preset": OURS, "share": 1}, f"listed(preset={OURS}, share=1.0)"),
        ({"preset": THEIRS}, f"listed(preset={THEIRS})"),
        ({"preset": THEIRS, "fit_split": "train"}, f"listed(preset={THEIRS}, fit_split=id/train)"),
        ({"variant": "p", "fit_split": "val"}, "listed(fit_split=id/val, variant=p)"),
        ({"variant": "p"}, "listed(variant=p)"),
    ],
)
def test_default_ids_name_the_preset_and_what_differs_from_it(options, name):
    assert detectors.default_id(detectors.make("listed", **options)) == name


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"preset": "pytorch-ood-0.3"}, ["'pytorch-ood-0.3' is unknown", "mean 'pytorch-ood-0.4'"]),
        ({"preset": "nothing"}, ["known: pytorch-ood-0.4, openood-1.5"]),
        ({"varient": "s"}, ["varient: listed has no such option: did you mean 'variant'?"]),
        ({}, ["variant: listed needs this option"]),
        ({"variant": "p", "fit_split": "test"}, ["'test' holds rows that are tested on", "train"]),
        ({"variant": "p", "fit_split": "id/csid/a"}, ["tested on", "id/val"]),
        ({"variant": "p", "fit_split": "ood/val"}, ["'ood/val' holds out-of-distribution"]),
        ({"variant": "p", "fit_split": "vall"}, ["fit_split: 'vall' is unknown; expected id/tra"]),
    ],
)
def test_what_cannot_be_made_says_what_there_is(options, words):
    with pytest.raises(ConfigError) as caught:
        detectors.make("listed", **options)
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("name", "preset", "words"),
    [("energy", OURS, "it has none"), ("mahalanobis", THEIRS, f"it has {OURS}")],
)
def test_a_detector_without_a_preset_lists_what_it_has(name, preset, words):
    with pytest.raises(ConfigError, match=f"{name} has no preset '{preset}': {words}"):
        detectors.make(name, preset=preset)


def test_every_preset_of_every_detector_can_be_made():
    for name in detectors.names():
        for preset, options in detectors.presets_of(detectors.load(name)).items():
            assert preset in detectors.PRESETS
            lacking = [
                key for key in detectors.required(detectors.load(name)) if key not in options
            ]
            made = detectors.make(name, preset=preset, **{key: NEEDED[key] for key in lacking})
            assert set(made.overrides) == set(lacking), (
                f"{name}: {preset} is not written in canonical form"
            )
            assert made.fit_split in ("", "id/val"), f"{name}: {preset}: {options}"


def rows(count, seed=0):
    random = np.random.default_rng(seed)
    labels = np.arange(count) % K
    features = random.standard_normal((count, D)) + 4 * np.eye(K, D)[labels]
    return {"features": features, "labels": labels, "logits": 2 * features[:, :K]}


def test_python_takes_presets_in_entries_as_in_jobs():
    entries = [{"name": "mahalanobis", "preset": OURS}, "msp", {"name": "msp", "id": "again"}]
    fitted = ff.fit(entries, rows(60))
    assert list(fitted) == [f"mahalanobis(preset={OURS})", "msp", "again"]
    one = ff.fit({"name": "mahalanobis", "preset": OURS, "ridge": 0.1}, rows(60))
    (member,) = one.values()
    assert member.detector == Mahalanobis(ridge=0.1)
    assert member.notes[0] == f"preset {OURS}, but ridge=0.1"
    mine = ff.fit({"mine": {"name": "mahalanobis", "preset": OURS}}, rows(60))["mine"]
    assert mine.notes[0] == f"preset {OURS}"
    np.testing.assert_allclose(
        mine(rows(9, 1)), ff.fit(Mahalanobis(ridge=1e-3), rows(60))["mahalanobis(ridge=0.001)"](
            rows(9, 1)
        ), rtol=1e-12,
    )  # fmt: skip


def test_an_entry_without_a_name_and_an_unknown_one_are_refused():
    with pytest.raises(ConfigError, match="a detector needs its name"):
        ff.fit([{"preset": OURS}], rows(60))
    with pytest.raises(UnknownNameError, match="did you mean 'mahalanobis'"):
        ff.fit([{"name": "mahalanobos"}], rows(60))


def test_preset_and_fit_split_are_saved_with_the_scorer(tmp_path):
    fitted = ff.fit({"name": "kl_matching", "preset": THEIRS}, rows(60), val=rows(30, 1))
    fitted.save(tmp_path / "fit")
    (member,) = ff.api.Fitted.load(tmp_path / "fit").values()
    assert (member.preset, member.fit_split, member.schema.split) == (THEIRS, "id/val", "id/val")
    assert member.notes[:2] == (f"preset {THEIRS}", "fitted on id/val")
    assert member.rows == (30, 30)
    assert member.overrides == {}


@pytest.mark.parametrize("head", ["stored", "lda"])
def test_a_detector_is_fitted_on_the_split_it_asks_for_and_its_head_on_that_of_the_fit(head):
    train, val = rows(90), rows(45, 1)
    both = ff.fit(["kl_matching", {"name": "kl_matching", "fit_split": "val"}], train,
                  val=val, head=head)  # fmt: skip
    usual, other = both["kl_matching"], both["kl_matching(fit_split=id/val)"]
    assert other.rows == (45, 45)
    assert usual.rows == (90, 90)
    alone = ff.fit("kl_matching", train, head=head)["kl_matching"]
    np.testing.assert_array_equal(usual(val), alone(val))
    given = both.logits if head == "lda" else None
    expected = ff.fit("kl_matching", val, head=_as_head(given))["kl_matching"]
    np.testing.assert_array_equal(other(val), expected(val))
    assert not np.array_equal(other(val), usual(val))


def _as_head(logits):
    from pipeline.heads import LinearHead

    return logits and LinearHead(logits.weight, logits.bias, logits.of)


def test_splits_that_are_missing_tested_on_or_of_other_classes_are_refused(tmp_path):
    entry = {"name": "kl_matching", "fit_split": "val"}
    with pytest.raises(MissingInputError, match=r"fitted on id/val.* val=, or choose fit_split t"):
        ff.fit(entry, rows(60))
    store = Store.create(tmp_path / "s.zarr")
    fill(store, "id/test", 30)
    with pytest.raises(ConfigError, match="val: 'id/test' holds rows that are tested on"):
        ff.fit(entry, rows(60), val=store.split("id/test"))
    other = ff.api.as_split(rows(30), name="id/val", classes=K + 1)
    with pytest.raises(DataError, match="id/val has 4 classes, id/train 3"):
        ff.fit(entry, rows(60), val=other)


SPECS = {
    "features": ArraySpec((D,), "float64", "D"),
    "labels": ArraySpec((), "int64"),
    "logits": ArraySpec((K,), "float64", "K"),
}
JOB = """\
name: presets
store: {store}
detectors:
  - {{name: kl_matching, preset: openood-1.5}}
  - {{name: kl_matching, fit_split: train}}
  - {{name: mahalanobis, preset: pytorch-ood-0.4, ridge: 0.5}}
evaluate: {{far: [ood/far/a]}}
resources: {{cluster: threads, workers: 1, cache: {home}/cache}}
report: {{directory: {home}/runs}}
"""


def fill(store, name, count, shift=0.0):
    contents = rows(count, count)
    contents["features"] += shift
    if name.startswith("ood"):
        contents["labels"] = np.full(count, -1)
    writer = store.create_split(name, SPECS, classes=K, rows=count)
    for block in writer.blocks:
        part = slice(block.start, block.stop)
        writer.write(block.index, {n: array[part] for n, array in contents.items()})


@pytest.fixture
def path(tmp_path) -> Path:
    store = Store.create(tmp_path / "s.zarr")
    for name, count in (("id/train", 90), ("id/val", 45), ("id/test", 30), ("ood/far/a", 20)):
        fill(store, name, count, 3.0 * name.startswith("ood"))
    written = tmp_path / "job.yaml"
    written.write_text(JOB.format(store=store.path, home=tmp_path))
    return written


def test_a_job_runs_each_detector_on_its_split_and_results_say_so(path):
    planned = plan(config.load(path)).explain()
    assert "id/val: labels, logits" in planned
    assert "over id/val, id/train for kl_matching(preset=openood-1.5)" in " ".join(planned.split())

    done = job.run(path)
    found = {entry["id"]: entry for entry in done.results["detectors"]}
    theirs = found["kl_matching(preset=openood-1.5)"]
    assert (theirs["preset"], theirs["fit_split"], theirs["overrides"]) == (THEIRS, "id/val", {})
    usual = found["kl_matching(fit_split=id/train)"]
    assert (usual["preset"], usual["fit_split"]) == ("", "id/train")
    mine = found[f"mahalanobis(preset={OURS}, ridge=0.5)"]
    assert mine["overrides"] == mine["options"] == {"ridge": "0.5"}
    assert mine["notes"][0] == f"preset {OURS}, but ridge=0.5"
    roles = {split["split"]: split["role"] for split in done.results["data"]}
    assert roles["id/val"] == "id_val"
    assert "id/val" in done.results["provenance"]["checksums"]
    saved = json.loads((done.directory / "detectors" / "artifact.json").read_text())
    assert "openood-1.5" in json.dumps(saved["value"])


def test_the_resolved_job_loads_to_the_same_detectors(path):
    first = config.load(path)
    again = config.parse(first.resolved(), "again")
    assert again.detectors == first.detectors
    assert again.resolved() == first.resolved()


BROKEN = {
    "detectors.0.preset=openood": (["detectors[0].preset: 'openood' is unknown", "mean 'openood-"]),
    "detectors.2.preset=openood-1.5": (["mahalanobis has no preset 'openood-1.5'"]),
    "detectors.1.fit_split=test": (["detectors[1].fit_split: 'test' holds rows that are tested"]),
    "detectors.1.fit_split=ood/val": (["fit_split: 'ood/val' holds out-of-distribution rows"]),
    "detectors.1.fit_split=3": (["fit_split: expected a valid string, got 3"]),
    "fit.split=id/test": (["fit.split: 'id/test' holds rows that are tested on"]),
    "fit.split=ood/val": (["fit.split: 'ood/val' holds out-of-distribution"]),
    "evaluate.id=id/val": (["id/val is what kl_matching(preset=openood-1.5) is fitted on"]),
    "evaluate.id=id/train": (["evaluate.id: id/train is what the job is fitted on"]),
}


@pytest.mark.parametrize("change", BROKEN)
def test_a_job_that_asks_for_what_it_cannot_have_is_refused(path, change):
    with pytest.raises(ConfigError) as caught:
        config.load(path, [change])
    for word in BROKEN[change]:
        assert word in str(caught.value)


def test_a_job_without_the_split_names_the_ways_out(path):
    text = path.read_text().replace("s.zarr", "t.zarr")
    store = Store.create(path.parent / "t.zarr")
    for name, count in (("id/train", 90), ("id/test", 30), ("ood/far/a", 20)):
        fill(store, name, count)
    path.write_text(text)
    with pytest.raises(MissingInputError) as caught:
        plan(config.load(path))
    for word in ("no split 'id/val'", "under sources:", "declare:",
                 "set fit_split: train for kl_matching(preset=openood-1.5)"):  # fmt: skip
        assert word in str(caught.value)
