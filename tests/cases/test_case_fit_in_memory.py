"""Case A01: fit() puts the whole feature set into memory, or on the device.

References: kkirchheim/pytorch-ood#93, #9, #159, open-edge-platform/anomalib#2751.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import reference_formulas as reference
from safetensors.numpy import save_file

from pipeline.api import Fitted
from pipeline.chunk import ArraySpec
from pipeline.store import Store

SCRIPT = Path(__file__).with_name("fit_in_fresh_process.py")
CHUNK_ROWS, TOKENS, D, K = 256, 49, 256, 10
SMALL, LARGE = 4_096, 16_384
WEIGHT = np.random.default_rng(2).standard_normal((K, D))
BIAS = np.random.default_rng(3).standard_normal(K)
SHARE = 0.10
"""The two fits may differ by this much in the memory that they add."""


def tokens(chunk):
    rng = np.random.default_rng([1, chunk])
    return rng.standard_normal((CHUNK_ROWS, TOKENS, D), dtype="f4")


def fill(path, rows):
    """Write a store; return the pooled rows in float64."""
    specs = {"features": ArraySpec((TOKENS, D), "float32", "TD"), "labels": ArraySpec((), "int64")}
    row_nbytes = 4 * TOKENS * D + 8
    writer = Store.create(path).create_split(
        "id/train", specs, classes=K, rows=rows, block_nbytes=2 * CHUNK_ROWS * row_nbytes,
        chunk_nbytes=64 * 4 * TOKENS * D,
    )  # fmt: skip
    pooled = []
    for block in writer.blocks:
        features = np.concatenate([tokens(n // CHUNK_ROWS) for n in range(*block_of(block))])
        labels = np.arange(block.start, block.stop) % K
        writer.write(block.index, {"features": features, "labels": labels})
        pooled.append(features.mean(axis=1, dtype=np.float64))
    return np.concatenate(pooled)


def block_of(block):
    assert block.start % CHUNK_ROWS == block.stop % CHUNK_ROWS == 0
    return block.start, block.stop, CHUNK_ROWS


@pytest.fixture(scope="module")
def fits(tmp_path_factory):
    """Return the bytes that a fit added, its detectors and the pooled rows, by number of rows."""
    found = {}
    head = tmp_path_factory.mktemp("head") / "head.safetensors"
    save_file({"weight": WEIGHT, "bias": BIAS}, head)
    for rows in (SMALL, LARGE):
        folder = tmp_path_factory.mktemp("fit")
        store = folder / "feats.zarr"
        pooled = fill(store, rows)
        done = subprocess.run(
            [sys.executable, str(SCRIPT), str(store), str(head), str(folder / "fitted")],
            capture_output=True, text=True, check=False, timeout=200,
            env={**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(folder)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found[rows] = (int(done.stdout), Fitted.load(folder / "fitted"), pooled)
        for file in store.rglob("c/*/0/0"):
            file.unlink()  # most of the bytes: they are not kept with the folders of past tests
    return found


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(fits):
    small, large = fits[SMALL][0], fits[LARGE][0]
    print(f"{small:,} bytes at {SMALL} rows, {large:,} at {LARGE}")
    assert abs(large - small) < SHARE * small


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10 * np.abs(expected).max())


def gram(projected):
    return projected.basis.array @ projected.basis.array.T


@pytest.mark.slow
@pytest.mark.parametrize("rows", [SMALL, LARGE])
def test_parameters_equal_a_fit_of_all_rows_at_once(fits, rows):
    _, fitted, x = fits[rows]
    y = np.arange(rows) % K
    means, covariance = reference.class_gaussians(x, y)
    centred = np.stack(means) - x.mean(axis=0)
    precision = reference.ridged_inverse(covariance)

    near = fitted["mahalanobis"].scorer
    close(gram(near.white), precision)
    close(near.means.array @ near.means.array.T, centred @ precision @ centred.T)

    relative = fitted["relative_mahalanobis"].scorer
    close(gram(relative.within), precision)
    close(gram(relative.background), reference.ridged_inverse(np.cov(x.T, ddof=0)))

    logits = x @ WEIGHT.T + BIAS
    patterns = np.stack([x[(y == c) & (logits.argmax(axis=1) == c)].mean(axis=0) for c in range(K)])
    close(fitted["she"].scorer.patterns.array, patterns)

    kl = fitted["kl_matching"].scorer
    p = np.exp(logits - np.logaddexp.reduce(logits, axis=1)[:, None])
    templates = np.exp(kl.log_others.array)
    templates[np.arange(K), kl.largest.array] = np.exp(-kl.surprise.array)
    close(templates, np.stack([p[logits.argmax(axis=1) == c].mean(axis=0) for c in range(K)]))

    vim = fitted["vim"].scorer
    u = -np.linalg.pinv(WEIGHT) @ BIAS
    _, axes = np.linalg.eigh((x - u).T @ (x - u))
    residual = axes[:, : D // 2]
    close(gram(vim.residual), residual @ residual.T)  # a subspace: its axes are free
    norms = np.linalg.norm((x - u) @ residual, axis=1)
    close(vim.alpha, logits.max(axis=1).sum() / norms.sum())
