"""AUROC over a store in a process of its own: STORE BINS, prints value, bounds and peak bytes."""

import sys

from pipeline.engine import Threads, run
from pipeline.machine import peak_rss_nbytes
from pipeline.metrics import AUROC
from pipeline.store import Store
from pipeline.views import Stored

if __name__ == "__main__":
    store, bins = sys.argv[1:]
    # Bins are for scores that do not fit their budget; without them the usual one is enough.
    options = {"bins": int(bins), "budget": 2**19} if int(bins) else {}
    metric = AUROC(of=Stored("scores"), is_ood=Stored("positive"), **options)
    split = Store.open(store).split("id/test")
    found = run({"metric": metric}, split, Threads(1))["metric"]["auroc"]
    print(repr(found.value), repr(found.lower), repr(found.upper), found.exact, peak_rss_nbytes())
