"""What a run leaves behind is not computed again: resume, append, added detectors, a new ridge."""

from collections import Counter

import pytest
from durable_store import BLOCK_ROWS, make, rows

from pipeline import detectors
from pipeline.detectors.mahalanobis import Mahalanobis
from pipeline.engine import Dask, Job, Pin, Settings, Threads, Trace, replay, run_jobs, run_serial
from pipeline.errors import PartDoneError
from pipeline.heads import LDAHead
from pipeline.inputs import with_head
from pipeline.partials import FAN_IN, Partials
from pipeline.store import reader

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


def test_replay_answers_from_files_alone(store, tmp_path):
    jobs = jobs_of(store, "mahalanobis", "vim")
    done, first, outcomes = replay(jobs, Settings(), tmp_path)
    assert (done, outcomes) == ([], {})
    assert first.blocks == 20
    expected = run_jobs(jobs, Threads(2, tmp_path))
    reader.reset_reads()
    done, first, outcomes = replay(jobs, Settings(), tmp_path)
    assert len(done) == 2
    assert first is None
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
