"""Fit detectors on a split of a store and save them: parse, call featfold, exit.

python workflows/fit.py features.zarr --out fitted --detectors mahalanobis she --head lda
"""

import argparse
import sys

import pipeline as ff
from pipeline.errors import FeatfoldError


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", help="zarr store with the features")
    parser.add_argument("--split", default="id/train")
    parser.add_argument("--detectors", nargs="+", default=["mahalanobis", "relative_mahalanobis"])
    parser.add_argument("--head", default="auto", choices=["auto", "lda", "stored"])
    parser.add_argument("--cluster", default="auto")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--memory", default="auto", help="per worker, e.g. 2GiB")
    parser.add_argument("--out", default="fitted", help="directory of the fitted detectors")
    parser.add_argument("--overwrite", action="store_true")
    given = parser.parse_args()
    try:
        split = ff.Store.open(given.store).split(given.split)
        fitted = ff.fit(
            given.detectors, split, head=given.head,
            cluster=given.cluster, workers=given.workers, memory=given.memory,
        )  # fmt: skip
        fitted.save(given.out, overwrite=given.overwrite)
    except FeatfoldError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(f"{', '.join(fitted)}: {fitted.passes} passes, saved to {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
