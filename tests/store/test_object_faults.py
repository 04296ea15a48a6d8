"""An S3 service that fails, cuts connections, goes away, refuses; writers of it that are killed."""

import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from s3_server import SECRET
from test_object_store import SIZES, SPECS, K, check, fill, objects, read, rows_of

import pipeline as ff
from pipeline.errors import (
    ConfigError,
    ExistsRefusedError,
    FeatfoldError,
    LockedError,
    MissingInputError,
    UnreachableError,
)
from pipeline.store import Store, layout, object_client, object_lock, place

ROOT = Path(__file__).parents[2]
WRITE = """\
import sys
from test_object_store import rows_of
from pipeline.store import Store

store = Store.open(sys.argv[1])
writer = store.writer("id/train")
with store.lock("id/train"):
    for block in writer.missing():
        print(block.index, flush=True)
        writer.write(block.index, rows_of(block.start, block.stop))
"""


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(object_client, "PATIENCE_SECONDS", 0.5)


def test_every_seventh_request_fails_and_nothing_is_lost(bucket, path):
    with bucket.failing(7):
        split = fill(bucket.store).split("id/train", verify=True)
        check(split)
        writer = Store.open(bucket.store).create_split("id/val", SPECS, classes=K, **SIZES)
        for start in range(0, 20, 5):
            writer.append(rows_of(start, start + 5))
        Store.open(bucket.store).remove_block("id/val", 1)
        there = ff.fit("mahalanobis", split, cluster="threads", workers=2)
    assert bucket.failed > 20
    here = ff.fit("mahalanobis", fill(path).split("id/train"), cluster="threads", workers=2)
    x = rows_of(100, 120)["features"]
    np.testing.assert_array_equal(there["mahalanobis"](x), here["mahalanobis"](x))
    assert Store.open(bucket.store).split("id/val", verify=True).schema.rows == 15
    locks = [key for key in objects(f"s3://{bucket.bucket}") if ".lock" in key]
    assert locks == []


def test_a_service_that_is_stopped_and_started_is_waited_for(bucket):
    fill(bucket.store)
    away = threading.Event()

    def stop_and_start():
        for _ in range(2):
            time.sleep(0.15)
            bucket.stop()
            away.set()
            time.sleep(1.0)
            bucket.start()

    thread = threading.Thread(target=stop_and_start)
    thread.start()
    split = Store.open(bucket.store).split("id/train")
    while thread.is_alive():
        check(split)
        fill(bucket.store, "id/val", 40)
    thread.join()
    assert away.is_set()
    check(Store.open(bucket.store).split("id/val", verify=True), 40)


def test_a_service_that_stays_away_is_named_with_what_to_do(bucket, impatient):
    split = fill(bucket.store).split("id/train")
    bucket.stop()
    began = time.monotonic()
    with pytest.raises(UnreachableError, match="what is committed is kept: run the same again"):
        read(split)
    with pytest.raises(UnreachableError, match=f"{bucket.store}.* could not be reached"):
        Store.open(bucket.store)
    assert time.monotonic() - began < 30


def test_a_service_that_does_not_answer_is_told_of_at_once_and_once(bucket, monkeypatch, caplog):
    monkeypatch.setattr(object_client, "PATIENCE_SECONDS", 4.0)
    bucket.stop()
    began, told = time.monotonic(), []

    class Told(logging.Handler):
        def emit(self, record):
            told.append((time.monotonic() - began, record.levelname, record.getMessage()))

    handler = Told()
    logging.getLogger(object_client.__name__).addHandler(handler)
    try:
        for _ in range(2):
            with pytest.raises(UnreachableError, match=rf"AWS_ENDPOINT_URL={bucket.url}\)"):
                Store.open(bucket.store)
    finally:
        logging.getLogger(object_client.__name__).removeHandler(handler)
    ((seconds, level, text),) = told
    assert (seconds < 2, level) == (True, "WARNING")  # of the 4 s that it waits
    for part in (bucket.store, "does not answer", "for up to", bucket.url, "interrupt"):
        assert part in text
    assert SECRET not in text


