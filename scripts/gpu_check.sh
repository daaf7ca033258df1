#!/usr/bin/env bash
# Runs on a GPU everything that one can show of the CUDA backend, in at most eight minutes: its tests,
# small ones under compute-sanitizer, the benchmarks, and the same step in PyTorch where PyTorch and
# Triton are installed and time is left; then writes a receipt for docs/gpu.
#   scripts/gpu_check.sh              build (needs nvcc and Debian's packages), run, write the receipt
#   scripts/gpu_check.sh --pack       build only: build/gpu_check, programs that need no package
#   scripts/gpu_check.sh --run OUT    run what --pack built, on a machine without compiler or network
set -euo pipefail
cd "$(dirname "$0")/.."
pack=build/gpu_check

run_packed() {
  export QLORA_SOURCE_DIR=$PWD
  exec python3 scripts/gpu_receipt.py --bin $pack --out "$1"
}
if [ "${1:-}" = --run ]; then run_packed "${2:?--run needs a folder for the receipt}"; fi

source scripts/dependencies.sh
source scripts/portable/link.sh
need_to_build
configure_options=(-DQLORA_CUDA=ON)
build release qlora cuda_device_tests
prepare_portable
mkdir -p $pack
link_portable qlora $pack/qlora
link_portable cuda_device_tests $pack/cuda_device_tests
strip $pack/*
if [ "${1:-}" != --pack ]; then run_packed docs/gpu; fi
