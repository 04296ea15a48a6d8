"""What all tests share: rewritten asserts in the laws, one small cluster and one S3 server."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings
from s3_server import bucket as bucket
from s3_server import s3_port as s3_port

# In CI a failure must be that of the change; elsewhere every run draws new examples.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("default", deadline=None)
settings.load_profile("ci" if "CI" in os.environ else "default")

pytest.register_assert_rewrite("pipeline.testing")

from pipeline.testing.fixtures import dask_client as dask_client  # noqa: E402 - rewritten above
from pipeline.testing.fixtures import one_blas_thread as one_blas_thread  # noqa: E402

MEASURED = ("memory", "kill", "signal")
"""Words in the names of tests that measure this machine, or hit processes at chosen moments."""
GPUS = {"cupy", "cuda"}
"""Libraries of the laws that are there only where a GPU answers."""
AGAIN = {"reruns": 2, "reruns_delay": 2, "only_rerun": ["AssertionError"]}
"""Threads that other tests left allocate too: memory is measured again before it is too much."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that must not run beside others; the rest may share the cores.

    The laws of memory trace the allocations of their own process: others do not disturb them.
    """
    for item in items:
        law = isinstance(item, pytest.Function) and item.cls is not None
        if any(word in item.nodeid for word in MEASURED) and not law:
            item.add_marker(pytest.mark.alone)
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if GPUS.intersection(map(str, parameters.values())):
            item.add_marker(pytest.mark.gpu)
        if "memory" in item.nodeid:
            item.add_marker(pytest.mark.flaky(**AGAIN))


@pytest.fixture(scope="session", autouse=True)
def _cache_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep what tests measure of this machine out of the cache of whoever runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield
