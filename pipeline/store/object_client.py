"""Clients of object stores: one for each bucket and process, asked again while a service fails.

Credentials are found by the client itself (the environment, a profile, the machine's role), and
appear nowhere else: what services answer is shortened and redacted before it becomes an error.
Certificates are always verified; a plain connection to S3 needs AWS_ALLOW_HTTP in the environment.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

from pipeline.errors import (
    ConfigError,
    ExistsRefusedError,
    FeatfoldError,
    MissingInputError,
    UnreachableError,
)

PATIENCE_SECONDS = 120.0
"""How long a service that fails, or cannot be reached, is asked again."""
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.1, 5.0
TOLD_SECONDS = 60.0
"""For how long it is not said again that a service is waited for."""
_LOG = logging.getLogger(__name__)
_TOLD: dict[str, float] = {}
"""When that was said last, by bucket."""
_TIMEOUTS = {"connect_timeout": "5s", "read_timeout": "60s", "timeout": "30m"}
_OWN_RETRIES = {
    "max_retries": 1,  # more of them would keep silent of a service that does not answer
    "retry_timeout": timedelta(seconds=30),
    "backoff": {
        "init_backoff": timedelta(milliseconds=50),
        "max_backoff": timedelta(seconds=2),
        "base": 2,
    },
}
"""What the client does by itself, within one of our tries."""
_PLAIN = {"s3": "AWS_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}
"""What allows a service without TLS, such as one in the same rack."""
_ENDPOINTS = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
}
"""What names a service other than that of the provider."""
_TRUE = ("1", "true", "yes", "on")
_FINAL = re.compile(
    r"status code: (?!408|425|429)4\d\d|169\.254\.|metadata\.google|builder error|without LOCATION"
    r"|URL scheme is not allowed|InvalidCertificate|Name or service not known|nodename nor servname"
)
"""Failures that another try does not mend."""
_SECRET = re.compile(r"\?[^\s\"'<>|)]*|(?<=//)[^/@\s]+@|(?i:(signature|key|token|sig)\w*=\S+)")


def ask(scheme: str, bucket: str, what: str, key: str | None, *rest: Any) -> Any:
    """Ask one thing of a service, again while it fails for a reason that may pass.

    Raises FileNotFoundError for a key that is not there, ExistsRefusedError for one that was to be
    new, MissingInputError for a bucket that is not there, UnreachableError when patience has run
    out, and FeatfoldError where access is refused. That a service is waited for is logged at once.
    """
    where = f"{scheme}://{bucket}/{key or ''}"
    of_bucket = client(scheme, bucket)
    began, wait, tries = time.monotonic(), FIRST_WAIT_SECONDS, 0
    while True:
        tries += 1
        try:
            return _ASKED[what](of_bucket, key, *rest)
        except Exception as error:
            refusal = _refused(error, where, f"{scheme}://{bucket}")
            if refusal is not None:
                raise refusal from None
            seconds = time.monotonic() - began
            if seconds + wait > PATIENCE_SECONDS:
                raise UnreachableError(
                    f"{where} could not be reached, or its service failed, {tries} times in "
                    f"{seconds:.0f} s ({_told(error)}); check the network and {_endpoint(scheme)}; "
                    "what is committed is kept: run the same again when the service is back, and "
                    "it goes on from there"
                ) from None
            if began - _TOLD.get(bucket, -TOLD_SECONDS) >= TOLD_SECONDS:
                _TOLD[bucket] = time.monotonic()
                _LOG.warning(
                    "%s does not answer (%s); it is asked again for up to %.0f s: check the "
                    "network and %s, or interrupt", where, _told(error),
                    PATIENCE_SECONDS - seconds, _endpoint(scheme),
                )  # fmt: skip
        time.sleep(wait)
        wait = min(2 * wait, LONGEST_WAIT_SECONDS)


def _refused(error: Exception, where: str, bucket: str) -> Exception | None:
    """Return what to raise for a failure that stays, or None for one that may pass."""
    kind, text = type(error).__name__, str(error)
    if "NoSuchBucket" in text or "ContainerNotFound" in text or "bucket does not exist" in text:
        return MissingInputError(f"{bucket}: there is no such bucket; create it, or mend its name")
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(f"{where} is not there")
    if kind in ("AlreadyExistsError", "PreconditionError"):
        return ExistsRefusedError(f"{where} was written by somebody else meanwhile")
    if kind in ("PermissionDeniedError", "UnauthenticatedError"):
        return FeatfoldError(
            f"{where}: the service refuses access ({_told(error)}); check which credentials the "
            "environment or profile gives, and that they may list, read and, to write, put and "
            "delete there"
        )
    if kind not in ("GenericError", "JoinError"):
        return error
    found = _FINAL.search(text)
    if found is None:
        return None
    if "169.254." in found[0] or "metadata.google" in found[0]:
        return FeatfoldError(
            f"{where}: no credentials were found; set AWS_PROFILE, AWS_ACCESS_KEY_ID or what your "
            "service asks for in the environment, or AWS_SKIP_SIGNATURE=true for a public bucket"
        )
    if "builder error" in found[0] or "scheme" in found[0]:
        return ConfigError(
            f"{where}: the endpoint is a plain http one; use https, or set AWS_ALLOW_HTTP=true in "
            "the environment where that is meant"
        )
    if found[0] == "InvalidCertificate":
        return FeatfoldError(
            f"{where}: the certificate of the service is not one that can be verified; name that "
            "of its authority in SSL_CERT_FILE in the environment"
        )
    return FeatfoldError(f"{where}: {_told(error)}; check the name, the region and the endpoint")


def _endpoint(scheme: str) -> str:
    """Name the service, as the environment does."""
    names = _ENDPOINTS.get(scheme, ())
    named = [f"{name}={redacted(os.environ[name])}" for name in names if os.environ.get(name)]
    return f"the endpoint ({named[0] if named else 'that of the provider'})"


def _told(error: Exception) -> str:
    """Return what a client says, in one line that holds no secret."""
    text = str(error).partition("Debug source")[0]
    code = re.search(r"<Code>(\w+)</Code>", text)
    text = text.partition("<?xml")[0].partition("<!DOCTYPE")[0].partition("<html")[0]
    words = redacted(" ".join(text.split()).strip(" :"))[:300]
    return f"{words}: {code[1]}" if code else words


def redacted(text: str) -> str:
    """Return text without users, passwords, queries and what looks like a signature."""
    return _SECRET.sub("...", text)


def client(scheme: str, bucket: str) -> Any:
    """Return the client of a bucket. Raises ConfigError without obstore, or what it needs."""
    try:
        return _client(scheme, bucket, os.getpid())
    except FeatfoldError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{scheme}://{bucket}: {_told(error)}; set what the service needs in the environment"
        ) from None


@lru_cache(maxsize=64)
def _client(scheme: str, bucket: str, process: int) -> Any:
    """Make the client of a bucket; it is not handed on to a forked process."""
    store = _library().store
    plain = scheme == "http" or os.environ.get(_PLAIN.get(scheme, ""), "").lower() in _TRUE
    options = {**_TIMEOUTS, "allow_invalid_certificates": False, "allow_http": plain}
    if scheme == "s3":
        more = _profile()
        return store.S3Store(bucket, client_options=options, retry_config=_OWN_RETRIES, **more)
    if scheme == "gs":
        return store.GCSStore(bucket, client_options=options, retry_config=_OWN_RETRIES)
    if scheme == "az":
        return store.AzureStore(
            container_name=bucket, client_options=options, retry_config=_OWN_RETRIES
        )
    return store.HTTPStore.from_url(
        f"{scheme}://{bucket}", client_options=options, retry_config=_OWN_RETRIES
    )


def _library() -> Any:
    try:
        import obstore
        import obstore.store
    except ImportError:
        raise ConfigError(
            "stores at s3://, gs://, az:// and http(s):// need obstore; pip install "
            "'featfold[cloud]'"
        ) from None
    return obstore


def _profile() -> dict[str, Any]:
    """Return what takes credentials from a profile, where the environment holds none itself."""
    own = ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SKIP_SIGNATURE")
    others = ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI")
    if any(os.environ.get(name) for name in own + others):
        return {}
    named = os.environ.get("AWS_PROFILE")
    file = Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials")
    if not named and not file.expanduser().exists():
        return {}
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        raise ConfigError(
            "credentials in a profile of the AWS tools are read by boto3; pip install boto3, or "
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment"
        ) from None
    try:
        return {"credential_provider": Boto3CredentialProvider()}
    except Exception as error:  # botocore names the profile, and nothing that is in it
        raise ConfigError(f"credentials of a profile: {redacted(str(error))}") from None


def _content(client: Any, key: str) -> Any:
    return _library().get(client, key).bytes()


def _content_and_meta(client: Any, key: str) -> tuple[Any, Any]:
    found = _library().get(client, key)
    return found.bytes(), found.meta


def _content_range(client: Any, key: str, start: int, stop: int) -> tuple[Any, int]:
    try:
        found = _library().get(client, key, options={"range": (start, stop)})
    except Exception as error:
        said = f"{type(error).__name__} {error}"
        if not any(words in said for words in _NO_RANGE):
            raise
        whole = _content(client, key)
        return memoryview(whole)[start:stop], len(whole)
    return found.bytes(), int(found.meta["size"])


_NO_RANGE = ("non-partial response", "NotSupportedError", "status code: 416")
"""What is said where a web server knows no ranges, or an object ends before one begins."""


def _put(client: Any, key: str, content: Any, mode: Any) -> None:
    """Write in one request: an upload in parts would leave parts behind where it is cut off.

    Raises ConfigError for a write on a condition where the service knows none.
    """
    library = _library()
    try:
        library.put(client, key, content, mode=mode, use_multipart=False)
    except Exception as error:
        unknown = type(error).__name__ in ("NotSupportedError", "NotImplementedError")
        if mode == "overwrite" or not (unknown or "status code: 501" in str(error)):
            raise
        raise ConfigError(
            f"{key}: the service has no conditional writes (If-None-Match, If-Match), or they are "
            "turned off, and without them two writers would hold one lock; write to a folder, or "
            "to a service that has them, and unset AWS_CONDITIONAL_PUT"
        ) from None


def _below(client: Any, key: str | None) -> list[str]:
    found = _library().list_with_delimiter(client, key)
    return [*found["common_prefixes"], *(entry["path"] for entry in found["objects"])]


def _all_below(client: Any, key: str | None) -> list[str]:
    return [entry["path"] for part in _library().list(client, key) for entry in part]


_ASKED: dict[str, Callable[..., Any]] = {
    "head": lambda client, key: _library().head(client, key),
    "content": _content,
    "content_and_meta": _content_and_meta,
    "content_range": _content_range,
    "put": _put,
    "delete": lambda client, key: _library().delete(client, key),
    "copy": lambda client, key, other: _library().copy(client, key, other),
    "below": _below,
    "all_below": _all_below,
}
