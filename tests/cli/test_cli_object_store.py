"""``featfold run``, ``plan`` and ``inspect`` with ``store: s3://...``, as with a folder."""

import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest
from s3_server import SECRET
from test_cli_run import FROM_SOURCES, MADE

from pipeline.store import Store, place

SPLITS = ["id/train", "id/test", "ood/near/a", "ood/far/b"]
MADE_SPLITS = ["id/train", "id/test", "ood/far/f"]


@pytest.fixture
def job_at_url(bucket, job, tmp_path):
    """The same job over the same store, whose files were copied to a bucket."""
    here = tmp_path / "feats.zarr"
    for file in here.rglob("*"):
        if file.is_file():
            name = file.relative_to(here).as_posix()
            (place.at(bucket.store) / name).write_bytes(file.read_bytes())
    path = tmp_path / "remote.yaml"
    text = job.read_text().replace(str(here), bucket.store)
    path.write_text(text.replace(str(tmp_path / "runs"), str(tmp_path / "remote")))
    return path


def results(folder):
    run = folder / (folder / "LATEST").read_text().strip()
    return json.loads((run / "results.json").read_text())


def numbers(found):
    """Return what is computed, without when, where and how fast."""
    keys = ("data", "detectors", "scores", "histograms", "curves", "classification")
    return {key: found[key] for key in keys}


def below(folder):
    return b"".join(p.read_bytes() for p in folder.rglob("*") if p.is_file())


def test_a_run_over_a_bucket_gives_the_numbers_of_one_over_a_folder(
    job, job_at_url, bucket, cli, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert cli("run", job).code == 0
    bucket.reset()
    ended = cli("run", job_at_url, "--set", f"resources.cache={tmp_path / 'cache'}")
    assert ended.code == 0, ended.err
    here, there = results(tmp_path / "runs/small"), results(tmp_path / "remote/small")
    assert numbers(there) == numbers(here)
    assert there["provenance"]["store"] == bucket.store
    assert there["provenance"]["checksums"] == here["provenance"]["checksums"]
    got = bucket.chunks()
    assert {key.rsplit("/c/")[0].rsplit("/")[-1] for key in got} == {"features", "labels", "plain"}
    fetched = {key: n for key, n in got.items() if "/features/" in key}
    store = place.at(bucket.store)
    assert len(fetched) == 4
    for key, nbytes in fetched.items():  # once, whatever the number of passes
        assert nbytes == len((store / key).read_bytes())
    assert not (tmp_path / "s3:").exists()
    for secret in (SECRET, "AKIATESTONLY"):
        assert secret.encode() not in below(tmp_path)
        assert secret not in ended.out + ended.err
        assert secret.encode() not in b"".join(
            bytes(one.read_bytes()) for one in place.at(bucket.store).all_below()
        )


def test_a_run_in_processes_over_a_service_that_fails_gives_the_same_numbers(
    job, job_at_url, bucket, cli, tmp_path
):
    assert cli("run", job).code == 0
    with bucket.failing(7):
        ended = cli(
            "run", job_at_url, "--cluster", "local",
            "--set", f"resources.cache={tmp_path / 'cache'}",
        )  # fmt: skip
    assert ended.code == 0, ended.err
    assert bucket.failed > 3
    here, there = results(tmp_path / "runs/small"), results(tmp_path / "remote/small")
    assert numbers(there) == numbers(here)


@pytest.mark.parametrize("request_number", [8, 60])
def test_a_run_waits_for_a_service_that_is_stopped_and_started(
    job, job_at_url, bucket, cli, tmp_path, request_number
):
    assert cli("run", job).code == 0
    bucket.goes_at = request_number
    ended = cli("run", job_at_url, "--set", f"resources.cache={tmp_path / 'cache'}")
    assert ended.code == 0, ended.err
    assert bucket.away == 1
    assert numbers(results(tmp_path / "remote/small")) == numbers(results(tmp_path / "runs/small"))


def test_plan_and_inspect_read_a_bucket(job_at_url, bucket, cli, tmp_path):
    ended = cli("plan", job_at_url)
    assert ended.code == 0, ended.err
    assert not bucket.chunks()
    ended = cli("inspect", bucket.store, "--verify", "--json")
    assert ended.code == 0, ended.err
    held = json.loads(ended.out)
    assert held["store"] == bucket.store
    assert [split["name"] for split in held["splits"]] == SPLITS
    chunk = place.at(bucket.store) / "id/train/features/c/0/0/0"
    chunk.write_bytes(bytes(chunk.read_bytes())[:-1] + b"!")
    ended = cli("inspect", bucket.store, "--verify")
    assert ended.code == 4
    assert "damaged id/train, features" in ended.out


@pytest.fixture
def from_sources(bucket, tmp_path, cache):
    (tmp_path / "made.py").write_text(MADE)
    text = FROM_SOURCES.format(cache=cache).replace("store: made.zarr", f"store: {bucket.store}")
    assert bucket.store in text
    path = tmp_path / "made.yaml"
    path.write_text(text)
    return path


def test_extraction_into_a_bucket_goes_on_after_a_kill(from_sources, bucket, environment, tmp_path):
    command = [sys.executable, "-m", "pipeline", "run", str(from_sources)]
    environment = {**environment, **{k: v for k, v in os.environ.items() if k.startswith("AWS_")}}
    (tmp_path / "wait").touch()  # the third source stands still
    running = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    store = place.at(bucket.store)
    deadline = time.monotonic() + 100
    while not (store / "id/test/manifest/block-00000/zarr.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    with running:
        running.kill()
    (tmp_path / "wait").unlink()
    written = (store / "id/train/manifest/block-00000/zarr.json").seen().written
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    again = Store.open(bucket.store)
    assert again.splits() == ("id/train", "id/test", "ood/far/f")
    assert not any(again.split(name).verify() for name in again.splits())
    assert (store / "id/train/manifest/block-00000/zarr.json").seen().written == written
    assert not list(tmp_path.glob("s3:*"))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("store=s3://me:hunter2@bucket/x", "holds no user, password or query"),
        ("store=https://host/x?sig=hunter2", "holds no user, password or query"),
        ("store=s4://bucket/hunter", "expected a folder, or s3://"),
        ("resources.cache=s3://bucket/x", "expected a directory of this machine"),
        ("report.directory=s3://bucket/x", "a folder of this machine"),
    ],
)
def test_urls_that_cannot_be_meant_are_refused_before_anything_is_written(
    job, cli, tmp_path, change, why
):
    before = sorted(tmp_path.rglob("*"))
    ended = cli("run", job, "--set", change)
    assert ended.code == 2
    assert why in " ".join(ended.err.split())
    assert "hunter2" not in ended.err + ended.out
    assert sorted(tmp_path.rglob("*")) == before


