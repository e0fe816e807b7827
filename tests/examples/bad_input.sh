#!/usr/bin/env bash
# What the program refuses: each row gives the exit code and words of the one sentence on standard error.
#   bad_input.sh BOOSTGRAD WORK-DIR
# Standard output must stay empty, no run may be left behind, and nothing may take long or much memory.
set -u
boostgrad=$1
work=$2
rm -rf "$work"
mkdir -p "$work"
cd "$work" || exit 1
trap 'rm -rf "$work"' EXIT
# what asks for too much memory must hear it from the program; sanitizers need more address space than that to start
(ulimit -v 8000000 && "$boostgrad" --version >/dev/null) 2>/dev/null && ulimit -v 8000000
failures=0 rows=0

fail() { echo "FAIL $*" | cut -c 1-500; failures=$((failures + 1)); }

# refused CODE WORDS COMMAND...: WORDS is an extended regular expression
refused() {
  local code=$1 words=$2 got
  shift 2
  rows=$((rows + 1))
  timeout 20 "$boostgrad" "$@" >out 2>err </dev/null
  got=$?
  [ $got -eq "$code" ] || fail "$*: exit $got, not $code: $(head -c 300 err)"
  grep -qE -- "$words" err || fail "$*: no '$words' in: $(head -c 300 err)"
  [ "$(wc -l <err)" -le 1 ] || fail "$*: not one line: $(head -c 300 err)"
  grep -qE '^boostgrad: \[[^]]*\] ' err || fail "$*: not in the agreed form: $(head -c 300 err)"
  ! grep -qE '\.\.( |$)' err || fail "$*: two full stops: $(head -c 300 err)"
  [ ! -s out ] || fail "$*: standard output: $(head -c 100 out)"
  [ ! -e new ] || fail "$*: leaves behind: $(find new | tr '\n' ' ')"
  ! grep -qE 'filesystem error|json\.exception|Could not|At Most|is required|excludes|required but' err ||
    fail "$*: in the words of a library: $(head -c 300 err)"
  iconv -f utf-8 -t utf-8 err >utf8 2>&1 && cmp -s err utf8 || fail "$*: not UTF-8: $(head -c 300 err)"
  rm -rf new
}
# says CODE SENTENCE COMMAND...: the whole line, but for the name of the program
says() {
  local sentence=$2
  refused "$1" '' "${@:3}"
  [ "$(cat err)" = "boostgrad: $sentence" ] || fail "${*:3}: $(head -c 400 err)
  instead of: boostgrad: $sentence"
}
# succeeds COMMAND...
succeeds() {
  rows=$((rows + 1))
  timeout 60 "$boostgrad" "$@" >out 2>err </dev/null || fail "$*: exit $?: $(head -c 300 err)"
}

yes 'the quick brown fox jumps over the lazy dog' | head -c 6000 >text
: >empty
printf a >one
printf 'abc\xff\xfe' >binary
mkdir folder short_valid short_test
cp text short_valid/train.txt
cp one short_valid/valid.txt
cp text short_test/train.txt
cp text short_test/valid.txt
cp one short_test/test.txt

# The command line.
refused 2 'no command'
refused 2 'no such command.*trian.*train' trian
refused 2 'unknown argument.*--stpes.*--steps' train --stpes 3
refused 2 'out' train --data text
refused 2 'no text' train --out new
refused 2 'not a run folder' train --out new --resume

# In the program's words, not in those of the library that reads the command line.
says 2 "[train] --lr is given more than once: got '1' and '2', expected one value. Try: boostgrad train --help." \
  train --data text --out new --lr 1 --lr 2
says 2 '[train] no value for --lr: expected a number. Try: boostgrad train --help.' train --data text --out new --lr
says 2 "[train] bad --lr: got 'fast', expected a number. Try: boostgrad train --help." train --data text --out new --lr fast
says 2 "[train] bad --steps: got '1e3', expected a whole number. Try: boostgrad train --help." \
  train --data text --out new --steps 1e3
says 2 '[denoise] bad --seeds: got 3000000000, expected 1 to 10,000.' denoise --seeds 3000000000
says 2 '[threads] bad --threads: got 3000000000, expected 1 to 1024.' info --threads 3000000000
says 2 "[train] bad --steps: got '99999999999999999999', expected a whole number nearer to 0. Try: boostgrad train --help." \
  train --data text --out new --steps 99999999999999999999
says 2 "[train] bad --seed: got '-1', expected a whole number from 0 to 18446744073709551615. Try: boostgrad train --help." \
  train --data text --out new --seed -1
