#!/usr/bin/env bash
# The demo: real images through a pretrained network, eight detectors, an HTML report.
# Arguments go to `featfold demo`.
set -euo pipefail
source "$(dirname "$0")/environment.sh"
install demo
cd "$root"
exec "$venv/bin/featfold" demo "$@"
