"""Two ranks of Lightning: what the story shows, killed and resumed, and samples counted by id."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from lightning_ranks import ROWS, scores_and_labels
from sklearn.metrics import accuracy_score, roc_auc_score

ROOT = Path(__file__).parents[2]
STORY = ROOT / "workflows" / "story_ddp" / "story.py"
SECONDS = 240

pytestmark = pytest.mark.slow


def run(script: Path, *arguments: object) -> tuple[int, str]:
    """Return how a script that starts others ended, and what it said; nothing of it stays."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, script, *map(str, arguments)], env=environment, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        said, _ = process.communicate(timeout=SECONDS)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return process.returncode, said


def test_the_story_on_rank_zero_only(tmp_path):
    code, said = run(STORY, tmp_path, "rank-zero", "--side", 16)
    assert code == 0, said
    assert "ranks [1] did not join metric sync 1 within 3 s" in said
    assert "rows: 11 + 10 of 22 drawn" in said


def test_the_story_of_8_gib(tmp_path):
    code, said = run(STORY, tmp_path, "memory")
    assert code == 0, said
    assert "tried to allocate 8944000000 bytes" in said


def test_every_logged_number_is_right_after_a_kill_and_a_resumption(tmp_path):
    code, said = run(STORY, tmp_path, "resumed", "--side", 16)
    assert code == 0, said
    assert "logged numbers equal one process" in said
    assert "kept matrices of train equal one process, at steps 6 (attempt 1), 12" in said


def test_samples_of_an_unknown_order_count_once_by_id_and_growing_states_merge_by_files(tmp_path):
    code, said = run(Path(__file__).with_name("lightning_ranks.py"), tmp_path)
    assert code == 0, said
    scores, labels = scores_and_labels()
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found["rows"] == ROWS
        assert found["scope"] == "all 2 ranks"
        assert found["numbers"] == {
            "val/auroc": pytest.approx(roc_auc_score(labels, scores), abs=1e-12),
            "val/accuracy": pytest.approx(accuracy_score(labels, scores >= 0.5), abs=1e-12),
        }  # fmt: skip
        assert found["logged"] == pytest.approx(found["numbers"], abs=1e-6)


def test_an_order_that_is_not_known_is_named_where_there_are_no_ids(tmp_path):
    code, said = run(Path(__file__).with_name("lightning_ranks.py"), tmp_path, "--without-ids")
    assert code != 0
    assert "the sampler torch.utils.data.sampler.RandomSampler may give a sample to several" in said
    assert "ids=" in said
