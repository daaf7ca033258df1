#!/usr/bin/env bash
# Makes a folder with Debian's libraries for aarch64, to cross-compile against and for qemu-user: what
# apt-get downloads, unpacked. The packages of this machine stay as they are.
#   scripts/aarch64_sysroot.sh [FOLDER]         default: build/aarch64-sysroot
source "$(dirname "$0")/dependencies.sh"
out=$(realpath -m "${1:-build/aarch64-sysroot}")
[ ! -e "$out" ] || { echo "$out is there"; exit 0; }

sysroot=$out.part
rm -rf "$sysroot"
apt=$sysroot/apt
mkdir -p "$apt"/lists/partial "$apt"/archives/partial
: >"$apt/status"
apt-get indextargets --format 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(REPO_URI) $(CODENAME) main' \
  'Created-By: Packages' 'Origin: Debian' 'Component: main' | sort -u >"$apt/sources.list"
options=(-q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::Etc::sourcelist="$apt/sources.list"
  -o Dir::Etc::sourceparts=- -o Dir::State="$apt" -o Dir::State::status="$apt/status" -o Dir::Cache="$apt"
  -o Debug::NoLocking=1)
apt-get "${options[@]}" update
apt-get "${options[@]}" install -y --no-install-recommends --download-only libstdc++-12-dev \
  $(printf '%s\n' "${program_packages[@]}" | grep '^lib\|-dev$') libgtest-dev libgmock-dev libcpp-httplib-dev
# What the packages say of their libraries is what a package that needs these depends on; dpkg-shlibdeps looks
# for it there.
mkdir "$sysroot/DEBIAN"
for package in "$apt"/archives/*.deb; do
  dpkg-deb -x "$package" "$sysroot"
  dpkg-deb -I "$package" shlibs >>"$sysroot/DEBIAN/shlibs" 2>/dev/null || true
done
# Absolute links and names would leave the folder.
find "$sysroot" -type l -lname '/*' | while read -r link; do
  ln -sfn "$(realpath -m --relative-to="$(dirname "$link")" "$sysroot$(readlink "$link")")" "$link"
done
sed -i 's|"/usr|"${CMAKE_SYSROOT}/usr|' "$sysroot"/usr/lib/*/cmake/Snappy/SnappyTargets*.cmake
rm -rf "$apt"
mv "$sysroot" "$out"
