# Sourced by the other scripts: a virtual environment of the project's own, installed once and
# reused while pyproject.toml and the constraints are unchanged. Needs Python 3.11 or newer.
#
#   install EXTRA      make .venv hold featfold with that extra

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv="$root/.venv"

install() {
    local stamp="$venv/installed-$1" python wanted
    python=${PYTHON:-python3}
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
        echo "featfold needs Python 3.11 or newer; set PYTHON to one" >&2
        return 2
    }
    wanted=$(cat "$root/pyproject.toml" "$root/workflows/constraints.txt" | sha256sum)
    [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && return
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    echo "installing featfold[$1] into $venv (once)" >&2
    local pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check
        --constraint "$root/workflows/constraints.txt")
    "${pip[@]}" --editable "$root[$1]"
    # What the tests compare detectors with; they need none of what it depends on (torchvision).
    if [ "$1" = test ]; then "${pip[@]}" --no-deps pytorch-ood; fi
    echo "$wanted" > "$stamp"
}
