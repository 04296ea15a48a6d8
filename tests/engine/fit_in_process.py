"""Fit over a store in a process of its own, to be killed: STORE CACHE KIND, prints a digest."""

import sys
import time
from pathlib import Path

from pipeline import detectors
from pipeline.cluster import Resources, open_cluster
from pipeline.content import digest
from pipeline.engine import Job, Trace, run_jobs
from pipeline.heads import LDAHead
from pipeline.inputs import with_head
from pipeline.store import Store

NAMES = ("mahalanobis", "relative_mahalanobis", "she", "kl_matching", "vim")
FOLD_SECONDS = 0.05
"""Each block takes at least this long, so that a kill finds some in flight."""


def main() -> None:
    store, cache, kind = sys.argv[1:4]
    split = (Store.open(store).split("id/train"),)
    made = {name: with_head(detectors.load(name)(), LDAHead()) for name in NAMES}
    jobs = {name: Job(detector, {"train": split}) for name, detector in made.items()}
    trace = Trace()

    def finished(pass_, work, block):
        sys.stdout.write(f"folded {pass_.name} {block.index}\n")  # one call: threads share it
        sys.stdout.flush()
        time.sleep(FOLD_SECONDS)

    resources = Resources(kind, 2, 2**30, "")
    with open_cluster(resources, Path(cache), finished=finished) as cluster:
        print("started", flush=True)
        outcomes = run_jobs(jobs, cluster.execute, trace=trace)
    print("digest", digest(outcomes), trace.read_nbytes, flush=True)


if __name__ == "__main__":
    main()
