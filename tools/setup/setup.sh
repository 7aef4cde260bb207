#!/usr/bin/env bash
# Installs what attnsmith needs to be built, where it is missing. demo.sh, test.sh and fuzz.sh call it. See usage() below.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: tools/setup/setup.sh [--tests] [--fuzz]

Installs what attnsmith needs to be built, where it is missing: Debian's packages with apt-get (as root, or by sudo),
and, on a machine without a CUDA toolkit 13, NVRTC with its headers from PyPI into build/cuda. Needs no GPU. Takes a
minute or two, and nothing where all is there.

  --tests      what the tests need, too
  --fuzz       Clang with libFuzzer, too
  -h, --help   show this and do nothing
TEXT
}

fuzz=false
tests=false
for argument in "$@"; do
    case $argument in
        --tests) tests=true ;;
        --fuzz) fuzz=true ;;
        -h | --help)
            usage
            exit 0
            ;;
        *)
            echo "setup.sh: $argument is no flag of setup.sh" >&2
            usage >&2
            exit 2
            ;;
    esac
done
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

libraries=(libfmt-dev nlohmann-json3-dev libxxhash-dev libcli11-dev)
if $tests; then libraries+=(catch2); fi
readonly wheels=tools/setup/cuda-wheels.txt
readonly cuda=build/cuda
readonly valijson=build/valijson
readonly log=build/setup.log
as_root=()

say() { echo "attnsmith set-up: $*"; }
fail() {
    say "$*" >&2
    exit 1
}
have() { command -v "$1" >/dev/null 2>&1; }
installed() { [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

run_logged() {
    echo "+ $*" >>"$log"
    "$@" >>"$log" 2>&1 </dev/null
}

# A toolkit that serves for every GPU that attnsmith knows: its headers, and its NVRTC where the library looks.
has_cuda_headers() {
    local folder version
    for folder in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda /opt/cuda /usr/local /usr; do
        [[ -n $folder && -f $folder/include/cuda.h && -f $folder/include/nvrtc.h ]] || continue
        version=$(awk '$1 == "#define" && $2 == "CUDA_VERSION" { print $3 }' "$folder/include/cuda.h")
        [[ ${version:-0} -ge 13000 ]] && return 0
    done
    return 1
}
has_nvrtc() {
    [[ -n ${ATTNSMITH_NVRTC_PATH:-} ]] && return 0
    compgen -G '/usr/local/cuda*/lib*/libnvrtc.so.13*' >/dev/null && return 0
    compgen -G '/usr/local/cuda*/targets/*/lib/libnvrtc.so.13*' >/dev/null && return 0
    PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | grep -q 'libnvrtc\.so\.13'
}
# What serves single tests, which are skipped without it, need not be in every distribution.
unavailable() {
    compgen -G '/var/lib/apt/lists/*Packages*' >/dev/null && [[ -z $(apt-cache show "$1" 2>/dev/null) ]]
}
needs_wheels() {
    if has_cuda_headers && has_nvrtc; then return 1; fi
    ! cmp -s "$wheels" "$cuda/wheels.txt"
}

has_libfuzzer() {
    have clang++ && clang++ -x c++ -fsanitize=fuzzer,address,undefined -o build/.libfuzzer - >/dev/null 2>&1 <<'CODE'
extern "C" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }
CODE
}
# libFuzzer is a package of its own, named after the version of clang.
fuzzer_packages() {
    local version
    version=$(apt-cache depends clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9]*\)$/\1/p' | head -n 1)
    echo clang
    if [[ -n $version && -n $(apt-cache show "libclang-rt-$version-dev" 2>/dev/null) ]]; then
        echo "libclang-rt-$version-dev"
    fi
}

