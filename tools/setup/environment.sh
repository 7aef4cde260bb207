# shellcheck shell=bash
# What demo.sh, test.sh and fuzz.sh share. Sourced before arguments are looked at, so it does nothing but define.

# What is wrong with the command line; usage() is the script's.
bad_usage() {
    echo "$(basename "$0"): $*" >&2
    usage >&2
    exit 2
}

# say_time WHAT CPU_MINUTES...: how long this machine will be busy, before it begins. The minutes are those of one core
# with GCC 12 and without ccache, roughly; pairs may follow.
say_time() {
    local text='' cores minutes
    cores=$(nproc)
    while (($# > 0)); do
        minutes=$((($2 + cores - 1) / cores))
        text+="${text:+, }$1 about $minutes min"
        shift 2
    done
    echo "attnsmith: $text on this machine's $cores cores, less where ccache knows the files; installing what is missing" \
        "takes a minute or two"
}

# set_up [FLAG...]: goes to the repository's root and runs setup.sh.
set_up() {
    cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit
    bash tools/setup/setup.sh "$@"
    cuda_options=()
    if [[ -d build/cuda ]]; then
        cuda_options=("-DATTNSMITH_CUDA_INCLUDE=$PWD/build/cuda/include" "-DATTNSMITH_NVRTC_INCLUDE=$PWD/build/cuda/include")
        export ATTNSMITH_NVRTC_PATH=${ATTNSMITH_NVRTC_PATH:-$PWD/build/cuda/lib}
    fi
}

# build PRESET TESTS [TARGET...]: configures, with the tests (ON) or without what they need (OFF), and builds, printing
# little unless something fails.
build() {
    local preset=$1 tests=$2 launcher=()
    shift 2
    if command -v ccache >/dev/null; then
        launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
    fi
    echo "attnsmith: building with preset $preset"
    cmake --preset "$preset" --log-level=WARNING "-DATTNSMITH_TESTS=$tests" "${launcher[@]}" "${cuda_options[@]}" >/dev/null
    cmake --build --preset "$preset" -j "$(nproc)" "${@/#/--target=}"
}
