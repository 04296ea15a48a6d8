"""The fixtures that the laws ask for; import them into the ``conftest.py`` of a package's tests.

``from pipeline.testing.fixtures import dask_client, one_blas_thread``
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from threadpoolctl import threadpool_limits

from pipeline.cluster import open_cluster, settle

WORKERS = 2


@pytest.fixture(scope="session", autouse=True)
def one_blas_thread() -> Iterator[None]:
    """Multiply as engines do: with several threads the bits of a row depend on its neighbours."""
    with threadpool_limits(1):
        yield


@pytest.fixture(scope="session")
def dask_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A client of two local worker processes with one thread each, started for all laws once."""
    resources = settle("local", WORKERS)
    with open_cluster(resources, tmp_path_factory.mktemp("cache")) as cluster:
        yield cluster.client
