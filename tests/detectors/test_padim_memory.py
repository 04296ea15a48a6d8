"""padim through ``ff.fit`` with less memory than its covariances: stripes, and the same bits."""

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import json, sys
from pathlib import Path
import numpy as np
import pipeline as ff
from pipeline.chunk import ArraySpec
from pipeline.errors import BudgetError

T, D, N = 80, 256, 300
SPECS = {"features": ArraySpec((T, D), "float32", "TD"), "labels": ArraySpec((), "int64")}

def main():
    here = Path(sys.argv[1])
    writer = ff.Store.create(here / "s.zarr").create_split(
        "id/train", SPECS, classes=1, rows=N, block_nbytes=N // 6 * (T * D * 4 + 8),
        chunk_nbytes=20 * T * D * 4,
    )
    rng = np.random.default_rng(0)
    for block in writer.blocks:
        features = rng.standard_normal((block.rows, T, D), np.float32)
        writer.write(block.index, {"features": features, "labels": np.zeros(block.rows, int)})
    split = ff.Store.open(here / "s.zarr").split("id/train")
    padim = ff.detectors.PaDiM(channels=250)
    found = {}
    for memory in ("1GiB", "190MiB"):
        fits = ff.fit(padim, split, cluster="local", workers=1, memory=memory, cache=here / memory)
        (member,) = fits.values()
        found[memory] = (fits.passes, member)
    (whole, one), (stripes, striped) = found.values()
    try:
        ff.fit(padim, split, cluster="local", workers=1, memory="100MiB", cache=here / "none")
    except BudgetError as error:
        refused = str(error)
    print(json.dumps({
        "passes": [whole, stripes],
        "same": one.scorer == striped.scorer,
        "scores": ff.score({"it": striped}, split, cluster="threads")["it"].shape,
        "refused": refused,
    }))

if __name__ == "__main__":
    main()
"""


def test_a_fit_in_less_memory_than_its_covariances_gives_the_same_scorer(tmp_path: Path) -> None:
    script = tmp_path / "fit.py"
    script.write_text(SCRIPT)
    root = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, script, tmp_path], capture_output=True, text=True, timeout=250,
        env={**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    whole, striped = found["passes"]
    assert whole == 1 < striped
    assert found["same"]
    assert found["scores"] == [300, 80]
    assert "PositionMoments" in found["refused"]
