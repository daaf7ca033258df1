#!/usr/bin/env bash
# Installs the wheel that scripts/package.sh made and tests it, and checks that the source
# distribution has every file that the module is built from. With QLORA_BUILD_SDIST=1 it also builds
# a wheel from the unpacked source distribution as pip does, in minutes, and tests that.
#   python_test.sh PACKAGES
set -euo pipefail
cd "$(dirname "$0")/../.."
packages=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

/usr/bin/python3 -m pip install -q --root-user-action=ignore --no-deps --no-index --target "$scratch/site" "$packages"/qlora_cpp-*.whl
PYTHONPATH=$scratch/site PYTHONDONTWRITEBYTECODE=1 \
  /usr/bin/python3 -m pytest -q -p no:cacheprovider tests/python/test_model.py
PYTHONPATH=$scratch/site /usr/bin/python3 tests/docs/run_documents.py docs/python.md

tar -C "$scratch" -xf "$packages"/qlora_cpp-*.tar.gz
source_folder=$(echo "$scratch"/qlora_cpp-*/)
# Sources, and the headers that the compiler saw.
{
  ninja -C build/release -t inputs qlora_python
  ninja -C build/release -t deps | sed -n 's/^    //p'
} | (cd build/release && xargs realpath -m) | grep "^$PWD/\(src\|include\|python\)/" | sort -u | sed "s|^$PWD/||" >"$scratch/read"
missing=$(while read -r file; do [ -e "$source_folder/$file" ] || echo "$file"; done <"$scratch/read")
[ -z "$missing" ] || { echo "the source distribution lacks: $missing" >&2; exit 1; }
[ "$(wc -l <"$scratch/read")" -gt 100 ] || { echo "ninja names too few sources" >&2; exit 1; }
cmake -S "$source_folder" -B "$scratch/build" -G Ninja -DQLORA_PROGRAM=OFF -DQLORA_DEVELOPER=OFF \
  -DQLORA_PYTHON=ON >/dev/null
ninja -C "$scratch/build" qlora_version_file >/dev/null
cmp "$scratch/build/src/version.cc" build/release/src/version.cc
echo "the source distribution has all $(wc -l <"$scratch/read") files"
[ "${QLORA_BUILD_SDIST:-0}" = 1 ] || exit 0
rm -rf "$scratch/build" "$scratch/site"
/usr/bin/python3 -m pip wheel -q --no-deps --no-index --no-build-isolation -w "$scratch/wheel" "$source_folder"
/usr/bin/python3 -m pip install -q --root-user-action=ignore --no-deps --no-index --target "$scratch/site" \
  "$scratch"/wheel/qlora_cpp-*.whl
PYTHONPATH=$scratch/site PYTHONDONTWRITEBYTECODE=1 \
  /usr/bin/python3 -m pytest -q -p no:cacheprovider tests/python/test_model.py
echo "a wheel was built from the source distribution alone"