def test_a_bucket_that_is_not_there_ends_with_what_to_do(job, bucket, cli):
    ended = cli("run", job, "--set", "store=s3://no-such-bucket/x")
    assert ended.code == 4
    assert "there is no such bucket" in ended.err
    assert cli("inspect", "s3://no-such-bucket/x").code == 4


def test_rows_are_imported_into_a_bucket_and_exported_from_it(bucket, cli, tmp_path):
    rows = np.random.default_rng(0).standard_normal((50, 8)).astype("f4")
    np.save(tmp_path / "features.npy", rows)
    np.save(tmp_path / "labels.npy", np.arange(50) % 4)
    ended = cli(
        "import", tmp_path / "features.npy", "--store", bucket.store, "--split", "id/train",
        "--labels", tmp_path / "labels.npy", "--classes", 4,
    )  # fmt: skip
    assert ended.code == 0, ended.err
    assert not list(tmp_path.glob("s3:*"))
    ended = cli("export", bucket.store, tmp_path / "out", "--split", "id/train", "--to", "npy")
    assert ended.code == 0, ended.err
    (found,) = (tmp_path / "out").rglob("features*.npy")
    np.testing.assert_array_equal(np.load(found), rows)


def test_damaged_blocks_of_a_bucket_are_extracted_again_and_only_those(
    from_sources, bucket, cli, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert cli("extract", from_sources).code == 0
    records = [place.at(f"{bucket.store}/{s}/manifest/block-00000/zarr.json") for s in MADE_SPLITS]
    written = [record.seen().content for record in records]
    chunk = place.at(bucket.store) / "id/test/features/c/0/0"
    whole = bytes(chunk.read_bytes())
    chunk.write_bytes(whole[:-1] + b"!")
    ended = cli("extract", from_sources, "--resume")
    assert ended.code == 0, ended.err
    assert bytes(chunk.read_bytes()) == whole
    assert [r.seen().content == w for r, w in zip(records, written, strict=True)] == [
        True, False, True,
    ]  # fmt: skip


def test_heads_and_names_are_kept_with_the_rows(bucket):
    store = Store.create(bucket.store)
    weights, bias = np.eye(4, 8), np.arange(4.0)
    store.write_head(weights, bias)
    np.testing.assert_array_equal(store.head().weight, weights)
    store.write_head(weights, bias)  # again, which changes nothing
    head = place.at(bucket.store) / "head"
    (head / "zarr.json").unlink()  # as of a writer that was killed
    store.write_head(weights, bias)
    np.testing.assert_array_equal(Store.open(bucket.store).head().bias, bias)
