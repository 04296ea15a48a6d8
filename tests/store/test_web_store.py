"""Stores that a plain web server offers: read as they are, never written."""

import ssl
import subprocess
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from test_object_store import SIZES, SPECS, K, check, fill, rows_of

from pipeline.errors import (
    ConfigError,
    CorruptError,
    FeatfoldError,
    IncompleteError,
    MissingInputError,
    UnreachableError,
)
from pipeline.store import Store, object_client


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def offered(path):
    """The URL of the folder that stores are in."""
    handler = partial(Quiet, directory=path.parent)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_store_is_read_from_a_web_server(path, offered):
    fill(path)
    store = Store.open(f"{offered}/store.zarr/")
    assert store.splits() == ("id/train",)
    check(store.split("id/train", verify=True))
    assert Store.is_at(f"{offered}/store.zarr")
    assert not Store.is_at(f"{offered}/none.zarr")


def test_splits_with_names_are_found_when_they_are_asked_for(path, offered):
    fill(path, "ood/near/mine", 30)
    store = Store.open(f"{offered}/store.zarr")
    assert store.has("ood/near/mine")
    assert not store.has("ood/near/other")
    check(store.split("ood/near/mine"), 30)


def test_appended_and_removed_blocks_are_found_without_a_list(path, offered):
    writer = Store.create(path).create_split("id/train", SPECS, classes=K, rows=30, **SIZES)
    writer.write(1, rows_of(24, 30))
    there = Store.open(f"{offered}/store.zarr")
    with pytest.raises(IncompleteError, match="rows 0-24"):
        there.split("id/train")
    writer.write(0, rows_of(0, 24))
    for start in (30, 37, 44):
        writer.append(rows_of(start, start + 7))
    check(there.split("id/train", verify=True), 51)
    writer.remove(3)
    assert there.split("id/train", verify=True).schema.rows == 44
    assert there.split("id/train").blocks == Store.open(path).split("id/train").blocks


def test_a_store_in_a_folder_with_a_blank_is_named_as_browsers_do(path, offered):
    fill(path.with_name("my feats.zarr"))
    for name in ("my%20feats.zarr", "my feats.zarr"):
        check(Store.open(f"{offered}/{name}").split("id/train"))


def test_nothing_is_written_to_a_web_server(path, offered):
    fill(path)
    url = f"{offered}/store.zarr"
    store = Store.open(url)
    for call in (
        lambda: Store.create(f"{offered}/new.zarr"),
        lambda: Store.create(url, overwrite=True),
        lambda: store.create_split("id/val", SPECS, classes=K, rows=8),
        lambda: store.writer("id/train").append(rows_of(83, 84)),
        lambda: store.writer("id/train").write(0, rows_of(0, 24), overwrite=True),
        lambda: store.remove_block("id/train", 0),
        lambda: store.lock("id/train"),
    ):
        with pytest.raises(ConfigError, match=r"can only be read; write to a folder, or to s3://"):
            call()
    check(Store.open(path).split("id/train", verify=True))


def test_damage_behind_a_web_server_is_found(path, offered):
    fill(path)
    (path / "id/train/halves/c/1/0").write_bytes(b"short")
    split = Store.open(f"{offered}/store.zarr").split("id/train")
    assert [one.array for one in split.verify()] == ["halves"]
    with pytest.raises(CorruptError, match="the object has 5 bytes"):
        check(split)


def test_a_page_that_is_no_store_is_told(path, offered):
    path.mkdir()
    with pytest.raises(MissingInputError, match="is not there, or is not a zarr group"):
        Store.open(f"{offered}/store.zarr")


def test_certificates_are_verified_whatever_the_environment_says(monkeypatch):
    for name in ("AWS", "GOOGLE", "AZURE"):
        monkeypatch.setenv(f"{name}_ALLOW_INVALID_CERTIFICATES", "true")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    for scheme in ("s3", "gs", "az", "https"):
        options = object_client.client(scheme, "certified-bucket").client_options
        assert options["allow_invalid_certificates"] == "false"
        assert options["allow_http"] == "false"


def test_what_a_service_needs_beside_credentials_is_named(monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(ConfigError, match=r"az://container: .*[Aa]ccount.*in the environment"):
        Store.open("az://container/feats.zarr")


def test_a_server_whose_certificate_nobody_vouches_for_is_refused_at_once(tmp_path):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    names = ["-keyout", "key.pem", "-out", "own.pem", "-subj", "/CN=localhost"]
    subprocess.run([*make, *names], cwd=tmp_path, check=True, capture_output=True)
    context.load_cert_chain(tmp_path / "own.pem", tmp_path / "key.pem")
    with ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        server.handle_error = lambda *_: None
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        with pytest.raises(FeatfoldError, match="certificate") as told:
            Store.open(f"https://localhost:{server.server_port}/store.zarr")
        assert not isinstance(told.value, UnreachableError)
        server.shutdown()
