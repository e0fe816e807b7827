#!/usr/bin/env bash
# What reaches gnuplot, and what comes back:  plots.sh BOOSTGRAD
# No name runs a command, nothing but the plot decides what is drawn, and half a picture is an error.
set -u
boostgrad=$(realpath "${1:?usage: plots.sh BOOSTGRAD}")
work=$(mktemp -d)
cd "$work" || exit 1
trap 'rm -rf "$work"' EXIT
failures=0
fail() { echo "FAIL $*"; head -c 1000 err; failures=$((failures + 1)); }
small='--layers 1 --d-model 16 --heads 2 --seq-len 16'
flow() { "$boostgrad" flow $small --svg "$1" >out 2>err; }  # FILE

# shellcheck disable=SC2086
"$boostgrad" train --data builtin: --out run $small --batch-size 2 --steps 4 --eval-every 2 >out 2>err || fail 'no run'

# gnuplots that fail in their ways: one sentence, and no file. The real one is not needed.
real=$(command -v gnuplot)
half() {  # WORDS SCRIPT: a gnuplot of these commands
  mkdir -p fake
  printf '#!/bin/sh\n%s\n' "$2" >fake/gnuplot
  chmod +x fake/gnuplot
  for command in "flow $small --svg picture" 'report run --out picture' 'study lm --out study --table-only --svg picture'; do
    # shellcheck disable=SC2086
    PATH=$work/fake:$PATH "$boostgrad" $command >out 2>err
    [ $? -eq 1 ] || fail "$command with a gnuplot that runs '$2': no exit code 1"
    grep -qE "^boostgrad: \[plot\] .*$1" err || fail "$command with a gnuplot that runs '$2': no '$1'"
    [ ! -e picture ] || fail "$command: a picture, in spite of '$2'"
    rm -f picture
  done
  rm -r fake
}
mkdir study
cp -r run study/standard-s42
half 'cut off.*</svg> at the end' "echo '<svg width=\"1\"><g>'"
half 'cut off' ':'
half 'gnuplot failed: got out of ink' 'echo "<svg></svg>"; echo "out of ink" >&2; exit 3'
half 'gnuplot failed: got exit code 3' 'echo "<svg></svg>"; exit 3'
half 'gnuplot failed: got signal 9' 'echo "<svg>"; kill -9 $$'
PATH=/nowhere "$boostgrad" report run --out page.html >out 2>err
[ $? -eq 1 ] && grep -q 'gnuplot is not installed.*apt-get install gnuplot-nox' err || fail 'without gnuplot'
[ -n "$real" ] || { [ $failures -eq 0 ]; exit; }

# Names of runs that are commands somewhere.
touch='touch PWNED'
for name in $'inj\nsystem "touch PWNED"\n#' $'a\'\nsystem "touch PWNED"\n\'' $'a\r!touch PWNED\r' "\`$touch\`" "\$($touch)" \
  "'.system(\"$touch\").'" "\"; system \"$touch\"; \"" '@PWNED' '%s%n%d' '{:Symbol a}_b^c&~' "<$touch;" $'\xff\xfe' '\n' "it's"; do
  cp -r run "$name"
  "$boostgrad" report "$name" run --out page.html >out 2>err || fail "a report of $(printf %q "$name")"
  [ ! -e PWNED ] || fail "the name $(printf %q "$name") runs a command"
  rm -rf PWNED "$name"
done
cp -r run "it's <b> a_b"
"$boostgrad" report "it's <b> a_b" --out page.html >out 2>err
grep -q "<title>it's &lt;b> a_b</title>" page.html || fail 'a curve is not named as its run'

# Folders for temporary files of the same kind, and full ones.
for name in $'a\nb' "it's" '`touch PWNED`' "<$touch;" 'a"b' 'a b'; do
  mkdir "$name"
  TMPDIR=$name flow flow.svg || fail "TMPDIR $(printf %q "$name")"
  [ ! -e PWNED ] || fail "TMPDIR $(printf %q "$name") runs a command"
done
TMPDIR=/nowhere flow flow.svg || fail 'a plot needs a temporary folder'
grep -q '</svg>' flow.svg || fail 'flow.svg is not whole'
if unshare -rm true 2>/dev/null; then
  mkdir tiny
  unshare -rm sh -c 'mount -t tmpfs -o size=16k tmpfs tiny && TMPDIR=$PWD/tiny exec "$@"' sh \
    "$boostgrad" flow $small --svg tiny.svg >out 2>err || fail 'a full temporary folder'
  cmp -s flow.svg tiny.svg || fail 'a full temporary folder changes a figure'
else
  echo 'skipped: a full temporary folder (no right to mount)'
fi
(ulimit -f 4; flow limited.svg)
[ $? -eq 1 ] && [ ! -e limited.svg ] || fail 'a limit of the file size: exit 0, or half a file'

# What the user has set for gnuplot is left out: start-up files, terminals, locales.
mkdir home
printf 'set xlabel "of my own"\nsystem "touch PWNED"\n' >home/.gnuplot
mkdir -p home/.config/gnuplot
cp home/.gnuplot home/.config/gnuplot/gnuplotrc
cp home/.gnuplot .gnuplot
HOME=$work/home XDG_CONFIG_HOME=$work/home/.config GNUTERM=dumb GNUPLOT_LIB=$work GNUPLOT_FONTPATH=/nowhere LC_NUMERIC=de_DE.UTF-8 \
  flow own.svg || fail "the user's settings of gnuplot"
[ ! -e PWNED ] || fail "the user's start-up file is run"
cmp -s flow.svg own.svg || fail "the user's settings of gnuplot change a figure"
(trap '' CHLD; exec "$boostgrad" flow $small --svg ignored.svg >out 2>err) || fail 'SIGCHLD ignored by the caller'

[ $failures -eq 0 ]