def test_it_is_said_on_stderr_whatever_is_set_up(bucket, monkeypatch):
    bucket.stop()
    code = (
        "from pipeline.store import Store, object_client\n"
        "object_client.PATIENCE_SECONDS = 1.0\n"
        f"Store.open({bucket.store!r})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    first = done.stderr.splitlines()[0]
    assert first.startswith(f"{bucket.store}/")
    assert "does not answer" in first


@pytest.mark.parametrize("status", [401, 403])
def test_access_that_is_refused_is_told_at_once_and_without_secrets(bucket, status):
    split = fill(bucket.store).split("id/train")
    bucket.refuse = {"GET": status, "PUT": status, "HEAD": status}
    for call in (
        lambda: read(split),
        lambda: Store.open(bucket.store),
        lambda: Store.create(f"{bucket.store}2"),
    ):
        with pytest.raises(FeatfoldError, match=r"refuses access.*check which credentials") as told:
            call()
        assert SECRET not in str(told.value)
        assert not isinstance(told.value, UnreachableError)


def test_rows_of_which_the_writer_may_not_put_one_are_not_committed(bucket):
    store = fill(bucket.store)
    writer = store.create_split("id/val", SPECS, classes=K, rows=40, **SIZES)
    bucket.refuse = {"PUT": 403}
    with pytest.raises(FeatfoldError, match="refuses access"):
        writer.write(0, rows_of(0, 24))
    bucket.refuse = {}
    assert writer.committed == frozenset()


def test_a_bucket_that_is_not_there_is_told_apart_from_a_store(bucket):
    for call in (Store.create, Store.open, Store.is_at):
        with pytest.raises(MissingInputError, match="s3://no-such-bucket: there is no such bucket"):
            call("s3://no-such-bucket/feats.zarr")


def test_a_plain_connection_is_made_only_where_the_environment_says_so(bucket, monkeypatch):
    fill(bucket.store)
    monkeypatch.delenv("AWS_ALLOW_HTTP")
    object_client._client.cache_clear()
    with pytest.raises(ConfigError, match="set AWS_ALLOW_HTTP=true in the environment"):
        Store.open(bucket.store)


def test_without_credentials_the_error_says_where_they_come_from(bucket, monkeypatch, impatient):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"http://127.0.0.1:{bucket.port}/none")
    object_client._client.cache_clear()
    with pytest.raises(FeatfoldError) as told:
        Store.open(bucket.store)
    assert bucket.store in str(told.value)


def test_a_profile_of_the_aws_tools_gives_the_credentials(bucket, monkeypatch, tmp_path):
    fill(bucket.store)
    (tmp_path / "credentials").write_text(
        f"[mine]\naws_access_key_id = AKIAPROFILE\naws_secret_access_key = {SECRET}\n"
    )
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "mine")
    object_client._client.cache_clear()
    check(Store.open(bucket.store).split("id/train"))
    monkeypatch.setenv("AWS_PROFILE", "other")
    object_client._client.cache_clear()
    with pytest.raises(ConfigError, match="other"):
        Store.open(bucket.store)


def test_without_obstore_the_extra_is_named(bucket, monkeypatch):
    monkeypatch.setitem(sys.modules, "obstore", None)
    object_client._client.cache_clear()
    with pytest.raises(ConfigError, match=r"pip install 'featfold\[cloud\]'"):
        Store.open(bucket.store)


def start_writer(url):
    return subprocess.Popen(
        [sys.executable, "-c", WRITE, url],
        stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/tests:{ROOT}/tests/store"},
    )  # fmt: skip


