#!/usr/bin/env bash
# Builds for aarch64 by Debian's cross compiler, and tests that in qemu-user: files that go from one
# processor to the other, the demo on a tiny model, the values of tiny decoders, twenty steps, and kernels. Takes far
# longer than the other scripts; nothing runs it by itself.
#   scripts/test_aarch64.sh
source "$(dirname "$0")/dependencies.sh"
need_to_cross_build
tests=(base_tests model_tests train_tests quant_tests ggml_tests backend_tests)
build release qlora
build aarch64 qlora "${tests[@]}"
took "builds"

# Programs of aarch64, with all instructions that qemu knows unless QEMU_CPU names a processor.
export QEMU_CPU=${QEMU_CPU:-max} QEMU_LD_PREFIX=$root/build/aarch64-sysroot
other=$root/build/aarch64/qlora
printf '#!/bin/sh\nexec qemu-aarch64-static %q "$@"\n' "$root/build/aarch64/bin/qlora" >"$other"
chmod +x "$other"

tests/interop/two_processors.py build/release/bin/qlora "$other"
took "files"

# The commands of the demo, on a model and lines that the emulator has done with in a minute.
data=tests/golden/train-20/data.jsonl
MODEL=tests/golden/llama-tiny TRAIN=$data HELDOUT=$data QLORA=$other scripts/demo.sh build/demo-aarch64
took "demo"

declare -A filters=([base_tests]='SimdTargets*:PeakTest*' [train_tests]='*TrainGolden*'
  [model_tests]='*DecoderGolden*:*GgufGolden*:*FamilyGolden*')
for test in "${tests[@]}"; do
  qemu-aarch64-static "build/aarch64/bin/$test" --gtest_brief=1 --gtest_filter="${filters[$test]:-*}"
  took "$test"
done
# The vectors that every aarch64 has, on a processor that has no more.
QEMU_CPU=cortex-a53 qemu-aarch64-static build/aarch64/bin/backend_tests --gtest_brief=1 --gtest_filter='Cpu/*'
took "backend_tests of NEON alone"
