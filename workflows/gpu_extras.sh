#!/usr/bin/env bash
# The extras cuda12 and cuda13, each in a fresh environment: they resolve, install and import. Needs
# no GPU and no driver; downloads about 400 MB for each. Arguments choose: cuda12 cuda13.
#
# RAPIDS pins dask and distributed to one release, which is older than that of constraints.txt: those
# two lines are left out here, and so they must be by everybody who installs with these constraints.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
grep -vE '^(dask|distributed)==' "$root/workflows/constraints.txt" > "$work/constraints.txt"
for extra in ${*:-cuda12 cuda13}; do
    began=$SECONDS
    "$python" -m venv "$work/venv"
    pip=("$work/venv/bin/python" -m pip --disable-pip-version-check)
    # torch as constrained first: an unpinned one may bring a CUDA build of several gigabytes.
    "${pip[@]}" install --quiet --constraint "$work/constraints.txt" torch pytest
    "${pip[@]}" install --quiet --constraint "$work/constraints.txt" "$root[$extra]"
    "${pip[@]}" check
    cd "$work" # the installed package, not the checkout
    "$work/venv/bin/python" - "$extra" <<'PYTHON'
import sys
from importlib.metadata import version
import cupy, dask_cuda, torch
from pipeline import arrays
from pipeline.cluster import cuda

found = version("dask-cuda")
assert not cuda.is_old(found), found
assert int(found.split(".")[0]) >= 26, found
assert arrays.gpu_place() == arrays.Place("cupy"), arrays.gpu_place()
names = (f"cupy-{sys.argv[1]}x", "dask-cuda", "dask", "distributed", "torch")
print(sys.argv[1] + ":", ", ".join(f"{name} {version(name)}" for name in names))
PYTHON
    "$work/venv/bin/featfold" doctor --quiet
    # Without the conftest and the options of the checkout, which need what the tests need.
    "$work/venv/bin/python" -m pytest -q -c /dev/null --rootdir "$work" --noconftest \
        -p no:cacheprovider "$root/tests/test_cluster_cuda.py"
    echo "$extra: $((SECONDS - began)) s, $(du -sm "$work/venv" | cut -f1) MB"
    cd "$root"
    rm -rf "$work/venv"
done
