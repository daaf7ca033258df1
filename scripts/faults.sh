#!/usr/bin/env bash
# Tries the tests: builds the source with the faults of tests/faults.patch, which QLORA_FAULT switches on one at a
# time, and says by which test each is caught.
#   scripts/faults.sh [NUMBER...]      exit code 1: a fault was not caught
source "$(dirname "$0")/dependencies.sh"
need_to_build
faulty=$PWD/build/faults
patch=$PWD/tests/faults.patch
[ -e "$faulty" ] || git worktree add --quiet --force --detach "$faulty"
git -C "$faulty" checkout --quiet --force --detach "$(git rev-parse HEAD)"
cd "$faulty"
git apply --3way "$patch"
programs=(base quant ggml io backend parquet pull serve jinja tokenizer data model train convert cli)
build release qlora "${programs[@]/%/_tests}"
took "build with faults"

# caught_by PROGRAM: prints the first test of it that fails, or how it ended; nothing where all passed.
caught_by() {
  local said status=0
  said=$(timeout 1800 "build/release/bin/$1_tests" --gtest_fail_fast --gtest_brief=1 2>&1) || status=$?
  [ $status -eq 0 ] && return
  sed -n 's/^\[  FAILED  \] \([^ ,]*\).*/\1/p' <<<"$said" | sed 1q | grep . || echo "$1_tests, exit code $status"
}

missed=0
for number in "${@:-$(grep -oE 'Fault\([0-9]+\)' "$patch" | grep -oE '[0-9]+' | sort -nu)}"; do
  for fault in $number; do
    file=$(git grep --untracked -lE "Fault\($fault\)" -- src cli | head -1)
    folder=$(cut -d/ -f$([[ $file = cli/* ]] && echo 1 || echo 2) <<<"$file")
    # The program of the tests of that folder, then those that use it.
    own=$(sed -nE "s/^set\((\w+)_folders .*\b$folder\b.*/\1/p" tests/CMakeLists.txt | head -1)
    own=${own:-$folder} by=
    for program in "$own" $(printf '%s\n' model train convert cli | grep -vx "$own"); do
      by=$(QLORA_FAULT=$fault caught_by "$program")
      [ -z "$by" ] || break
    done
    echo "$fault $file: ${by:-NOT CAUGHT}"
    [ -n "$by" ] || missed=$((missed + 1))
  done
done
echo "$missed not caught"
[ "$missed" -eq 0 ]
