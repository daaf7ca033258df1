#!/usr/bin/env bash
# Makes the folder of a release, build/release-VERSION, from a clean tree at its commit:
#   the packages of scripts/package.sh   .deb, portable program, wheel, source distribution
#   qlora-VERSION-container.tar.xz       the container image, where podman or docker builds it
#   qlora-VERSION-man.tar.xz             the manual pages
#   NOTES.md                             the part of CHANGELOG.md about this release
#   SHA256SUMS                           of all other files
#   scripts/release.sh VERSION
set -euo pipefail
cd "$(dirname "$0")/.."
if [ $# -ne 1 ] || ! [[ $1 =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]]; then
  echo "usage: scripts/release.sh VERSION, such as 0.2.0" >&2
  exit 2
fi
version=$1
fail() {
  echo "release $version: $*" >&2
  exit 1
}
grep -qF "project(qlora VERSION $version " CMakeLists.txt || fail "CMakeLists.txt names another release"
[ -z "$(git status --porcelain --untracked-files=no)" ] || fail "files were changed since the last commit"
notes=$(awk -v version="$version" '/^## / {ours = $2 == version; next} ours' CHANGELOG.md)
[ -n "${notes//[[:space:]]/}" ] || fail "CHANGELOG.md has no part '## $version'"

folder=build/release-$version
rm -rf "$folder"
mkdir -p "$folder"
scripts/package.sh
cp build/packages/* "$folder"/
ls "$folder/qlora-$version-"*.tar.xz >/dev/null 2>&1 || fail "there is no portable program; scripts/package.sh says why"

# The time of the commit, so that the same commit gives the same archives.
time=$(git log -1 --format=%ct)
man=build/man-$version
rm -rf "$man"
cmake --install build/release --component program --prefix "$man" >/dev/null
tar -C "$man/share" --sort=name --owner=0 --group=0 --mtime=@"$time" -cJf "$folder/qlora-$version-man.tar.xz" man
container=$(command -v podman || command -v docker || true)
if [ -n "$container" ]; then
  "$container" build -t "qlora:$version" .
  "$container" save "qlora:$version" | xz >"$folder/qlora-$version-container.tar.xz"
else
  echo "SKIPPED: neither podman nor docker is here, so there is no container archive"
fi
printf '%s\n' "$notes" >"$folder/NOTES.md"
(cd "$folder" && find . -type f ! -name SHA256SUMS -printf '%P\n' | LC_ALL=C sort | xargs sha256sum >SHA256SUMS)
ls -sh "$folder"
