"""Fit over a store in a process of its own: STORE HEAD SAVED, prints the bytes that it added."""

import sys

import numpy as np

import pipeline as ff
from pipeline.machine import peak_rss_nbytes, reset_peak, rss_nbytes

NAMES = ("mahalanobis", "relative_mahalanobis", "kl_matching", "she", "vim")


def warm():
    """Load what a fit loads, whatever its size."""
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((200, 2, 4)) + 3 * np.eye(3, 4)[np.arange(200) % 3, None]
    ff.fit(NAMES[:4], (rows, np.arange(200) % 3), head="lda", cluster="threads", workers=1)


if __name__ == "__main__":
    store, head, saved = sys.argv[1:]
    warm()
    split = ff.Store.open(store).split("id/train")
    reset_peak()
    baseline = rss_nbytes()
    fitted = ff.fit(NAMES, split, head={"weights": head}, cluster="threads", workers=2)
    print(peak_rss_nbytes() - baseline)
    fitted.save(saved)
