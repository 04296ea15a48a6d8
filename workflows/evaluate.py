"""Evaluate fitted detectors on the splits of a store: parse, call featfold, exit.

python workflows/evaluate.py features.zarr fitted --id id/test
"""

import argparse
import json
import sys

import pipeline as ff
from pipeline.errors import FeatfoldError


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", help="zarr store with the splits")
    parser.add_argument("fitted", help="directory that fit.py wrote")
    parser.add_argument("--id", default="id/test", help="in-distribution split")
    parser.add_argument("--cluster", default="auto")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--memory", default="auto", help="per worker, e.g. 2GiB")
    given = parser.parse_args()
    try:
        store = ff.Store.open(given.store)
        splits = {
            group: [store.split(name) for name in store.splits() if name.startswith(prefix)]
            for group, prefix in (("near", "ood/near/"), ("far", "ood/far/"), ("csid", "id/csid/"))
        }
        found = ff.evaluate(
            ff.load(given.fitted), store.split(given.id), **splits,
            cluster=given.cluster, workers=given.workers, memory=given.memory,
        )  # fmt: skip
    except FeatfoldError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    json.dump({"scores": found.scores, "classification": found.classification}, sys.stdout)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
