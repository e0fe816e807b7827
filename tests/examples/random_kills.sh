#!/usr/bin/env bash
# A hundred ends at random moments - by SIGKILL, SIGTERM, SIGHUP and SIGINT in turns - and as many resumes: the final
# weights, results and losses must be those of a run that nobody disturbed.
#   random_kills.sh BOOSTGRAD WORK-DIR [ENDS] [SEED]
# Unlike kill_resume.sh, which ends a run after a number of steps, this one does so after a random time: starting, reading,
# validation, and the writing of checkpoints and results are met as well.
set -eu
boostgrad=$1
work=$2
ends=${3:-100}
RANDOM=${4:-11}
rm -rf "$work"
mkdir -p "$work"
trap 'rm -rf "$work"' EXIT
head -c 60000 "$0" >"$work/text"
for i in $(seq 3000); do echo "line $((i * i)) of a text that is long enough"; done >>"$work/text"

train() {  # further options; exec, so that in the background the program itself takes the signal
  exec "$boostgrad" train --data "$work/text" --model boosted --d-model 32 --layers 2 --heads 2 --seq-len 32 \
    --batch-size 8 --dropout 0.1 --steps "$steps" --lr 1e-3 --warmup 10 --save-every 7 --eval-every 50 --json "$@"
}
lines() { cat "$work/broken/metrics.jsonl" 2>/dev/null | wc -l; }

steps=4000
begin=$(date +%s%N)
(train --out "$work/whole" >/dev/null 2>"$work/whole.log")
whole=$((($(date +%s%N) - begin) / 1000000))

done_ends=0 finished=0 round=0
declare -A of=()
while [ $done_ends -lt "$ends" ]; do
  round=$((round + 1))
  [ $round -le $((ends * 3)) ] || { echo "too few ends: $done_ends in $round starts"; exit 1; }
  signal=$(set -- KILL TERM HUP INT; shift $((round % 4)); echo "$1")
  set -m  # only under job control does a child in the background take SIGINT
  train --out "$work/broken" --resume >"$work/out" 2>"$work/log" &
  set +m
  pid=$!
  # a whole run takes many starts: ends fall evenly on all of it
  milliseconds=$((RANDOM % (whole * 3 / ends + 60) + 1))
  sleep "$(printf '%d.%03d' $((milliseconds / 1000)) $((milliseconds % 1000)))"
  kill -"$signal" $pid 2>/dev/null || true
  code=0
  wait $pid 2>/dev/null || code=$?
  case $code in
    0) finished=$((finished + 1)); rm -rf "$work/broken.finished"; mv "$work/broken" "$work/broken.finished"
       cmp "$work/whole/model.safetensors" "$work/broken.finished/model.safetensors" || { echo "weights differ"; exit 1; } ;;
    137 | 143 | 129 | 130) done_ends=$((done_ends + 1)); of[$signal]=$((${of[$signal]:-0} + 1)) ;;
    *) echo "start $round, ended by SIG$signal, exits $code:"; tail -3 "$work/log"; exit 1 ;;
  esac
done

(train --out "$work/broken" --resume >"$work/out" 2>"$work/log") || { tail -3 "$work/log"; exit 1; }
for file in model.safetensors checkpoints/best.safetensors config.json tokenizer.json; do
  cmp "$work/whole/$file" "$work/broken/$file" || { echo "$file differs"; exit 1; }
done
same() {  # without what depends on the clock
  sed -E 's/"(tokens_per_s|step_seconds|peak_bytes)": ?[^,}]*//g' "$work/whole/$1" >"$work/a"
  sed -E 's/"(tokens_per_s|step_seconds|peak_bytes)": ?[^,}]*//g' "$work/broken/$1" >"$work/b"
  cmp "$work/a" "$work/b" || { echo "$1 differs"; exit 1; }
}
same metrics.jsonl
same results.json
[ "$(lines)" -eq $steps ] || { echo "metrics.jsonl has $(lines) lines, not $steps"; exit 1; }
[ -z "$(find "$work/broken" -name '*.tmp-*')" ] || { echo "a half-written file stays"; exit 1; }
list=; for signal in "${!of[@]}"; do list="$list ${of[$signal]} by SIG$signal"; done
echo "$done_ends ends at random moments:$list; $finished runs were finished meanwhile: all bits are equal"
