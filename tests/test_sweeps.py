"""Sweeps: lists as options, what they share, and the choice of one member on validation rows."""

import dataclasses
import json
import re

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

import pipeline as ff
from pipeline import config, detectors, job, shapes
from pipeline.api import Fitted
from pipeline.chunk import ArraySpec
from pipeline.detectors import Chosen
from pipeline.errors import ConfigError, DataError
from pipeline.inputs import as_split, detectors_by_id
from pipeline.planning import plan
from pipeline.selection import selection_jobs
from pipeline.store import ArraySplit, Store

K, D = 4, 12
RIDGES = [1e-6, 0.1, 10.0]


def draw(n, seed, shift=0.0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, K, n)
    scale = np.logspace(0, -2, D)
    x = (rng.standard_normal((n, D)) + 3 * np.eye(K, D)[y]) * scale
    x[:, -1] += shift * scale[-1]
    return x.astype("f4"), y


@pytest.fixture(scope="module")
def fitted():
    return ff.fit([{"name": "mahalanobis", "ridge": RIDGES}, "energy"], draw(400, 0), workers=2)


def test_a_list_is_one_detector_for_each_entry_in_the_passes_of_one(fitted):
    assert list(fitted) == [f"mahalanobis(ridge={r})" for r in RIDGES] + ["energy"]
    alone = ff.fit({"name": "mahalanobis", "ridge": 0.1}, draw(400, 0), workers=2)
    assert fitted.passes == alone.passes == 1
    (one,) = alone.values()
    assert fitted["mahalanobis(ridge=0.1)"].scorer == one.scorer


@pytest.mark.parametrize(
    ("entry", "ids"),
    [
        (
            {"name": "energy", "temperature": [1, 2]},
            [f"energy(temperature={t})" for t in (1.0, 2.0)],
        ),
        ({"name": "energy", "temperature": [2]}, ["energy(temperature=2.0)"]),
        (
            {"name": "energy", "id": "e", "temperature": [1, 2]},
            [f"e(temperature={t})" for t in (1.0, 2.0)],
        ),
        (
            {"name": "mahalanobis", "pool": ["mean", "cls"], "ridge": [0.1, 1]},
            [f"mahalanobis(pool={p}, ridge={r})" for p in ("mean", "cls") for r in (0.1, 1.0)],
        ),
    ],
)  # fmt: skip
def test_the_ids_of_a_sweep_say_what_is_swept(entry, ids):
    found = detectors_by_id([entry])
    assert list(found) == ids
    name = entry.get("id", entry["name"])
    assert all(isinstance(made, Chosen) and made.sweep == name for made in found.values())


def test_a_mapping_from_id_may_hold_a_sweep():
    found = detectors_by_id({"mine": {"name": "energy", "temperature": [1, 2]}, "other": "msp"})
    assert list(found) == ["mine(temperature=1.0)", "mine(temperature=2.0)", "other"]


@pytest.mark.parametrize(
    ("values", "says"),
    [([], "temperature: an empty list"), ([1, 1.0], "one value twice"), ([1, -1], "temperature")],
)
def test_sweeps_of_nothing_twice_or_nonsense_are_refused(values, says):
    with pytest.raises(ConfigError, match=says):
        detectors_by_id({"name": "energy", "temperature": values})


@pytest.mark.parametrize(("metric", "best"), [("auroc", max), ("fpr95", min)])
def test_the_best_on_validation_rows_takes_the_name_of_the_sweep(fitted, metric, best):
    inside, outside = draw(300, 1)[0], draw(200, 2, shift=3.0)[0]
    chosen = ff.select(fitted, inside, outside, metric=metric, workers=2)
    assert list(chosen) == ["mahalanobis", "energy"]
    values = chosen["mahalanobis"].choice["values"]
    if metric == "auroc":
        truth = np.repeat([0, 1], [300, 200])
        for name, value in values.items():
            scores = np.concatenate([fitted[name](inside), fitted[name](outside)])
            assert value == pytest.approx(roc_auc_score(truth, scores), abs=1e-12)
    assert len(set(values.values())) > 1
    winner = best(values, key=values.get)
    assert chosen["mahalanobis"].choice["member"] == winner
    assert chosen["mahalanobis"].scorer == fitted[winner].scorer
    assert chosen["energy"] == fitted["energy"]


