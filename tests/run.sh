#!/usr/bin/env bash
# Installs what is missing, builds, and runs the tests:  bash tests/run.sh
source "$(dirname "$0")/../examples/setup.sh"

# shellcheck disable=SC2086
install_packages $needed catch2
configure -DBUILD_TESTING=ON
build
say "Testing"
ctest --preset release --parallel "$(nproc)" --progress
