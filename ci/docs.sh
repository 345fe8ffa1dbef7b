#!/usr/bin/env bash
# The documentation as a site, in an environment of its own: .venvs/docs and build/docs (both ignored by git), a minute and
# 170 MB once. The reference is read from the sources: neither torch nor dflash2 is imported. Pins are in ci/docs.txt.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3.11}
PREFIX=.venvs/docs
STAMP=$(sha256sum <ci/docs.txt)

if [ "$(cat "$PREFIX/.built" 2>/dev/null)" != "$STAMP" ]; then
    command -v "$PYTHON" >/dev/null || PYTHON=python3
    [ -x "$PREFIX/bin/python" ] || "$PYTHON" -m venv "$PREFIX"
    "$PREFIX/bin/python" -m pip --disable-pip-version-check --quiet install --no-deps --requirement ci/docs.txt
    echo "$STAMP" >"$PREFIX/.built"
fi
# The theme's makers announce the next mkdocs at every build; --strict fails on a link that leads nowhere.
NO_MKDOCS_2_WARNING=1 "$PREFIX/bin/python" -m mkdocs build --strict --quiet --site-dir build/docs
echo "ci/docs.sh: $(find build/docs -name '*.html' | wc -l) pages, from build/docs/index.html on"
