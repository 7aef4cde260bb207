#!/bin/sh
# Builds every kernel that a model can ask for into one file, on a machine without a GPU:
#   prewarm.sh CONFIG.json SM,... BUNDLE
set -eu
[ $# -eq 3 ] || { echo "usage: prewarm.sh CONFIG.json SM,... BUNDLE" >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
attnsmith prewarm --model "$1" --sm "$2" --cache "$work"
attnsmith cache verify --cache "$work"
attnsmith cache export --output "$3" --cache "$work"
