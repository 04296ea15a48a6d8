"""Blocks on the workers of a dask scheduler, each a real process in a folder of its own."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from dask_processes import dask, scheduler_with, stop
from distributed import Client
from sources_of_tests import BLOCKS, Failing, Killing, Mixed, Numbers, Slow, same, unseeded

from pipeline.__main__ import main
from pipeline.errors import ConfigError, DataError, FeatfoldError, MissingInputError
from pipeline.extract.filling import Share, extract_split
from pipeline.extract.passing import Manner
from pipeline.extract.spreading import spread_out
from pipeline.extract.stations import Task, as_given
from pipeline.store import Store, manifest

WORKERS = 2


def worker(file, folder, *options, threads=1):
    return dask(
        "worker", "--scheduler-file", file, "--nthreads", threads, "--no-dashboard", *options,
        "--host", "127.0.0.1", "--local-directory", folder / "scratch", cwd=folder,
    )  # fmt: skip


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory):
    """The file of a scheduler with workers, of one and of two threads, elsewhere."""
    folder = tmp_path_factory.mktemp("cluster")
    file = folder / "scheduler.json"
    started = [scheduler_with(file, {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1"})]
    started += [worker(file, folder, threads=threads) for threads in (1, 2)]
    yield file
    for process in reversed(started):
        stop(process)


@pytest.fixture
def client(scheduler):
    with Client(json.loads(scheduler.read_text())["address"]) as client:
        client.wait_for_workers(WORKERS, timeout=60)
        yield client


@pytest.fixture
def store(tmp_path):
    return Store.create(tmp_path / "f.zarr")


def extracted(store, client, source=None, model=None, **options):
    said = []
    share = {name: options.pop(name) for name in ("make", "verify") if name in options}
    done = extract_split(
        store, "id/train", model or Mixed(), source or Numbers(50), classes=3, say=said.append,
        share=Share(client=client, **share), **BLOCKS, **options,
    )  # fmt: skip
    return done, said


def whole(tmp_path):
    store = Store.create(tmp_path / "whole.zarr")
    extracted(store, None)
    return store.split("id/train", verify=True)


def writers(store):
    return {record.writer for record in manifest.read_records(store.path / "id/train").values()}


def is_here(writer):
    return writer.endswith(f":{os.getpid()}")


def test_workers_elsewhere_write_the_bits_of_one_process(store, client, tmp_path):
    seen = []
    done, said = extracted(store, client, batch_rows=5, progress=lambda *at: seen.append(at))
    assert (done.written, done.missing, said) == (done.blocks, 0, [])
    assert done.blocks > WORKERS
    assert (seen[0], seen[-1]) == ((0, 50), (50, 50))
    assert seen == sorted(seen)
    assert not {who for who in writers(store) if is_here(who)}
    one = Store.create(tmp_path / "whole.zarr")
    extracted(one, None, batch_rows=5)
    same(store.split("id/train", verify=True), one.split("id/train"))
    assert not any(client.run(_kept).values())


def _kept():
    from pipeline.extract import stations

    return len(stations._kept)


def test_the_block_of_a_killed_worker_is_taken_again_and_that_is_said(store, client, tmp_path):
    done, said = extracted(store, client, Killing(20, str(tmp_path / "killed")))
    assert (tmp_path / "killed").exists()
    assert (done.written, done.missing) == (done.blocks, 0)
    assert "id/train: block 1 (rows 15-30) is begun again, a worker was lost" in said
    same(store.split("id/train", verify=True), whole(tmp_path))


def test_a_block_that_ends_its_workers_is_an_error_and_the_others_are_kept(store, client, tmp_path):
    with pytest.raises(FeatfoldError, match=r"id/train: block0003 ended its worker 2 times"):
        extracted(store, client, Killing(49))
    client.wait_for_workers(WORKERS, timeout=60)
    done, _ = extracted(store, client)
    assert 1 <= done.written < done.blocks
    same(store.split("id/train", verify=True), whole(tmp_path))


def test_what_a_worker_raises_is_raised(store, client):
    with pytest.raises(DataError, match="row 30 is gone"):
        extracted(store, client, Failing(50))


def lost():
    """Look for rows below the folder of the process."""
    raise MissingInputError(f"{Path('photos')}: there is no such folder")


def test_workers_that_make_another_model_or_find_no_data_are_refused(store, client, tmp_path):
    with pytest.raises(DataError, match=r"weights_sha256 is '\w+' in a worker, and '\w+' in"):
        extracted(store, client, model=unseeded()[0], make=unseeded)
    with pytest.raises(
        MissingInputError, match=r"no such folder \(on a worker that runs in /.*cluster"
    ):
        extracted(Store.create(tmp_path / "other.zarr"), client, make=lost)
    assert not writers(store)


def test_a_block_that_workers_write_to_another_store_is_an_error(store, client, tmp_path):
    task = Task(as_given(Mixed(), Numbers(50)), str(store.path), "id/train", Manner())
    here = Store.create(tmp_path / "here.zarr")
    writers = []
    for each in (store, here):  # two machines have a store of one name
        with pytest.raises(DataError):
            extracted(each, None, Failing(50))
        writers.append(each.writer("id/train"))
    with pytest.raises(FeatfoldError, match=r"a worker has written block 3 .* lacks it here"):
        spread_out(task, writers[0].blocks[3:], client, writers[1], None, print)


def test_what_cannot_be_sent_is_refused(store, client):
    source = Numbers(50)
    source.lines = (line for line in "ab")
    with pytest.raises(ConfigError, match=r"cluster: model and data cannot be sent to workers"):
        extracted(store, client, source)


def test_damaged_blocks_alone_are_written_again(store, client, tmp_path):
    extracted(store, client)
    torn = sorted(p for p in (store.path / "id/train/features/c").rglob("*") if p.is_file())[1]
    torn.write_bytes(torn.read_bytes()[:-7])
    done, _ = extracted(store, client, verify=True)
    assert (done.written, done.rewritten) == (0, 1)
    same(store.split("id/train", verify=True), whole(tmp_path))


def test_workers_stop_within_their_blocks_when_the_driver_is_killed(scheduler, client, tmp_path):
    store, read = Store.create(tmp_path / "f.zarr"), tmp_path / "read"
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import json, sys
            sys.path[:0] = {sys.path!r}
            from distributed import Client
            from sources_of_tests import BLOCKS, Mixed, Slow
            from pipeline.extract.filling import Share, extract_split
            from pipeline.store import Store

            client = Client({json.loads(scheduler.read_text())["address"]!r})
            extract_split(Store.open({str(store.path)!r}), "id/train", Mixed(),
                          Slow({str(read)!r}), classes=3, batch_rows=1,
                          share=Share(client=client), progress=lambda *at: print(at[0], flush=True),
                          **BLOCKS)
            """
        )
    )
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE) as process:
        assert any(int(line) > 1 for line in process.stdout)
        process.send_signal(signal.SIGKILL)
    before = -1
    while before != (before := len(read.read_bytes())):
        time.sleep(1)
    assert before < 16  # rows of a block
    assert not writers(store)
    assert not any(client.run(_kept).values())
    done, _ = extracted(store, client)
    assert done.missing == 0
    same(store.split("id/train", verify=True), whole(tmp_path))


