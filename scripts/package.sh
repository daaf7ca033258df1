#!/usr/bin/env bash
# Makes what users install, from the build release, and tries it: build/packages gets
#   qlora_*.deb, libqlora-dev_*.deb     for this Debian
#   qlora-VERSION-x86_64-linux.tar.xz   a program for Linux with glibc 2.28 or later
#   qlora_cpp-*.whl, qlora_cpp-*.tar.gz the Python module, and its source distribution
#   scripts/package.sh
source "$(dirname "$0")/dependencies.sh"
if [ $# -gt 0 ]; then
  echo "usage: scripts/package.sh" >&2
  exit 2
fi
source scripts/portable/link.sh
need_to_build
need_python
need dpkg-dev file zsh fish mandoc  # the last three: completions and manual pages are tried in them
packages=build/packages
rm -rf $packages
mkdir -p $packages
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct 2>/dev/null || echo 1)
export SOURCE_DATE_EPOCH

# What the program says of itself, without the commit.
version() { build/release/bin/qlora version | cut -d' ' -f2; }

# A folder bin/ and share/ that runs where it is unpacked.
make_tarball() {
  local name
  name=qlora-$(version)-x86_64-linux
  rm -rf build/portable/"$name"
  cmake --install build/release --component program --prefix build/portable/"$name" >/dev/null
  link_portable qlora build/portable/"$name"/bin/qlora
  check_portable build/portable/"$name"/bin/qlora
  cp LICENSE README.md build/portable/"$name"
  tar -C build/portable --sort=name --owner=0 --group=0 --mtime=@"$SOURCE_DATE_EPOCH" \
    -cJf $packages/"$name".tar.xz "$name"
}

# A wheel for every Linux with this Python and glibc 2.28, or, without the parts of a portable
# program, for this machine.
make_wheel() {
  local module=build/release/python/qlora_cpp platform=linux_x86_64
  module=$(echo $module/_core.*.so)
  if [ -e "$portable/lib/libhwy.a" ]; then
    link_portable qlora_python build/portable/_core.so
    check_portable build/portable/_core.so
    module=build/portable/_core.so platform=manylinux_2_28_x86_64
  fi
  /usr/bin/python3 -m pip wheel -q --no-deps --no-index -w $packages . \
    --config-settings extension="$module" --config-settings platform=$platform
  /usr/bin/python3 -c 'import sys; sys.path[0] = "python"; import wheel_backend
print(wheel_backend.build_sdist("'$packages'"))'
}

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
