#!/usr/bin/env bash
# Sourced by other scripts: installs missing Debian packages by name, builds, and says how long it took.
# Run by itself: prints the packages that a build of the program needs.
set -euo pipefail

program_packages=(g++ cmake ninja-build pkg-config libhwy-dev libfmt-dev nlohmann-json3-dev libyaml-cpp-dev
  libpcre2-dev libutf8proc-dev libboost-dev libcurl4-openssl-dev libssl-dev libedit-dev
  libeigen3-dev libsnappy-dev libzstd-dev zlib1g-dev)
if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  echo "${program_packages[@]}"
  exit 0
fi

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"

# need PACKAGE...: installs those that are missing.
need() {
  local missing=()
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
      missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  echo "Installing Debian packages: ${missing[*]}"
  local sudo=""
  [ "$(id -u)" -eq 0 ] || sudo=sudo
  $sudo apt-get update -q
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -q --no-install-recommends \
    "${missing[@]}"
}

# For all targets: whatever is built, CMake looks for what tests need, too. ccache keeps what was compiled.
need_to_build() {
  need "${program_packages[@]}" ccache libgtest-dev libgmock-dev libcpp-httplib-dev libopenmpi-dev openmpi-bin
}

# For the preset aarch64 on another processor: a compiler, libraries, and an emulator for what was built.
need_to_cross_build() {
  need_to_build
  need g++-aarch64-linux-gnu qemu-user-static
  scripts/aarch64_sysroot.sh
}

# For the module qlora_cpp and its tests, which compare with PyTorch where that is installed.
need_python() {
  need python3-dev python3-numpy python3-pytest python3-pip \
    pybind11-dev libdlpack-dev
}

# build PRESET TARGETS...
build() {
  local preset=$1
  shift
  cmake --preset "$preset" "${configure_options[@]}" >/dev/null
  cmake --build --preset "$preset" --target "$@"
}
configure_options=()

# run_tests PRESET OPTIONS...: one more at a time than there are processors, because some tests wait.
run_tests() {
  ctest --test-dir "build/$1" --output-on-failure -j $(($(nproc) + 1)) "${@:2}"
}

# Prints the seconds since the last call, with what took them.
took() {
  echo "-- $1: $SECONDS s"
  SECONDS=0
}
