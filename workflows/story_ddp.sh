#!/usr/bin/env bash
# Story 2: metrics computed on rank zero only, as reported with torchmetrics and with featfold, and
# a training of two processes that is killed and resumed. Arguments go to story_ddp/story.py: parts
# (reported, memory, rank-zero, resumed; all of them by default) and --side.
set -euo pipefail
source "$(dirname "$0")/environment.sh"
install test
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
"$venv/bin/python" "$root/workflows/story_ddp/story.py" "$out" "$@"
