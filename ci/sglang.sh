#!/usr/bin/env bash
# SGLang on a CPU, pinned in ci/sglang.txt, with this checkout installed beside it in place. Some three minutes, 3 GB.
# Result, ignored by git: .venvs/sglang, a Python with SGLang, the openai client, and dflash2 as a plugin.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3.11}
PREFIX=.venvs/sglang
TORCH=2.13.0
STAMP="torch $TORCH, $(sha256sum <ci/sglang.txt), $(sha256sum <pyproject.toml)"

if [ "$(cat "$PREFIX/.built" 2>/dev/null)" = "$STAMP" ]; then
    echo "ci/sglang.sh: SGLang is there already: $PREFIX"
    exit 0
fi
command -v "$PYTHON" >/dev/null || PYTHON=python3
[ -x "$PREFIX/bin/python" ] || "$PYTHON" -m venv "$PREFIX"
pip() { "$PREFIX/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }
pip install "torch==$TORCH"
pip install --no-deps --requirement ci/sglang.txt
# SGLang imports torchvision, whose build for CUDA does not load beside a torch without: it describes operators that are then not
# there. A text model uses none of them.
"$PREFIX/bin/python" -c 'import torchvision' 2>/dev/null || : >"$("$PREFIX/bin/python" -c \
    'from importlib.util import find_spec; print(find_spec("torchvision").submodule_search_locations[0])')/_meta_registrations.py"
"$PREFIX/bin/python" -c 'import torchvision'
pip install --no-deps --no-build-isolation --editable .
echo "$STAMP" >"$PREFIX/.built"
echo "ci/sglang.sh: SGLang $("$PREFIX/bin/python" -c 'from importlib.metadata import version; print(version("sglang"))') in $PREFIX"
