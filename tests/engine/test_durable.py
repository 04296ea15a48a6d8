"""What a run leaves behind is not computed again: resume, append, added detectors, a new ridge."""

import gc
import weakref
from collections import Counter

import numpy as np
import pytest
from durable_store import BLOCK_ROWS, SPECS, TOKENS, D, K, make, rows

from pipeline import detectors
from pipeline.chunk import ArraySpec
from pipeline.detectors.mahalanobis import Mahalanobis
from pipeline.engine import (
    Dask,
    Job,
    Pin,
    Settings,
    Threads,
    Trace,
    known,
    rehearse,
    run_jobs,
    run_serial,
    tree,
)
from pipeline.errors import DataError, PartDoneError
from pipeline.heads import LDAHead
from pipeline.inputs import with_head
from pipeline.partials import FAN_IN, Partials
from pipeline.store import Store, reader

ONE_PASS = ("mahalanobis", "relative_mahalanobis", "she", "kl_matching")


@pytest.fixture
def store(tmp_path):
    return make(tmp_path / "feats.zarr", 20)


def jobs_of(store, *names, head=None):
    made = {name: detectors.load(name)() for name in names}
    for name, detector in made.items():
        if head is not None or name == "vim":  # ViM needs the weights of a head
            made[name] = with_head(detector, head or LDAHead())
    split = (store.split("id/train"),)
    return {name: Job(detector, {"train": split}) for name, detector in made.items()}


def run_and_count(jobs, execute):
    reader.reset_reads()
    trace = Trace()
    outcomes = run_jobs(jobs, execute, trace=trace)
    return outcomes, trace, sum(reader.READS.values())


def test_files_hold_the_numbers_of_the_specification(store, tmp_path, dask_client):
    jobs = jobs_of(store, *ONE_PASS, "vim")
    expected = run_jobs(jobs, run_serial)
    for place, execute in {
        "one": Threads(1, tmp_path / "one"),
        "two": Threads(2, tmp_path / "two"),
        "thin": Threads(2, tmp_path / "thin", Settings(thin=True)),
        "steps": Threads(2, tmp_path / "steps", Settings(shrink=2)),
        "dask": Dask(dask_client, tmp_path / "dask"),
    }.items():
        assert run_jobs(jobs, execute) == expected, place


def test_nothing_is_read_twice(store, tmp_path):
    execute = Threads(2, tmp_path)
    jobs = jobs_of(store, *ONE_PASS, "vim")
    first, trace, reads = run_and_count(jobs, execute)
    assert reads > 0
    assert trace.read_nbytes > 0
    again, trace, reads = run_and_count(jobs, execute)
    assert again == first
    assert (reads, trace.read_nbytes) == (0, 0)


def test_an_added_detector_reads_nothing_where_its_statistics_are_there(store, tmp_path):
    execute = Threads(2, tmp_path)
    run_jobs(jobs_of(store, "mahalanobis", "relative_mahalanobis"), execute)
    jobs = jobs_of(store, "mahalanobis", head=LDAHead()) | jobs_of(store, "relative_mahalanobis")
    jobs["looser"] = Job(Mahalanobis(ridge=0.5), jobs["mahalanobis"].splits)
    jobs["energy"] = jobs_of(store, "energy", head=LDAHead())["energy"]
    _, _, reads = run_and_count(jobs, execute)
    assert reads == 0


def test_an_appended_block_alone_is_read(store, tmp_path):
    execute = Threads(2, tmp_path / "cache")
    jobs = jobs_of(store, *ONE_PASS)
    run_jobs(jobs, execute)
    with_appended(store)
    jobs = jobs_of(store, *ONE_PASS)
    reader.reset_reads()
    found = run_jobs(jobs, execute)
    assert set(read_blocks()) == {20}
    assert found == run_jobs(jobs, run_serial)


def folded_by(jobs, cache, **options):
    """Return the blocks that each pass folded, and the outcomes."""
    folded = {}

    def finished(pass_, work, block):
        folded.setdefault(pass_.name, []).append(block.index)

    outcomes = run_jobs(jobs, Threads(2, cache, finished=finished), **options)
    return {name: sorted(blocks) for name, blocks in folded.items()}, outcomes


def test_a_second_pass_folds_again_what_its_constants_change(store, tmp_path):
    run_jobs(jobs_of(store, "vim"), Threads(2, tmp_path / "cache"))
    with_appended(store)
    jobs = jobs_of(store, "vim")
    folded, found = folded_by(jobs, tmp_path / "cache")
    assert folded == {"fit-pass1": [20], "fit-pass2": list(range(21))}
    assert found == run_jobs(jobs, run_serial)


