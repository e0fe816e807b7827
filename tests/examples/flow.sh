#!/bin/sh
# boostgrad flow as its users see it:  flow.sh PROGRAM
set -eu
program=${1:?usage: flow.sh PROGRAM}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
wrong() { echo "wrong: $1"; head -c 2000 "$work/out" "$work/err"; exit 1; }
small='--layers 2 --d-model 16 --heads 2 --seq-len 16'
run() {  # EXIT-CODE ARGUMENTS...
  want=$1
  shift
  code=0
  "$program" "$@" >"$work/out" 2>"$work/err" || code=$?
  [ "$code" = "$want" ] || wrong "exit code $code instead of $want: $*"
}

# shellcheck disable=SC2086
{
  run 0 flow $small --model boosted
  for module in tokens blocks.0 blocks.0.attn blocks.1.mlp.down norm; do
    grep -q "^$module  *(8, 16, [0-9]*) .*#" "$work/out" || wrong "no row of $module"
  done
  ! grep -q 'dead' "$work/out" || wrong "a fresh model has a dead parameter"
  run 0 flow $small --data builtin: --json
  [ "$(grep -c '"gradient_rms":[0-9]' "$work/out")" = $(($(wc -l <"$work/out") - 1)) ] || wrong "not one row a line"
  tail -n 1 "$work/out" | grep -q '"summary":true,"loss":5\.[45].*"dead_parameters":\[\]' || wrong "no summary"
  run 2 flow $small --batch-size 0
  grep -q 'bad --batch-size' "$work/err" || wrong "no word of the batch size"

  # On a run: its weights, its own text.
  run 0 train --data builtin: --out "$work/run" $small --steps 3 --batch-size 2
  run 0 flow --run "$work/run" --batch-size 2
  grep -q '^blocks.1 ' "$work/out" || wrong "no rows of a run"

  # The plot; without gnuplot one sentence that names the package.
  if command -v gnuplot >/dev/null; then
    run 0 flow $small --svg "$work/flow.svg"
    grep -q '</svg>' "$work/flow.svg" || wrong "the plot is not whole"
    grep -q 'blocks.1.mlp.down' "$work/flow.svg" || wrong "the plot does not name the modules"
  fi
  code=0
  PATH=/nowhere "$program" flow $small --svg "$work/none.svg" >"$work/out" 2>"$work/err" || code=$?
  [ $code = 1 ] && grep -q 'gnuplot is not installed.*apt-get install gnuplot-nox' "$work/err" || wrong "without gnuplot"
  [ "$(wc -l <"$work/err")" = 1 ] && [ ! -e "$work/none.svg" ] || wrong "without gnuplot: more than a sentence"
}
