"""``featfold schema``: what it prints takes every job of ours and refuses broken ones."""

import json
from pathlib import Path

import jsonschema
import pytest

from pipeline.config import document

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def job_schema():
    from pipeline.config.schema import job_schema

    made = job_schema()
    jsonschema.Draft202012Validator.check_schema(made)
    return jsonschema.Draft202012Validator(made)


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_job_of_ours_is_valid(job_schema, path):
    assert list(job_schema.iter_errors(document.read(path).tree)) == []


@pytest.mark.parametrize(
    "text",
    [
        "detectors: [{name: knn, k: [5, 20]}]",
        "detectors: [{name: mahalanobis, ridge: 1e-3, id: a, fit_split: val}]",
        "detectors: [{name: ensemble, detectors: [vim, {name: knn, k: 5}]}]",
        "detectors: [msp]\nresources: {workers: auto, memory: 8GB, dashboard: on}",
        "detectors: [msp]\nhead: {lda: {ridge: 1}}\nblock: 48MiB",
        "detectors: [msp]\nmodel: {timm: vit, weights: a, probes: [{name: odin, epsilon: 1}]}",
        "detectors: [msp]\nsources: [{split: id/train, files: a.npz, batch: auto}]",
        "detectors: [msp]\nselect: {id: id/val}\nseeds: [a, b]",
    ],
)
def test_what_jobs_may_say_is_valid(job_schema, text):
    tree = document.parse(f"name: x\n{text}\n", "job.yaml").tree
    assert list(job_schema.iter_errors(tree)) == []


@pytest.mark.parametrize(
    "text",
    [
        "detectors: [nothing_like_it]",
        "detectors: [{name: knn, kk: 5}]",
        "detectors: [{name: knn, k: many}]",
        "detectors: [msp]\nresorces: {}",
        "detectors: [msp]\nresources: {workers: 0}",
        "detectors: [msp]\nresources: {workers: all}",
        "detectors: [msp]\nmodel: {folder: photos}",
        "detectors: [msp]\nhead: best",
        "detectors: [msp]\nnonfinite: ignore",
        "detectors: [msp]\nclasses: 0",
    ],
)
def test_what_no_job_may_say_is_invalid(job_schema, text):
    tree = document.parse(f"name: x\nstore: s\n{text}\n", "job.yaml").tree
    assert list(job_schema.iter_errors(tree))


def test_the_results_of_a_run_follow_the_schema_that_is_printed(cli, job):
    assert json.loads(cli("schema").out)["title"] == "A job of featfold"
    made = json.loads(cli("schema", "--results", "--json").out)
    jsonschema.Draft202012Validator.check_schema(made)
    check = jsonschema.Draft202012Validator(made)
    directory = Path(json.loads(cli("run", job, "--json").out)["directory"])
    results = json.loads((directory / "results.json").read_text())
    assert list(check.iter_errors(results)) == []
    results["scores"][0]["n_id"] = "many"
    del results["memory"]["workers"]
    assert sorted(error.json_path for error in check.iter_errors(results)) == [
        "$.memory", "$.scores[0].n_id",
    ]  # fmt: skip
