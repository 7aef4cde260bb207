#!/usr/bin/env bash
# Builds everything and passes the tests: tools/setup/test.sh [--sanitize address|thread] [CTEST ARGUMENTS]
# Sets the machine up first. Tests that need a GPU are reported as skipped where there is none.
set -euo pipefail

preset=release
if [[ ${1:-} == --sanitize ]]; then
    case ${2:-} in
        address) preset=asan ;;
        thread) preset=tsan ;;
        *)
            echo "test.sh: --sanitize takes address or thread, not '${2:-}'" >&2
            exit 2
            ;;
    esac
    shift 2
fi
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"
build "$preset"

# Without this the sanitizer of undefined behaviour prints its findings and lets the test pass.
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-halt_on_error=1:print_stacktrace=1}
# ThreadSanitizer of GCC 12 does not know the address layout of newer kernels.
fixed_layout=()
if [[ $preset == tsan ]] && setarch "$(uname -m)" -R true 2>/dev/null; then
    fixed_layout=(setarch "$(uname -m)" -R)
fi
[[ $preset == tsan ]] && export TSAN_OPTIONS="suppressions=$PWD/tests/support/tsan.supp ${TSAN_OPTIONS:-}"
exec "${fixed_layout[@]}" ctest --preset "$preset" -j "$(nproc)" "$@"
