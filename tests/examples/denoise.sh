#!/bin/sh
# boostgrad denoise as its users see it:  denoise.sh PROGRAM
set -eu
program=${1:?usage: denoise.sh PROGRAM}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
wrong() { echo "wrong: $1"; cat "$work/out" "$work/err"; exit 1; }
# run <exit code> <arguments...>
run() {
  want=$1
  shift
  code=0
  "$program" denoise "$@" >"$work/out" 2>"$work/err" || code=$?
  [ "$code" = "$want" ] || wrong "exit code $code instead of $want: $*"
}
one_line() { [ ! -s "$work/out" ] && [ "$(wc -l <"$work/err")" = 1 ] || wrong "not one line on standard error alone: $1"; }

run 0 --table gates --seeds 1 --threads 1 --json
[ "$(wc -l <"$work/out")" = 4 ] || wrong "not one row per gate"
grep -qv '^{.*}$' "$work/out" && wrong "something besides JSON on standard output"
for part in '"table":"gates","row":"scalar"' '"d":64,"patterns":16,"sigma":0.5' '"accuracy":{"mean":5' '"gain":{"mean":' \
  '"paper":{"mean":55.0}' '"rerun":{"mean":55.1}'; do
  grep -q "$part" "$work/out" || wrong "no $part"
done
cp "$work/out" "$work/one"
run 0 --table gates --seeds 1 --threads 2 --json
cmp -s "$work/out" "$work/one" || wrong "two threads give other results than one"
grep -q 'trainings, .* per second, .* left' "$work/err" || wrong "no progress"

run 0 --table gates --seeds 1
for part in '^| none .*54\.3 .*55\.5' '^| mlp .*55\.2 .*54\.6' '^Model seed 1, patterns'; do
  grep -q "$part" "$work/out" || wrong "no $part in the table"
done

run 2 --table rouns && one_line "unknown table"
grep -q 'rounds, gates, difficulty, iterate or routing, or all' "$work/err" || wrong "does not list the tables"
run 2 --table gates --seeds 0 && one_line "no seeds"
run 2 --table gates --patterns other && one_line "unknown patterns"
run 2 --table gates --threads 0 && one_line "no threads"
run 2 --seeds x && one_line "seeds are no number"