def test_a_choice_outlives_saving(fitted, tmp_path):
    chosen = ff.select(fitted, draw(50, 1)[0], draw(50, 2, 3.0)[0], workers=2)
    chosen.save(tmp_path / "kept")
    again = Fitted.load(tmp_path / "kept")
    assert again["mahalanobis"].choice == chosen["mahalanobis"].choice
    assert again["mahalanobis"].notes == chosen["mahalanobis"].notes
    assert "chosen by auroc on id/val and ood/val" in " ".join(again["mahalanobis"].notes)


def test_what_is_tested_on_may_not_choose(fitted):
    rows = draw(20, 1)[0]
    with pytest.raises(ConfigError, match="tested on"):
        ff.select(fitted, ArraySplit(rows, name="id/test", classes=K), rows)
    with pytest.raises(ConfigError, match="ood/near/a' may be tested on"):
        ff.select(fitted, rows, ArraySplit(rows, name="ood/near/a", classes=K))
    with pytest.raises(ConfigError, match="was fitted on id/train"):
        ff.select(fitted, ArraySplit(rows, name="id/train", classes=K), rows)
    with pytest.raises(ConfigError, match="metric: 'auc'"):
        ff.select(fitted, rows, rows, metric="auc")
    with pytest.raises(ConfigError, match="no detector was swept"):
        ff.select(ff.fit("energy", draw(50, 0), workers=2), rows, rows)


@pytest.fixture
def store(tmp_path):
    place = Store.create(tmp_path / "s.zarr")
    parts = (("id/train", 300, 0.0), ("id/val", 100, 0.0), ("id/test", 100, 0.0),
             ("ood/val", 80, 2.0), ("ood/far/a", 90, 3.0))  # fmt: skip
    for seed, (name, rows, shift) in enumerate(parts):
        x, y = draw(rows, seed, shift)
        arrays = {"features": ArraySpec((D,), "float32", "D"), "labels": ArraySpec((), "int64")}
        if name.startswith("ood"):
            y = np.full_like(y, -1)
        writer = place.create_split(name, arrays, classes=K, rows=rows)
        for block in writer.missing():
            part = slice(block.start, block.stop)
            writer.write(block.index, {"features": x[part], "labels": y[part]})
    return tmp_path


def written(directory, more=""):
    path = directory / "job.yaml"
    path.write_text(
        f"""
name: swept
store: {directory / "s.zarr"}
detectors: [{{name: mahalanobis, ridge: [1.0e-6, 0.1, 10]}}, energy]
evaluate: {{id: id/test, far: [ood/far/a]}}
report: {{directory: {directory / "runs"}}}
resources: {{cluster: threads, workers: 2}}
{more}"""
    )
    return path


def test_a_job_reports_all_members_or_the_chosen_one(store):
    whole = job.run(written(store)).results
    assert [d["id"] for d in whole["detectors"]] == [
        "mahalanobis(ridge=1e-06)", "mahalanobis(ridge=0.1)", "mahalanobis(ridge=10.0)", "energy",
    ]  # fmt: skip
    path = written(store, "select: {metric: auroc}\n")
    planned = plan(config.load(path))
    assert [p.stage for p in planned.passes] == ["fit", "select", "score"]
    done = job.run(path)
    assert [d["id"] for d in done.results["detectors"]] == ["mahalanobis", "energy"]
    assert "chosen by auroc" in " ".join(done.results["detectors"][0]["notes"])
    kept = Fitted.load(done.directory / "detectors")["mahalanobis"]
    numbers = {row["detector"]: row["metrics"]["auroc"]["value"] for row in whole["scores"]}
    again = {row["detector"]: row["metrics"]["auroc"]["value"] for row in done.results["scores"]}
    assert again["mahalanobis"] == numbers[kept.choice["member"]]


def test_a_plan_over_made_up_rows_selects_nothing(store):
    made_up = shapes.made_up("500x12:float32:4", "id/train")
    planned = plan(config.load(written(store, "select: {}\n")), synthetic=made_up)
    assert [p.stage for p in planned.passes] == ["fit"]


def test_a_plan_reads_what_the_run_reads_whether_the_choice_is_known_or_not(store):
    path = written(store, "select: {}\n")
    planned = plan(config.load(path))
    done = job.run(path)
    assert sum(p.read_nbytes for p in planned.pending) == done.results["verdict"]["bytes_read"]
    again = plan(config.load(path))
    assert [p.read_nbytes for p in again.pending] == [0, 0, 0]
    assert job.run(path).results["verdict"]["bytes_read"] == 0