says 2 '[train] no --out: expected a value. Try: boostgrad train --help.' train --data text
says 2 '[report] no runs: expected a value. Try: boostgrad report --help.' report --out new.html
says 2 "[train] bad --resume: got 'perhaps', expected no value. Try: boostgrad train --help." train --data text --out new --resume=perhaps
says 2 '[lm] both --timing and --no-timing: expected one of them. Try: boostgrad study lm --help.' \
  study lm --out new --data text --timing --no-timing
says 2 "[train] no value for --out: got '--resume', expected a value. Try: --out=--resume where that is the value meant." \
  train --data text --out --resume
says 2 "[train] no value for --lr: got '--steps', expected a number. Try: --lr=--steps where that is the value meant." \
  train --data text --out new --lr --steps 3
says 2 "[train] no value for --out: got '--steps=3', expected a value. Try: --out=--steps=3 where that is the value meant." \
  train --data text --out --steps=3
says 2 "[gradcheck] bad --sample: got '-1', expected 0 or more. Try: boostgrad gradcheck --help." gradcheck --op exp --sample -1
says 2 '[gradcheck] --accuracy has no --html: expected one of the two.' gradcheck --op exp --accuracy --html new.html
refused 2 'cannot create nowhere/page.html: No such file' gradcheck --html nowhere/page.html
refused 2 'bad --seeds: got 100000, expected 1 to 10,000' denoise --seeds 100000
refused 2 'names no model|--models' study lm --data text --out new --models ,
says 2 '[study] --table-only trains nothing: got --lr, expected none of the options of a training.' \
  study lm --out folder --table-only --lr 1
succeeds train --data text --out=--resume --d-model 16 --layers 1 --heads 2 --seq-len 16 --batch-size 4 --steps 1
rm -r ./--resume

succeeds --version
grep -qE '^boostgrad [0-9.]+ \((Release|Debug)[^,]* build, parallel work by (oneTBB|std::thread), SIMD [A-Z0-9_]+\)$' out ||
  fail "--version: $(cat out)"

# Values. tiny: a model that trains in no time; each option is given once.
tiny() {
  local option given=" $* "
  for option in '--d-model 16' '--layers 1' '--heads 2' '--seq-len 16' '--batch-size 4'; do
    [[ "$given" == *" ${option% *} "* ]] || echo $option
  done
}
while read -r code words options; do
  steps='--steps 2'
  [[ "$options" != *--steps* && "$options" != *--epochs* ]] || steps=
  # shellcheck disable=SC2046,SC2086
  refused "$code" "$words" train --data text --out new $(tiny $options) $steps $options
done <<'ROWS'
2 --steps --steps 0
2 --steps --steps -1
2 whole --steps 99999999999999999999
2 whole --steps 1.5
2 steps --steps 9000000000000000000
2 epochs --epochs 0
2 epochs --epochs 1000000000000000000
2 both --steps 1 --epochs 1
2 whole --seed -1
2 whole --seed 99999999999999999999
2 threads --threads 0
2 threads --threads 99999
2 bad.--d-model --d-model 99999999999
2 bad.--d-model --d-model -16
1 memory --d-model 16777216
1 memory --layers 16777216
1 memory --model boosted --rounds 16777216
1 memory --batch-size 100000000
2 batch-size --batch-size 0
2 batch-size --batch-size 9223372036854775807
2 --heads.does.not.divide.--d-model --heads 3
2 bad.--seq-len --seq-len 0
2 finite|positive --lr nan
2 positive --lr inf
2 positive --lr 0
2 min-lr --min-lr 5
2 warm-up --warmup 2
2 bad.--dropout --dropout 1
2 dropout --dropout nan
2 weight-decay --weight-decay inf
2 beta1 --beta1 1
2 clip --clip inf
2 clip --clip 0
2 save-every --save-every 0
2 model --model transformer
2 gate --model standard --gate tall
2 bad.--rounds --model boosted --rounds 0
2 preset --preset huge
2 tokenizer --tokenizer bpe:7
2 tokenizer --tokenizer bpe:99999999999999999999
ROWS

