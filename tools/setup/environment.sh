# shellcheck shell=bash
# What demo.sh and test.sh share. Sourced: goes to the repository's root, sets the machine up, defines `build`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
bash tools/setup/setup.sh

cuda_options=()
if [[ -d build/cuda ]]; then
    cuda_options=("-DATTNSMITH_CUDA_INCLUDE=$PWD/build/cuda/include" "-DATTNSMITH_NVRTC_INCLUDE=$PWD/build/cuda/include")
    export ATTNSMITH_NVRTC_PATH=${ATTNSMITH_NVRTC_PATH:-$PWD/build/cuda/lib}
fi

# build PRESET [TARGET...]: configures and builds, printing little unless something fails.
build() {
    local preset=$1 launcher=()
    shift
    if command -v ccache >/dev/null; then
        launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
    fi
    echo "attnsmith: building with preset $preset"
    cmake --preset "$preset" --log-level=WARNING "${launcher[@]}" "${cuda_options[@]}" >/dev/null
    cmake --build --preset "$preset" -j "$(nproc)" "${@/#/--target=}"
}
