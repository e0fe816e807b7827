#!/bin/sh
# boostgrad gradcheck as its users see it:  gradcheck.sh PROGRAM
set -eu
program=${1:?usage: gradcheck.sh PROGRAM}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
wrong() { echo "wrong: $1"; cat "$work/out" "$work/err"; exit 1; }
# run <exit code> <arguments...>
run() {
  want=$1
  shift
  code=0
  "$program" gradcheck "$@" >"$work/out" 2>"$work/err" || code=$?
  [ "$code" = "$want" ] || wrong "exit code $code instead of $want: $*"
}
one_line() { [ ! -s "$work/out" ] && [ "$(wc -l <"$work/err")" = 1 ] || wrong "not one line on standard error alone: $1"; }

run 0 --quick --json --html "$work/page.html"
summary=$(tail -n 1 "$work/out")
for part in '"summary":true' '"passed":true' '"score":1.0' '"V4":{'; do
  case $summary in *"$part"*) ;; *) wrong "no $part in the summary" ;; esac
done
ops=$(echo "$summary" | sed 's/.*"ops":\([0-9]*\).*/\1/')
[ "$ops" -ge 50 ] && [ "$(wc -l <"$work/out")" = $((ops + 1)) ] || wrong "not one line per op"
grep -qv '^{.*}$' "$work/out" && wrong "something besides JSON on standard output"
grep -q '</html>' "$work/page.html" || wrong "the page is not whole"

run 2 --op softmax --op exp --sample 1 && one_line "--sample of two ops"
run 2 --op sofmax && one_line "unknown op"
grep -q 'softmax' "$work/err" || wrong "no near name"
run 2 --op exp --sample 99 && one_line "no such sample"
run 2 --seed x && one_line "bad seed"
run 0 --accuracy --op softmax
grep -q 'd x' "$work/out" || wrong "no gradient in the accuracy table"
run 2 --op exp --quick --html "$work/nowhere/page.html"
[ "$(wc -l <"$work/err")" = 1 ] || wrong "unwritable page: not one line"
