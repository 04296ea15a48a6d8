"""Unpooled tokens of a loader, four detectors, one call: what runs out of memory elsewhere.

pytorch-ood#93: KL-Matching, SHE, Mahalanobis and RMD move 50,000 x 49 x 1,024 tokens to the device;
then a backbone that is a plain callable, and a detector whose fit takes no device, are errors.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import reference_formulas as reference
import torch
from torch.utils.data import DataLoader, TensorDataset

import pipeline as ff

DETECTORS = ("kl_matching", "she", "mahalanobis", "relative_mahalanobis")
N, T, D, K, VOID = 400, 49, 64, 5, 30
WEIGHT = np.eye(D, K, dtype="f4")


def draw(rows, seed):
    """Return images (n, t * d), as a backbone would take them, and labels."""
    random = np.random.default_rng(seed)
    labels = random.integers(0, K, rows)
    tokens = random.standard_normal((rows, T, D)) + 3 * np.eye(K, D)[labels][:, None, :]
    return tokens.astype("f4").reshape(rows, -1), labels


def loader_of(rows, seed, **options):
    images, labels = draw(rows, seed)
    labels[:VOID] = -1
    dataset = TensorDataset(torch.from_numpy(images), torch.from_numpy(labels))
    return DataLoader(dataset, **{"batch_size": 32, **options})


def backbone(images):
    """A plain callable: no .to, no parameters, no eval."""
    tokens = images.reshape(len(images), T, D)
    return {"features": tokens, "logits": tokens.mean(dim=1) @ torch.from_numpy(WEIGHT)}


def whole(rows, seed):
    """Return what the backbone makes of all rows, in float64 but for its logits."""
    images, labels = draw(rows, seed)
    labels[:VOID] = -1
    given = backbone(torch.from_numpy(images))
    return {"labels": labels, **{name: array.numpy() for name, array in given.items()}}


@pytest.fixture(scope="module")
def expected():
    x, y, logits = reference.fit_rows(whole(N, 0))
    test = whole(60, 1)
    z = reference.pooled(test)
    return {
        "kl_matching": reference.kl_matching(
            logits.astype(np.float64), test["logits"].astype(np.float64)
        ),
        "she": reference.she(x, y, logits, z, test["logits"]),
        "mahalanobis": reference.mahalanobis(x, y, z),
        "relative_mahalanobis": reference.relative_mahalanobis(x, y, z),
    }


@pytest.mark.parametrize("device", [None, "cpu", torch.device("cpu")])
@pytest.mark.parametrize("name", DETECTORS)
def test_every_detector_is_called_alike(expected, name, device):
    fitted = ff.fit(name, loader_of(N, 0), model=backbone, device=device)
    scores = ff.score(fitted, loader_of(60, 1), model=backbone, device=device)
    np.testing.assert_allclose(scores[name], expected[name], rtol=1e-7, atol=1e-10)
    counted, read = fitted[name].rows
    assert read == N
    assert counted <= N - VOID  # she counts those that are classified correctly


def test_all_at_once_take_one_pass_and_have_the_bits_of_arrays():
    """Short batches in the middle of the stream are legal, and change nothing."""
    arrays = whole(N, 0)
    fitted = ff.fit(DETECTORS, arrays)
    ragged = [
        (x[part], y[part])
        for x, y in loader_of(N, 0, batch_size=100)
        for part in (slice(0, 7), slice(7, 7), slice(7, 8), slice(8, None))
    ]
    for batches in (ragged, iter(ragged), loader_of(N, 0, batch_size=1), loader_of(N, 0)):
        found = ff.fit(DETECTORS, batches, model=backbone)
        assert found.passes == 1
        for name in DETECTORS:
            assert found[name].scorer == fitted[name].scorer
    assert np.array_equal(
        found["she"](loader_of(60, 1), model=backbone), fitted["she"](whole(60, 1))
    )


def test_further_passes_read_what_the_first_extraction_left(tmp_path):
    """The loader is read once, whatever the detectors need; a shuffling one is no harm."""
    calls = []

    def counted(images):
        calls.append(len(images))
        return backbone(images)

    fitted = ff.fit(
        ["optfs", "mahalanobis"], loader_of(N, 0, shuffle=True), model=counted, head="lda",
        cache=tmp_path,
    )  # fmt: skip
    assert fitted.passes >= 2
    assert sum(calls) == N
    assert list(tmp_path.glob("**/*loader*")) == []
    same = ff.fit("mahalanobis", whole(N, 0))["mahalanobis"](whole(60, 1))
    np.testing.assert_allclose(fitted["mahalanobis"](whole(60, 1)), same, rtol=1e-8)


def test_detectors_of_validation_rows_take_a_loader_of_them():
    chosen = {"kl": {"name": "kl_matching", "preset": "openood-1.5"}}
    found = ff.fit(chosen, loader_of(N, 0), val=loader_of(90, 5), model=backbone)
    plain = ff.fit(chosen, whole(N, 0), val=whole(90, 5))
    assert found["kl"].scorer == plain["kl"].scorer
    assert found["kl"].schema.rows == 90


NEEDED = {
    "ash": {"variant": "s"},
    "ensemble": {"detectors": ["msp", "she"]},
    "weighted_energy": {"weights": [1.0, 2.0, 3.0]},
}
"""Options without a default."""


@pytest.mark.parametrize(
    "name", [n for n in ff.detectors.names() if not ff.detectors.probed_of(ff.detectors.load(n))]
)
def test_no_detector_needs_other_arguments(name):
    """MCD.fit takes no device, ReAct's takes others: here there is one signature for all."""
    random = np.random.default_rng(3)
    labels = np.arange(160) % 3
    tokens = random.standard_normal((160, 4, 8)) + 4 * np.eye(3, 8)[labels][:, None, :]
    tokens = np.abs(tokens).astype("f4")
    loader = DataLoader(TensorDataset(torch.tensor(tokens), torch.tensor(labels)), batch_size=50)
    options = {"head": "lda", "workers": 1}
    chosen = {name: {"name": name, **NEEDED.get(name, {})}}
    found = ff.fit(chosen, loader, model=lambda x: x, device="cpu", **options)
    plain = ff.fit(chosen, (tokens, labels), **options)
    scores = ff.score(found, loader, model=lambda x: x, device="cpu")
    assert np.array_equal(scores[name], plain[name](tokens))


