#!/usr/bin/env bash
# Installs the wheel that scripts/package.sh made and tests it; and builds a wheel as pip does from the
# unpacked source distribution alone, with the objects of build/release that its files would give
# again (reuse_object.py), and uses that once.
#   python_test.sh PACKAGES
set -euo pipefail
cd "$(dirname "$0")/../.."
packages=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
fail() {
  echo "$*" >&2
  exit 1
}

# install WHEEL: into a folder of its own, which `python` then sees.
install() {
  rm -rf "$scratch/site"
  /usr/bin/python3 -m pip install -q --root-user-action=ignore --no-deps --no-index --target "$scratch/site" "$1"
}
python() { PYTHONPATH=$scratch/site PYTHONDONTWRITEBYTECODE=1 /usr/bin/python3 "$@"; }

install "$packages"/qlora_cpp-*.whl
python -c 'import importlib.metadata, qlora_cpp
assert qlora_cpp.__version__ == importlib.metadata.version("qlora_cpp"), "two versions"'
python -m pytest -q -p no:cacheprovider tests/python/test_model.py
python tests/docs/run_documents.py docs/python.md

tar -C "$scratch" -xf "$packages"/qlora_cpp-*.tar.gz
source_folder=$(echo "$scratch"/qlora_cpp-*/)
launcher=$PWD/tests/install/reuse_object.py
CMAKE_CXX_COMPILER_LAUNCHER=$launcher \
  /usr/bin/python3 -m pip wheel -v --no-deps --no-index --no-build-isolation -w "$scratch/wheel" "$source_folder" \
  >"$scratch/log" 2>&1 || fail "$(tail -40 "$scratch/log")"
cmp "$source_folder/build/wheel/src/version.cc" build/release/src/version.cc
reused=$(grep -c '^ *reused ' "$scratch/log" || true)
[ "$reused" -gt 50 ] || fail "the build of the source distribution used $reused objects only: $(grep compiled "$scratch/log")"
install "$scratch"/wheel/qlora_cpp-*.whl
# Without a file that an object was made from, there is no such object.
rm "$source_folder/src/base/arena.h" "$source_folder"/build/wheel/src/base/CMakeFiles/qlora_base.dir/Unity/*.o
ninja -C "$source_folder/build/wheel" >"$scratch/log" 2>&1 || true
grep -q "base/arena.h" "$scratch/log" || fail "a source distribution without arena.h would build, too"
python -c 'import numpy, qlora_cpp; qlora_cpp.quantize(numpy.ones((64, 64), numpy.float32))'
echo "a wheel was built from the source distribution alone: $reused objects as in build/release, $(grep -c '^ *compiled ' "$scratch/log" || true) compiled"
