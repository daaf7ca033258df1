#!/usr/bin/env bash
# Builds everything and runs every test: the release build by g++; the same tests with libraries that
# clang++ built under the address and undefined-behaviour sanitizers; the fuzzers; a training under the
# thread sanitizer; the packages; and the peers from npm where they can be reached.
#   scripts/test.sh [--quick]      --quick: the release build and its tests alone
source "$(dirname "$0")/dependencies.sh"
if [ $# -gt 1 ] || [ "${1:---quick}" != --quick ]; then
  echo "usage: scripts/test.sh [--quick]" >&2
  exit 2
fi
need_to_build
need clang libclang-rt-dev libdnnl-dev python3-jsonschema python3-yaml python3-protobuf
need_python

build_preset() {
  cmake --preset "$@" >/dev/null
  cmake --build --preset "$1"
}
# Trains, evaluates and saves a tiny model, and another in a GGUF file; the thread sanitizer ends the
# program at a race.
train_under_tsan() {
  export TSAN_OPTIONS=halt_on_error=1
  local qlora=build/tsan/bin/qlora data=tests/golden/train-20/data.jsonl gguf=build/tsan/base.gguf
  rm -rf build/tsan/run
  $qlora export tests/golden/llama-tiny $gguf --outtype q8_0 --overwrite
  for model in tests/golden/llama-tiny $gguf; do
    $qlora train --model $model --dataset $data --eval-dataset $data --over-long truncate \
      --max-length 64 --threads 4 --max-steps 6 --save-steps 3 --eval-steps 2 \
      --output-dir build/tsan/run --overwrite-output-dir
  done
}
run_tests() {
  ctest --test-dir "build/$1" --output-on-failure -j "$(nproc)"
}
# join PID LOG: waits for what ran beside the builds, prints what it said, and ends when it failed.
join() {
  local status=0
  wait "$1" || status=$?
  cat "$2"
  [ $status -eq 0 ] || exit $status
}
# Seconds since the last call, with what took them.
took() {
  echo "-- $1: $SECONDS s"
  SECONDS=0
}

# The peers: llama.cpp, Hugging Face tokenizers and Jinja, Chromium.
run_peers() {
  local interop=tests/interop
  if ! command -v npm >/dev/null && ! need nodejs npm; then
    echo "SKIPPED: no npm; the comparisons with llama.cpp and Hugging Face did not run"
    return
  fi
  # Installed once, and again when a peer was added.
  if [ ! $interop/node_modules/.package-lock.json -nt $interop/package.json ] &&
    ! (cd $interop && npm install --ignore-scripts --omit=optional --no-audit --no-fund >/dev/null 2>&1) &&
    [ ! -d $interop/node_modules ]; then
    echo "SKIPPED: npm cannot be reached; the comparisons with llama.cpp and Hugging Face did not run"
    return
  fi
  need chromium || echo "no Chromium: the page of reports is not tried in a browser"
  $interop/run.sh build/release/bin/qlora
}

scripts/include_rules.sh
SECONDS=0
build_preset release -DQLORA_PYTHON=ON
took "release build"
run_tests release
took "release tests"
if [ "${1:-}" = --quick ]; then exit 0; fi
scripts/demo.sh >build/demo.log 2>&1 || { cat build/demo.log; exit 1; }
took "demo"

# Peers and packages wait more than they compute, so they run beside builds.
run_peers >build/peers.log 2>&1 &
peers=$!
build_preset asan
took "sanitized build"
join $peers build/peers.log
took "peers, after the sanitized build"
run_tests asan
took "sanitized tests"
# With one seed, so that a change fails for its own faults. Longer runs with other seeds are by hand.
scripts/fuzz.sh 10 1
took "fuzzers"
scripts/package.sh >build/packages.log 2>&1 &
packages=$!
cmake --preset tsan >/dev/null
cmake --build --preset tsan --target qlora
took "build for the thread sanitizer"
train_under_tsan
took "training under the thread sanitizer"
join $packages build/packages.log
took "packages, after the thread sanitizer"
