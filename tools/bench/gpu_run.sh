#!/usr/bin/env bash
# Everything that needs a GPU, in one go: doctor, the gpu suite with its ledger, `attnsmith check`, the benchmarks and
# compute-sanitizer. Logs and JSON go to a folder; a short summary comes last.
#   tools/bench/gpu_run.sh BIN OUT [SECTION ...]  sections: doctor suite check jit speed sanitize racecheck python peers
# (default: all but the last three; sanitize has racecheck, python and peers need torch). BIN holds attnsmith,
# attnsmith-gpu-tests and, for the last two, libattnsmith.so. Where the tree has no git, SOURCES is what
# tests/gpu/run_ledger.sh says. PYTHON_SOURCES is the second line of tests/cpu/architecture/ledger.py, for the ledger of
# the Python tests. With JOURNAL a suite that was cut off goes on where it was: it names the file that keeps what has passed.
set -u
usage() { sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0"; }
[ "${1:-}" = --help ] && { usage; exit 0; }
if [ $# -lt 2 ] || [ ! -x "$1/attnsmith" ]; then
    usage >&2
    printf 'gpu_run.sh: error: %s\n' "${1:+$1 holds no attnsmith, or }give BIN and OUT" >&2
    exit 2
fi
root=$(cd "$(dirname "$0")/../.." && pwd)
mkdir -p "$2" || exit 2
bin=$(realpath "$1") out=$(realpath "$2")
shift 2
sections=${*:-doctor suite check jit speed sanitize}
export ATTNSMITH_CACHE_DIR=${ATTNSMITH_CACHE_DIR:-$(mktemp -d)}
cd "$root" || exit 1
summary=$out/summary.txt
: >"$summary"
status=0
note() { printf '%s\n' "$*" >>"$summary"; }
failed() { note "FAILED: $1"; status=1; }

doctor() {
    "$bin/attnsmith" doctor >"$out/doctor.txt" 2>&1 || failed doctor
    grep -E 'driver|device|nvrtc' "$out/doctor.txt" >>"$summary"
}

suite() {
    tests/gpu/run_ledger.sh "$bin/attnsmith-gpu-tests" "$out/LEDGER.json" --models tests/models \
        ${JOURNAL:+--journal "$JOURNAL"} >"$out/suite.log" 2>&1 || failed suite
    note "suite: $(grep -E '[0-9]+ passed' "$out/suite.log" | tail -n 1)"
}

check() {
    local models=() model
    for model in tests/models/*.json; do models+=(--model "$model"); done
    "$bin/attnsmith" check "${models[@]}" >"$out/check.txt" 2>&1
    note "check: exit $? (1: parts that are not supported, listed); $(grep -ciE '(^| )(ok|passed)( |$)' "$out/check.txt") lines ok"
    tail -n 4 "$out/check.txt" >>"$summary"
}

jit() {
    "$bin/attnsmith" bench jit >"$out/jit.txt" 2>&1 || failed "bench jit"
    grep -E '^all|NVRTC|look-up|launch ' "$out/jit.txt" >>"$summary"
}

# One line a problem: decode against the copy bandwidth, prefill against the peak.
speed() {
    local log=$out/speed.txt
    : >"$log"
    one() { "$bin/attnsmith" bench attention --q-heads 32 --kv-heads 8 "$@" >>"$log" 2>&1 || failed "bench attention $*"; }
    local case batch keys dim tokens
    for case in '1 65536' '16 8192' '64 4096' '128 2048'; do
        read -r batch keys <<<"$case"
        one --head-dim 128 --batch "$batch" --kv-len "$keys"
        one --head-dim 128 --batch "$batch" --kv-len "$keys" --kv paged --page-size 16
    done
    for dim in 64 128 256; do
        for tokens in 1024 4096 16384; do
            one --head-dim "$dim" --mask causal --batch $((16384 / tokens)) --q-len "$tokens" --kv-len "$tokens"
        done
    done
    one --head-dim 128 --mask causal --batch 4 --q-len 4096 --kv-len 4096 --kv paged --page-size 16
    grep -E '^request|^copy' "$log" | sort -u -k1,6 >>"$summary"
}

# Memcheck: whatever is handed hostile lengths, whole, then some of each other group. A run that is cut off says so by its
# exit code, 124.
sanitize() {
    local sanitizer
    sanitizer=$(command -v compute-sanitizer) || { note "sanitize: no compute-sanitizer here"; return; }
    one() {
        local name=$1 tool=$2 filter=$3
        shift 3
        timeout "${SANITIZE_SECONDS:-150}" "$sanitizer" --tool "$tool" --report-api-errors no --error-exitcode 9 "$bin/attnsmith-gpu-tests" \
            --filter "$filter" --threads 16 "$@" >"$out/$name.log" 2>&1
        note "$name: exit $?; $(grep -E 'ERROR SUMMARY|RACECHECK SUMMARY' "$out/$name.log" | tail -n 1)"
    }
    one memcheck-hostile memcheck '^(clamp|bounds|empty)/'
    one memcheck memcheck "${SANITIZE_FILTER:-^(dims|paged|split|ragged|window|alignment|causal|models|fuzz|broadcast|evicted|nan|kernels|kernels-clamp|chunk|o_dtype|high|fp8|append)/}" --quick
    racecheck
}

# Racecheck: every kernel of the set, on little work. Launches are blocking: with others the tool hangs after some fifty kernels
# (versions 2025.3.1 and 2026.4.0).
racecheck() {
    local sanitizer log=$out/racecheck.log code
    sanitizer=$(command -v compute-sanitizer) || { note "racecheck: no compute-sanitizer here"; return; }
    "$bin/attnsmith-gpu-tests" --group kernels-small --threads 16 >"$out/racecheck-before.log" 2>&1  # compiles
    timeout "${RACECHECK_SECONDS:-300}" "$sanitizer" --tool racecheck --force-blocking-launches --report-api-errors no \
        --error-exitcode 9 "$bin/attnsmith-gpu-tests" --group kernels-small --threads 1 >"$log" 2>&1
    code=$?
    note "racecheck: exit $code; $(grep -E ' passed, ' "$log"); $(grep -E 'RACECHECK SUMMARY' "$log")"
    [ $code = 0 ] || failed racecheck
}

python() {
    ATTNSMITH_LIBRARY=$bin/libattnsmith.so python3 -B tests/python/gpu/run.py --jobs 8 --ledger "$out/PYTHON_LEDGER.json" \
        --sources "${PYTHON_SOURCES:-}" >"$out/python.log" 2>&1 || failed "python tests"
    note "python: $(tail -n 1 "$out/python.log")"
    ATTNSMITH_LIBRARY=$bin/libattnsmith.so python3 -B tools/bench/python_overhead.py >"$out/python_overhead.txt" 2>&1 || failed python_overhead
    cat "$out/python_overhead.txt" >>"$summary"
}

# All ratios that are aimed at, in PEERS_SECONDS: against the peers that PYTHONPATH has, and against ourselves.
peers() {
    local seconds=${PEERS_SECONDS:-480}
    # shellcheck disable=SC2086
    ATTNSMITH_LIBRARY=$bin/libattnsmith.so timeout $((seconds + 30)) python3 -B tools/bench/peers.py \
        ${PEERS:---cases prefill,dims,storage,decode --own dims,storage} --within "$seconds" \
        --json "$out/peers.json" >"$out/peers.txt" 2>"$out/peers.log" || failed "peers: $(tail -n 1 "$out/peers.log")"
    sed -n -e '1,/^ceilings/p' -e '/^## Summary/,$p' "$out/peers.txt" >>"$summary"
}

for section in $sections; do "$section"; done
cat "$summary"
exit $status
