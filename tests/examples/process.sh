#!/usr/bin/env bash
# The program among other processes: signals, closed streams, little address space.
#   process.sh BOOSTGRAD WORK-DIR
set -u
boostgrad=$1
work=$2
rm -rf "$work"
mkdir -p "$work"
cd "$work" || exit 1
trap 'rm -rf "$work"' EXIT
failures=0
fail() { echo "FAIL $*"; [ ! -s err ] || tail -3 err; failures=$((failures + 1)); }
tiny='--preset quick --d-model 16 --layers 1 --heads 2 --seq-len 16 --batch-size 4 --warmup 2'
losses() { sed 's/.*"train_loss":\([^,}]*\).*/\1/' "$1/metrics.jsonl"; }

# wait_for SECONDS CONDITION...
wait_for() {
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    [ $SECONDS -lt $end ] || return 1
    sleep 0.05
  done
}
long="$tiny --steps 1000000 --save-every 1000000"  # never ends by itself
steps() { wc -l <"$1/metrics.jsonl"; }
steps_of() { [ -e "$1/metrics.jsonl" ] && [ "$(steps "$1")" -ge "${2:-3}" ]; }  # RUN [AT-LEAST]
# interrupted SIGNAL CODE COMMAND...: in the middle of its steps; the run folder is `run`
interrupted() {
  local signal=$1 code=$2
  shift 2
  rm -rf run study
  "$boostgrad" "$@" >out 2>err &
  local child=$!
  wait_for 60 steps_of "$folder" || fail "$*: no step in 60 s"
  kill -s "$signal" $child
  wait $child
  local got=$?
  [ $got -eq "$code" ] || fail "$* and SIG$signal: exit $got, not $code"
}
# ended RUN STEPS OPTIONS...: a training that SIGTERM ends once it has done so many steps
ended() {
  local run=$1 least=$2
  shift 2
  "$boostgrad" train --out "$run" "$@" >out 2>err &
  local child=$!
  wait_for 60 steps_of "$run" "$least" || fail "$run: not $least steps in 60 s"
  kill -TERM $child
  wait $child
  [ $? -eq 143 ] || fail "$run: not ended by SIGTERM"
}

# Ctrl-C, SIGTERM and SIGHUP keep a checkpoint, from which the run has the bits of an unbroken one.
set -m  # or a shell ignores SIGINT for what runs in the background
for signal in 'INT 130' 'TERM 143' 'HUP 129'; do
  folder=run
  # shellcheck disable=SC2086
  interrupted $signal train $long --data builtin: --out run
  grep -q '^boostgrad: \[train\] interrupted after step [0-9]*, which a checkpoint keeps. Try: boostgrad train --out run --resume.$' err ||
    fail "$signal: what is kept?"
  ls run/checkpoints/ | grep -q . || fail "$signal: no checkpoint"
  folder=study/standard-s42
  # shellcheck disable=SC2086
  interrupted $signal study lm $long --data builtin: --models standard --seeds 42 --out study
  grep -q '^boostgrad: \[study\] interrupted: what was trained is kept. Try: the same command again.$' err ||
    fail "$signal: a study says nothing of what is kept"
  ls study/standard-s42/checkpoints | grep -q . || fail "$signal: a study keeps no checkpoint"
done
rm -rf run
ended run 3 $long --data builtin:
ended run $(($(steps run) + 20)) --resume
last=$(steps run)
ended whole "$last" $long --data builtin:
[ "$(losses run)" = "$(losses whole | head -n "$last")" ] || fail 'SIGTERM and --resume change the losses'

# A validation takes long: it is broken off, and what is kept goes on with it.
mkdir texts
yes 'the quick brown fox jumps over the lazy dog' | head -c 6000 | tee texts/train.txt >texts/test.txt
yes 'the quick brown fox jumps over the lazy dog' | head -c 30000000 >texts/valid.txt
for signal in 'INT 130' 'TERM 143' 'HUP 129'; do
  # shellcheck disable=SC2086
  set -- $signal
  rm -rf run
  # shellcheck disable=SC2086
  "$boostgrad" train $tiny --data texts --steps 60 --eval-every 4 --out run >out 2>err &
  child=$!
  wait_for 60 steps_of run || fail 'no step in 60 s'
  sleep 2  # a step takes milliseconds, the validation after the next one minutes
  before=$(date +%s%N)
  kill -s "$1" $child
  wait $child
  [ $? -eq "$2" ] || fail "SIG$1 in a validation: not exit $2"
  [ $((($(date +%s%N) - before) / 1000000)) -lt 20000 ] || fail "SIG$1 in a validation: not at once"
  grep -q '^boostgrad: \[train\] interrupted after step 4, which a checkpoint keeps. Try: boostgrad train --out run --resume.$' err ||
    fail "SIG$1 in a validation: what is kept?"
done

# A signal that comes twice at once, as timeout(1) sends it, still saves; what nohup has ignored stays ignored.
rm -rf run
"$boostgrad" train $long --data builtin: --out run >out 2>err &
child=$!
wait_for 60 steps_of run || fail 'no step in 60 s'
kill -TERM $child $child
wait $child
[ $? -eq 143 ] && ls run/checkpoints | grep -q . || fail 'SIGTERM twice: no checkpoint'
rm -rf run
(trap '' HUP; exec "$boostgrad" train $long --data builtin: --out run >out 2>err) &
child=$!
wait_for 60 steps_of run || fail 'no step in 60 s'
kill -HUP $child
wait_for 60 steps_of run $(($(steps run) + 20)) || fail 'SIGHUP ends a training under nohup'
kill -TERM $child
wait $child
[ $? -eq 143 ] || fail 'under nohup SIGTERM does not end a training'

