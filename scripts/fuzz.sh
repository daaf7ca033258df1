#!/usr/bin/env bash
# Runs every fuzzer of the preset asan from its committed corpus; an input that fails is kept.
#   scripts/fuzz.sh [LIMIT [SEED]]      for each fuzzer: seconds, or inputs as 1000x; default: 30 and a random seed
# What the runs found is kept in build/fuzz, where runs for a time go on from it. Runs of a number of inputs
# begin with the corpus alone, so that a seed means the same inputs everywhere. To add an input to the corpus,
# copy it to tests/fuzz/corpus/<name>; -merge=1 (libFuzzer) picks those that reach new code.
set -euo pipefail
cd "$(dirname "$0")/.."
limit=${1:-30} seed=${2:-0}
if [[ $limit == *x ]]; then
  limit=-runs=${limit%x}
  rm -rf build/fuzz
else
  limit=-max_total_time=$limit
fi
export limit seed

fuzz() {
  local name=$1 found=build/fuzz/$1
  mkdir -p "$found"
  if build/asan/bin/"$name" "$found" tests/fuzz/corpus/"$name" "$limit" -seed="$seed" -timeout=100 \
    -rss_limit_mb=4096 -artifact_prefix="$found"/failed- >"$found.log" 2>&1; then
    echo "$name: $(find tests/fuzz/corpus/"$name" -type f | wc -l) inputs, $(sed -n 's/^Done \([0-9]*\) runs.*/\1/p' "$found.log") runs"
  else
    tail -40 "$found.log"
    echo "FAILED: $name; the input is in $found"
    return 1
  fi
}
export -f fuzz
if ! ls build/asan/bin/fuzz_* >/dev/null 2>&1; then
  echo "no fuzzers in build/asan/bin: cmake --preset asan && cmake --build --preset asan" >&2
  exit 2
fi
basename -a build/asan/bin/fuzz_* | xargs -P "$(nproc)" -I{} bash -c 'fuzz {}'
