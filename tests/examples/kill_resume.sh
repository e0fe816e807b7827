#!/usr/bin/env bash
# kill -9 at random steps, then --resume: the final weights must be those of a run that nobody killed.
#   kill_resume.sh BOOSTGRAD WORK-DIR [SEED]
# Kills at least ten times, at least five of them after a checkpoint (then the resumed step is above 0).
set -eu
boostgrad=$1
work=$2
RANDOM=${3:-7}
rm -rf "$work"
mkdir -p "$work"
trap 'rm -rf "$work"' EXIT

train() {  # out, further options; exec, so that in the background the program itself is what gets killed
  exec "$boostgrad" train --data builtin: --out "$@" --model boosted --d-model 32 --layers 2 --heads 2 --seq-len 32 \
    --batch-size 8 --dropout 0.1 --steps 1200 --lr 1e-3 --warmup 10 --save-every 20 --eval-every 400 --json
}

(train "$work/whole" >"$work/whole.json" 2>"$work/whole.log")

kills=0 after=0
resumed() { sed -n 's/^resumed at step \([0-9]*\)$/\1/p' "$1"; }
steps() { cat "$work/broken/metrics.jsonl" 2>/dev/null | wc -l; }
while [ $kills -lt 12 ] || [ $after -lt 6 ]; do
  [ $kills -lt 60 ] || { echo "too few kills fell after a checkpoint: $after of $kills"; exit 1; }
  option=; [ $kills -eq 0 ] || option=--resume
  train "$work/broken" $option >"$work/broken.json" 2>"$work/broken.log" &
  pid=$!
  # a random number of further steps, so that the kill falls anywhere: before, in and after the writing of a checkpoint
  goal=$(($(steps) + RANDOM % 60 + 1))
  while kill -0 $pid 2>/dev/null && [ "$(steps)" -lt $goal ]; do sleep 0.01; done
  if ! kill -9 $pid 2>/dev/null; then echo "the run ended before it was killed"; wait $pid; exit 1; fi
  wait $pid 2>/dev/null || true
  kills=$((kills + 1))
  at=$(resumed "$work/broken.log")
  [ -z "$at" ] || [ "$at" -eq 0 ] || after=$((after + 1))
done

# Ctrl-C: the step at hand is finished and kept, and the program says how to go on. Only under job control does a child
# in the background take the signal.
set -m
train "$work/broken" --resume >"$work/broken.json" 2>"$work/broken.log" &
set +m
pid=$!
goal=$(($(steps) + 5))
while kill -0 $pid 2>/dev/null && [ "$(steps)" -lt $goal ]; do sleep 0.01; done
kill -INT $pid
code=0
wait $pid || code=$?
[ $code -eq 130 ] || { echo "interrupted, it ends with $code, not 130"; cat "$work/broken.log"; exit 1; }
reached=$(steps)
grep -q "^boostgrad: \[train\] interrupted after step $reached, which a checkpoint keeps. Try: boostgrad train --out $work/broken --resume" \
  "$work/broken.log" || { echo "no word of how to go on:"; tail -2 "$work/broken.log"; exit 1; }
[ ! -s "$work/broken.json" ] || { echo "interrupted, it still reports a result"; exit 1; }

# In a pipeline Ctrl-C meets the reader as well, and nobody is left to write to: the checkpoint is kept all the same.
[ "$reached" -ge 1190 ] || {
  set -m
  train "$work/broken" --resume 2>&1 | tee "$work/tee.log" >/dev/null &
  set +m
  group=$(jobs -p %+)
  goal=$(($(steps) + 5))
  while kill -0 "$group" 2>/dev/null && [ "$(steps)" -lt $goal ]; do sleep 0.01; done
  kill -INT -- "-$group"
  wait || true
  reached=$(steps)
}

(train "$work/broken" --resume >"$work/broken.json" 2>"$work/broken.log")
[ "$(resumed "$work/broken.log")" -eq "$reached" ] || { echo "not resumed at step $reached, where it was interrupted"; exit 1; }
last=$(resumed "$work/broken.log")
[ -n "$last" ] && [ "$last" -gt 0 ] || { echo "the last start did not resume"; exit 1; }
cmp "$work/whole/model.safetensors" "$work/broken/model.safetensors" || { echo "final weights differ"; exit 1; }
[ "$(steps)" -eq 1200 ] || { echo "metrics.jsonl has $(steps) lines, not 1200"; exit 1; }
echo "$kills kills, $after of them after a checkpoint, last resumed at step $last: final weights are equal"