# Before the first step there is nothing to keep: it ends at once, says so, and leaves nothing. (The text has so many
# different words that its tokenizer takes long.)
awk 'BEGIN {
  letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+/"
  for (i = 0; i < 4000000; ++i) {
    x = (x * 69069 + 1) % 4294967296
    printf "%s", substr(letters, int(x / 67108864) + 1, 1)
  }
}' >text
for signal in 'INT 130' 'TERM 143' 'HUP 129'; do
  # shellcheck disable=SC2086
  set -- $signal
  rm -rf run err
  # shellcheck disable=SC2086
  "$boostgrad" train $tiny --data text --tokenizer bpe:100000 --steps 10 --out run >out 2>err &
  child=$!
  wait_for 60 grep -qsE "^(counting|learning) [a-z]*: [0-9]+ %" err || fail "no progress of the tokenizer"
  before=$(date +%s%N)
  kill -s "$1" $child
  wait $child
  [ $? -eq "$2" ] || fail "SIG$1 while the tokenizer trains: not exit $2"
  [ $((($(date +%s%N) - before) / 1000000)) -lt 20000 ] || fail "SIG$1 while the tokenizer trains: not at once"
  tail -n 1 err | grep -q '^boostgrad: \[train\] interrupted before the first step: nothing is kept. Try: the same command again.$' ||
    fail "SIG$1 while the tokenizer trains: what is kept?"
  ! grep -q 'writing a checkpoint' err || fail "SIG$1 while the tokenizer trains: promises a checkpoint"
  [ ! -e run ] || fail "SIG$1 while the tokenizer trains leaves a folder: $(ls run)"
done

# Where nothing is trained, it does not speak of a training: here a table has been printed, and its plot takes long.
mkdir bin
cat >bin/gnuplot <<'end'
#!/bin/sh
if [ -e checked ]; then : >drawing; exec sleep 5; fi
: >checked
echo '<svg></svg>'
end
chmod +x bin/gnuplot
"$boostgrad" study lm $tiny --data builtin: --steps 4 --models standard --seeds 42 --no-timing --out done >out 2>err || fail 'no study'
PATH="$PWD/bin:$PATH" "$boostgrad" study lm --table-only --out done --svg table.svg >out 2>err &
child=$!
wait_for 60 test -e drawing || fail 'no plot in 60 s'
kill -INT $child
wait $child
[ $? -eq 130 ] || fail 'SIGINT while a table is drawn: not exit 130'
[ "$(tail -n 1 err)" = 'boostgrad: [signal] interrupted while nothing was trained: what was saved before is kept. Try: the same command again.' ] ||
  fail 'SIGINT while a table is drawn: what is said?'
set +m

# Closed streams: no file of the run takes their places, and lost results are no success.
"$boostgrad" train $tiny --data builtin: --steps 20 --out short >out 2>err || fail 'no run'
for closed in '>&-' '2>&-' '>&- 2>&-' '<&- >&- 2>&-'; do
  rm -rf run
  eval "\"\$boostgrad\" train $tiny --data builtin: --steps 20 --save-every 5 --out run $closed" </dev/null
  code=$?
  case $closed in
    2*) [ $code -eq 0 ] || fail "$closed: exit $code" ;;
    *) [ $code -eq 1 ] || fail "$closed: exit $code, though the results cannot be read" ;;
  esac
  [ "$(losses run)" = "$(losses short)" ] || fail "$closed: other losses"
  [ "$(grep -cvE '^\{"[^}]*\}$' run/metrics.jsonl)" -eq 0 ] || fail "$closed: metrics.jsonl holds other lines"
  ! grep -rqE 'tokens/s|parameters, [0-9]+ training tokens' run || fail "$closed: a file of the run holds progress lines"
  "$boostgrad" eval --run run --data builtin: >out 2>err || fail "$closed: the run is damaged"
done

# Little address space: the version is printed, and what needs more says so in one sentence.
if (ulimit -v 300000) 2>/dev/null; then
  for limit in 200000 300000 500000; do
    (ulimit -v $limit; timeout 10 "$boostgrad" --version >out 2>err)
    code=$?
    [ $code -eq 0 ] || { [ $limit -eq 200000 ] && [ $code -eq 1 ]; } || fail "--version under ulimit -v $limit: exit $code"
  done
  (ulimit -v 300000; timeout 20 "$boostgrad" train $tiny --threads 2 --data builtin: --steps 4 --out little >out 2>err)
  code=$?
  [ $code -eq 1 ] && grep -qE '^boostgrad: \[memory\] the memory limit of this shell \(ulimit -v\) leaves too little for matrix products: got 292 MiB in all, expected 256 MiB still free, 128 for each of 2 threads\. Try: ulimit -v unlimited' err ||
    fail "training under ulimit -v 300000: exit $code"
fi

[ $failures -eq 0 ]
