"""Where a job runs, as it is settled before anything starts."""

import pytest

from pipeline import cluster
from pipeline.cluster import reserved
from pipeline.errors import CorruptError, FeatfoldError, MissingInputError


def test_auto_takes_no_more_workers_than_the_process_has_cpus(monkeypatch):
    monkeypatch.setattr("dask.system.cpu_count", lambda: 3)
    assert cluster.settle("threads", memory="1GiB").workers == 3
    assert cluster.settle("threads", workers=5, memory="1GiB").workers == 5


def test_a_worker_that_cannot_start_is_one_clear_error(monkeypatch, tmp_path):
    (tmp_path / "no_worker.py").write_text("raise OSError('no semaphores here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(reserved, "IDLE", "no_worker")
    cache = tmp_path / "cache"
    with pytest.raises(FeatfoldError, match="cannot start here: OSError: no semaphores here"):
        reserved.reserved_nbytes(cache)
    assert not cache.exists()


def test_a_script_without_an_entry_point_is_told_what_to_do(monkeypatch, tmp_path):
    def failing(**options):
        raise RuntimeError("Nanny failed to start.")

    monkeypatch.setattr("distributed.LocalCluster", failing)
    resources = cluster.settle("local", workers=1, memory="1GiB")
    with (
        pytest.raises(FeatfoldError, match=r"__name__.*Nanny failed"),
        cluster.open_cluster(resources, tmp_path),
    ):
        pass


def test_a_scheduler_file_that_is_not_there_or_none_is_refused_at_once(tmp_path):
    resources = cluster.Resources(str(tmp_path / "s.json"), 1, 2**30, "")
    with pytest.raises(MissingInputError, match="there is no scheduler file"):
        cluster.open_cluster(resources, tmp_path).__enter__()
    for text in ("{bad", "[]", "{}"):
        (tmp_path / "s.json").write_text(text)
        with pytest.raises(CorruptError, match="not the scheduler file"):
            cluster.open_cluster(resources, tmp_path).__enter__()


def test_a_scheduler_that_does_not_answer_is_one_clear_error(monkeypatch, tmp_path):
    def refused(address, timeout):
        raise OSError(f"timed out after {timeout}")

    monkeypatch.setattr("distributed.Client", refused)
    resources = cluster.Resources("tcp://127.0.0.1:1", 1, 2**30, "")
    with pytest.raises(FeatfoldError, match=r"no scheduler answers at tcp://127.0.0.1:1 \(timed"):
        cluster.open_cluster(resources, tmp_path).__enter__()
