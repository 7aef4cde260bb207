#!/usr/bin/env bash
# The main job on a real model, from a fresh checkout. See usage() below.
set -euo pipefail
here=$(dirname "${BASH_SOURCE[0]}")
source "$here/environment.sh"

usage() {
    cat <<'TEXT'
Usage: tools/setup/demo.sh [CONFIG_JSON]

Sets the machine up, builds the attnsmith command, plans a model's attention for an H100, compiles its kernels into a
fresh cache (build/demo-cache), shows that a second run finds them all, and, where there is a GPU, launches and
verifies them. CONFIG_JSON is a Hugging Face config.json, or the folder of one (default: Llama 3.1 8B's).

  -h, --help   show this and do nothing
TEXT
}

model=$here/../../tests/models/llama-3.1-8b.json
given=0
for argument in "$@"; do
    case $argument in
        -h | --help)
            usage
            exit 0
            ;;
        -*) bad_usage "$argument is no flag of demo.sh" ;;
        *)
            ((given++ == 0)) || bad_usage "demo.sh takes one CONFIG_JSON"
            model=$argument
            ;;
    esac
done
[[ -e $model ]] || bad_usage "there is no $model"
model=$(realpath "$model")

say_time "building the command" 4
set_up
build release OFF attnsmith_cli
readonly attnsmith=build/release/bin/attnsmith
readonly cache=build/demo-cache

# A part of a model that is not supported makes a command exit with 1; the rest of the demo goes on.
status=0
show() {
    printf '\n$ attnsmith %s\n' "$*"
    "$attnsmith" "$@" || status=$?
}

has_gpu() {
    { "$attnsmith" doctor --json || true; } |
        python3 -c 'import json, sys; sys.exit(not any(c.get("supported") for c in json.load(sys.stdin)["checks"]))'
}

rm -rf "$cache"
show plan --model "$model" --sm 90
show prewarm --model "$model" --sm 80,90 --cache "$cache"
show prewarm --model "$model" --sm 80,90 --cache "$cache"
show cache ls --cache "$cache"
if has_gpu; then
    show check --model "$model"
else
    printf '\nThere is no GPU here: the kernels were not launched, and their results were not verified.\n'
fi

printf '\nThe command is %s' "$PWD/$attnsmith"
[[ -z ${ATTNSMITH_NVRTC_PATH:-} ]] || printf '; set ATTNSMITH_NVRTC_PATH=%s for it' "$ATTNSMITH_NVRTC_PATH"
echo
exit "$status"