# Texts and places.
# shellcheck disable=SC2046
t() { refused "$1" "$2" train --data "$3" --out "${4:-new}" $(tiny) --steps 2; }
t 2 'cannot read missing: No such file or directory. Try: ' missing
t 2 'has no train.txt.*Try: ' folder
t 1 'empty is empty.*Try: ' empty
t 1 'the text is too short.*got one with 1 byte\.' one
t 1 'UTF-8' binary
t 2 'device' /dev/zero
mkfifo pipe
t 2 'no program writes into this pipe. Try: ' pipe
ln -s loop loop
long=$(printf 'long%.0s' {1..2000})
t 2 'Too many levels of symbolic links' loop
t 2 'File name too long' "$long"
t 2 'File name too long' text "$long"
iconv -f utf-8 -t utf-16le text >utf16le
sed 's/[aeiou]/ж/g' text | iconv -f utf-8 -t utf-16be >utf16be
t 1 'utf16le looks like UTF-16.*iconv -f utf-16le -t utf-8' utf16le
for order in le be; do
  { [ $order = le ] && printf '\xff\xfe' || printf '\xfe\xff'; cat utf16$order; } >mark$order
  t 1 "mark$order is in UTF-16: got its byte-order mark at the beginning, expected UTF-8 text. Try: iconv -f utf-16 -t utf-8\." mark$order
done
t 1 'utf16be looks like UTF-16.*iconv -f utf-16be -t utf-8' utf16be
# what is refused late leaves no folder, no tokenizer and no cache, and takes nothing away that was there
refused 2 'warm-up' train --data text --out new/a/b --tokenizer bpe:260 $(tiny) --epochs 1 --warmup 100000
mkdir -p mine/cache
cp text mine/tokenizer.json
cp text mine/cache/notes
refused 2 'warm-up' train --data text --out mine $(tiny) --epochs 1 --warmup 100000
[ "$(find mine | sort | tr '\n' ' ')" = 'mine mine/cache mine/cache/notes mine/tokenizer.json ' ] ||
  fail "a refused run: $(find mine)"
timeout 20 "$boostgrad" study lm --data text --out new --models standard --tokenizer bpe:260 $(tiny) --epochs 1 \
  --warmup 100000 >out 2>err
[ $? -eq 2 ] && [ ! -e new ] || fail "a refused study leaves behind: $(find new | tr '\n' ' ')"
t 1 'the validation text is too short: got 1 token, expected at least 2\. Try: ' short_valid
t 1 'the test text is too short: got 1 token, expected at least 2\. Try: ' short_test
t 2 'not a folder' text text
t 2 'Not a directory' text text/below

# Other commands without a run.
refused 2 'no text' study lm --out new
refused 2 'no such model.*twice.*twicing' study lm --data text --out new --models twice
refused 2 'one model.*boosted and boosted-m2' study lm --data text --out new --models boosted,boosted-m2
refused 2 'whole' study lm --data text --out new --seeds 1,-2
refused 2 'no such folder' study lm --out missing --table-only
refused 2 'no such model' study lm --out folder --table-only --models nonsense
refused 2 'bad --data.*UTF-8' train --out new --data $'nu\xff.txt'
refused 2 "bad --lr: got '', expected a value" train --data text --out new --lr ''
refused 2 "bad --data: got ''" train --data '' --out new
refused 2 "bad --out: got ''" train --data text --out ''
refused 2 "bad --svg: got ''" study lm --data text --out new --svg ''
refused 2 "bad runs: got ''" report '' --out new.html
refused 2 'not a run folder.*a\\nb' report $'a\nb' --out new.html
refused 2 'not a run folder.*Try: ' study check folder
refused 2 'not a run folder' eval --run folder --data text
refused 2 'not a run folder' generate --run missing --prompt x
refused 2 'no such op' gradcheck --op nope
refused 2 'sample' gradcheck --op exp --sample -1
refused 2 'dropout' info --dropout 2
refused 2 'vocab' info --vocab 0
refused 2 'no command.*attention, gemm, ops, step' bench
refused 2 'no such command.*fast.*attention' bench fast
refused 2 'unknown argument.*--jsn.*--json' bench step --jsn
refused 2 'nowhere' bench step $(tiny) --vocab 16 --repeats 1 --trace nowhere/trace.json
refused 2 'bad --repeats' bench ops --repeats 0
refused 2 'bad --batch-size' bench gemm --batch-size 0
refused 2 'bad --dtype.*f16.*f32, f64 or both' bench gemm --dtype f16
refused 2 'no such case.*nope' bench gemm --only nope
refused 2 'unknown --kind.*bosted.*one of standard, twicing, .*Try: boosted' bench attention --kind bosted
refused 2 'bad --seq-len' bench attention --seq-len 0
refused 2 'whole number' bench attention --d-head x
refused 2 'bad --causal' bench attention --causal maybe
refused 2 'bad --tensor-mb' bench ops --tensor-mb 100000
refused 1 'memory' bench step --batch-size 9223372036854775807
succeeds info --json --layers 16777216
grep -q '"parameters":' out || fail 'info of a huge model'

