"""Fit on rows in memory in processes of their own, to be interrupted: CACHE LOG CLUSTER."""

import sys

import numpy as np
import run_in_process  # folds are slow, and told in LOG

import pipeline as ff
from pipeline.content import digest
from pipeline.store import ArraySplit

assert run_in_process.SECONDS
ROWS, D, K = 4000, 16, 5


def main():
    rng = np.random.default_rng(0)
    rows = ArraySplit(rng.standard_normal((ROWS, D)), rng.integers(0, K, ROWS), block_rows=50)
    fitted = ff.fit("mahalanobis", rows, cluster=sys.argv[3], workers=2, cache=sys.argv[1])
    print(digest(fitted["mahalanobis"].scorer))


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
