"""A prefix of an object store, as a path: named by a URL, read and written whole objects at a time.

An object appears whole or not at all, so writing one needs no renaming. Every call is tried again
for a while (see :mod:`pipeline.store.object_client`); all of them may be repeated safely.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from urllib.parse import unquote, urlsplit

from pipeline.errors import ConfigError, ExistsRefusedError
from pipeline.store import object_client

SCHEMES = ("s3", "gs", "az", "http", "https")
WEB = ("http", "https")
"""Schemes that can only be read."""
AT_ONCE = 16
"""Small objects that are asked for at the same time."""


@dataclass(frozen=True)
class Seen:
    """An object as it was found: its bytes, and what tells it from its other versions."""

    content: bytes
    version: dict[str, str]
    written: datetime
    """When it was written, by the clock of the service."""


@dataclass(frozen=True, order=True)
class ObjectPlace:
    """A key, or a prefix of keys, in a bucket; two equal ones are the same place."""

    scheme: str
    bucket: str
    """Bucket, container, or host and port."""
    key: str = ""

    @classmethod
    def of(cls, url: str) -> ObjectPlace:
        """Return the place that a URL names; a slash at its end says nothing.

        Raises ConfigError for another scheme, without a bucket, and for a URL with a user, a
        password or a query: these are how credentials get into files.
        """
        scheme, bare = url.partition("://")[0].lower(), url.partition("://")[2]
        if scheme not in SCHEMES or "://" not in url:
            known = ", ".join(f"{known}://" for known in SCHEMES)
            raise ConfigError(f"{object_client.redacted(url)}: expected a folder, or {known}")
        host, _, key = bare.partition("/")
        if "@" in host or any(mark in bare for mark in "?#"):
            raise ConfigError(
                f"{scheme}://{host.rpartition('@')[2].partition('?')[0]}/...: the URL of a store "
                "holds no user, password or query; credentials are taken from the environment or "
                "the profile of the service's own tools"
            )
        key = (unquote(key) if scheme in WEB else key).rstrip("/")
        if not host or any(part in ("", ".", "..") for part in key.split("/") if key):
            raise ConfigError(f"{url}: expected {scheme}://BUCKET/NAME, without empty or dot names")
        if scheme in WEB and urlsplit(url).hostname is None:
            raise ConfigError(f"{url}: expected {scheme}://HOST/NAME")
        return cls(scheme, host, key)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}".rstrip("/")

    @property
    def name(self) -> str:
        """The last part of the key."""
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> ObjectPlace:
        """The place above; of a bucket, the bucket."""
        return replace(self, key=self.key.rpartition("/")[0])

    @property
    def is_read_only(self) -> bool:
        """Whether a web server offers it."""
        return self.scheme in WEB

    def __truediv__(self, key: str) -> ObjectPlace:
        return replace(self, key=f"{self.key}/{key}".strip("/"))

    def joinpath(self, *parts: str) -> ObjectPlace:
        """Return the place below, part by part."""
        return self / "/".join(parts) if parts else self

    def with_name(self, name: str) -> ObjectPlace:
        """Return the place beside this one that is called ``name``."""
        return self.parent / name

    def check_writable(self) -> None:
        """Raise ConfigError where no store can be written."""
        self._check_not_read_only()
        if not self.key:
            raise ConfigError(
                f"{self} is a whole bucket; name a place in it, such as {self}/feats.zarr, as "
                "locks and replaced stores lie beside a store"
            )

    def _check_not_read_only(self) -> None:
        if self.is_read_only:
            raise ConfigError(
                f"{self} can only be read; write to a folder, or to s3://, gs:// or az://"
            )

    def exists(self) -> bool:
        """Tell whether there is an object of this very key."""
        try:
            self._ask("head", self.key)
        except FileNotFoundError:
            return False
        return True

    def read_bytes(self) -> Any:
        """Return the content, as what has the interface of a buffer. Raises FileNotFoundError."""
        return self._ask("content", self.key)

    def read_text(self, encoding: str = "utf-8") -> str:
        """Return the content as text. Raises FileNotFoundError."""
        return bytes(self.read_bytes()).decode(encoding)

    def read_range(self, start: int, stop: int) -> tuple[Any, int]:
        """Return some of the bytes, and the size of the whole. Raises FileNotFoundError."""
        found: tuple[Any, int] = self._ask("content_range", self.key, start, stop)
        return found

    def seen(self) -> Seen | None:
        """Return the content with its version, or None where there is no such object."""
        try:
            content, meta = self._ask("content_and_meta", self.key)
        except FileNotFoundError:
            return None
        version = {key: meta[key] for key in ("e_tag", "version") if meta.get(key)}
        return Seen(bytes(content), version, meta["last_modified"])

    def write_bytes(
        self, content: bytes, *, new: bool = False, over: dict[str, str] | None = None
    ) -> None:
        """Write a whole object in one request.

        ``new`` raises ExistsRefusedError where there is one already, ``over`` unless the one there
        is of that version; both by the service itself, where it can. Found again after a reply was
        lost, what this call wrote is taken for written.
        """
        self._check_not_read_only()
        mode: Any = "create" if new else over or "overwrite"
        try:
            self._ask("put", self.key, content, mode)
        except ExistsRefusedError:
            now = self.seen()
            if now is None or now.content != content:
                raise

    def unlink(self, missing_ok: bool = True) -> None:
        """Delete the object; one that is not there is deleted already."""
        self._check_not_read_only()
        with suppress(FileNotFoundError):
            self._ask("delete", self.key)

    def children(self) -> list[str]:
        """Return the names right below: of objects, and of prefixes. Empty where nothing is."""
        paths: list[str] = self._ask("below", self.key or None)
        return sorted({path[len(self.key) :].strip("/").partition("/")[0] for path in paths})

    def all_below(self) -> list[ObjectPlace]:
        """Return every object below, however deep."""
        return [replace(self, key=key) for key in self._ask("all_below", self.key or None)]

    def move(self, other: ObjectPlace, last: str) -> Iterator[None]:
        """Copy everything below to another place, yield, and delete it here, ``last`` excepted."""
        found = self.all_below()
        each(lambda old: old.copy(other / old.key[len(self.key) + 1 :]), found)
        yield
        each(lambda old: old.unlink(), [old for old in found if old != self / last])

    def copy(self, other: ObjectPlace) -> None:
        """Copy one object within the bucket; its bytes do not pass through here."""
        self._ask("copy", self.key, other.key)

    def remove_tree(self) -> None:
        """Delete everything below."""
        each(lambda old: old.unlink(), self.all_below())

    def _ask(self, what: str, key: str | None, *rest: Any) -> Any:
        return object_client.ask(self.scheme, self.bucket, what, key, *rest)


def each(call: Any, items: list[Any], at_once: int = AT_ONCE) -> list[Any]:
    """Return ``call`` of each item, several at the same time."""
    if len(items) < 2:
        return [call(item) for item in items]
    with ThreadPoolExecutor(min(at_once, len(items)), thread_name_prefix="featfold-ask") as pool:
        return list(pool.map(call, items))
