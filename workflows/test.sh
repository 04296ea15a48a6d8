#!/usr/bin/env bash
# Lint, types and tests. Arguments go to pytest and leave lint and types out.
set -euo pipefail
source "$(dirname "$0")/environment.sh"
install test
cd "$root"
# Two BLAS threads beside two test processes would fight for the same cores.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
[ $# -eq 0 ] || exec "$venv/bin/python" -m pytest "$@"
"$venv/bin/ruff" check .
"$venv/bin/ruff" format --check .
"$venv/bin/mypy"
# A process for each core; then what measures the machine, one by one.
cores=$(env -u OMP_NUM_THREADS nproc) # nproc takes that variable for the number of cores
failed=0
"$venv/bin/python" -m pytest -n "$cores" --dist loadfile -m "not alone" || failed=$?
"$venv/bin/python" -m pytest -m alone || failed=$?
exit $failed
