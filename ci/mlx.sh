#!/usr/bin/env bash
# MLX beside what the core is tested with: .venvs/mlx (ignored by git), half a minute and 140 MB. Its packages come first there, and
# those of the core's environment are seen behind them: nothing of that environment changes.
set -euo pipefail
cd "$(dirname "$0")/.."
VENV=${VENV:-.venv}
PREFIX=.venvs/mlx
VERSION=0.32.4

if [ "$(cat "$PREFIX/.built" 2>/dev/null)" = "$VERSION" ]; then
    echo "ci/mlx.sh: it is there already: $PREFIX/bin/python"
    exit 0
fi
[ -x "$PREFIX/bin/python" ] || "$VENV/bin/python" -m venv "$PREFIX"
"$PREFIX/bin/python" -m pip --disable-pip-version-check --quiet install --no-deps "mlx==$VERSION" "mlx-cpu==$VERSION"
packages() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
# site.addsitedir reads the .pth files there too, among them that of this checkout.
echo "import site; site.addsitedir('$(packages "$VENV")')" >"$(packages "$PREFIX")/core.pth"
"$PREFIX/bin/python" -c 'import mlx.core, torch, dflash2_core'
echo "$VERSION" >"$PREFIX/.built"
echo "ci/mlx.sh: MLX $VERSION in $PREFIX"