def test_a_pinned_fit_folds_the_new_block_alone_in_every_pass(store, tmp_path):
    trace = Trace()
    run_jobs(jobs_of(store, "vim"), Threads(2, tmp_path / "cache"), trace=trace)
    with_appended(store)
    pin = Pin(trace.turns, Partials(tmp_path / "cache" / "partials"))
    jobs = jobs_of(store, "vim", "she")
    folded, found = folded_by(jobs, tmp_path / "cache", pin=pin)
    assert folded == {"fit-pass1": [*range(21)], "fit-pass2": [20]}  # she is new: not pinned
    again, _ = folded_by(jobs, tmp_path / "cache", pin=pin)
    assert again == {}
    assert found["she"] == run_jobs(jobs, run_serial)["she"]
    assert found["vim"] != run_jobs(jobs, run_serial)["vim"]


def test_a_fit_pinned_to_itself_changes_nothing(store, tmp_path):
    trace = Trace()
    jobs = jobs_of(store, "vim", *ONE_PASS)
    first = run_jobs(jobs, Threads(2, tmp_path), trace=trace)
    pin = Pin(trace.turns, Partials(tmp_path / "partials"))
    assert run_jobs(jobs, Threads(2, tmp_path), pin=pin) == first


def with_appended(store):
    writer = store.writer("id/train")
    writer.append(rows(BLOCK_ROWS, seed=20))
    assert len(store.split("id/train").blocks) == 21


