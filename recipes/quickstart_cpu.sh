#!/usr/bin/env bash
# From nothing to a served drafter of one's own in under five minutes on two cores: the default model answers
# questions that it asks itself, a small drafter learns from the answers, an answer with the drafter is compared with
# one without it (the command fails if they differ), and the drafter is served: there is no server yet, so it answers
# on the command line.
#
#   recipes/quickstart_cpu.sh [FOLDER]
#
# The same command goes on where it was stopped. FOLDER takes 150 MB; its `run/best` is the drafter.
set -euo pipefail

recipes=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=${1:-quickstart}
drafter=$folder/run/best

if ! command -v blockdraft >/dev/null; then
    echo "blockdraft is not on the PATH; install it with \`pip install .\` in a clone of its repository" >&2
    exit 1
fi

step() { printf '\n== %s (after %d s)\n' "$1" "$SECONDS"; }

step "data: the model writes questions and answers them"
blockdraft data "$folder/data" --self-written 128 --max-tokens 96

step "training: a small drafter learns to foresee the answers"
blockdraft train "$recipes/quickstart_cpu.toml" "data.folders=$folder/data" "run.out=$folder/run"

step "lossless check: an answer with the drafter, and without"
blockdraft generate "Name three colours and say why you like them." --drafter "$drafter" --compare --max-tokens 64

step "served: an answer with the drafter"
blockdraft generate "What is a good breakfast?" --drafter "$drafter" --max-tokens 128

step "done; the drafter is in $drafter"
