#!/usr/bin/env bash
# From nothing to a served drafter of one's own in under five minutes on two cores: the default model answers
# questions that it asks itself, a small drafter learns from the answers, and an answer with the drafter is compared
# with one without it (the command fails if they differ).
#
#   recipes/quickstart_cpu.sh [FOLDER]
set -euo pipefail

recipes=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
folder=${1:-quickstart}
started=$SECONDS

blockdraft data "$folder/data" --self-written 48 --max-tokens 96
blockdraft train "$recipes/quickstart_cpu.toml" "data.folders=$folder/data" "run.out=$folder/run"
blockdraft generate "Name three colours and say why you like them." --drafter "$folder/run/best" --compare --max-tokens 64

echo "done after $((SECONDS - started)) s; the drafter is in $folder/run/best"
