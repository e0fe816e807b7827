#!/bin/sh
# boostgrad bench as its users see it, at tiny sizes:  bench.sh PROGRAM
set -eu
program=${1:?usage: bench.sh PROGRAM}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
wrong() { echo "wrong: $1"; cat "$work/out" "$work/err"; exit 1; }
# bench <arguments...>: JSON lines into $work/out
bench() {
  "$program" bench "$@" --json --repeats 1 >"$work/out" 2>"$work/err" || wrong "exit code $?: $*"
  grep -qv '^{.*}$' "$work/out" && wrong "something besides JSON on standard output: $*"
  [ -s "$work/out" ] || wrong "nothing measured: $*"
}
# keys <name...>: every row has them, and numbers are numbers
keys() {
  for key in "$@"; do
    [ "$(grep -c "\"$key\":" "$work/out")" = "$(wc -l <"$work/out")" ] || wrong "rows without $key"
  done
  grep -qE 'null|nan|inf' "$work/out" && wrong "a value that is no number"
  return 0
}
rows() { [ "$(wc -l <"$work/out")" = "$1" ] || wrong "not $1 rows"; }

tiny='--d-model 16 --batch-size 2 --seq-len 8 --vocab 32'
# shellcheck disable=SC2086
{
  bench gemm $tiny --head-rows 8 --layers 1 --heads 2
  keys bench name shape dtype pass threads seconds gflops fma_peak_gflops mfu peak_spread
  rows 36 # qkv, out, up, down, head, boosted qkv; forward, dX, dW; f32, f64
  bench gemm $tiny --model standard --dtype f64
  rows 15

  bench step $tiny --layers 1 --heads 2
  keys bench model threads step_s forward_s backward_s clip_s update_s tokens_per_s gflops fma_peak_gflops copy_peak_gbs \
    mfu peak_rss_bytes allocations_per_step peak_spread
  rows 1

  # The profile: rows of every phase, whose shares add up to 1; the trace is one JSON object.
  bench step $tiny --layers 1 --heads 2 --profile --trace "$work/trace.json"
  for phase in forward backward clip update; do
    grep "\"phase\":\"$phase\"" "$work/out" | sed 's/.*"share":\([-0-9.e]*\).*/\1/' |
      awk '{ s += $1 } END { exit !(s > 0.999 && s < 1.001) }' || wrong "shares of $phase"
  done
  for part in '"op":"standard_attention","pass":"forward"' '"op":"linear","pass":"backward"' '"op":"optimizer step"'; do
    grep -q "$part" "$work/out" || wrong "no $part in the profile"
  done
  case $(cat "$work/trace.json") in '{"traceEvents":[{"name":"forward","cat":"phase","ph":"X","ts":'*'}') ;; *) wrong trace ;; esac

  # Served steps: one line a step, and a snapshot to compute the same loss elsewhere.
  printf '\n\n\n' | "$program" bench step $tiny --layers 1 --heads 2 --serve --snapshot "$work/first.safetensors" \
    >"$work/out" 2>"$work/err" || wrong "serve"
}
rows 4
[ "$(grep -c '"loss":3\.' "$work/out")" = 3 ] || wrong "losses far from log 32"
[ -s "$work/first.safetensors" ] || wrong "no snapshot"

bench attention --tokens 64 --seq-len 16 32 --d-head 8 --d-model 16 --kind standard twicing standard_layer boosted
keys bench name shape pass seconds gflops fma_peak_gflops mfu extra_bytes
rows 48

bench ops --tensor-mb 1 --d-model 64 --vocab 128
keys bench name shape pass seconds gbs copy_peak_gbs ratio peak_spread
for op in layer_norm rms_norm gelu softmax dropout cross_entropy embedding; do
  [ "$(grep -c "\"name\":\"$op\"" "$work/out")" = 2 ] || wrong "$op is not measured forward and backward"
done
grep -q '"name":"residual_add"' "$work/out" && grep -q '"name":"adamw"' "$work/out" || wrong "an op is missing"
