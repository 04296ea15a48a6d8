"""Jobs in sessions of their own, to be killed, and what they leave behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from durable_store import make

SCRIPT = Path(__file__).with_name("run_in_process.py")
BLOCKS, PASSES = 40, 2
JOB = """\
name: killed
store: {store}
head: lda
detectors: [mahalanobis, relative_mahalanobis, kl_matching, she, vim]
resources: {{cluster: {cluster}, workers: 2, memory: 1GiB, cache: {folder}/cache}}
report: {{directory: {folder}/runs}}
"""
TMP = "tmp"


@dataclass
class Run:
    """A job on its way, in a session of its own."""

    process: subprocess.Popen
    log: Path

    @property
    def lines(self):
        text = self.log.read_text() if self.log.exists() else ""
        return [tuple(line.split()) for line in text.splitlines()]

    def blocks(self, what):
        """Return how often each block was told of."""
        return Counter(int(block) for told, _, block in self.lines if told == what)

    def in_flight(self):
        """Return (process, block) of what begun and did not end."""
        flying = {}
        for told, thread, block in self.lines:
            flying[thread] = (int(thread.partition("/")[0]), int(block))
            if told == "end":
                del flying[thread]
        return sorted(flying.values())

    def members(self):
        """Return the processes of its session that still run."""
        found = []
        for process in psutil.process_iter():
            with suppress(ProcessLookupError, psutil.NoSuchProcess):
                ours = os.getsid(process.pid) == self.process.pid
                if ours and process.status() != psutil.STATUS_ZOMBIE:  # nobody may reap orphans
                    found.append(process)
        return found

    def wait_until_gone(self):
        """All of its session end on their own."""
        deadline = time.monotonic() + 20
        while left := self.members():
            assert time.monotonic() < deadline, f"orphans: {left}"
            time.sleep(0.05)

    @property
    def err(self):
        return self.log.with_suffix(".err").read_text()

    def wait_for_the_first_fold(self):
        while not self.blocks("begin"):
            assert self.process.poll() is None, self.err
            time.sleep(0.005)

    def finish(self):
        assert self.process.wait(120) == 0, self.err
        assert "Traceback" not in self.err
        return self

    def kill_all(self):
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


class Jobs:
    """Starts jobs over one store, each with a folder for its cache, runs and temporary files."""

    def __init__(self, home):
        self.home = home
        self.store = make(home / "feats.zarr", BLOCKS).path
        self.running = []

    def start(self, folder, cluster, **environment):
        folder.mkdir(exist_ok=True)
        (folder / TMP).mkdir(exist_ok=True)
        job = folder / "job.yaml"
        job.write_text(JOB.format(store=self.store, cluster=cluster, folder=folder))
        log = folder / f"run{len(list(folder.glob('*.log')))}.log"
        with log.with_suffix(".err").open("w") as err:
            process = subprocess.Popen(
                [sys.executable, str(SCRIPT), str(job), str(log)],
                stdout=subprocess.DEVNULL, stderr=err, start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder / TMP),
                     "XDG_CACHE_HOME": str(self.home / "xdg"), **environment},
            )  # fmt: skip
        self.running.append(Run(process, log))
        return self.running[-1]


@dataclass
class Outcome:
    """What a job leaves."""

    scorers: bytes
    integers: object
    partials: dict

    @classmethod
    def of(cls, folder):
        family = folder / "runs" / "killed"
        directory = family / (family / "LATEST").read_text().strip()
        results = json.loads((directory / "results.json").read_text())
        fitted = json.loads((directory / "detectors" / "artifact.json").read_text())
        return cls(
            (directory / "detectors" / "arrays.safetensors").read_bytes(),
            (fitted["digest"], results["data"]),
            {
                path.relative_to(folder).as_posix(): path.read_bytes()
                for path in (folder / "cache" / "partials").rglob("*")
                if path.is_file()
            },
        )


def strays(folder):
    """Return files that nobody will look at again."""
    hidden = [p for part in ("cache", "runs") for p in (folder / part).rglob(".*")]
    unfinished = [p for p in folder.rglob("*") if p.name.endswith((".partial", ".lock"))]
    return {p for p in (*hidden, *unfinished) if not p.is_relative_to(folder / TMP)} | {
        p for p in (folder / TMP).rglob("*") if p.name.startswith("worker-")
    }
