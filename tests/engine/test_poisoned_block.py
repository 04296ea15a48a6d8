"""A block that always kills its worker ends the run by name, with its projection and what to do."""

import re

import pytest
from killable import BLOCKS, PASSES, Jobs, Outcome, strays

POISONED = 13
ALLOWED = 3
"""How often a block may end its worker."""


@pytest.fixture
def jobs(tmp_path):
    made = Jobs(tmp_path)
    yield made
    for run in made.running:
        run.kill_all()


@pytest.mark.slow
def test_a_poisoned_block_is_named_and_what_was_finished_is_kept(jobs, tmp_path):
    folder = tmp_path / "job"
    run = jobs.start(folder, "local", POISONED=str(POISONED))
    assert run.process.wait(120) == 1
    assert "Traceback" not in run.err
    said = " ".join(run.err.split())
    assert f"fit-pass1: block{POISONED:04d} of id/train ended its worker {ALLOWED} times" in said
    assert re.search(r"for want of memory: [\d.]+ ([KMG]i)?B were projected for it", said)
    assert "raise --memory, lower --workers, or leave out detectors" in said
    assert "Finished blocks are kept" in said
    assert run.blocks("fold")[POISONED] == ALLOWED
    run.wait_until_gone()
    kept = set(run.blocks("end"))  # more than once where the scheduler had lost the answer
    assert kept
    assert set(run.blocks("fold").values()) <= {1, ALLOWED}
    again = jobs.start(folder, "local").finish()
    folded = again.blocks("fold")
    assert {block: folded[block] for block in kept} == dict.fromkeys(kept, PASSES - 1)
    jobs.start(tmp_path / "whole", "threads").finish()
    assert Outcome.of(folder) == Outcome.of(tmp_path / "whole")
    assert len(folded) == BLOCKS
    assert not strays(folder)
