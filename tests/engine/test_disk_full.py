"""A disk that fills up while partials are written: one clear error, and the run goes on with room.

What was folded before is not folded again, and the bits are those of an undisturbed run.
"""

import os
import subprocess
import sys

import numpy as np
import pytest
from durable_store import make
from mounts import small_disk

from pipeline.content import Const
from pipeline.errors import FeatfoldError
from pipeline.partials import Kept, Partials, RowTable

BLOCKS = 24
ENOUGH_NBYTES = 64 * 2**20
JOB = """\
name: full
store: {store}
head: lda
detectors: [mahalanobis, relative_mahalanobis, kl_matching, she, vim]
evaluate: {{id: id/test, far: [ood/far/a]}}
resources: {{cluster: {cluster}, workers: 2, memory: 1GiB, cache: {cache}}}
report: {{directory: {runs}}}
"""
COMMAND = "import sys; from pipeline.__main__ import main\nif __name__ == '__main__':\n"
COMMAND += "    sys.exit(main(['run', *sys.argv[1:], '-q']))\n"


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("full") / "feats.zarr"
    for split, blocks in (("id/train", BLOCKS), ("id/test", 4), ("ood/far/a", 4)):
        make(path, blocks, split)
    return path


@pytest.fixture
def featfold(tmp_path, store):
    """Run the job of ``store`` with the given places; return its exit code and stderr."""
    script = tmp_path / "featfold.py"
    script.write_text(COMMAND)

    def run(cluster, cache, runs):
        job = tmp_path / "job.yaml"
        job.write_text(JOB.format(store=store, cluster=cluster, cache=cache, runs=runs))
        done = subprocess.run(
            [sys.executable, str(script), str(job)], capture_output=True, text=True, timeout=120,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(tmp_path)},
        )  # fmt: skip
        return done.returncode, done.stderr

    return run


def finished(runs):
    family = runs / "full"
    return family / (family / "LATEST").read_text().strip()


def outcome(runs):
    directory = finished(runs)
    found = {p.relative_to(directory): p.read_bytes() for p in directory.rglob("*.npy")}
    return found, (directory / "detectors" / "arrays.safetensors").read_bytes()


def numbers(folder):
    """Return the files of a cache by name: those that are kept keep their number."""
    return {p.relative_to(folder): p.stat().st_ino for p in folder.rglob("*") if p.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["threads", "local"])
def test_a_full_cache_ends_a_run_with_one_clear_error_and_it_goes_on_with_room(
    featfold, tmp_path, cluster
):
    assert featfold(cluster, tmp_path / "cache", tmp_path / "whole") == (0, "")
    whole = sum(p.stat().st_size for p in (tmp_path / "cache").rglob("*.npz"))
    with small_disk(tmp_path / "disk", ENOUGH_NBYTES) as disk:
        for share in (0.2, 0.6):
            disk.resize(int(share * whole))
            cache = disk.path / "cache"
            before = numbers(cache)
            code, err = featfold(cluster, cache, tmp_path / "runs")
            assert code == 1
            assert f"the disk of {cache}" in err
            assert " bytes are needed, " in err
            assert "free space, or name another directory with --cache" in err
            assert "Traceback" not in err
            kept = numbers(cache)
            assert kept
            assert before.items() <= kept.items()
            assert not [p for p in kept if p.name.startswith(".")]
            assert not (tmp_path / "runs" / "full" / "LATEST").exists()
        disk.resize(ENOUGH_NBYTES)
        assert featfold(cluster, cache, tmp_path / "runs") == (0, "")
        assert kept.items() <= numbers(cache).items()
        for file in cache.rglob("*.npz"):
            twin = tmp_path / "cache" / file.relative_to(cache)
            assert file.read_bytes() == twin.read_bytes()
    assert outcome(tmp_path / "runs") == outcome(tmp_path / "whole")


def test_runs_on_a_full_disk_end_with_one_clear_error_and_go_on_with_room(featfold, tmp_path):
    cache = tmp_path / "cache"
    with small_disk(tmp_path / "disk", ENOUGH_NBYTES) as disk:
        runs = disk.path / "runs"
        assert featfold("threads", cache, runs) == (0, "")
        first = outcome(runs)
        size = sum(p.stat().st_size for p in finished(runs).rglob("*") if p.is_file())
        for share in (0.0, 0.3, 0.8):
            disk.fill(leaving_nbytes=int(share * size))
            code, err = featfold("threads", cache, runs)
            assert code == 1, err
            assert "is full: " in err or "No space left on device" in err
            assert "Traceback" not in err
            assert "this is a bug" not in err
            assert outcome(runs) == first  # LATEST is the one that ended
            disk.resize(ENOUGH_NBYTES)
        disk.resize(ENOUGH_NBYTES)
        assert featfold("threads", cache, runs) == (0, "")
        assert outcome(runs) == first


def test_files_that_do_not_fit_are_not_there_at_all(tmp_path):
    rows = np.random.default_rng(0).random((40, 1000))
    with small_disk(tmp_path / "disk", 65_536) as disk:
        for nbytes, write in (
            (320_000, lambda: Partials(disk.path).put("key", "node", Kept(rows, 40, 40))),
            (320_000, lambda: Const(rows).save(disk.path)),
            (640_000, lambda: RowTable([rows, rows]).save(disk.path / "scores.npy")),
        ):
            with pytest.raises(FeatfoldError, match=rf"is full.*\({nbytes:,} bytes are needed, "):
                write()
            assert not [p for p in disk.path.rglob("*") if p.is_file()]
            disk.resize(ENOUGH_NBYTES)
            write()
            for file in disk.path.rglob("*"):
                if file.is_file():
                    file.unlink()
            disk.resize(65_536)
