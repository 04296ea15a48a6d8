"""Locks in an object store: what is one, what needs the service, and writers that lose theirs."""

import contextlib
import http.client

import pytest
from test_object_store import SIZES, SPECS, K, check, fill, objects, rows_of

from pipeline.errors import ConfigError, LockedError
from pipeline.store import Store, disk, object_client, object_lock, place


def test_the_clock_of_another_part_is_no_lock_of_parts_of_another_number(bucket):
    root = place.at(bucket.store)
    stem = root.with_name(".feats.zarr.id+train")
    stem.with_name(f"{stem.name}.part-1-of-2.lock.0123abcd.now").write_bytes(b"")
    with object_lock.hold_shared(stem, "the split", (2, 2)):
        pass
    with object_lock.hold_shared(stem, "the split"):
        pass
    with object_lock.hold_shared(stem, "the split", (1, 3)):
        for part in (None, (1, 2)):
            with (
                pytest.raises(LockedError, match="held by"),
                object_lock.hold_shared(stem, "the split", part),
            ):
                pass


def test_a_service_without_conditional_writes_holds_no_lock(bucket, monkeypatch):
    root = place.at(bucket.store)
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    object_client._client.cache_clear()
    try:
        with (
            pytest.raises(ConfigError, match="conditional writes"),
            object_lock.hold(root.with_name("a.lock"), "a"),
        ):
            pass
        with pytest.raises(ConfigError, match="conditional writes"):
            Store.create(bucket.store)
        assert objects(f"s3://{bucket.bucket}") == {}
    finally:
        object_client._client.cache_clear()


@pytest.mark.parametrize("ignored", ["if-none-match", "if-match"])
def test_a_service_that_ignores_conditions_is_found_out_when_a_store_is_made(
    bucket, monkeypatch, ignored
):
    own = http.client.HTTPConnection.request

    def request(self, method, path, body, headers):
        own(self, method, path, body, {k: v for k, v in headers.items() if k.lower() != ignored})

    monkeypatch.setattr(http.client.HTTPConnection, "request", request)
    with pytest.raises(ConfigError, match=r"ignores conditions of writes .* write to a folder"):
        Store.create(bucket.store)
    assert objects(f"s3://{bucket.bucket}") == {}


@pytest.mark.parametrize("at", ["bucket", "folder"])
def test_who_has_lost_its_lock_removes_nothing(request, monkeypatch, path, at):
    where = request.getfixturevalue("bucket").store if at == "bucket" else path
    store, own_lock = fill(where), disk.locked

    @contextlib.contextmanager
    def locked(*given):
        with own_lock(*given) as held:
            held.lost = True
            yield held

    with monkeypatch.context() as patched:
        patched.setattr(disk, "locked", locked)
        for call in (
            lambda: store.remove_block("id/train", 0),
            lambda: store.remove_split("id/train"),
        ):
            with pytest.raises(LockedError, match="taken over"):
                call()
    check(store.split("id/train", verify=True))
    store.remove_split("id/train")
    assert store.splits() == ()


@pytest.mark.parametrize("at", ["bucket", "folder"])
@pytest.mark.parametrize("when", ["before the chunks", "before the record"])
def test_who_has_lost_its_lock_commits_nothing(request, monkeypatch, path, at, when):
    where = request.getfixturevalue("bucket").store if at == "bucket" else path
    writer = fill(where).create_split("id/val", SPECS, classes=K, **SIZES)
    writer.append(rows_of(0, 5))
    held, own_lock, own_put = [], disk.locked, type(writer)._put_array
    put = []

    @contextlib.contextmanager
    def locked(*given):
        with own_lock(*given) as each:
            each.lost = when == "before the chunks"
            held[:] = [each]
            yield each

    def put_array(*given):
        put.append(own_put(*given))
        held[0].lost = True
        return put[-1]

    with monkeypatch.context() as patched:
        patched.setattr(disk, "locked", locked)
        patched.setattr(type(writer), "_put_array", put_array)
        with pytest.raises(LockedError, match="taken over"):
            writer.append(rows_of(5, 10))
    assert bool(put) == (when == "before the record")
    assert len(writer.blocks) == 1
    assert Store.open(where).split("id/val", verify=True).schema.rows == 5
