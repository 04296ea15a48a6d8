"""Seeds: one job on the stores of several checkpoints, reported as mean and spread."""

import io
import json
from statistics import fmean, stdev

import numpy as np
import pytest
from rich.console import Console

from pipeline import config, job, seeds
from pipeline.__main__ import main
from pipeline.chunk import ArraySpec
from pipeline.errors import ConfigError, DataError, MissingInputError
from pipeline.report import averaged, headline, read
from pipeline.report.tables import headline_table
from pipeline.report.text import markdown
from pipeline.store import Store

K, D = 3, 8


def fill(path, seed, sets=("ood/far/a", "ood/far/b")):
    place = Store.create(path)
    random = np.random.default_rng(seed)
    for name in ("id/train", "id/test", *sets):
        rows = 120
        y = random.integers(0, K, rows)
        x = random.standard_normal((rows, D)) + 3 * np.eye(K, D)[y]
        if name.startswith("ood"):
            x, y = x + random.uniform(0.2, 1.0), np.full(rows, -1)
        arrays = {"features": ArraySpec((D,), "float32", "D"), "labels": ArraySpec((), "int64")}
        writer = place.create_split(name, arrays, classes=K, rows=rows)
        for block in writer.missing():
            part = slice(block.start, block.stop)
            writer.write(block.index, {"features": x[part].astype("f4"), "labels": y[part]})


@pytest.fixture
def place(tmp_path):
    for seed in range(3):
        fill(tmp_path / f"s{seed}.zarr", seed)
    return tmp_path


def written(place, seeds="[{0}/s0.zarr, {0}/s1.zarr, {0}/s2.zarr]", more=""):
    path = place / "job.yaml"
    path.write_text(
        f"""
name: seeded
{"seeds: " + seeds.format(place) if seeds else ""}
detectors: [mahalanobis, energy]
evaluate: {{id: id/test, far: [ood/far/a, ood/far/b]}}
report: {{directory: {place / "runs"}}}
resources: {{cluster: threads, workers: 2}}
{more}"""
    )
    return path


def test_numbers_are_means_over_the_runs_of_the_seeds(place):
    done = job.run(written(place))
    whole = read(done.directory)
    runs = [read(place / "runs" / f"seeded-seed-{n}" / name)
            for n, name in enumerate(whole["seeds"], 1)]  # fmt: skip
    assert len(runs) == 3
    for at, score in enumerate(whole["scores"]):
        for metric, number in score["metrics"].items():
            each = [one["scores"][at]["metrics"][metric]["value"] for one in runs]
            assert number["value"] == pytest.approx(fmean(each))
            assert number["seeds"] == each
    assert len({tuple(s["metrics"]["auroc"]["seeds"]) for s in whole["scores"]}) == 4
    assert whole["verdict"]["bytes_read"] == sum(one["verdict"]["bytes_read"] for one in runs)
    assert whole["comparisons"] == []


def test_the_spread_of_a_group_is_that_of_its_means(place):
    done = job.run(written(place))
    table = headline_table(read(done.directory))
    columns = [(c.over, c.metric) for c in table.columns]
    cells = table.rows[0].cells
    mean, a, b = (
        cells[columns.index((over, "auroc"))] for over in ("far · mean of 2", "far · a", "far · b")
    )
    each = [fmean(pair) for pair in zip(a.seeds, b.seeds, strict=True)]
    assert mean.text == f"{100 * fmean(each):.2f} ± {100 * stdev(each):.2f}"
    assert "standard deviation over 3 seeds" in markdown(read(done.directory))
    shown = headline(read(done.directory))
    assert shown.row_count == 2
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(shown)
    text = console.export_text()
    assert all(row.name in text for row in table.rows)
    assert "…" not in text
    assert "standard deviation over 3 seeds" in done.html.read_text()


def test_what_differs_between_the_seeds_is_listed_for_each(place):
    done = job.run(written(place, "[{0}/s0.zarr, {0}/s1.zarr]"))
    whole = read(done.directory)
    one = read(place / "runs" / "seeded-seed-1" / whole["seeds"][0])
    assert [pass_["name"] for pass_ in whole["passes"]] == [
        f"seed {seed}, {pass_['name']}" for seed in (1, 2) for pass_ in one["passes"]
    ]
    assert len(whole["passes"]) == whole["verdict"]["passes"]
    other = json.loads(json.dumps(one))
    one["detectors"][0] |= {"options": {"ridge": "0.1"}, "notes": ["alike", "chosen: 0.1"]}
    other["detectors"][0] |= {"options": {"ridge": "10", "pool": "cls"}, "notes": ["alike"]}
    found = averaged([one, other])["detectors"][0]
    assert found["options"] == {"ridge": "0.1 | 10", "pool": "default | cls"}
    assert found["notes"] == ["alike", "seed 1: chosen: 0.1"]


def test_the_spread_is_in_the_csv(place):
    done = job.run(written(place))
    score = read(done.directory)["scores"][0]
    row = (done.directory / "results.csv").read_text().splitlines()[1]
    assert float(row.rpartition(",")[2]) == stdev(score["metrics"]["auroc"]["seeds"])