def test_a_resolved_job_with_a_sweep_is_the_same_job(store):
    first = config.load(written(store, "select: {}\n"))
    (store / "again.yaml").write_text(first.resolved())
    again = config.load(store / "again.yaml")
    assert list(again.detectors) == list(first.detectors)
    assert again.resolved() == first.resolved()
    assert json.loads(json.dumps(first.model_dump(mode="json")))["select"]["ood"] == "ood/val"


def test_a_resolved_sweep_of_one_value_is_the_same_job(store):
    path = written(store, "select: {}\n")
    path.write_text(path.read_text().replace("[1.0e-6, 0.1, 10]", "[0.1]"))
    first = config.load(path)
    (store / "again.yaml").write_text(first.resolved())
    again = config.load(store / "again.yaml")
    assert list(again.detectors) == ["mahalanobis(ridge=0.1)", "energy"] == list(first.detectors)
    assert again.resolved() == first.resolved()


def test_what_is_chosen_keeps_its_state_and_the_report_names_the_splits_it_was_chosen_on(store):
    whole = {d["id"]: d for d in job.run(written(store)).results["detectors"]}
    done = job.run(written(store, "select: {}\n")).results
    chosen = done["detectors"][0]
    assert chosen["id"] == "mahalanobis"
    assert chosen["state_nbytes"] == whole["mahalanobis(ridge=0.1)"]["state_nbytes"] > 0
    splits = {split["split"]: split for split in done["data"]}
    assert splits["ood/val"]["role"] == "ood_val"
    assert splits["id/val"]["role"] == "id_val"
    assert sum(splits["id/val"]["class_counts"]) == 100
    assert {"id/val", "ood/val"} <= done["provenance"]["checksums"].keys()


@pytest.mark.parametrize(
    ("evaluated", "place"),
    [
        ("{id: id/test, far: [ood/far/a], near: [ood/val]}", "evaluate.near[0]: ood/val is what"),
        ("{id: id/val, far: [ood/far/a]}", "evaluate.id: id/val is what"),
    ],
)
def test_rows_that_chose_are_not_evaluated(store, evaluated, place):
    path = written(store, "select: {}\n")
    path.write_text(path.read_text().replace("{id: id/test, far: [ood/far/a]}", evaluated))
    with pytest.raises(ConfigError, match=re.escape(place)):
        config.load(path)


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ("{name: knn, k: [1, 2]}, {name: knn, k: [5]}", "two sweeps are called 'knn'"),
        ("{name: knn, k: [1, 2]}, {name: energy, id: knn}", "'knn' will be what select keeps"),
    ],
)
def test_a_name_that_a_choice_would_take_twice_is_refused(store, entries, says):
    path = written(store, "select: {}\n")
    path.write_text(path.read_text().replace("detectors: [", f"detectors: [{entries}, "))
    with pytest.raises(ConfigError, match=says):
        config.load(path)


def test_two_sweeps_of_one_name_are_refused():
    twice = [{"name": "knn", "k": [1, 2]}, {"name": "knn", "k": [5, 10]}]
    with pytest.raises(ConfigError, match="two sweeps are called knn"):
        detectors_by_id(twice)
    assert len(detectors_by_id([twice[0], {**twice[1], "id": "more"}])) == 4


def test_a_detector_called_like_a_sweep_is_refused_before_anything_is_scored():
    given = [{"name": "energy", "temperature": [1, 2]}, {"name": "msp", "id": "energy"}]
    found = ff.fit(given, draw(50, 0), workers=2)
    with pytest.raises(ConfigError, match="energy is a detector and a sweep"):
        selection_jobs(
            found, *(as_split(draw(9, 1)[0], name=n) for n in ("id/val", "ood/val")), "auroc"
        )


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("select: {ood: ood/near/a}", "may be tested on"),
        ("select: {id: id/test}", "tested on"),
        ("select: {metric: acc}", "metric"),
    ],
)
def test_a_selection_on_tested_rows_is_refused(store, more, says):
    with pytest.raises(ConfigError, match=says):
        config.load(written(store, more))