# A run, and what damages it.
# shellcheck disable=SC2046
succeeds train --data text --out run $(tiny) --steps 4 --save-every 2 --json
[ "$(wc -l <out)" -eq 1 ] || fail "train --json: $(cat out)"
first=$(grep -o '"train_loss":[^,]*' out)
succeeds train --out run --resume --json
grep -q 'the run is finished.*cannot be made longer' err || fail "silent about a finished run: $(cat err)"
[ "$(grep -o '"train_loss":[^,]*' out)" = "$first" ] || fail "a finished run reports another loss: $(cat out)"
succeeds train --out run --resume --json
cp -r run $'nu\xff'
succeeds train --out $'nu\xff' --resume --json
succeeds study check $'nu\xff' --json
# shellcheck disable=SC2046
refused 2 'already holds a run' train --data text --out run $(tiny) --steps 4
refused 2 'another --lr.*Try: --lr 0.0003, or another' train --out run --resume --lr 0.5
refused 2 'another length, on which.*got --steps 20, expected --steps 4' train --out run --resume --steps 20
refused 2 'another --d-model.*Try: --d-model 16' train --out run --resume --d-model 32
printf 'quite another text, long enough for a sequence\n' >other
refused 2 'another text' train --out run --resume --data other
refused 2 "bad --prompt: got ''" generate --run run --prompt ''
refused 2 'tokens' generate --run run --prompt x --tokens -1
refused 2 'temperature' generate --run run --prompt x --temperature nan
refused 2 'bad --top-k' generate --run run --prompt x --top-k -1
refused 2 'bad --top-p' generate --run run --prompt x --top-p 0
refused 2 'bad --repetition-penalty' generate --run run --prompt x --repetition-penalty 0
refused 2 'stop' generate --run run --prompt x --stop a --stop ''
refused 2 'bad --prompt' generate --run run --prompt $'\xff\xfe'
refused 2 'split' eval --run run --data text --split foo
mkdir no_test
cp text no_test/train.txt
cp text no_test/valid.txt
refused 2 'no such text.*--split test' eval --run run --data no_test --split test
refused 1 'is empty' eval --run run --data empty
# The same wrong path, the same code, whichever option it stands in.
words='Too many levels|File name too long|not a run folder|no such f|No such f|[Nn]ot a directory|not a folder|a device|not a regular file|not where it was|nothing to resume'
wrong_path() {  # PATH COMMAND: with P for the path
  local parts
  read -ra parts <<<"$2"
  refused 2 "$words" "${parts[@]/#P/$1}"
}
for path in loop "$long" loop/x nowhere/x /dev/null; do
  for command in "eval --run run --data P" "eval --run P --data text" "report P --out new.html" "flow --run P" \
    "report run --out new.html --data P" "study lm --data P --out new" "study lm --table-only --out P" "flow --data P" \
    "generate --run P --prompt x" "study check P" "study check run --data P" "train --data P --out new" \
    "train --data text --out new --tokenizer P" "train --out P --resume"; do
    wrong_path "$path" "$command"
  done
done
for path in loop "$long" loop/x /dev/null; do
  for command in "report run --out P" "study lm --data text --out P --models standard" "flow --svg P" "gradcheck --html P" \
    "train --data text --out P"; do
    wrong_path "$path" "$command"
  done
done
for text in '--- a/x' '---' '--' '--no-option of this command' '-x'; do  # values that only look like options
  succeeds generate --run run --prompt "$text" --stop "$text" --tokens 3
done
succeeds generate --run run --prompt "$(head -c 100 text)" --tokens 20 --top-k 1000 --temperature 1e-300 --json
damaged() {  # WORDS FILE COMMAND...: COMMAND changes the file of a copy; exit 2 where the run is then another one
  local words=$1 file=$2 code=1
  [[ "$words" != *'another configuration'* && "$words" != *'not the tokenizer'* ]] || code=2
  shift 2
  rm -rf broken
  cp -r run broken
  "$@" broken/"$file"
  refused $code "$words" generate --run broken --prompt x
}
damaged 'config.json' config.json truncate -s 100
damaged 'config.json' config.json truncate -s 0
damaged 'config.json' config.json sed -i 's/"steps": 4/"steps": 4.5/'
damaged 'config.json' config.json sed -i 's/"batch_size": 4/"batch_size": -4/'
damaged 'memory' config.json sed -i 's/"layers": 1/"layers": 16777216/'
damaged 'another configuration.*seq_len 32, expected 16' config.json sed -i 's/"seq_len": 16/"seq_len": 32/'
damaged 'tokenizer.json' tokenizer.json truncate -s 200
deep() { head -c 100000 /dev/zero | tr '\0' '[' >"$1"; }
damaged 'config.json is nested too deeply' config.json deep
damaged 'tokenizer.json: .*nested too deeply.*Try: ' tokenizer.json deep
damaged 'too short' model.safetensors truncate -s 0
damaged 'cut off' model.safetensors truncate -s 9000
# shellcheck disable=SC2046
succeeds train --data other --out bpe $(tiny) --steps 2 --tokenizer bpe:260
damaged 'not the tokenizer of this run' tokenizer.json cp bpe/tokenizer.json

