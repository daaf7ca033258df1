#!/usr/bin/env bash
# What takes longer than scripts/test.sh and begins with what it built: the demo; libraries, programs and
# some of the tests by clang++ under the address and undefined-behaviour sanitizers; the fuzzers; threads
# under the thread sanitizer; packages; and the peers from npm where they can be reached.
source "$(dirname "$0")/dependencies.sh"
need_to_build
need_python
need clang libclang-rt-dev libdnnl-dev python3-protobuf
mkdir -p build

# Starts a command whose output is shown by `join`: peers and packages wait more than they compute, so
# they run beside builds. It ends with this script, and at its first failure, which it would not do in a
# condition.
beside() {
  "$@" >build/beside.log 2>&1 &
  job=$!
}
trap 'kill ${job:-} 2>/dev/null || true' EXIT
# Waits for it, prints what it said, and ends when it failed.
join() {
  local status=0
  wait $job || status=$?
  job=
  cat build/beside.log
  [ $status -eq 0 ] || exit $status
}

# The peers: llama.cpp, Hugging Face tokenizers and Jinja, Chromium.
peers() {
  local interop=tests/interop
  if ! command -v npm >/dev/null && ! need nodejs npm; then
    echo "SKIPPED: no npm; the comparisons with llama.cpp and Hugging Face did not run"
    return
  fi
  # Installed once, and again when a peer was added.
  if [ ! $interop/node_modules/.package-lock.json -nt $interop/package.json ] &&
    ! (cd $interop && npm install --ignore-scripts --omit=optional --no-audit --no-fund >/dev/null 2>&1); then
    echo "SKIPPED: npm cannot be reached; the comparisons with llama.cpp and Hugging Face did not run"
    return
  fi
  need chromium || echo "no Chromium: the page of reports is not tried in a browser"
  $interop/run.sh build/release/bin/qlora
}
# One step of training, some tokens and files of each tiny model, as a user makes them.
try_models() {
  set -x
  local qlora=build/asan/bin/qlora out=build/asan/models
  for model in tests/golden/*-tiny; do
    rm -rf $out
    $qlora train --model "$model" --dataset tests/golden/train-20/data.jsonl --over-long truncate \
      --max-length 64 --max-steps 1 --output-dir $out/adapter
    $qlora generate "$model" Once --adapter $out/adapter --max-new-tokens 8
    $qlora export "$model" $out/merged.gguf --adapter $out/adapter --outtype q8_0 --verify
    $qlora quantize "$model" $out/nf4
    $qlora eval $out/merged.gguf tests/golden/train-20/data.jsonl --over-long truncate --max-length 64
  done
}

SECONDS=0
scripts/demo.sh >build/demo.log 2>&1 || { cat build/demo.log; exit 1; }
took "demo"
beside peers
build asan all
took "sanitized build"
join
took "peers, after the sanitized build"
run_tests asan
took "sanitized tests"
beside try_models
join
took "sanitized models"
# The same inputs on every machine, so that a change fails for its own faults. Longer runs with other seeds
# are by hand.
scripts/fuzz.sh 4000x 1
took "fuzzers"
beside scripts/package.sh
build tsan base_tests backend_tests serve_tests train_tests
took "build for the thread sanitizer"
TSAN_OPTIONS=suppressions=$PWD/tests/tsan_suppressions.txt run_tests tsan
took "threads"
join
took "packages, after the thread sanitizer"
run_tests release -L install
took "installed libraries"
