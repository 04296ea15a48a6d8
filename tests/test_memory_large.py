"""300 MB of tokens on two worker processes: read once, in little memory, with the right numbers."""

import numpy as np
import pytest
import reference_formulas as reference

from pipeline.bench import fitting
from pipeline.bench.tokens import Recipe, make
from pipeline.cluster import open_cluster, settle
from pipeline.engine import Settings, Trace, run_jobs
from pipeline.store import Store, reads
from pipeline.testing import Data, drive
from pipeline.workplace import projected

pytestmark = pytest.mark.slow

RECIPE = Recipe(rows=1500, tokens=49, features=1024, classes=1000)
LIMIT_NBYTES = 350 * 10**6
SCORED = 8
"""Rows whose scores are compared."""


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "tokens.zarr"
    make(path, RECIPE, 1, block_nbytes=64 * 2**20)
    return Store.open(path).split(fitting.SPLIT)


@pytest.fixture(scope="module")
def fitted(split, tmp_path_factory):
    """Return the scorers, how often each worker read each chunk, and the memory of a worker."""
    jobs = fitting.jobs_of(fitting.chosen(fitting.DETECTORS, "tokens"), split)
    resources = settle("local", 2, LIMIT_NBYTES)
    (projection,), shrink = projected(fitting.passes_of(jobs), resources)
    trace = Trace()
    cache = tmp_path_factory.mktemp("cache")
    with open_cluster(resources, cache, Settings(shrink)) as cluster:
        outcomes = run_jobs(jobs, cluster.execute, trace=trace)
        read = cluster.client.run(lambda: dict(reads.READS))
        peak_nbytes = cluster.peak_nbytes()
    assert len(trace.passes) == 1
    assert trace.read_nbytes == RECIPE.nbytes
    return outcomes, read, peak_nbytes, projection.nbytes


@pytest.fixture(scope="module")
def rows(split):
    """Return all rows as whole arrays."""
    parts = [dict(chunk.arrays) for chunk in copied(split)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def copied(split):
    for block in split.blocks:
        for chunk in split.read(block, frozenset(split.schema.arrays)):
            chunk.arrays = {name: np.array(array) for name, array in chunk.arrays.items()}
            yield chunk


def test_every_chunk_is_read_once_by_one_of_the_workers(split, fitted):
    read = fitted[1]
    assert len(read) == 2
    assert all(read.values())
    chunks = [key for counts in read.values() for key in counts]
    assert len(chunks) == len(set(chunks))
    assert {times for counts in read.values() for times in counts.values()} == {1}
    for name, chunk_rows in split.declared.chunk_rows.items():
        found = sorted(index for _, array, index in chunks if array == name)
        assert found == list(range(-(-RECIPE.rows // chunk_rows)))


def test_memory_is_within_the_projection_and_the_limit(split, fitted):
    _, _, peak_nbytes, projected_nbytes = fitted
    assert peak_nbytes <= projected_nbytes
    assert peak_nbytes < LIMIT_NBYTES
    assert RECIPE.nbytes > 0.8 * LIMIT_NBYTES
    assert len(split.blocks) > 2


def test_token_scores_are_those_of_whole_float64_arrays(fitted, rows):
    within, overall, means, mean = token_gaussians(rows["features"], rows["labels"])
    tokens = rows["features"][:SCORED].astype(np.float64)
    white = whitening(within)
    z, centres = (tokens - mean) @ white, (means - mean) @ white
    near = ((z**2).sum(-1)[..., None] - 2 * z @ centres.T + (centres**2).sum(-1)).min(-1)
    far = (((tokens - mean) @ whitening(overall)) ** 2).sum(-1)
    found = {name: scores_of(fitted[0][name], rows) for name in fitting.OF_TOKENS}
    np.testing.assert_allclose(found["mahalanobis"], near, rtol=1e-5)
    np.testing.assert_allclose(found["relative_mahalanobis"], near - far, rtol=1e-5, atol=1e-2)


def test_pooled_scores_are_those_of_whole_float64_arrays(fitted, rows):
    x, y, logits = reference.fit_rows(rows)
    expected = {
        "she": reference.she(x, y, logits, x[:SCORED], logits[:SCORED]),
        "kl_matching": reference.kl_matching(
            logits.astype(np.float64), logits[:SCORED].astype(np.float64)
        ),
    }
    for name, scores in expected.items():
        np.testing.assert_allclose(scores_of(fitted[0][name], rows), scores, rtol=1e-9, atol=1e-15)


def scores_of(scorer, rows):
    few = {name: array[:SCORED] for name, array in rows.items()}
    return drive.scores_of(scorer, Data(few, RECIPE.classes).cut())


def token_gaussians(features, labels):
    """Return covariance within classes and of all tokens, class means, and the mean."""
    x = features.reshape(-1, features.shape[-1]).astype(np.float64)
    classes, y = np.unique(np.repeat(labels, features.shape[1]), return_inverse=True)
    order = np.argsort(y, kind="stable")
    counts = np.bincount(y)
    means = np.add.reduceat(x[order], np.cumsum(counts) - counts) / counts[:, None]
    mean = x.mean(axis=0)
    x -= means[y]
    within = x.T @ x / len(x)
    between = (means - mean).T @ ((means - mean) * counts[:, None]) / len(x)
    assert len(classes) == len(means)
    return within, within + between, means, mean


def whitening(covariance, ridge=1e-6):
    """Return W with W W' the inverse of the covariance and its ridge."""
    d = len(covariance)
    ridged = covariance + ridge * np.trace(covariance) / d * np.eye(d)
    return np.linalg.inv(np.linalg.cholesky(ridged)).T
