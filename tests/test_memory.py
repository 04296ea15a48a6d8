"""Memory does not grow with the rows, and is no more than was projected: fresh processes say so."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from fit_and_measure import WORKERS

from pipeline.bench.tokens import Recipe, make
from pipeline.store import Store

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).with_name("fit_and_measure.py")
GROWTH = 0.05
ATTEMPTS = 3
"""Runs of each size, at most: when threads meet moves a peak by some 3 MB; the least counts."""
BLOCK_ROWS, CHUNK_ROWS = {"tokens": 256, "pooled": 1024}, {"tokens": 64, "pooled": 256}
BLOCKS = 9
"""Of n rows: two levels of merges; 8n rows have three."""
SHAPES = {
    "tokens": Recipe(rows=BLOCKS * BLOCK_ROWS["tokens"], tokens=16, features=64, classes=20),
    "pooled": Recipe(rows=BLOCKS * BLOCK_ROWS["pooled"], tokens=0, features=1024, classes=20),
}


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """Return stores of n and 8n rows by their kind of features."""
    directory = tmp_path_factory.mktemp("memory")
    made = {}
    for kind, recipe in SHAPES.items():
        row_nbytes = recipe.nbytes // recipe.rows
        for factor in (1, 8):
            path = made[kind, factor] = directory / f"{kind}-{factor}n.zarr"
            larger = Recipe(**{**vars(recipe), "rows": factor * recipe.rows})
            features_nbytes = recipe.arrays["features"].nbytes
            sizes = {
                "chunk_nbytes": CHUNK_ROWS[kind] * features_nbytes,
                "block_nbytes": BLOCK_ROWS[kind] * row_nbytes,
            }
            make(path, larger, 1, **sizes)
            split = Store.open(path).split("id/train")
            assert (len(split.blocks), split.chunk_rows) == (factor * BLOCKS, CHUNK_ROWS[kind])
    return made


def measured(*arguments):
    command = [sys.executable, str(PROGRAM), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("features", list(SHAPES))
@pytest.mark.parametrize("kind", ["threads", "local"])
def test_eight_times_the_rows_take_no_more_memory(stores, tmp_path, kind, features):
    pool = "tokens" if features == "tokens" else ""
    least = {1: math.inf, 8: math.inf}
    for attempt in range(ATTEMPTS):
        found = []
        for factor in least:
            directory = tmp_path / f"{attempt}-{factor}"
            directory.mkdir()
            found.append(measured(stores[features, factor], kind, directory, pool))
            check(found[-1], kind)
            least[factor] = min(least[factor], found[-1]["measured"])
        if abs(least[8] / least[1] - 1) < GROWTH:
            break
    few, many = found
    assert many["blocks"] == 8 * few["blocks"]
    assert many["read"] == 8 * few["read"]
    assert many["read"] > 8 * GROWTH * many["measured"]  # held, it would show
    assert abs(least[8] / least[1] - 1) < GROWTH


def check(ran, kind):
    """Fail where a process held more than was projected."""
    if kind == "local":
        assert ran["measured"] <= ran["projected"]
        assert ran["client_measured"] <= ran["client_projected"]
    else:  # the process that drives the job is the one that folds
        projected = WORKERS * ran["projected"] + ran["client_projected"]
        assert WORKERS * ran["measured"] <= projected
