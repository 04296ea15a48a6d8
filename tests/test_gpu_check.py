"""The check that only a GPU can pass: where there is none it says so, and it can be rehearsed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "workflows" / "gpu_check.sh"
PARTS = ("tokens", "again", "story", "workers", "masks")


def run(*arguments):
    return subprocess.run(
        ["bash", str(SCRIPT), *map(str, arguments)],
        capture_output=True, text=True, timeout=250, env=os.environ | {"PYTHON": sys.executable},
    )  # fmt: skip


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="a GPU may be there")
def test_without_a_gpu_nothing_is_claimed(tmp_path):
    done = run(tmp_path / "out")
    assert done.returncode == 0
    assert "no GPU answers here: nothing was checked" in done.stdout
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_rehearsal_shows_every_part(tmp_path):
    done = run(tmp_path, *PARTS, "--rehearse")
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "gpu_check.json").read_text())
    assert found["device"]["rehearsal"]
    assert {name: part["state"] for name, part in found["parts"].items()} == dict.fromkeys(
        PARTS, "shown"
    )
    assert sum(found["parts"]["workers"]["blocks_by_worker"]) == 16
    assert found["parts"]["tokens"]["pooled"]["projected_nbytes"] > 0