JOB = """
name: made
store: {store}
classes: 3
model: {{import: "sources_of_tests:Mixed"}}
sources:
  - {{split: id/train, data: {{import: "sources_of_tests:Numbers", rows: 50}}, dtype: float16}}
detectors: [mahalanobis]
evaluate: {{far: [ood/far/none]}}
"""


def test_a_scheduler_that_dies_is_one_clear_error_and_what_is_finished_is_kept(store, tmp_path):
    file = tmp_path / "scheduler.json"
    scheduler = scheduler_with(file)
    alone = worker(file, tmp_path, "--no-nanny")

    def progress(done, rows):
        if done > 20:
            scheduler.kill()

    try:
        with Client(json.loads(file.read_text())["address"], timeout="5s") as client:
            client.wait_for_workers(1, timeout=60)
            with pytest.raises(FeatfoldError, match=r"id/train: the scheduler is gone"):
                extracted(store, client, Slow(tmp_path / "read"), batch_rows=1, progress=progress)
    finally:
        stop(alone)
        stop(scheduler)
    assert len(store.writer("id/train").committed) == 1


def test_a_job_is_extracted_on_a_cluster(scheduler, client, tmp_path, capsys):
    job = tmp_path / "job.yaml"
    job.write_text(JOB.format(store=tmp_path / "job.zarr"))
    assert main(["extract", str(job), "--cluster", str(scheduler), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["splits"][0]["rows"] == 50
    assert f"extracts on 2 workers of {scheduler}" in err
    assert not {who for who in writers(Store.open(tmp_path / "job.zarr")) if is_here(who)}
    assert main(["extract", str(job), "--cluster", "local"]) == 2
    assert "--workers starts processes on this machine" in capsys.readouterr().err