def test_a_writer_killed_in_a_block_is_gone_on_from_by_the_next_one_at_once(bucket):
    store = Store.create(bucket.store)
    writer = store.create_split("id/train", SPECS, classes=K, rows=83, **SIZES)
    features = place.at(bucket.store) / "id/train/features/c"
    with start_writer(bucket.store) as process:
        assert process.stdout.readline() == "0\n"
        assert process.stdout.readline() == "1\n"
        while not (features / "3/0/0").exists():  # the first chunk of the second block
            pass
        process.kill()
    assert writer.committed == {0}
    names = place.at(f"s3://{bucket.bucket}").children()
    assert any(name.endswith(".filling.lock") for name in names)  # it died with its lock
    with start_writer(bucket.store) as again:
        assert again.stdout.read() == "1\n2\n3\n"
    assert again.returncode == 0
    check(store.split("id/train", verify=True))
    assert place.at(f"s3://{bucket.bucket}").children() == ["feats.zarr"]


def test_a_lock_keeps_others_out_and_says_who_holds_it(bucket):
    store = fill(bucket.store)
    with store.lock("id/train"):
        held = pytest.raises(LockedError, match=r"held by process \d+ on .* since")
        with held, store.lock("id/train"):
            pass
        with store.lock("id/val"):
            pass
    with store.lock("id/train"):
        pass


def test_shares_are_held_side_by_side_and_not_beside_the_whole(bucket):
    store = fill(bucket.store)
    with store.lock("id/train", (1, 2)), store.lock("id/train", (2, 2)):
        for part in (None, (1, 2)):
            with pytest.raises(LockedError), store.lock("id/train", part):
                pass
    with store.lock("id/train"), pytest.raises(LockedError), store.lock("id/train", (1, 2)):
        pass
    assert place.at(f"s3://{bucket.bucket}").children() == ["feats.zarr"]


def elsewhere(lock, **changed):
    """Make a lock that of a process on another machine."""
    known = json.loads(lock.read_text())
    lock.write_bytes(json.dumps({**known, "machine": "far", "host": "far", **changed}).encode())


def test_a_lock_of_another_machine_runs_out_by_the_clock_of_the_service(bucket, monkeypatch):
    lock = place.at(f"s3://{bucket.bucket}/x.lock")
    lock.write_bytes(object_lock.HeldObject(lock, "x").content())
    elsewhere(lock, pid=1, since="then")
    late = time.time() + 1e6
    monkeypatch.setattr(time, "time", lambda: late)  # the clock of this machine says nothing
    held = pytest.raises(LockedError, match=r"process 1 on far since then.*35 s later")
    with held, object_lock.hold(lock, "x"):
        pass
    monkeypatch.setattr(object_lock, "LEASE_SECONDS", 1.0)
    monkeypatch.setattr(object_lock, "MARGIN_SECONDS", 0.5)
    began = time.monotonic()
    with object_lock.hold(lock, "x", 20.0):
        assert time.monotonic() - began < 15
    assert place.at(f"s3://{bucket.bucket}").children() == []


def test_a_lock_that_is_renewed_does_not_run_out(bucket, monkeypatch):
    monkeypatch.setattr(object_lock, "LEASE_SECONDS", 0.6)
    monkeypatch.setattr(object_lock, "MARGIN_SECONDS", 1.0)
    monkeypatch.setattr(object_lock, "_machine", lambda: threading.current_thread().name)
    lock, tried = place.at(f"s3://{bucket.bucket}/x.lock"), []

    def another():
        try:
            with object_lock.hold(lock, "x", 3.5):
                tried.append("taken")
        except LockedError:
            tried.append("refused")

    with object_lock.hold(lock, "x"):
        thread = threading.Thread(target=another)
        thread.start()
        thread.join()
    assert tried == ["refused"]


def test_who_lost_a_lock_is_told_and_does_not_free_that_of_another(bucket):
    lock = place.at(f"s3://{bucket.bucket}/x.lock")
    lost = pytest.raises(LockedError, match="another process has taken over")
    with lost, object_lock.hold(lock, "x"):
        elsewhere(lock, nonce="other")
    assert json.loads(lock.read_text())["nonce"] == "other"


