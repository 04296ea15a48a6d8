"""Scales of ensembles in a job: rows of id/val where they are stored, never those of the test."""

import numpy as np
import pytest

from pipeline import config, job, seeds
from pipeline.chunk import ArraySpec
from pipeline.errors import ConfigError, DataError, MissingInputError
from pipeline.fitted import Fitted
from pipeline.planning import plan
from pipeline.store import Store

K, D = 3, 12
SPECS = {"features": ArraySpec((D,), "float32", "D"), "labels": ArraySpec((), "int64")}
HELD_OUT, OWN = "scaled by the rows of id/val", "scaled by the fit rows"


def fill(path, splits=("id/train", "id/val", "id/test", "ood/far/a")):
    store = Store.create(path)
    for seed, name in enumerate(splits):
        random = np.random.default_rng(seed)
        y = random.integers(0, K, 90)
        x = random.standard_normal((90, D)) + 3 * np.eye(K, D)[y] + 2 * name.startswith("ood")
        writer = store.create_split(name, SPECS, classes=K, rows=90)
        contents = {"features": x.astype("f4"), "labels": y}
        for block in writer.blocks:
            part = slice(block.start, block.stop)
            writer.write(block.index, {key: array[part] for key, array in contents.items()})
    return path


def written(home, *, store="s.zarr", options="", evaluate="id/test", where="store: {}/{}"):
    path = home / "job.yaml"
    path.write_text(
        f"""
name: scaled
{where.format(home, store)}
detectors: [{{name: ensemble, id: e, detectors: [mahalanobis, energy]{options}}}]
evaluate: {{id: {evaluate}, far: [ood/far/a]}}
report: {{directory: {home / "runs"}}}
resources: {{cluster: threads, workers: 1}}
"""
    )
    return path


def test_a_job_scales_by_id_val_and_says_so(tmp_path):
    fill(tmp_path / "s.zarr")
    path = written(tmp_path)
    assert "id/val" in plan(config.load(path)).explain()
    done = job.run(path)
    (detector,) = done.results["detectors"]
    assert HELD_OUT in detector["notes"]
    assert {one["split"]: one["role"] for one in done.results["data"]}["id/val"] == "id_val"
    assert HELD_OUT in Fitted.load(done.directory / "detectors")["e"].notes


@pytest.mark.parametrize(
    ("splits", "options", "evaluate"),
    [
        (("id/train", "id/test", "ood/far/a"), "", "id/test"),
        (("id/train", "id/val", "id/test", "ood/far/a"), ", scales: train", "id/test"),
        (("id/train", "id/val", "ood/far/a"), "", "id/val"),
    ],
)
def test_a_job_scales_by_the_fit_rows_where_no_others_may_be_used(
    tmp_path, splits, options, evaluate
):
    fill(tmp_path / "s.zarr", splits)
    done = job.run(written(tmp_path, options=options, evaluate=evaluate))
    assert any(note.startswith(OWN) for note in done.results["detectors"][0]["notes"])


def test_rows_that_are_tested_on_or_missing_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="id/val is what e is scaled by"):
        config.load(written(tmp_path, options=", scales: val", evaluate="id/val"))
    fill(tmp_path / "s.zarr", ("id/train", "id/test", "ood/far/a"))
    with pytest.raises(MissingInputError, match="e: scales: val needs rows of id/val"):
        job.run(written(tmp_path, options=", scales: val"))


def test_seeds_are_scaled_alike(tmp_path):
    fill(tmp_path / "s0.zarr")
    fill(tmp_path / "s1.zarr", ("id/train", "id/test", "ood/far/a"))
    both = "seeds: [{0}/s0.zarr, {0}/s1.zarr]"
    with pytest.raises(DataError, match=r"id/val is in one of .*s0.* and .*s1.* alone"):
        job.run(written(tmp_path, where=both))
    seeds.refuse_unlike(config.load(written(tmp_path, where=both, options=", scales: train")))
