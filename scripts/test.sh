#!/usr/bin/env bash
# Builds the program, the Python module and the tests with g++, and runs every test of them but those of
# installed libraries. scripts/test_more.sh runs what takes longer.
source "$(dirname "$0")/dependencies.sh"
need_to_build
need libdnnl-dev python3-jsonschema python3-yaml python3-protobuf
need_python

scripts/include_rules.sh
configure_options=(-DQLORA_PYTHON=ON)
SECONDS=0
build release all
took "release build"
run_tests release -LE install
took "release tests"
