#!/usr/bin/env bash
# At a commit with the tag of a release: fails unless CMakeLists.txt and CHANGELOG.md name that release
# and no file was changed.
#   scripts/check_release.sh
set -euo pipefail
cd "$(dirname "$0")/.."
tag=$(git describe --tags --exact-match --match 'v[0-9]*' --exclude 'v*[!0-9.]*' 2>/dev/null) || exit 0
number=${tag#v}
fail() {
  echo "tag $tag: $*" >&2
  exit 1
}
grep -qF "project(qlora VERSION $number " CMakeLists.txt || fail "CMakeLists.txt names another release"
[ "$(grep -m1 '^## ' CHANGELOG.md | cut -d' ' -f2)" = "$number" ] || fail "CHANGELOG.md begins with another release"
[ -z "$(git status --porcelain --untracked-files=no)" ] || fail "files were changed since"