MEMORY = """
import json, sys
import numpy as np, torch
import pipeline as ff
from pipeline.machine import peak_rss_nbytes, reset_peak, rss_nbytes

T, D, K, BATCH = 49, 256, 20, 32
rows = int(sys.argv[1])

def batches():
    random = np.random.default_rng(0)
    for start in range(0, rows, BATCH):
        labels = random.integers(0, K, BATCH)
        tokens = random.standard_normal((BATCH, T, D), dtype="f4")
        tokens[:, :, :K] += np.eye(K, dtype="f4")[labels][:, None]
        yield tokens, labels

def backbone(tokens):
    return {"features": tokens, "logits": tokens.mean(dim=1)[:, :K]}

def fit(rows):
    return ff.fit(sys.argv[2].split(","), rows, model=backbone, cluster="threads", workers=2,
                  cache=sys.argv[3])

fit([next(batches())])  # what the libraries hold
reset_peak()
before = rss_nbytes()
fit(batches())
print(json.dumps({"growth": peak_rss_nbytes() - before, "nbytes": rows * T * D * 4}))
"""


def _peaks(blocks, cache):
    """Measure in fresh processes, for two threads on blocks of 128 MiB.

    How far the threads overlap varies by some MB between runs, growth with the rows does not.
    """
    command = [sys.executable, "-c", MEMORY, str(blocks * 2688), ",".join(DETECTORS), str(cache)]
    root = Path(__file__).parent.parent
    found = []
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, cwd=root)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return found


@pytest.mark.slow
def test_memory_is_far_below_the_array_and_does_not_grow_with_it(tmp_path):
    few, many = _peaks(2, tmp_path), _peaks(6, tmp_path)
    nbytes = many[0]["nbytes"]
    assert nbytes == 3 * few[0]["nbytes"] > 800 * 10**6
    growth = min(found["growth"] for found in many)
    assert growth < 0.1 * nbytes
    assert growth < 1.35 * max(found["growth"] for found in few)
    assert list(tmp_path.glob("**/*loader*")) == []
