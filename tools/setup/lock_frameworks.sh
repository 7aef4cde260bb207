#!/usr/bin/env bash
# Pins what the tests of adapters install, with hashes. See usage() below.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

usage() {
    cat <<'TEXT'
Usage: tools/setup/lock_frameworks.sh [--upgrade]

Writes tests/python/frameworks.lock from tests/python/frameworks.txt: every package that those need, at one version, with
the hashes of all of its files, for CPython 3.11 and newer and any platform. Versions that are in the lock file stay
where they can; --upgrade takes the newest. Needs uv (pip install uv) and a package index.

  -h, --help   show this and do nothing
TEXT
}

flags=()
case ${1:-} in
    '') ;;
    -h | --help)
        usage
        exit 0
        ;;
    --upgrade) flags+=(--upgrade) ;;
    *) bad_usage "$1 is no flag of lock_frameworks.sh" ;;
esac
(($# < 2)) || bad_usage "lock_frameworks.sh takes one flag"
command -v uv >/dev/null || bad_usage "there is no uv: run pip install uv"

cd "$(dirname "${BASH_SOURCE[0]}")/../../tests/python"
# The index that a machine is set up with is no part of the file.
uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url \
    --no-emit-find-links "${flags[@]}" --output-file frameworks.lock frameworks.txt >/dev/null
{
    echo "# Every package of frameworks.txt and what it needs, for pip install --require-hashes. Written by"
    echo "# tools/setup/lock_frameworks.sh."
    cat frameworks.lock
} >frameworks.lock.new
mv frameworks.lock.new frameworks.lock
