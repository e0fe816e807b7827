#!/usr/bin/env bash
# Installs what is missing, builds, and runs the tests:  bash tests/run.sh
source "$(dirname "$0")/../examples/setup.sh"

# shellcheck disable=SC2086
install_packages $needed catch2 gnuplot-nox
configure -DBUILD_TESTING=ON
build
say "Testing (each test's line: build/test.log)"
ctest --preset release --parallel "$(nproc)" | tee build/test.log | grep -vE '^ +Start +[0-9]+: |\.\.\. +Passed +[0-9.]+ sec$'
