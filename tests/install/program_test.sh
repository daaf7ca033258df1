#!/usr/bin/env bash
# Installs the program from the packages that scripts/package.sh made, and runs it.
#   program_test.sh PACKAGES
set -euo pipefail
cd "$(dirname "$0")/../.."
packages=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# as_root COMMAND...: as root, or as root of a namespace of its own.
as_root() { if [ "$(id -u)" -eq 0 ]; then "$@"; else unshare --map-root-user "$@"; fi; }
# evaluate PROGRAM...: the loss of a tiny model.
evaluate() { "$@" eval tests/golden/llama-tiny tests/golden/train-20/data.jsonl --json 2>/dev/null | grep -o '"loss":[^,]*'; }
fail() {
  echo "$*" >&2
  exit 1
}

# The .deb, into a root that knows which packages this system has, and out of it again.
debian() {
  local system=$scratch/debian
  mkdir -p "$system"/var/lib/dpkg/{info,updates,triggers}
  cp /var/lib/dpkg/status "$system/var/lib/dpkg"
  as_root dpkg --root="$system" --force-script-chrootless -i "$packages"/qlora_*.deb \
    "$packages"/libqlora-dev_*.deb >/dev/null 2>"$scratch/messages" ||
    fail "$(tail "$scratch/messages")"
  dpkg-deb -f "$packages"/qlora_*.deb Recommends | grep -q libcurl4 || fail "pull needs libcurl"
  for package in qlora libqlora-dev; do
    [ "$(dpkg-deb -f "$packages/$package"_*.deb Version)" = "$("$system/usr/bin/qlora" version | cut -d' ' -f2)" ] ||
      fail "$package has another version than the program"
  done
  evaluate "$system/usr/bin/qlora" >"$scratch/loss"
  (cd "$system" && find usr -type f | sort) >"$scratch/files"
  grep -q usr/share/man/man1/qlora-train.1.gz "$scratch/files"
  grep -q usr/share/bash-completion/completions/qlora "$scratch/files"
  for task in examples/tasks/*; do
    grep -q "usr/share/qlora/tasks/${task##*/}" "$scratch/files"
  done
  grep -q 'usr/lib/.*cmake/qlora/qlora-config.cmake' "$scratch/files"
  as_root dpkg --root="$system" --purge qlora libqlora-dev >/dev/null 2>&1
  [ ! -e "$system/usr" ] || fail "purged, but left: $(find "$system/usr")"
  if command -v lintian >/dev/null; then
    lintian --fail-on error,warning --suppress-tags initial-upload-closes-no-bugs "$packages"/*.deb
  fi
  echo "installed and purged: $(wc -l <"$scratch/files") files, loss $(cat "$scratch/loss")"
}

# What the .debs depend on is in the index of this Debian, for a system that has no package yet.
dependencies() {
  local options=(-q -o Dir::State::status="$scratch/status" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=) package
  : >"$scratch/status"
  if ! apt-cache "${options[@]}" show libc6 >/dev/null 2>&1; then
    echo "SKIPPED: this system has no index of packages (apt-get update); dependencies were not looked up in one"
    return
  fi
  apt-get "${options[@]}" install --simulate --install-recommends "$(realpath "$packages")"/*.deb >"$scratch/plan" 2>&1 ||
    fail "$(cat "$scratch/plan")"
  for package in qlora libqlora-dev libcurl4 ca-certificates; do
    grep -q "^Inst $package " "$scratch/plan" || fail "apt-get would not install $package"
  done
  echo "apt-get would install $(grep -c '^Inst' "$scratch/plan") packages on an empty system"
}

# The tarball, in a root that holds nothing but glibc 2.31.
portable() {
  local bare=$scratch/bare loss enter=(unshare --map-root-user --root="$scratch/bare")
  [ "$(id -u)" -eq 0 ] && enter=(chroot "$scratch/bare")
  mkdir -p "$bare/tests"
  cp -a build/portable/sysroot/lib build/portable/sysroot/lib64 "$bare"
  tar -C "$bare" --strip-components=1 -xf "$packages"/qlora-*.tar.xz
  cp -r tests/golden "$bare/tests"
  if ! "${enter[@]}" /bin/qlora version; then
    echo "SKIPPED: no other root can be entered here; the portable program did not run in one"
    return
  fi
  loss=$(evaluate "${enter[@]}" /bin/qlora)
  [ "$loss" = "$(cat "$scratch/loss")" ] || fail "the portable program finds $loss"
  echo "the portable program finds the same loss with glibc 2.31 alone"
}

# completes EXPECTED WORDS...: what bash offers after these words.
completes() {
  local expected=$1
  shift
  # shellcheck disable=SC2016
  bash --norc -c 'source build/release/share/qlora.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
    _qlora; echo "${COMPREPLY[@]}"' bash "$@" | grep -qx -- "$expected" ||
    fail "bash does not complete $*"
}

completions() {
  completes train qlora tra
  completes --learning_rate qlora train --learning-r
  completes 'q4_k_m q4_k_s q4_1 q4_0' qlora export --outtype q4
  if command -v fish >/dev/null; then
    fish --no-config -c 'source build/release/share/qlora.fish; complete -C "qlora trai"' |
      grep -q ^train || fail "fish does not complete"
  fi
  if command -v zsh >/dev/null; then zsh -n build/release/share/_qlora; fi
  if command -v mandoc >/dev/null; then mandoc -T lint -W error build/release/share/man/*.1; fi
}

completions
debian
dependencies
if [ -e "$(echo "$packages"/qlora-*.tar.xz)" ]; then portable; fi
