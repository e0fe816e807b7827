#!/bin/sh
# boostgrad report as its users see it:  report.sh PROGRAM
set -eu
program=$(realpath "${1:?usage: report.sh PROGRAM}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
wrong() { echo "wrong: $1"; head -c 2000 "$work/out" "$work/err"; exit 1; }
run() {  # EXIT-CODE ARGUMENTS...
  want=$1
  shift
  code=0
  "$program" "$@" >"$work/out" 2>"$work/err" || code=$?
  [ "$code" = "$want" ] || wrong "exit code $code instead of $want: $*"
}
small='--data builtin: --layers 2 --d-model 16 --heads 2 --seq-len 16 --batch-size 4 --steps 8 --eval-every 4'

# shellcheck disable=SC2086
{
  run 0 train $small --model boosted --kv residual --lr 0.0123 --out "$work/boosted"
  run 0 train $small --model standard --decay all --weight-decay 0.5 --lr 0.01 --out "$work/standard"
  run 0 train --preset paper-small $small --tokenizer byte --model boosted --kv input --warmup 2 --out "$work/paper"
}

# What is refused, before any work.
run 2 report --out "$work/page.html"
run 2 report "$work" --out "$work/page.html"
grep -q 'not a run folder' "$work/err" || wrong "no word of the folder"
run 2 report '' --out "$work/page.html"
run 2 report "$work/boosted" --out ''
run 2 report "$work/boosted" --out "$work/page.html" --tokens 0
run 2 report "$work/boosted" --out "$work/nowhere/page.html"
[ "$(wc -l <"$work/err")" = 1 ] && grep -q 'No such file' "$work/err" || wrong "an unwritable page: not one line at once"
run 2 flow --run "$work/boosted" --svg "$work/nowhere/flow.svg"
[ ! -s "$work/out" ] || wrong "flow works before it looks where to write"
code=0
PATH=/nowhere "$program" report "$work/boosted" --out "$work/page.html" >"$work/out" 2>"$work/err" || code=$?
[ $code = 1 ] && grep -q 'gnuplot is not installed.*apt-get install gnuplot-nox' "$work/err" || wrong "without gnuplot"
[ ! -e "$work/page.html" ] || wrong "something was written"
command -v gnuplot >/dev/null || exit 0

run 0 report "$work/boosted" "$work/standard" "$work/paper" --out "$work/page.html" --tokens 64 --sentence 'the <b>cat</b> & "dog"' \
  --prompt 'the cat' --json
[ "$(grep -c '"analysis"' "$work/out")" = 3 ] || wrong "not one line of JSON a run"
for id in runs curves inside maps tokens samples reproduce; do
  grep -q "<section id=\"$id\">" "$work/page.html" || wrong "no section $id"
done
grep -q 'the &lt;b&gt;cat&lt;/b&gt; &amp; &quot;dog&quot;' "$work/page.html" || wrong "the sentence is not escaped"
! grep -qiE 'https?:|<script|<link|<iframe| src=|url\(|@import' "$work/page.html" || wrong "the page loads something"
[ "$(wc -c <"$work/page.html")" -lt 1000000 ] || wrong "the page is large"

# The page gives the command that makes a run again: the same losses, bit for bit.
losses() { sed 's/.*"train_loss":\([^,}]*\).*/\1/' "$1/metrics.jsonl"; }
mkdir "$work/again"
for name in boosted standard paper; do
  again=$(sed -n "s/.*<pre>boostgrad \(train .*--out $name .*\)<\/pre>.*/\1/p" "$work/page.html")
  [ -n "$again" ] || wrong "no command for $name"
  (cd "$work/again" && eval "\"$program\" $again" >"$work/out" 2>"$work/err") || wrong "the command fails: $again"
  [ "$(losses "$work/$name")" = "$(losses "$work/again/$name")" ] || wrong "the command makes another run: $again"
done

# Every element that is opened is closed, in its turn.
if command -v python3 >/dev/null; then
  python3 - "$work/page.html" <<'END' || wrong "the page is not balanced"
import sys
from html.parser import HTMLParser
void = {"meta", "br", "hr", "img", "input", "link"}
class Balance(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open = []
    def handle_starttag(self, tag, attributes):
        if tag not in void:
            self.open.append(tag)
    def handle_startendtag(self, tag, attributes):
        pass
    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, (tag, self.getpos())
page = Balance()
page.feed(open(sys.argv[1], encoding="utf-8").read())
assert not page.open, page.open
END
fi
