"""What workers print: those that replace lost ones are as quiet as the first."""

import logging
import os
import signal
import time

from pipeline import cluster


def _level() -> int:
    return logging.getLogger("distributed.worker").level


def _pids(client):
    return client.run(os.getpid, on_error="return").values()


def test_a_worker_that_replaces_a_killed_one_is_as_quiet(tmp_path):
    resources = cluster.settle("local", workers=1, memory="2GiB")
    with cluster.open_cluster(resources, tmp_path) as running:
        client = running.client
        (first,) = _pids(client)
        assert set(client.run(_level).values()) == {logging.CRITICAL}
        os.kill(first, signal.SIGKILL)
        deadline = time.monotonic() + 60
        while not any(isinstance(p, int) and p != first for p in _pids(client)):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        assert set(client.run(_level).values()) == {logging.CRITICAL}
