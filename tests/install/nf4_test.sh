#!/usr/bin/env bash
# Installs to a scratch prefix, builds the example against it with find_package, and runs it.
#   nf4_test.sh CMAKE BUILD_DIR EXAMPLE_DIR CXX
set -euo pipefail
cmake=$1 build=$2 example=$3 cxx=$4
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"$cmake" --install "$build" --component library --prefix "$scratch/prefix" >/dev/null
"$cmake" -S "$example" -B "$scratch/build" -DCMAKE_PREFIX_PATH="$scratch/prefix" \
  -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_BUILD_TYPE=Release
"$cmake" --build "$scratch/build"
"$scratch/build/nf4" | tee "$scratch/output"

grep -q '^double quantized, as bitsandbytes does *4\.12[67]' "$scratch/output"
grep -q "^refused: quantize: tensor 'my weight': value nan at index 5000 (row 1, column 904)" \
  "$scratch/output"

# Nothing of the rest of the project, nor what the rest needs.
if ldd "$scratch/build/nf4" | grep -E 'yaml|utf8proc|pcre'; then
  echo "qlora::nf4 links more than it needs"
  exit 1
fi
# Another version is refused, and so is a part that does not exist.
for wrong in '9.0' 'COMPONENTS nothing'; do
  cat >"$scratch/CMakeLists.txt" <<CMAKE
cmake_minimum_required(VERSION 3.25)
project(wrong LANGUAGES CXX)
find_package(qlora $wrong REQUIRED)
CMAKE
  if "$cmake" -S "$scratch" -B "$scratch/wrong" -DCMAKE_PREFIX_PATH="$scratch/prefix" \
    >/dev/null 2>&1; then
    echo "find_package(qlora $wrong) was accepted"
    exit 1
  fi
  rm -rf "$scratch/wrong"
done
