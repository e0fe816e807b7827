#!/usr/bin/env bash
# The main job in one command:  bash examples/quickstart.sh
# Installs what is missing, builds, verifies the gradients, trains a small standard and a small boosted language model
# on the same English text, compares them, lets both write, and shows it all on a page. STEPS=N and DATA=PATH choose another length or text.
source "$(dirname "$0")/setup.sh"
models="standard boosted"
prompt="And it came to pass"

# english_text <file>: the King James Bible from Debian's package, one verse a line, without the references.
english_text() {
  command -v bible >/dev/null || stage text "Installing bible-kjv, for its text" apt_install bible-kjv || return 1
  bible -f gen1:1-rev22:21 </dev/null 2>/dev/null | sed 's/^[^ ]* //' >"$1"
  [ "$(wc -c <"$1")" -gt 4000000 ]  # the whole book
}

# value <key> <file>: a number in a line of JSON.
value() { sed -n "s/.*\"$1\": *\([-+0-9.eE]*\).*/\1/p" "$2"; }

# shellcheck disable=SC2086
install_packages $needed
configure -DBUILD_TESTING=OFF
build --target boostgrad
boostgrad=build/release/boostgrad

say "Verifying the backward of every op and node: boostgrad gradcheck --quick"
stage gradcheck "  each op's line" $boostgrad gradcheck --quick
grep -E '^(ok|FAIL)' build/gradcheck.log | tail -n 1

number=1
while [ -e runs/quickstart-$number ]; do number=$((number + 1)); done
folder=runs/quickstart-$number
mkdir -p "$folder"
data=${DATA:-}
if [ -z "$data" ]; then
  text=$folder/king-james.txt
  if english_text "$text"; then
    say "Text: the King James Bible, $(wc -w <"$text") words; the last 1000 verses are for validation"
    data=$folder/text
    mkdir "$data"
    head -n -1000 "$text" >"$data/train.txt"
    tail -n 1000 "$text" >"$data/valid.txt"
  else
    data=builtin:
    say "Text: none to be had (package bible-kjv); using the built-in made-up language instead"
  fi
  rm -f "$text"
fi

train() {
  $boostgrad train --preset quick --model "$1" --data "$data" --out "$folder/$1" --seed 1 --json \
    ${STEPS:+--steps "$STEPS" --warmup $((STEPS / 10))} >"$folder/$1.json"
}
for model in $models; do
  show=lines stage "train-$model" "Training the $model model" train "$model"
done

printf '\n%-10s %12s %8s %14s %14s %10s\n' model parameters steps 'training loss' 'validat. loss' tokens/s
for model in $models; do
  numbers=$(for key in parameters steps train_loss val_loss tokens_per_s; do value $key "$folder/$model.json"; done)
  # shellcheck disable=SC2086
  printf '%-10s %12s %8s %14.4f %14.4f %10.0f\n' "$model" $numbers
done
for model in $models; do
  printf '\nThe %s model goes on from "%s":\n\n' "$model" "$prompt"
  $boostgrad generate --run "$folder/$model" --prompt "$prompt" --tokens 300 --temperature 0.8 --seed 1
done
printf '\n'
command -v gnuplot >/dev/null || stage gnuplot "Installing gnuplot-nox, for the plots of a report" apt_install gnuplot-nox ||
  say "No gnuplot, so no report: boostgrad report $folder/{${models// /,}} --out FILE.html writes it once there is one"
if command -v gnuplot >/dev/null; then
  # shellcheck disable=SC2086
  stage report "Writing a page about both" $boostgrad report $(printf "$folder/%s " $models) --out "$folder/report.html" \
    --prompt "$prompt" --sentence "In the beginning God" && say "To be opened in a browser: $folder/report.html"
fi
say "Done. Runs: $folder. One seed of a short run ranks nothing: see README.md, 'What the comparison means'"