missing_packages() {
    if $fuzz && ! has_libfuzzer; then fuzzer_packages; fi
    have "${CXX:-g++}" || echo g++
    have cmake || echo cmake
    have ninja || echo ninja-build
    have python3 || echo python3
    if $tests; then
        have pkg-config || echo pkg-config
        have doxygen || echo doxygen
        # Headers for attnsmith._native, of Debian's Python or of another that has its own.
        [[ -f $(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h ]] || echo python3-dev
        python3 -c 'import jsonschema' 2>/dev/null || installed python3-jsonschema || echo python3-jsonschema
    fi
    if $tests; then
        have clang-format-14 || unavailable clang-format-14 || echo clang-format-14
        have skopeo || unavailable skopeo || echo skopeo
        python3 -c 'import yaml' 2>/dev/null || installed python3-yaml || unavailable python3-yaml || echo python3-yaml
    fi
    if needs_wheels && ! python3 -m pip --version >/dev/null 2>&1; then echo python3-pip; fi
    local package
    for package in "${libraries[@]}"; do
        installed "$package" || echo "$package"
    done
}

apt_get() { run_logged "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -y -o DPkg::Lock::Timeout=600 "$@"; }
refresh_package_lists() {
    # Lists that cannot be refreshed matter only if what follows then fails.
    apt_get update || say "apt-get update failed (see $log); going on with the package lists there are"
}

install_packages() {
    if [[ $(id -u) -ne 0 ]]; then
        have sudo || fail "these packages are missing and this user may not install them. As root, run:
    apt-get update && apt-get install -y --no-install-recommends $*"
        as_root=(sudo)
    fi
    say "installing $*"
    refresh_package_lists
    local packages
    mapfile -t packages < <(missing_packages)
    apt_get install --no-install-recommends "${packages[@]}" && return
    tail -n 20 "$log" >&2
    fail "apt-get install failed (all of its output is in $log). The command was:
    apt-get install -y --no-install-recommends ${packages[*]}"
}

# The JSON Schema library of the tests is a folder of headers, but its package depends on all of Qt: only it is taken.
has_valijson() { [[ -f /usr/include/valijson/validator.hpp || -d $valijson ]]; }
download_valijson() (cd "$1" && apt-get download libvalijson-dev) >>"$log" 2>&1
fetch_valijson() {
    local work
    work=$(mktemp -d build/valijson.XXXXXX)
    if download_valijson "$work" || { refresh_package_lists && download_valijson "$work"; }; then
        dpkg-deb --extract "$work"/*.deb "$work/files"
        mv "$work/files/usr/include" "$valijson"
    else
        say "libvalijson-dev could not be had from apt-get (see $log); CMake will look for valijson"
    fi
    rm -rf "$work"
}

unpack_wheels() {
    python3 - "$1" "$2" <<'PYTHON'
import pathlib, re, sys, zipfile

wheels, target = map(pathlib.Path, sys.argv[1:])
wanted = re.compile(r"(?:include/(?:cuda|nvrtc)\.h|lib/libnvrtc(?:-builtins)?\.so\.[0-9.]+|License\.txt)$")
for wheel in wheels.glob("*.whl"):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            found = wanted.search(name)
            if found:
                file = target / found.group()
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(archive.read(name))
PYTHON
}

fetch_cuda() {
    say "no CUDA toolkit 13 here; taking NVRTC and its headers from PyPI into $cuda"
    local work
    work=$(mktemp -d build/cuda.XXXXXX)
    # shellcheck disable=SC2064  # the path of now, since $work is gone at exit
    trap "rm -rf '$work'" EXIT
    run_logged python3 -m pip download --no-input --disable-pip-version-check --no-deps --only-binary=:all: \
        --require-hashes --requirement "$wheels" --dest "$work/wheels" || {
        tail -n 20 "$log" >&2
        fail "pip could not download NVRTC (all of its output is in $log). Install a CUDA toolkit 13 instead, or put
    cuda.h and nvrtc.h into $cuda/include and libnvrtc.so.13 with libnvrtc-builtins into $cuda/lib."
    }
    unpack_wheels "$work/wheels" "$work/cuda"
    local file
    for file in include/cuda.h include/nvrtc.h lib/libnvrtc.so.13; do
        [[ -f $work/cuda/$file ]] || fail "the wheels of $wheels hold no $file"
    done
    cp "$wheels" "$work/cuda/wheels.txt"
    rm -rf "$cuda"
    mv "$work/cuda" "$cuda"
}

check_version() {  # command, oldest version that serves, its version
    [[ $(printf '%s\n' "$2" "$3" | sort -V | head -n 1) == "$2" ]] ||
        fail "$(command -v "$1") is version $3; $2 or newer is needed"
}

mkdir -p build
exec 9>build/.setup.lock
flock 9

mapfile -t missing < <(missing_packages)
if [[ ${#missing[@]} -gt 0 ]]; then
    if have apt-get; then
        install_packages "${missing[@]}"
    else
        say "this machine has no apt-get; install what these Debian packages hold, where it is missing: ${missing[*]}"
    fi
fi
have cmake && check_version cmake 3.25 "$(cmake --version | awk 'NR == 1 { print $3 }')"
[[ -n ${CXX:-} ]] || ! have g++ || check_version g++ 12 "$(g++ -dumpfullversion)"
! $tests || has_valijson || ! have apt-get || fetch_valijson
if needs_wheels; then fetch_cuda; fi
if $fuzz && ! has_libfuzzer; then fail "there is no clang++ that links libFuzzer"; fi
say "ready"