def test_a_selection_without_a_sweep_is_refused(store):
    path = written(store, "select: {}\n")
    path.write_text(path.read_text().replace("[1.0e-6, 0.1, 10]", "0.1"))
    with pytest.raises(ConfigError, match="nothing to choose from"):
        config.load(path)


def test_an_undefined_metric_chooses_nothing(fitted):
    infinite = ArraySplit(np.full((5, D), np.nan, "f4"), name="ood/val", classes=K)
    with pytest.raises(DataError, match="not finite"):
        ff.select(fitted, draw(20, 1)[0], infinite)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (
            {"name": "mahalanobis", "preset": "openood-1.5", "ridge": RIDGES},
            "ridge: .* changes nothing with covariance: pinvh of preset openood-1.5",
        ),
        ({"name": "pnml", "covariance": "pinvh", "ridge": RIDGES}, "with covariance: pinvh;"),
        ({"name": "knn", "k": [1, 2], "image": ["max", "mean"]}, "image: .* with pool: mean;"),
        ({"name": "kpca", "gamma": [1, 2]}, "gamma: .* with kernel: cosine;"),
        ({"name": "cadref", "decoupled": False, "confidence": ["msp", "energy"]}, "confidence: "),
    ],
)
def test_a_sweep_of_an_option_that_changes_nothing_is_refused(entry, says):
    with pytest.raises(ConfigError, match=says):
        detectors_by_id(entry)


def test_a_job_with_such_a_sweep_is_refused_where_the_option_is_written(store):
    swept = (
        "[{name: gen, gamma: [0.1, 0.2]}, {name: mahalanobis, covariance: pinvh, ridge: [1, 2]}]"
    )
    path = store.parent / "useless.yaml"
    path.write_text(f"name: useless\nstore: {store}\ndetectors: {swept}\n")
    with pytest.raises(ConfigError, match=r"detectors\[1\]\.ridge.*covariance: pinvh"):
        config.load(path)


VALUES = {
    "ridge": (0.1, 1.0), "image": ("mean", "top1"), "gamma": (0.3, 0.7), "seed": (1, 2),
    "fourier": (16, 32), "confidence": ("msp", "energy"), "scale": (1.0, 2.0), "k": (1, 3),
    "temperature": (1.0, 2.0), "percentile": (60.0, 80.0), "alpha": (1, 2), "tail": (3, 5),
    "power": (1.0, 2.0), "threshold": (0.01, 0.2), "epsilon": (0.01, 0.1), "tau": (1.0, 2.0),
    "euclid_weight": (0.2, 0.8), "rows": ("all", "correct"), "normalize": (0.0, 1.0),
    "reduce": ("sum", "mean"), "squared": (False, True), "low": (5.0, 20.0), "high": (85.0, 95.0),
    "components": (2, 3), "dim": (2, 3), "p": (0.5, 0.9), "bins": (20, 40),
}  # fmt: skip
"""Two values of options; of those with the same name in several detectors, legal ones in all."""


@pytest.mark.parametrize(
    "name", [n for n in detectors.names() if not detectors.probed_of(detectors.load(n))]
)
def test_an_option_changes_scores_or_is_said_to_change_nothing(name):
    """Of every preset: no sweep gives equal members without an error or a note."""
    x, y = draw(200, 0)
    tokens, others = (np.stack([z, z + 0.1 * z[::-1]], axis=1) for z in (x, draw(60, 1)[0]))
    cls = detectors.load(name)
    needed = {"weighted_energy": {"weights": (1.0,) * K}, "ash": {"variant": "b"}}.get(name, {})
    if name == "ensemble":
        needed = {"detectors": ("mahalanobis", "energy")}
    for preset in ("", *detectors.presets_of(cls)):
        base = {**needed, "name": name}
        if preset:
            base |= {"preset": preset, "fit_split": "train"}
        for option in sorted(VALUES.keys() & {field.name for field in dataclasses.fields(cls)}):
            entry = {**base, option: list(VALUES[option])}
            try:
                fitted = ff.fit(entry, (tokens, y), head="lda", workers=1)
            except (ConfigError, DataError) as error:
                if option not in str(error):  # no such value, or it changes nothing
                    raise
                continue
            one, two = ff.score(fitted, others, per_image=True, workers=1).values()
            *_, last = fitted.values()
            said = f"{option} changes nothing here: the scores are those of {next(iter(fitted))}"
            assert np.array_equal(one, two) == (said in last.notes), (entry, last.notes)