def read_blocks():
    per = BLOCK_ROWS // 8  # chunks of a block
    found = Counter()
    for (_, name, chunk), count in reader.READS.items():
        if name in ("features",):
            found[chunk // per] = max(found[chunk // per], count)
    return found


def test_parts_of_an_array_job_leave_what_the_whole_needs(store, tmp_path):
    jobs = jobs_of(store, *ONE_PASS)
    for part in (2, 1):
        with pytest.raises(PartDoneError, match=f"part {part}/3 is done"):
            run_jobs(jobs, Threads(1, tmp_path, Settings(part=(part, 3))))
    found = run_jobs(jobs, Threads(1, tmp_path, Settings(part=(3, 3))))  # the last one merges
    assert found == run_jobs(jobs, run_serial)
    _, _, reads = run_and_count(jobs, Threads(2, tmp_path))
    assert reads == 0


def test_a_rehearsal_answers_from_files_where_they_hold_all(store, tmp_path):
    jobs = jobs_of(store, "mahalanobis", "vim")
    answers = known(Settings(), tmp_path)
    passes, made_up = rehearse(jobs, known=answers)
    assert [pass_.blocks for pass_ in passes] == [20, 20]
    expected = run_jobs(jobs, Threads(2, tmp_path))
    assert made_up != expected
    reader.reset_reads()
    passes, outcomes = rehearse(jobs, known=answers)
    assert len(passes) == 2
    assert outcomes == expected
    assert not reader.READS


def test_damaged_partials_are_computed_again(store, tmp_path):
    jobs = jobs_of(store, "mahalanobis")
    expected = run_jobs(jobs, Threads(2, tmp_path))
    for path in (tmp_path / "partials").rglob("*.npz"):
        path.write_bytes(path.read_bytes()[:-40])
    assert run_jobs(jobs, Threads(2, tmp_path)) == expected


def test_thin_caches_keep_one_node_of_eight(store, tmp_path):
    jobs = jobs_of(store, "mahalanobis")
    run_jobs(jobs, Threads(2, tmp_path / "whole"))
    run_jobs(jobs, Threads(2, tmp_path / "thin", Settings(thin=True)))
    whole = sorted((tmp_path / "whole").rglob("*.npz"))
    thin = sorted((tmp_path / "thin").rglob("*.npz"))
    keys = len({path.parent for path in thin})
    assert len(whole) - len(thin) >= 2 * FAN_IN * (keys - 1)
    _, _, reads = run_and_count(jobs, Threads(1, tmp_path / "thin"))
    assert reads == 0


def test_a_pass_over_pooled_tokens_leaves_a_copy_that_later_fits_read(store, tmp_path):
    execute = Threads(2, tmp_path)
    run_jobs(jobs_of(store, "mahalanobis"), execute)
    reader.reset_reads()
    jobs = jobs_of(store, "she", "vim")
    found = run_jobs(jobs, execute)
    assert {name for _, name, _ in reader.READS} <= {"labels", "logits"}
    assert found == run_jobs(jobs, run_serial)


def test_a_changed_block_is_read_again_and_no_other(store, tmp_path):
    execute = Threads(2, tmp_path / "cache")
    run_jobs(jobs_of(store, *ONE_PASS), execute)
    writer = store.writer("id/train")
    writer.write(3, rows(BLOCK_ROWS, seed=99), overwrite=True)
    jobs = jobs_of(store, *ONE_PASS)
    reader.reset_reads()
    found = run_jobs(jobs, execute)
    assert set(read_blocks()) == {3}
    assert found == run_jobs(jobs, run_serial)


HOSTILE = ("mahalanobis", "relative_mahalanobis", "she", "vim")


def hostile(path, dtype, masked):
    """A store of class-sorted rows: void ones, a NaN in a void row, rows without a valid token."""
    rng = np.random.default_rng(7)
    count = 5 * 37 + 11  # the last block is short, chunks do not divide the blocks evenly
    labels = np.sort(rng.integers(0, K, count))
    labels[[3, 50, 195]] = -1
    features = (rng.standard_normal((count, TOKENS, D)) + 3 * np.eye(K, D)[labels][:, None]).astype(
        dtype
    )
    features[3, 1, 2] = np.nan
    specs = dict(SPECS, features=ArraySpec((TOKENS, D), dtype, "TD"))
    arrays = {
        "features": features,
        "logits": rng.standard_normal((count, K)).astype("f4") + 4 * np.eye(K, dtype="f4")[labels],
        "labels": labels,
    }
    if masked:
        specs["mask"] = ArraySpec((TOKENS,), "bool")
        arrays["mask"] = rng.random((count, TOKENS)) < 0.7
        arrays["mask"][[10, 60]] = False
    store = Store.create(path)
    row_nbytes = sum(spec.nbytes for spec in specs.values())
    writer = store.create_split(
        "id/train", specs, classes=K, rows=count,
        block_nbytes=37 * row_nbytes, chunk_nbytes=7 * specs["features"].nbytes,
    )  # fmt: skip
    for block in writer.blocks:
        part = slice(block.start, block.stop)
        writer.write(block.index, {name: array[part] for name, array in arrays.items()})
    return store


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("masked", [False, True])
def test_files_and_pooled_copies_keep_every_bit_of_hostile_rows(tmp_path, dtype, masked):
    store = hostile(tmp_path / "feats.zarr", dtype, masked)
    jobs = jobs_of(store, *HOSTILE)
    expected = run_jobs(jobs, run_serial)
    run_jobs(jobs_of(store, "mahalanobis"), Threads(2, tmp_path / "cache"))
    reader.reset_reads()
    assert run_jobs(jobs, Threads(2, tmp_path / "cache")) == expected  # from the pooled copies
    assert "features" not in {name for _, name, _ in reader.READS}
    for shrink in (1, 3, 6):
        cache = tmp_path / f"shrunk{shrink}"
        assert run_jobs(jobs, Threads(2, cache, Settings(shrink=shrink))) == expected


@pytest.mark.parametrize("masked", [False, True])
def test_rows_that_are_not_finite_are_told_from_a_pooled_copy_too(tmp_path, masked):
    """A copy that a skipping fit has left does not hide a NaN from a fit that refuses it."""
    store = hostile(tmp_path / "feats.zarr", "float32", masked)
    writer = store.writer("id/train")
    block = writer.blocks[1]
    bad = {name: column.copy() for name, column in _rows_of(store, block).items()}
    row = 5 + int(np.flatnonzero(bad.get("mask", np.ones((37, TOKENS)))[5:, 0])[0])
    assert bad["labels"][row] >= 0
    bad["features"][row, 0, 0] = np.inf
    writer.write(1, bad, overwrite=True)
    jobs = jobs_of(store, "mahalanobis")
    skipped = run_jobs(jobs, run_serial, skip_nonfinite=True)
    execute = Threads(2, tmp_path / "cache")
    assert run_jobs(jobs, execute, skip_nonfinite=True) == skipped
    with pytest.raises(DataError, match="not finite"):
        run_jobs(jobs, execute)
    others = jobs_of(store, "she")
    expected = run_jobs(others, run_serial, skip_nonfinite=True)
    assert run_jobs(others, execute, skip_nonfinite=True) == expected


def _rows_of(store, block):
    split = store.split("id/train")
    parts = [
        {name: array.copy() for name, array in chunk.arrays.items()}
        for chunk in split.read(split.blocks[block.index], frozenset(split.schema.arrays))
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def test_no_state_outlives_the_tree_that_merged_it():
    """A worker's states must be freed at once, not when cycles are collected next."""
    watched = []

    def state(*_):
        made = State()
        watched.append(weakref.ref(made))
        return made

    gc.collect()
    gc.disable()
    try:
        for count in (1, 7, 8, 20, 65):
            root = tree((state() for _ in range(count)), state)
            assert sum(ref() is not None for ref in watched) == 1
            del root
            assert not any(ref() is not None for ref in watched)
    finally:
        gc.enable()


class State:
    """Something that can be watched."""
