#!/usr/bin/env bash
# What only a GPU can show, in under six minutes: gpu_check.sh OUT writes OUT/gpu_check.json.
# Uses the python that PYTHON names, with featfold's packages, torch or cupy in it; parts whose
# packages are missing are skipped, and say so. Without a GPU it says that, and ends with 0.
# --rehearse runs everything small on the CPU, in torch's arrays. Parts may be named after OUT.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-$root/.venv/bin/python}
[ -x "$(command -v "$python")" ] || python=python3
PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" exec "$python" "$root/workflows/gpu_check" "$@"
