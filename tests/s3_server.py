"""A real S3 server on the loopback (moto's), and a proxy before it that counts, fails and stops."""

from __future__ import annotations

import http.client
import itertools
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

SECRET = "verySecretAccessKey0123456789"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "AKIATESTONLY",
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
}


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def s3_server() -> Iterator[int]:
    """Yield the port of a server process that holds its objects in memory."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            assert process.poll() is None, "the server has ended"
            with suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/moto-api/", timeout=5).close()
                break
            time.sleep(0.1)
        yield port
    finally:
        process.kill()
        process.wait()


def create_bucket(port: int, name: str) -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/{name}", method="PUT")
    urllib.request.urlopen(request, timeout=30).close()


class Proxy:
    """Hands requests on to a server; may fail every n-th in turn, and stop listening for a while.

    ``got`` counts the bytes of GET answers by path, ``asked`` the requests by method.
    """

    def __init__(self, behind: int) -> None:
        self.behind, self.port = behind, free_port()
        self.bucket = ""
        self.got: Counter[str] = Counter()
        self.asked: Counter[str] = Counter()
        self.every, self.failed = 0, 0
        self.goes_at, self.away = 0, 0
        """The request, counted from now, at which the service goes away; how often it has."""
        self.faults = itertools.cycle(("500", "503", "cut before", "cut after", "cut inside"))
        self.refuse: dict[str, int] = {}
        """Method -> status that every such request is answered with."""
        self._count = itertools.count(1)
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def store(self) -> str:
        """Where tests put a store."""
        return f"s3://{self.bucket}/feats.zarr"

    def chunks(self) -> dict[str, int]:
        """Return the bytes that were got of each chunk, by its key below the store."""
        start = f"/{self.bucket}/feats.zarr/"
        return {p.removeprefix(start): n for p, n in self.got.items() if "/c/" in p}

    def start(self) -> None:
        proxy = self

        class Handler(_Handler):
            owner = proxy

        class Server(ThreadingHTTPServer):
            allow_reuse_address = True
            daemon_threads = True
            request_queue_size = 64

            def handle_error(self, request: Any, client_address: Any) -> None:
                """Clients that are killed leave connections; nothing needs to be said of them."""

        self._server = Server(("127.0.0.1", self.port), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Refuse connections from now on, and cut those there are."""
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    def _leave(self) -> None:
        self.stop()
        self.away += 1
        time.sleep(1.5)
        self.start()

    @property
    def is_up(self) -> bool:
        return self._server is not None

    def reset(self) -> None:
        with self._lock:
            self.got.clear()
            self.asked.clear()
            self.failed = 0

    def fault(self) -> str:
        """Return what is to go wrong with the next request; nothing, most times."""
        with self._lock:
            self.goes_at -= 1
            if self.goes_at == 0:
                threading.Thread(target=self._leave).start()
                return "cut before"
            if not self.every or next(self._count) % self.every:
                return ""
            self.failed += 1
            return next(self.faults)

    def note(self, method: str, path: str, nbytes: int) -> None:
        with self._lock:
            self.asked[method] += 1
            if method == "GET":
                self.got[path] += nbytes

    @contextmanager
    def failing(self, every: int) -> Iterator[None]:
        """Fail every n-th request: with 500, 503, or a connection that is cut."""
        self.every = every
        try:
            yield
        finally:
            self.every = 0


class _Handler(BaseHTTPRequestHandler):
    owner: Proxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 2**16  # head and body of an answer go together

    def log_message(self, *_: Any) -> None:
        pass

    def cut(self) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def answer(self, status: int, headers: list[tuple[str, str]], body: bytes, part: int) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("transfer-encoding", "connection", "server", "date"):
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[:part])

    def hand_on(self) -> None:
        owner = self.owner
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = owner.fault() if owner.is_up else "cut before"
        if status := owner.refuse.get(self.command, 0):
            return self.answer(status, [("Content-Length", "0")], b"", 0)
        if fault in ("500", "503"):
            return self.answer(int(fault), [("Content-Length", "0")], b"", 0)
        if fault == "cut before":
            return self.cut()
        behind = http.client.HTTPConnection("127.0.0.1", owner.behind, timeout=60)
        try:
            behind.request(self.command, self.path, content, dict(self.headers))
            found = behind.getresponse()
            body, headers = found.read(), found.getheaders()
        finally:
            behind.close()
        if fault == "cut after" or not owner.is_up:
            return self.cut()  # the service has done it, and its client never knows
        inside = fault == "cut inside"
        self.answer(found.status, headers, body, len(body) // 2 if inside else len(body))
        if inside:
            return self.cut()
        owner.note(self.command, self.path.partition("?")[0], len(body))
        return None

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = hand_on  # noqa: N815


@pytest.fixture(scope="session")
def s3_port() -> Iterator[int]:
    """One server for all tests of this process."""
    with s3_server() as port:
        yield port


@pytest.fixture
def bucket(s3_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A bucket of its own, reached through a proxy that the environment names."""
    proxy = Proxy(s3_port)
    proxy.bucket = f"bucket-{uuid.uuid4().hex[:12]}"
    create_bucket(s3_port, proxy.bucket)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": proxy.url}.items():
        monkeypatch.setenv(name, value)
    proxy.start()
    yield proxy
    proxy.stop()
