"""Workers that compute on a GPU: with which library, and how much of its memory they may take."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from distributed import WorkerPlugin

from pipeline import arrays
from pipeline.arrays import Place, devices
from pipeline.errors import FeatfoldError

UNLIMITED = 2**62


class PoolsAreCapped(WorkerPlugin):  # type: ignore[misc]
    """Cap the memory that the library of a place takes of the device of a worker."""

    name = "featfold-pools-are-capped"

    def __init__(self, place: Place, nbytes: int) -> None:
        self.place, self.nbytes = place, nbytes
        """Bytes of each thread."""

    def setup(self, worker: Any) -> None:
        """Load the library, in workers that replace lost ones too."""
        os.environ["CUPY_TF32"] = "0"  # products of float32 keep their digits
        failure = ""
        try:
            if (device := devices.of(self.place)) is not None:
                device.cap(self.nbytes * worker.state.nthreads)
        except Exception as error:  # whatever a library raises where its driver does not suit
            failure = f"{type(error).__name__}: {error}"
        if failure:  # without the original beside it: whoever started this may not have the library
            raise FeatfoldError(
                f"cluster: {self.place.library} does not work on a worker ({failure}); see what "
                "featfold doctor says there"
            )

    def teardown(self, worker: Any) -> None:
        """Leave workers of somebody else as they were."""
        if self.place in devices.OPENED:
            devices.OPENED[self.place].cap(UNLIMITED)


@contextmanager
def capped(client: Any, nbytes: int) -> Iterator[Place]:
    """Cap the pools of all workers of a client at ``nbytes`` per thread; yield where they compute.

    Raises :class:`FeatfoldError` where they cannot, or not all with the same library.
    """
    found = client.run(arrays.gpu_place)
    names = {address: place and place.library for address, place in found.items()}
    if len({*names.values()}) != 1 or None in names.values():
        raise FeatfoldError(
            f"cluster: workers with a GPU compute with one library, here with {names}; install the "
            "same cupy for all, and see what featfold doctor says there"
        )
    place: Place = next(iter(found.values()))
    plugin = PoolsAreCapped(place, nbytes)
    try:
        client.register_plugin(plugin)
        yield place
    finally:
        if client.status == "running":
            client.unregister_worker_plugin(plugin.name)
