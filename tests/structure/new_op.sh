#!/bin/sh
# A new op takes one header and one entry in the list of all ops; whatever is forgotten does not compile or fails a test.
#   new_op.sh SOURCES SCRATCH COMPILER PROGRAM
# SCRATCH holds a copy of the list with a further op (new_op/zz_demo.h), PROGRAM is gradcheck built with it: see
# tests/CMakeLists.txt. Empty lists of samples or mutants compile, and are failures of the verifier: test_verify.cpp.
set -eu
sources=$1 scratch=$2 compiler=$3 program=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"  # an include is looked for in the working folder first
wrong() { echo "wrong: $1"; [ ! -e "$work/out" ] || head -c 3000 "$work/out"; exit 1; }

# The header and the entry are enough: every check of the verifier is there.
"$program" gradcheck --op zz_demo --json >"$work/out" || wrong "the new op does not pass"
for part in '"op":"zz_demo","passed":true' '"V1":' '"V2":' '"V3":' '"V5":' '"V6":' '"V7":' '"V8":' '"V10":' \
  'power rule with the wrong factor","killed":true' '"score":1.0'; do
  grep -qF "$part" "$work/out" || wrong "no $part in the report of the new op"
done

# compile HEADERS-FOLDER TEXT: does not link anything
compile() { printf '%s\n' "$2" | "$compiler" -std=c++20 -fsyntax-only -I "$1" -I "$sources" -x c++ - >"$work/out" 2>&1; }
entry='#include "autograd/ops/zz_demo.h"
#include "autograd/verify/entry.h"
bg::verifier::Entry entry() { return bg::verifier::make_entry<bg::ZzDemo>(); }'

# The op without one of its parts.
mkdir -p "$work/part/autograd/ops"
header=autograd/ops/zz_demo.h
compile "$scratch" "$entry" || wrong "the whole op does not compile"
for part in reference forward backward samples mutants; do
  grep -v " $part(" "$scratch/$header" >"$work/part/$header"
  ! cmp -s "$scratch/$header" "$work/part/$header" || wrong "nothing was left out for $part"
  if compile "$work/part" "$entry"; then wrong "it compiles without $part"; fi
  grep -qE "see the list at the top of autograd/op.h|no member named '$part'|'$part' is not a member" "$work/out" ||
    wrong "the compiler's words do not lead to $part"
done

# The entry without the header.
mkdir -p "$work/list/autograd/ops"
grep -v 'zz_demo\.h' "$scratch/autograd/ops/all.h" >"$work/list/autograd/ops/all.h"
if compile "$work/list" '#include "autograd/ops/all.h"'; then wrong "the list compiles without the header"; fi
grep -q "ZzDemo" "$work/out" || wrong "the compiler does not name the op"

# The header without the entry: the rules of structure name it.
mkdir "$work/tree"
for name in core autograd nn models tests examples README.md LICENSE CMakeLists.txt CMakePresets.json; do
  cp -r "$sources/$name" "$work/tree"
done
cp "$scratch/$header" "$work/tree/autograd/ops"
if sh "$sources/tests/structure/check.sh" "$work/tree" >"$work/out"; then wrong "an op outside the list goes unnoticed"; fi
[ "$(cat "$work/out")" = "every op is in AllOps: $header ZzDemo" ] || wrong "not this one violation alone"
cp "$scratch/autograd/ops/all.h" "$work/tree/autograd/ops"
sh "$sources/tests/structure/check.sh" "$work/tree" >"$work/out" || wrong "with its entry it is still a violation"
echo "one header and one entry; 7 omissions caught"