# Whoever edits an option has another run: the same code in every command.
rm -rf edited
cp -r run edited
sed -i 's/"lr": 0.0003/"lr": 0.0004/' edited/config.json
refused 2 'another configuration: got options.lr 0.0004, expected 0.0003' train --out edited --resume
refused 2 'another configuration: got options.lr 0.0004, expected 0.0003' report edited --out new.html
refused 2 'another configuration: got options.lr 0.0004, expected 0.0003' study check edited

# A name may hold any character; progress and results are lines all the same.
cp -r run $'two\nlines\tof'
succeeds train --out $'two\nlines\tof' --resume
grep -q '^two\\nlines\\tof: 4 steps' out || fail "a name with a new line: $(cat out)"
: >$'two\nlines\tof'/checkpoints/best.safetensors
succeeds train --out $'two\nlines\tof' --resume
grep -q '^damaged best weights two\\nlines' err || fail "progress with a new line: $(cat err)"

# The rule of exit codes is told.
succeeds --help
grep -q 'Exit codes, of every command' out || fail "--help: $(cat out)"

# The best weights are gone: the run still ends, and says so.
rm -rf broken
cp -r run broken
: >broken/checkpoints/best.safetensors
: >broken/checkpoints/half.safetensors.tmp-123-0
succeeds train --out broken --resume
grep -q 'damaged best weights' err || fail "silent about damaged best weights: $(cat err)"
[ ! -e broken/checkpoints/half.safetensors.tmp-123-0 ] || fail 'a temporary of a killed writer stays'

# Checkpoints without their configuration are not overwritten.
rm broken/config.json
# shellcheck disable=SC2046
refused 2 'without its config.json' train --data text --out broken $(tiny) --steps 2

# A loss that is no number.
# shellcheck disable=SC2046
timeout 60 "$boostgrad" train --data text --out nan $(tiny) --steps 50 --lr 1e30 --save-every 1 >out 2>err
[ $? -eq 1 ] && grep -qE 'not finite at step [0-9]+.*the checkpoint of step [0-9]+ is kept' err ||
  fail "not finite: $(tail -1 err)"
# shellcheck disable=SC2046
timeout 60 "$boostgrad" train --data text --out nan2 $(tiny) --steps 50 --lr 1e30 >out 2>err
grep -qE 'not finite at step [0-9]+: got [^-].*there is no checkpoint yet' err || fail "not finite: $(tail -1 err)"

# Disks: full, and a limited file size. What was there stays whole.
if [ -c /dev/full ]; then
  "$boostgrad" info >/dev/full 2>err
  [ $? -eq 1 ] && grep -q 'No space left' err || fail "lost output looks like success: $(cat err)"
fi
# shellcheck disable=SC2046
(ulimit -f 40; exec timeout 60 "$boostgrad" train --data text --out small $(tiny) --steps 4 --save-every 1 >out 2>err)
[ $? -eq 1 ] && grep -q 'file size limit' err || fail "file size limit: $(tail -1 err)"
[ -z "$(find small -name '*.tmp-*')" ] || fail 'a half-written file stays'

# a dumb terminal is sent no codes that rewrite a line; another one is
if command -v script >/dev/null; then
  for terminal in dumb xterm; do
    # shellcheck disable=SC2046
    TERM=$terminal script -qc "'$boostgrad' train --data builtin: --out $terminal $(tiny | tr '\n' ' ') --steps 3" seen >/dev/null
    codes=$(grep -c "$(printf '\033')" seen)
    [ "$terminal" = dumb ] && [ "$codes" -gt 0 ] && fail "a dumb terminal gets $codes lines of codes"
    [ "$terminal" = xterm ] && [ "$codes" -eq 0 ] && fail 'no rewritten line on a terminal'
  done
fi

[ $failures -eq 0 ] && echo "$rows rows as they should be"
[ $failures -eq 0 ]
