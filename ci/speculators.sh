#!/usr/bin/env bash
# speculators, in which tests load what `dflash2 convert` wrote: .venvs/speculators (ignored by git), a minute and 1.5 GB.
# It pins an older transformers than the core is tested with, so it has an environment of its own. Pins are in ci/speculators.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3.11}
PREFIX=.venvs/speculators
STAMP=$(cat ci/speculators.sh ci/speculators.txt | sha256sum)

if [ "$(cat "$PREFIX/.built" 2>/dev/null)" = "$STAMP" ]; then
    echo "ci/speculators.sh: it is there already: $PREFIX/bin/python"
    exit 0
fi
command -v "$PYTHON" >/dev/null || PYTHON=python3
[ -x "$PREFIX/bin/python" ] || "$PYTHON" -m venv "$PREFIX"
pip() { "$PREFIX/bin/python" -m pip --disable-pip-version-check --quiet "$@"; }
pip install --no-deps --requirement ci/speculators.txt
HF_HUB_OFFLINE=1 "$PREFIX/bin/python" -c 'import speculators'
echo "$STAMP" >"$PREFIX/.built"
echo "ci/speculators.sh: $("$PREFIX/bin/python" -m pip freeze | grep '^speculators') in $PREFIX"
