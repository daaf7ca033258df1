#!/usr/bin/env bash
# Makes what users install, from the build release, and tries it: build/packages gets
#   qlora_*.deb, libqlora-dev_*.deb     for this Debian
#   qlora-VERSION-PROCESSOR-linux.tar.xz  a program for Linux with glibc 2.28 or later
#   qlora_cpp-*.whl, qlora_cpp-*.tar.gz the Python module, and its source distribution
#   scripts/package.sh [aarch64]
# With aarch64: the program alone, cross-compiled by the preset aarch64, in build/packages-aarch64.
source "$(dirname "$0")/dependencies.sh"
machine=$(uname -m) preset=release cross='' libraries='' packages=build/packages
if [ "$*" = aarch64 ]; then
  machine=aarch64 preset=aarch64 cross=aarch64-linux-gnu- libraries=$root/build/aarch64-sysroot
  packages=build/packages-aarch64
elif [ $# -gt 0 ]; then
  echo "usage: scripts/package.sh [aarch64]" >&2
  exit 2
fi
source scripts/portable/link.sh
rm -rf $packages
mkdir -p $packages
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || echo 1)
export SOURCE_DATE_EPOCH

# run_program PROGRAM ARGUMENT...: on this machine, which may have another processor.
run_program() { if [ -n "$cross" ]; then qemu-aarch64-static -L "$libraries" "$@"; else "$@"; fi; }

# What the program says of itself, without the commit.
version() { run_program "build/$preset/bin/qlora" version | cut -d' ' -f2; }

# A folder bin/ and share/ that runs where it is unpacked.
make_tarball() {
  local name
  name=qlora-$(version)-$machine-linux
  rm -rf "${portable:?}/$name"
  cmake --install "build/$preset" --component program --prefix "$portable/$name" >/dev/null
  link_portable qlora "$portable/$name/bin/qlora"
  check_portable "$portable/$name/bin/qlora"
  cp LICENSE README.md "$portable/$name"
  tar -C "$portable" --sort=name --owner=0 --group=0 --mtime=@"$SOURCE_DATE_EPOCH" \
    -cJf $packages/"$name".tar.xz "$name"
}

# A wheel for every Linux with this Python and glibc 2.28, or, without the parts of a portable
# program, for this machine.
make_wheel() {
  local module=build/release/python/qlora_cpp platform=linux_$machine
  module=$(echo $module/_core.*.so)
  if [ -e "$portable/lib/libhwy.a" ]; then
    link_portable qlora_python "$portable/_core.so"
    check_portable "$portable/_core.so"
    module=$portable/_core.so platform=manylinux_2_28_$machine
  fi
  /usr/bin/python3 -m pip wheel -q --no-deps --no-index -w $packages . \
    --config-settings extension="$module" --config-settings platform=$platform
  /usr/bin/python3 -c 'import sys; sys.path[0] = "python"; import wheel_backend
print(wheel_backend.build_sdist("'$packages'"))'
}

# try_cross ROOT PROGRAM: names itself, and trains a tiny model, in qemu-user with the libraries of ROOT.
try_cross() {
  local run=(qemu-aarch64-static -L "$1" "$2") scratch
  scratch=$(mktemp -d)
  "${run[@]}" version
  "${run[@]}" train --model tests/golden/llama-tiny --dataset tests/golden/train-20/data.jsonl --max-steps 2 \
    --output-dir "$scratch/adapter" --json 2>/dev/null | grep -o '"train_loss":[^,]*'
  rm -rf "$scratch"
}

# The .deb and the tarball of another processor. The former's program is tried with Debian's libraries, the
# latter's with the glibc that it was linked against and nothing else.
make_cross() {
  need_to_cross_build
  need dpkg-dev
  build "$preset" qlora
  (cd "build/$preset" && DEB_HOST_ARCH=arm64 cpack -G DEB -D CPACK_COMPONENTS_ALL=program -B "$root/$packages")
  rm -rf $packages/_CPack_Packages
  prepare_portable
  make_tarball
  if ! dpkg-deb -f $packages/qlora_*.deb Depends | grep libc6; then
    echo "the .deb names no libraries; remove $libraries, which an older script made" >&2
    exit 1
  fi
  rm -rf "$portable/debian"
  dpkg-deb -x $packages/qlora_*.deb "$portable/debian"
  try_cross "$libraries" "$portable/debian/usr/bin/qlora"
  run_program "$portable/debian/usr/bin/qlora" doctor
  try_cross "$sysroot" "$portable/qlora-$(version)-$machine-linux/bin/qlora"
  ls -sh $packages
}
if [ -n "$cross" ]; then
  make_cross
  exit
fi

need_to_build
need_python
need dpkg-dev file zsh fish mandoc  # the last three: completions and manual pages are tried in them
configure_options=(-DQLORA_PYTHON=ON)
scripts/check_release.sh
build release qlora qlora_linear qlora_python >/dev/null
(cd build/release && cpack -G DEB -B ../packages >/dev/null) && rm -rf $packages/_CPack_Packages
if prepare_portable >build/portable.log 2>&1; then
  make_tarball
else
  tail -3 build/portable.log
  echo "SKIPPED: Debian's mirror cannot be reached, so there is no program for other distributions"
fi
make_wheel
ls -sh $packages
tests/install/program_test.sh $packages
tests/install/python_test.sh $packages
