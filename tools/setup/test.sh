#!/usr/bin/env bash
# Builds everything and passes the tests. See usage() below.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

usage() {
    cat <<'TEXT'
Usage: tools/setup/test.sh [--sanitize address|thread] [-- CTEST ARGUMENTS]

Sets the machine up, builds everything and passes the tests. Tests that need a GPU are reported as skipped where there
is none. Arguments behind -- are ctest's, and so are its -R, -E, -L and -LE with their values.

  --sanitize address   build with AddressSanitizer and the sanitizer of undefined behaviour
  --sanitize thread    build with ThreadSanitizer
  -h, --help           show this and do nothing
TEXT
}

preset=release
selection=()
while (($# > 0)); do
    case $1 in
        -h | --help)
            usage
            exit 0
            ;;
        --sanitize | --sanitize=*)
            if [[ $1 == --sanitize ]]; then
                word=${2:-}
                shift
            else
                word=${1#*=}
            fi
            case $word in
                address) preset=asan ;;
                thread) preset=tsan ;;
                *) bad_usage "--sanitize takes address or thread, not '$word'" ;;
            esac
            ;;
        -R | -E | -L | -LE)
            (($# > 1)) || bad_usage "$1: the value is missing"
            selection+=("$1" "$2")
            shift
            ;;
        --)
            shift
            selection+=("$@")
            break
            ;;
        *) bad_usage "$1 is no flag of test.sh" ;;
    esac
    shift
done

case $preset in
    release) say_time building 10 testing 26 ;;
    *) say_time building 30 testing 80 ;;
esac
set_up --tests
build "$preset" ON

# Without this the sanitizer of undefined behaviour prints its findings and lets the test pass.
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-halt_on_error=1:print_stacktrace=1}
# ThreadSanitizer of GCC 12 does not know the address layout of newer kernels.
fixed_layout=()
if [[ $preset == tsan ]] && setarch "$(uname -m)" -R true 2>/dev/null; then
    fixed_layout=(setarch "$(uname -m)" -R)
fi
[[ $preset == tsan ]] && export TSAN_OPTIONS="suppressions=$PWD/tests/support/tsan.supp ${TSAN_OPTIONS:-}"
# One more than there are cores: a fifth of the time tests wait for a server, a lock or a limit.
exec "${fixed_layout[@]}" ctest --preset "$preset" -j "$(($(nproc) + 1))" "${selection[@]}"
