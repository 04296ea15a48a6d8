"""Syncs of two real gloo processes; the right numbers are those of one process over all samples."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from rank_scenarios import CLASSES, SAMPLES, collection, masks
from rank_scenarios import values as values_of

from pipeline.ddp import live

HERE = Path(__file__).parent
SECONDS = 120


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict]:
    """What each of two processes reports of all scenarios."""
    folder = tmp_path_factory.mktemp("ranks")
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, HERE / "rank_scenarios.py", str(rank), "2", folder / "store",
             folder / f"{rank}.json"],
            env=environment, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        for process in processes:
            _, errors = process.communicate(timeout=SECONDS)
            assert process.returncode == 0, errors
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.fixture(scope="module")
def right() -> dict[str, float]:
    """Numbers of one process over the 21 samples, checked against a count in plain numpy."""
    _, predicted, truth = (x.numpy() for x in masks()[:])
    made = collection(repeats="none")
    made.update(predicted, truth)
    pairs = np.bincount((truth * CLASSES + predicted).ravel(), minlength=CLASSES**2)
    matrix = pairs.reshape(CLASSES, CLASSES)
    numbers = values_of(made.compute())
    union = matrix.sum(0) + matrix.sum(1) - matrix.diagonal()
    np.testing.assert_allclose(
        [numbers[f"iou_{c}"] for c in range(CLASSES)], matrix.diagonal() / union, rtol=1e-15
    )
    return numbers


def without_prefix(found: dict[str, float]) -> dict[str, float]:
    return {key.rpartition("/")[2]: value for key, value in found.items()}


def test_every_rank_has_the_numbers_of_one_process(ranks, right):
    for found in (rank["of_all_ranks"] for rank in ranks):
        assert without_prefix(found["values"]) == right
        assert set(found["values"]) == {f"val/{key}" for key in right}
        assert found["scope"] == "all 2 ranks"
        assert found["rows"] == SAMPLES
    assert [rank["of_all_ranks"]["own_rows"] for rank in ranks] == [11, 10]


def test_computing_twice_counts_once_and_leaves_the_states_alone(ranks):
    for found in (rank["of_all_ranks"] for rank in ranks):
        assert found["again"] == found["values"]
        assert found["unchanged"]


def test_numbers_of_one_rank_say_so(ranks):
    said = [rank["of_all_ranks"]["local"] for rank in ranks]
    assert said == ["rank 0 of 2 alone", "rank 1 of 2 alone"]


def test_on_rank_zero_only_the_other_rank_is_named_within_the_time_out(ranks, right):
    first, second = (rank["rank_zero_only"] for rank in ranks)
    assert first["error"]["kind"] == "NotJoinedError"
    assert "ranks [1] did not join metric sync" in first["error"]["message"]
    assert "within 1 s" in first["error"]["message"]
    assert 1.0 <= first["error"]["seconds"] < 3.0
    assert "this is rank 1, which was late" in second["late"]["message"]
    assert second["late"]["seconds"] < 1.0
    for found in (first, second):
        assert found["unchanged"]
        assert found["after"] == right


def test_no_rank_reads_the_bytes_of_another_collective(ranks, right):
    for found in (rank["busy_rank"] for rank in ranks):
        assert found["other"] == 2 * 2_236_000_000 + 1
        assert found["values"] == right
    assert "ranks [1] did not join" in ranks[0]["busy_rank"]["error"]["message"]


def test_a_rank_without_a_batch_adds_nothing(ranks, right):
    assert [rank["empty_rank"] for rank in ranks] == [right, right]


def test_a_rank_without_a_batch_adds_nothing_whatever_the_others_were_given(ranks):
    f1 = 2 * 2 / (2 * 2 + 1)  # two true positives, a false one
    for rank in ranks:
        for found in rank["empty_rank_beside_classes"]:
            assert {value for key, value in found.items()} == {f1}


def test_scores_on_one_rank_and_classes_on_another_are_refused(ranks):
    for found in (rank["scores_beside_classes"] for rank in ranks):
        assert found["kind"] == "DataError"
        assert "ranks [1] came with" in found["message"]
        assert "batches of labels, predictions, not of labels, logits" in found["message"]


def test_without_any_row_numbers_are_undefined_with_a_reason(ranks):
    for found in (rank["no_rank_has_rows"] for rank in ranks):
        assert found["rows"] == 0
        assert found["reason"]


def test_ranks_that_declare_something_else_are_named_on_all(ranks):
    for found in (rank["other_declaration"] for rank in ranks):
        assert found["kind"] == "DataError"
        assert "ranks [1] came with another collection" in found["message"]
        assert "classes 22, not 21" in found["message"]


def test_ranks_that_compute_in_another_order_are_named(ranks):
    for found in (rank["other_order"] for rank in ranks):
        assert "than rank 0: prefix 'test/', not 'val/'" in found["message"]


def test_rows_that_may_repeat_are_refused_with_the_remedies(ranks):
    for found in (rank["unknown_repeats"] for rank in ranks):
        assert found["kind"] == "ConfigError"
        for remedy in ("follow(loader)", "callback()", "ids=", "repeats='none'"):
            assert remedy in found["message"]


def test_each_id_counts_once_over_all_ranks(ranks, right):
    for epoch in range(3):
        found = [rank["by_ids"][epoch] for rank in ranks]
        assert [without_prefix(one["values"]) for one in found] == [right, right]
        assert sum(one["rows"] for one in found) == SAMPLES


def test_a_refused_batch_gives_its_ids_back(ranks, right):
    assert ranks[0]["refused_batch"]["error"]["kind"] == "DataError"
    for rank in ranks:
        assert without_prefix(rank["refused_batch"]["values"]) == right


def test_collections_of_one_prefix_do_not_take_the_samples_of_each_other(ranks, right):
    for rank in ranks:
        for found in rank["shared_ids"]:
            assert without_prefix(found) == right


def test_ranks_that_claim_under_other_names_are_told(ranks, right):
    for rank in ranks:
        found = rank["ids_on_one_rank"]
        assert without_prefix(found["values"]) == right
        assert "another collection than rank 0: ids" in found["error"]["message"]


def test_a_process_group_of_its_own_has_its_own_store_and_time_out(ranks, right):
    for rank in ranks:
        assert rank["own_group"] == {"values": right, "seconds": 7.0}


def test_process_groups_that_write_to_one_run_do_not_collide(ranks):
    for number, found in enumerate(rank["two_groups"] for rank in ranks):
        assert found["each"] == [{"accuracy": 1.0}, {"accuracy": 0.5}]
        assert found["after"] == found["each"][number]
        assert "of ranks [0] and ranks [1]; name one" in found["error"]["message"]


def test_states_of_another_rank_are_refused(ranks):
    first, second = (rank["states_of_another"] for rank in ranks)
    assert first["error"]["kind"] == ""
    assert second["error"]["kind"] == "ConfigError"
    assert "states of rank 0 of 2, and this is rank 1 of 2" in second["error"]["message"]
    assert first["values"] == second["values"] == {"accuracy": 0.5}


def test_a_collection_of_one_process_says_that_it_is_of_one_rank(ranks):
    for number, found in enumerate(rank["of_one_process"] for rank in ranks):
        assert found["value"] == 1 - number
        (warning,) = found["warned"]
        assert warning.startswith(f"numbers of rank {number} of 2 alone; those of all ranks")


def test_states_that_grow_are_refused_with_another_way(ranks):
    for found in (rank["growing"] for rank in ranks):
        assert found["kind"] == "ConfigError"
        assert "merge files of partial states" in found["message"]
        assert found["seconds"] < 1.0


def test_ranks_meet_for_files_in_their_group_and_with_one_declaration(ranks):
    for found in (rank["met_for_files"] for rank in ranks):
        assert (found["size"], found["elsewhere"]) == (2, 0)
        assert "ranks [1] came with another collection" in found["metrics"]
        assert "prefix '1/', not '0/'" in found["prefix"]
        assert "ranks [1] came with another collection" in found["way"]


def test_one_process_in_a_group_of_its_own(tmp_path, right):
    """A group of one, and the vector on the device that its backend adds up on."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 's'}", rank=0, world_size=1)
    try:
        assert live._device(None) == torch.device("cpu")
        here = live.ranks(timeout_seconds=5.0)
        made = collection(prefix="one/")
        _, predicted, truth = masks()[:]
        made.update(predicted, truth)
        assert without_prefix(values_of(made.compute())) == right
        merged, meeting = live.reduced(made, here, {"prefix": "one/"})
        assert meeting.number == 1
        assert merged.packed().tolist() == made.packed().tolist()
        default = live.ranks()
        assert default.timeout_seconds == 1800.0
    finally:
        dist.destroy_process_group()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_states_on_the_host_are_added_up_on_the_device_of_nccl(tmp_path, right):
    dist.init_process_group("nccl", init_method=f"file://{tmp_path / 's'}", rank=0, world_size=1)
    try:
        assert live._device(None) == torch.device("cuda", torch.cuda.current_device())
        made = collection(prefix="one/")
        _, predicted, truth = (x.cuda() for x in masks()[:])
        made.update(predicted, truth)
        merged, _ = live.reduced(made, live.ranks(timeout_seconds=5.0), {"prefix": "one/"})
        assert merged.packed().tolist() == made.packed().tolist()
    finally:
        dist.destroy_process_group()


def test_a_copy_counts_on_its_own_and_travels():
    made = collection(repeats="none")
    made.keep_matrix()
    _, predicted, truth = masks()[:]
    made.update(predicted, truth)
    for other in (copy.deepcopy(made), pickle.loads(pickle.dumps(made)), made.clone()):
        other.update(predicted, truth)
        assert other.rows == 2 * made.rows == 2 * SAMPLES
        assert values_of(other.compute()) == values_of(made.compute())
