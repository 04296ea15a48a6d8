"""What all tests share: rewritten asserts in the laws, and one small cluster for the session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.register_assert_rewrite("pipeline.testing")


@pytest.fixture(scope="session")
def dask_client() -> Iterator[Any]:
    """A client of two local worker processes with one thread each."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0"
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client