def test_a_second_run_reads_nothing_and_says_the_same(place):
    first, again = (job.run(written(place)) for _ in range(2))
    assert read(again.directory)["verdict"]["bytes_read"] == 0
    assert read(again.directory)["scores"] == read(first.directory)["scores"]


def test_one_seed_has_no_spread(place):
    done = job.run(written(place, "[{0}/s0.zarr]"))
    assert "±" not in headline_table(read(done.directory)).rows[0].cells[0].text


def test_seeds_with_other_sets_are_not_averaged(place):
    fill(place / "other.zarr", 5, sets=("ood/far/a",))
    with pytest.raises(MissingInputError, match="no split 'ood/far/b'"):
        job.run(written(place, "[{0}/s0.zarr, {0}/other.zarr]"))


def test_runs_of_other_detectors_are_not_averaged(place):
    done = read(job.run(written(place, "[{0}/s0.zarr]")).directory)
    other = json.loads(json.dumps(done))
    other["scores"] = other["scores"][:-1]
    with pytest.raises(DataError, match="other detectors or sets"):
        averaged([done, other])


@pytest.mark.parametrize(
    ("seeds", "more", "says"),
    [
        ("[{0}/s0.zarr, {0}/s0.zarr]", "", "in this list twice"),
        ("[{0}/s0.zarr]", "store: s.zarr", "both are given"),
        ("", "", "neither is given"),
        ("['']", "", "seeds"),
    ],
)
def test_stores_that_make_no_seeds_are_refused(place, seeds, more, says):
    with pytest.raises(ConfigError, match=says):
        config.load(written(place, seeds, more))


def test_seeds_are_pinned_to_their_latest_runs_alone(place):
    path = written(place, "[{0}/s0.zarr]")
    job.run(path)
    assert job.run(path, pin="LATEST").results["verdict"]["bytes_read"] == 0
    with pytest.raises(ConfigError, match="pin it to LATEST"):
        job.run(path, pin=place / "runs")


def test_a_resolved_job_with_seeds_is_the_same_job(place):
    first = config.load(written(place))
    (place / "again.yaml").write_text(first.resolved())
    assert config.load(place / "again.yaml").resolved() == first.resolved()


def another(path, classes=K, shape=(D,), layout="D", logits=False, **attributes):
    """Write a store whose rows are of another kind than those of ``fill``."""
    place = Store.create(path)
    random = np.random.default_rng(9)
    for name in ("id/train", "id/test", "ood/far/a", "ood/far/b"):
        y = random.integers(0, classes, 60)
        contents = {"features": random.standard_normal((60, *shape)).astype("f4"), "labels": y}
        specs = {"features": ArraySpec(shape, "float32", layout), "labels": ArraySpec((), "int64")}
        if logits:
            contents["logits"] = random.standard_normal((60, classes)).astype("f4")
            specs["logits"] = ArraySpec((classes,), "float32", "K")
        writer = place.create_split(name, specs, classes=classes, rows=60, attributes=attributes)
        for block in writer.missing():
            rows = slice(block.start, block.stop)
            writer.write(block.index, {key: array[rows] for key, array in contents.items()})


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ({"classes": 4}, r"3 and 4 classes"),
        ({"shape": (16,)}, r"features with rows \(8,\) D and \(16,\) D"),
        ({"shape": (5, D), "layout": "TD"}, r"features with rows \(8,\) D and \(5, 8\) TD"),
        ({"logits": True}, "logits in the second alone"),
        ({"layout": "T"}, r"features with rows \(8,\) D and \(8,\) T"),
    ],
)
@pytest.mark.parametrize("drive", [job.run, seeds.refuse_unlike])
def test_stores_of_another_kind_are_not_averaged(place, kind, says, drive):
    another(place / "other.zarr", **kind)
    asked = config.load(written(place, "[{0}/s0.zarr, {0}/s1.zarr, {0}/other.zarr]"))
    with pytest.raises(DataError, match=f"(?s)seeds: id/train of .*s0.zarr and of .*other.*{says}"):
        drive(asked)
    assert not (place / "runs").exists()


def test_seeds_may_have_other_weights_and_not_another_tap(place):
    another(place / "a.zarr", tap="layer3", weights_sha256="1")
    another(place / "b.zarr", tap="layer3", weights_sha256="2")
    another(place / "c.zarr", tap="layer4", weights_sha256="3")
    seeds.refuse_unlike(config.load(written(place, "[{0}/a.zarr, {0}/b.zarr]")))
    with pytest.raises(DataError, match="tap 'layer3' and 'layer4'"):
        seeds.refuse_unlike(config.load(written(place, "[{0}/a.zarr, {0}/b.zarr, {0}/c.zarr]")))


def test_a_plan_refuses_stores_of_another_kind(place, capsys):
    another(place / "other.zarr", classes=4)
    path = written(place, "[{0}/s0.zarr, {0}/other.zarr]")
    assert main(["plan", str(path)]) == 4
    assert "3 and 4 classes" in capsys.readouterr().err
