#!/usr/bin/env bash
# llama.cpp's own converter, with which tests compare: from the sources that llama-cpp-python carries, into .venvs (ignored by git).
# Nothing is built or installed.
set -euo pipefail
cd "$(dirname "$0")/.."
VENV=${VENV:-.venv}
VERSION=0.3.36
FOLDER=.venvs/llama-cpp-converter

[ "$(cat "$FOLDER/.version" 2>/dev/null)" = "$VERSION" ] && exit 0
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$VENV/bin/python" -m pip --disable-pip-version-check --quiet download --no-deps --no-binary llama-cpp-python \
    --dest "$scratch" "llama-cpp-python==$VERSION"
tar --extract --gzip --file "$scratch/llama_cpp_python-$VERSION.tar.gz" --directory "$scratch" --strip-components 3 --wildcards \
    '*/vendor/llama.cpp/convert_hf_to_gguf.py' '*/vendor/llama.cpp/conversion' '*/vendor/llama.cpp/gguf-py' \
    '*/vendor/llama.cpp/LICENSE'
rm -rf "$FOLDER"
mkdir -p "$FOLDER"
mv "$scratch"/{convert_hf_to_gguf.py,conversion,gguf-py,LICENSE} "$FOLDER"
echo "$VERSION" >"$FOLDER/.version"
