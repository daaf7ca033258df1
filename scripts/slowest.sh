#!/usr/bin/env bash
# Prints the ten files that take longest to compile and the ten tests that take longest to run.
#   scripts/slowest.sh [BUILD_DIR]      default: build/release
set -euo pipefail
build=${1:-build/release}

# .ninja_log: start and end in milliseconds, time of the file, output; a later line replaces an
# earlier one of the same output.
echo "seconds  compiled file"
awk -F'\t' '!/^#/ && $4 ~ /\.o$|\.gch$/ { seconds[$4] = ($2 - $1) / 1000 }
            END { for (file in seconds) printf "%7.1f  %s\n", seconds[file], file }' \
  "$build/.ninja_log" | sort -rn | sed 10q

# CTestCostData.txt: name, runs, mean seconds.
echo "seconds  test"
awk 'NF == 3 { printf "%7.1f  %s\n", $3, $1 }' "$build/Testing/Temporary/CTestCostData.txt" |
  sort -rn | sed 10q
