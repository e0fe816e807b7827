#!/usr/bin/env bash
# A study that is killed twice (kill -9) and continued gives the table of one that nobody killed, bit for bit; its rows
# can be repeated; and what is refused.
#   study.sh BOOSTGRAD WORK-DIR [SEED]
set -eu
boostgrad=$1
work=$2
RANDOM=${3:-11}
rm -rf "$work"
mkdir -p "$work"
trap 'rm -rf "$work"' EXIT
fail() { echo "$*"; exit 1; }

study() {  # out, further options; exec, so that in the background the program itself is what gets killed
  exec "$boostgrad" study lm --data builtin: --models standard,wider,boosted-residual --seeds 1,2 --d-model 16 \
    --layers 1 --heads 2 --seq-len 16 --batch-size 4 --dropout 0.1 --steps 200 --lr 1e-3 --save-every 20 \
    --eval-every 50 --out "$@"
}

(study "$work/whole" --no-timing >"$work/whole.txt" 2>"$work/whole.log")
grep -q '^| boosted-residual |' "$work/whole.txt" || fail "no table: $(cat "$work/whole.txt")"
! grep -q '^Not finished' "$work/whole.txt" || fail "unfinished: $(cat "$work/whole.txt")"

steps() { cat "$work"/broken/*/metrics.jsonl 2>/dev/null | wc -l; }
kills=0
while [ $kills -lt 2 ]; do
  study "$work/broken" --no-timing >"$work/broken.txt" 2>"$work/broken.log" &
  pid=$!
  goal=$(($(steps) + 250 + RANDOM % 150))  # in another run each time
  while kill -0 $pid 2>/dev/null && [ "$(steps)" -lt $goal ]; do sleep 0.01; done
  kill -9 $pid 2>/dev/null || fail "the study ended before it was killed: $(tail -2 "$work/broken.log")"
  wait $pid 2>/dev/null || true
  kills=$((kills + 1))
done
"$boostgrad" study lm --out "$work/broken" --table-only >"$work/table.txt"
grep -q '^Not finished: .* steps)$' "$work/table.txt" || fail "nothing is missing: $(cat "$work/table.txt")"
(study "$work/broken" >"$work/timed.txt" 2>"$work/broken.log")
grep -q 'resumed at step' "$work/broken.log" || fail "no run was resumed: $(cat "$work/broken.log")"
grep -q 'Step: median' "$work/timed.txt" || fail "no step times: $(cat "$work/timed.txt")"
(study "$work/broken" --no-timing >"$work/broken.txt" 2>"$work/broken.log")
cmp "$work/whole.txt" "$work/broken.txt" || fail "another table: $(diff "$work/whole.txt" "$work/broken.txt")"
"$boostgrad" study lm --out "$work/broken" --table-only --timing --models wider >"$work/table.txt" 2>/dev/null
grep -q 'Step: median' "$work/table.txt" || fail "not measured again: $(cat "$work/table.txt")"
"$boostgrad" study lm --out "$work/broken" --table-only --no-timing >"$work/table.txt"
if command -v gnuplot >/dev/null; then
  "$boostgrad" study lm --out "$work/broken" --table-only --no-timing --svg "$work/study.svg" >"$work/table.txt"
  grep -q 'wider, 0' "$work/study.svg" || fail "no figure"
fi
code=0
"$boostgrad" study lm --out "$work/broken" --table-only --svg "$work/nowhere/study.svg" >"$work/out.txt" 2>"$work/err.txt" || code=$?
[ $code -eq 2 ] && [ ! -s "$work/out.txt" ] || fail "works before it looks where to draw"
cmp "$work/whole.txt" "$work/table.txt" || fail "--table-only shows another table"

untimed() { sed -E 's/"(step_seconds|peak_bytes)":[^,}]*//g'; }
for folder in whole broken; do
  "$boostgrad" study lm --out "$work/$folder" --table-only --no-timing --json | untimed >"$work/$folder.json"
done
cmp "$work/whole.json" "$work/broken.json" || fail "--json gives other numbers"
[ "$(wc -l <"$work/whole.json")" -eq 9 ] || fail "not three rows and six runs: $(cat "$work/whole.json")"

"$boostgrad" study check "$work/broken/wider-s2" --steps 30 >"$work/check.txt" 2>"$work/check.log"
grep -q 'first 30 steps, all 30 training losses are equal' "$work/check.txt" || fail "not repeated: $(cat "$work/check.txt" "$work/check.log")"
sed -i '7s/"train_loss":[0-9]*/"train_loss":9/' "$work/broken/wider-s2/metrics.jsonl"
code=0
"$boostgrad" study check "$work/broken/wider-s2" --steps 30 >"$work/check.txt" 2>"$work/check.log" || code=$?
[ $code -eq 1 ] && grep -q 'step 7 is the first that differs' "$work/check.txt" || fail "no difference seen: $(cat "$work/check.txt")"

code=0
(study "$work/whole" --clip 2 >"$work/out.txt" 2>"$work/err.txt") || code=$?
[ $code -eq 2 ] && [ "$(grep -c 'started with another --clip: got 2.0, expected 1.0. Try: --clip 1.0, or another --out' "$work/err.txt")" -eq 1 ] || fail "other options: $(cat "$work/err.txt")"
code=0
(study "$work/whole" --decay all >"$work/out.txt" 2>"$work/err.txt") || code=$?
[ $code -eq 2 ] && grep -q 'started with another --decay: got all, expected matrices. Try: --decay matrices, or another --out' "$work/err.txt" ||
  fail "what to type: $(cat "$work/err.txt")"
code=0
"$boostgrad" study lm --data builtin: --models bosted --out "$work/new" 2>"$work/err.txt" || code=$?
[ $code -eq 2 ] && grep -q "no such model: got 'bosted'" "$work/err.txt" || fail "a bad name: $(cat "$work/err.txt")"
echo "killed twice: the same table"
