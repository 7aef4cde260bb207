#!/usr/bin/env bash
# Builds the fuzz targets of tests/fuzz with Clang and runs each for a while. See usage() below.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/environment.sh"

usage() {
    cat <<'TEXT'
Usage: tools/setup/fuzz.sh [--parts] [SECONDS]

Sets the machine up, builds the fuzz targets of tests/fuzz with Clang and runs each for SECONDS (default 20). Where no
Clang with libFuzzer is to be had, says so and passes. Inputs that are found to reach new code stay in
build/fuzz/corpus, and one that fails in build/fuzz/failed.

  --parts      leave out what the whole library has to be built for: places, which tests/cpu covers with choices of its own
  -h, --help   show this and do nothing
TEXT
}

targets=(entry bundle key remote http request model)
if [[ ${1:-} == --parts ]]; then
    shift
else
    targets+=(places)
fi
seconds=20
case ${1:-} in
    '') ;;
    -h | --help)
        usage
        exit 0
        ;;
    *)
        seconds=$1
        [[ $seconds =~ ^[1-9][0-9]*$ ]] || bad_usage "'$seconds' is no number of seconds"
        ;;
esac
(($# < 2)) || bad_usage "fuzz.sh takes one number of seconds"

say_time building 14
cores=$(nproc)
echo "attnsmith: fuzzing ${#targets[@]} targets takes $(((${#targets[@]} + cores - 1) / cores * seconds)) s"
set_up --tests
if ! bash tools/setup/setup.sh --fuzz; then
    echo "attnsmith: fuzz targets SKIPPED (${targets[*]}): there is no clang++ with libFuzzer"
    exit 0
fi
build fuzz ON "${targets[@]/#/attnsmith-fuzz-}"

# Found by what ends it, not by its memory: a sanitizer's shadow is not the target's.
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1} UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}
mkdir -p build/fuzz/failed

fuzz() {
    local name=$1 log=build/fuzz/$1.log seeds=("tests/fuzz/corpus/$1")
    mkdir -p "build/fuzz/corpus/$name"
    [[ $name != model ]] || seeds+=(tests/models)
    if ! "build/fuzz/tests/fuzz/attnsmith-fuzz-$name" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 \
        -max_len=16384 -artifact_prefix="build/fuzz/failed/$name-" "build/fuzz/corpus/$name" "${seeds[@]}" \
        >"$log" 2>&1; then
        tail -n 60 "$log" >&2
        echo "attnsmith: the fuzz target $name failed (all of its output is in $log, its input in build/fuzz/failed)" >&2
        return 1
    fi
    echo "attnsmith: fuzz target $name: $(grep -E '^Done ' "$log")"
}

# One for each core.
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
failed=0 running=0
for name in "${targets[@]}"; do
    fuzz "$name" &
    ((++running < cores)) && continue
    wait -n || failed=1
    running=$((running - 1))
done
while ((running-- > 0)); do wait -n || failed=1; done
exit "$failed"
