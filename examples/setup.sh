# Sourced by examples/quickstart.sh and tests/run.sh: installs what is missing, configures, builds. Debian and Ubuntu.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p build

# make is what CMake takes by itself for another preset; Ninja keeps all processors busier.
needed="g++ cmake make ninja-build libopenblas-dev libtbb-dev libhwy-dev libzip-dev zlib1g-dev libutf8proc-dev
  nlohmann-json3-dev libcli11-dev"

say() { printf '[%d:%02d] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }

# What a stage shows of its output while it runs: nothing, every line, or every tenth one's number and file.
# Ctrl-C is for the command: it may still have to say how to go on.
nothing() { trap '' INT; cat >/dev/null; }
lines() { trap '' INT; sed -u 's/^/       /'; }
tenths() { trap '' INT; sed -un '0~10 s/^\(\[[^]]*\]\).* /       \1 /p'; }

# [show=nothing|lines|tenths] stage <log name> <what it does> <command>...: one line before, the log's end if it fails.
stage() {
  local log=build/$1.log what=$2 start=$SECONDS
  shift 2
  say "$what (log: $log)"
  if ! "$@" 2>&1 | tee -i "$log" | "${show:-nothing}"; then
    tail -n 40 "$log"
    say "FAILED after $((SECONDS - start)) s: $what. The whole log: $log"
    return 1
  fi
}

missing_packages() {
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || echo "$package"
  done
}

apt_install() {
  local as_root=
  [ "$(id -u)" = 0 ] || as_root="sudo"
  $as_root apt-get update || echo "apt-get update failed; trying with the package lists that are there"
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@"
}

# install_packages <package>...: only what is missing; false when it cannot.
install_packages() {
  if ! command -v apt-get >/dev/null; then
    say "No apt-get here: install by hand what the next step says is missing"
    return 0
  fi
  local missing
  missing=$(missing_packages "$@" | tr '\n' ' ')
  [ -n "$missing" ] || return 0
  if [ "$(id -u)" != 0 ] && ! command -v sudo >/dev/null; then
    say "Missing packages, and neither root nor sudo to install them. As root: apt-get install $missing"
    return 1
  fi
  # shellcheck disable=SC2086
  stage packages "Installing $missing" apt_install $missing || {
    say "Could not install. By hand: apt-get install $missing (on Ubuntu they need the 'universe' component)"
    return 1
  }
}

# configure <option>...: in build/release, with Ninja for a new build folder. Warnings are errors for the compilers this
# has been tried with; a newer one may warn about more.
configure() {
  local werror=OFF
  if command -v g++ >/dev/null && [ "$(g++ -dumpversion)" -le 14 ]; then werror=ON; fi
  if command -v ninja >/dev/null && [ ! -e build/release/CMakeCache.txt ]; then export CMAKE_GENERATOR=Ninja; fi
  stage configure "Configuring" cmake --preset release -DBG_WERROR=$werror "$@"
}

# build <cmake --build option>...: a job per processor, fewer when memory is short (a compiler may take 1.5 GB).
build() {
  local jobs memory
  jobs=$(nproc)
  memory=$(awk '/^MemAvailable/ { print int($2 / 1500000) }' /proc/meminfo)
  if [ "$memory" -lt "$jobs" ]; then jobs=$((memory > 1 ? memory : 1)); fi
  show=tenths stage build "Building with $jobs jobs" cmake --build build/release -j "$jobs" "$@"
}