def test_of_many_takers_one_wins(bucket):
    lock, inside, most = place.at(f"s3://{bucket.bucket}/x.lock"), [], []

    def take():
        with object_lock.hold(lock, "x", 60.0):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.02)
            inside.pop()

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 4


@pytest.mark.parametrize("text", [
    f"GET https://me:{SECRET}@host/x failed",
    f"GET https://host/x?sig={SECRET}&se=1 failed",
    f"header Signature={SECRET}",
])  # fmt: skip
def test_what_a_client_says_is_redacted(text):
    assert SECRET not in object_client.redacted(text)


def test_two_writers_of_one_block_never_pass_for_one(bucket):
    store = Store.create(bucket.store)
    store.create_split("id/train", SPECS, classes=K, rows=20, **SIZES)
    start, ended = threading.Barrier(2), {}

    def write(seed):
        writer = store.writer("id/train")
        start.wait()
        try:
            writer.write(0, rows_of(0, 20, seed))
            ended[seed] = None
        except ExistsRefusedError as error:
            ended[seed] = error

    threads = [threading.Thread(target=write, args=(seed,)) for seed in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept = [seed for seed, error in ended.items() if error is None]
    assert len(kept) == 1
    split = store.split("id/train")
    if not split.verify():  # else chunks of both are there, and every reader is told
        check(split, 20, kept[0])
    store.writer("id/train").write(0, rows_of(0, 20), overwrite=True)
    check(store.split("id/train", verify=True), 20)


def test_a_creation_that_was_killed_is_done_again(bucket):
    writer = Store.create(bucket.store).create_split("id/train", SPECS, classes=K, rows=20)
    array = place.at(bucket.store) / "id/train/features"
    (array / "c/0/0/0").write_bytes(b"stray")
    store = Store.open(bucket.store)
    layout.create_array(array, SPECS["features"], 99, 7, rows_of(0, 7)["features"])
    layout.create_array(array, SPECS["features"], 20, 20, rows_of(0, 20)["features"])
    writer.write(0, rows_of(0, 20))
    check(store.split("id/train", verify=True), 20)


def test_a_store_that_was_half_moved_aside_is_replaced_by_the_next_overwrite(bucket, monkeypatch):
    monkeypatch.setattr(object_lock, "LEASE_SECONDS", 1.0)  # its lock cannot be deleted either
    monkeypatch.setattr(object_lock, "MARGIN_SECONDS", 0.5)
    fill(bucket.store)
    bucket.refuse = {"POST": 403}  # objects are copied, and then none of them may be deleted
    with pytest.raises(FeatfoldError, match="refuses access"):
        Store.create(bucket.store, overwrite=True)
    bucket.refuse = {}
    check(Store.open(bucket.store).split("id/train", verify=True))
    Store.create(bucket.store, overwrite=True)
    fill(bucket.store, seed=1)
    check(Store.open(bucket.store).split("id/train", verify=True), seed=1)
    assert place.at(f"s3://{bucket.bucket}").children() == ["feats.zarr"]


def test_an_object_is_uploaded_in_one_request_so_that_no_parts_are_left(bucket):
    big = np.random.default_rng(0).bytes(12 * 2**20)
    (place.at(bucket.store) / "big").write_bytes(big)
    assert bucket.asked == {"PUT": 1}
    assert bytes((place.at(bucket.store) / "big").read_bytes()) == big


def test_half_an_upload_is_no_object(bucket):
    with socket.create_connection(("127.0.0.1", bucket.behind)) as cut:
        head = f"PUT /{bucket.bucket}/half HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
        cut.sendall(head.encode() + b"a" * 500)
    assert not place.at(f"s3://{bucket.bucket}/half").exists()
