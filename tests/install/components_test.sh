#!/usr/bin/env bash
# Installs to a scratch prefix, and builds and runs a program that needs one component at a time.
#   components_test.sh CMAKE BUILD_DIR CXX COMPONENT...
set -euo pipefail
cmake=$1 build=$2 cxx=$3
sources=$(dirname "$0")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"$cmake" --install "$build" --component library --prefix "$scratch/prefix" >/dev/null
for component in "${@:4}"; do
  mkdir "$scratch/$component"
  cp "$sources/use_$component.cc" "$scratch/$component/main.cc"
  cat >"$scratch/$component/CMakeLists.txt" <<CMAKE
cmake_minimum_required(VERSION 3.25)
project(use LANGUAGES CXX)
find_package(qlora REQUIRED COMPONENTS $component)
add_executable(use main.cc)
target_link_libraries(use PRIVATE qlora::$component)
CMAKE
  "$cmake" -S "$scratch/$component" -B "$scratch/$component/build" \
    -DCMAKE_PREFIX_PATH="$scratch/prefix" -DCMAKE_CXX_COMPILER="$cxx"
  "$cmake" --build "$scratch/$component/build"
  "$scratch/$component/build/use"
done
