#!/bin/sh
# The tables of examples/results/README.md are what the program prints from the logs beside it:  results.sh PROGRAM SOURCE
set -eu
program=${1:?usage: results.sh PROGRAM SOURCE}
results=${2:?usage: results.sh PROGRAM SOURCE}/examples/results
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for study in "$results"/*/; do
  "$program" study lm --table-only --out "$study" | grep '^|' >"$work/table"
  [ "$(wc -l <"$work/table")" -ge 6 ] || { echo "no table of $study"; exit 1; }
  while IFS= read -r line; do
    grep -qxF -e "$line" "$results/README.md" || { echo "not on the page: $line"; exit 1; }
  done <"$work/table"
done
