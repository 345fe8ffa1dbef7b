#!/usr/bin/env bash
# The environment of the core: .venv, with this checkout installed in place. Pins are in ci/core.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3.11}
VENV=${VENV:-.venv}

command -v "$PYTHON" >/dev/null || PYTHON=python3
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "ci/core.sh: Python 3.11 or later is needed; found $("$PYTHON" --version). Set PYTHON=/path/to/python3.11" >&2
    exit 2
}
[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
pip() { "$VENV/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }
pip install --requirement ci/core.txt
pip install --no-deps --editable .
pip install --no-deps xgrammar==0.2.9 apache-tvm-ffi==0.1.15.post2 # triton, which it names too, is for GPUs
pip install --no-deps dflash==0.1.0 # the peer that tests compare with; its dependencies are those above
