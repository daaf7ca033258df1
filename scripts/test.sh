#!/usr/bin/env bash
# Builds everything and runs every test: the release build, then the same tests under the address and
# undefined-behaviour sanitizers, then the peers from npm where they can be reached.
#   scripts/test.sh [--quick]      --quick: without sanitizers and peers
source "$(dirname "$0")/dependencies.sh"
need_to_build
need libdnnl-dev python3-jsonschema python3-yaml python3-protobuf
need_python

run_preset() {
  cmake --preset "$@" >/dev/null
  cmake --build --preset "$1"
  ctest --test-dir "build/$1" --output-on-failure -j "$(nproc)"
}

run_preset release -DQLORA_PYTHON=ON
if [ "${1:-}" = --quick ]; then exit 0; fi
run_preset asan

interop=tests/interop
if command -v npm >/dev/null || (need nodejs npm); then
  if [ -d $interop/node_modules ] ||
    (cd $interop && npm install --ignore-scripts --omit=optional --no-audit --no-fund >/dev/null 2>&1); then
    need chromium || echo "no Chromium: the page of reports is not tried in a browser"
    $interop/run.sh build/release/bin/qlora
  else
    echo "SKIPPED: npm cannot be reached; the comparisons with llama.cpp and Hugging Face did not run"
  fi
else
  echo "SKIPPED: no npm; the comparisons with llama.cpp and Hugging Face did not run"
fi
