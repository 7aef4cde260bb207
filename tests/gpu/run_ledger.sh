#!/bin/sh
# Runs the whole GPU suite and writes LEDGER.json for the sources of this checkout.
#   tests/gpu/run_ledger.sh PROGRAM [LEDGER] [options of the program]
# Where the checkout has no git (a copied tree), set SOURCES to what the command below printed in one that has.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
program=$(realpath "$1")
ledger=${2:-$root/tests/gpu/LEDGER.json}
shift
[ $# -eq 0 ] || shift
cd "$root"
if [ -z "${SOURCES:-}" ]; then
    # One digest of all sources, as tests/cpu/architecture/ledger.py computes it; sha256sum prints it and a dash.
    SOURCES=$(git ls-files kernel_templates runtime ':!*.md' | LC_ALL=C sort | xargs sha256sum |
        sha256sum | cut -d ' ' -f 1)
fi
exec "$program" --ledger "$ledger" --sources "$SOURCES" "$@"
