#!/usr/bin/env bash
# Runs on a GPU everything that one can show of the CUDA backend, in at most eight minutes: its tests,
# small tests under compute-sanitizer, the benchmarks, and the same step in PyTorch where an interpreter
# has PyTorch and Triton and time is left; then writes a receipt for docs/gpu. Libraries of NVIDIA that
# packages brought to the Python of PATH or VIRTUAL_ENV are found.
#   scripts/gpu_check.sh                build (needs nvcc and Debian's packages), run, write the receipt
#   scripts/gpu_check.sh --pack         build only: build/gpu_check, programs that need no package
#   scripts/gpu_check.sh --run OUT ...  run what --pack built, on a machine without compiler or network
# A build takes longer than eight minutes on few cores: pack on a machine without a GPU, beforehand.
# --run needs build/gpu_check and the tracked files, and passes options on: `--parts tests,sanitizer`
# and `--parts benchmarks,peers` divide the work between two commands with eight minutes each;
# `--python FILE` names another interpreter whose packages have libraries of NVIDIA or PyTorch.
set -euo pipefail
cd "$(dirname "$0")/.."
pack=build/gpu_check

run_packed() {
  export QLORA_SOURCE_DIR=$PWD
  exec python3 scripts/gpu_receipt.py --bin $pack --out "$@"
}
if [ "${1:-}" = --run ]; then
  shift
  : "${1:?--run needs a folder for the receipt}"
  run_packed "$@"
fi

source scripts/dependencies.sh
source scripts/portable/link.sh
need_to_build
configure_options=(-DQLORA_CUDA=ON -UCMAKE_CUDA_ARCHITECTURES)  # machine code for every generation
build release qlora cuda_device_tests
prepare_portable
mkdir -p $pack
link_portable qlora $pack/qlora
link_portable cuda_device_tests $pack/cuda_device_tests
strip $pack/*
if [ "${1:-}" != --pack ]; then run_packed docs/gpu; fi
du -h $pack/*
