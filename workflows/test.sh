#!/usr/bin/env bash
# Lint, types and tests. Arguments go to pytest and leave lint and types out.
set -euo pipefail
source "$(dirname "$0")/environment.sh"
install test
cd "$root"
# Two BLAS threads beside two test processes would fight for the same cores.
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
if [ $# -eq 0 ]; then
    "$venv/bin/ruff" check .
    "$venv/bin/ruff" format --check .
    "$venv/bin/mypy"
fi
exec "$venv/bin/python" -m pytest "$@"
