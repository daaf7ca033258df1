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

# LastTest.log: the name of each test of the last run, and below what it printed its seconds.
echo "seconds  test"
awk '/^[0-9]+\/[0-9]+ Test: / { test = $3 } /^Test time = / { printf "%7.1f  %s\n", $4, test }' \
  "$build/Testing/Temporary/LastTest.log" | sort -rn | sed 10q
