#!/bin/sh
# The rules of structure that a compiler does not enforce:  check.sh ROOT [compile_commands.json]
# Prints one line per violation, "rule: where", and fails if there is one. Each rule is proved by check_test.sh.
root=${1:?usage: check.sh ROOT [compile_commands.json]}
cd "$root" || exit 2
found=$(mktemp)
trap 'rm -f "$found"' EXIT

# rule <name>: prefixes the lines of grep, which are violations.
rule() { sed "s|^|$1: |" >>"$found"; }
sources() { grep -rnE --include='*.h' --include='*.cpp' "$@"; }
includes() { pattern=$1; shift; sources "^[[:space:]]*#[[:space:]]*include[[:space:]]*[<\"]($pattern)" "$@"; }
outside() { grep -vE "^($1)"; }  # drops the places where something is allowed

# Dependencies point one way: core <- autograd <- nn <- models <- examples; only tests may include tests.
includes '(autograd|nn|models|examples|tests)/' core | rule layers
includes '(nn|models|examples|tests)/' autograd | rule layers
includes '(models|examples|tests)/' nn | rule layers
includes '(examples|tests)/' models | rule layers
includes 'tests/' examples | rule layers
includes '\.\.?/' core autograd nn models examples tests | rule 'includes start at the root'

all='core autograd nn models examples tests'
# shellcheck disable=SC2086
{
  includes '([a-z0-9_]+/)*cblas\.h' $all | outside 'core/gemm\.cpp:' | rule 'BLAS only in core/gemm.cpp'
  includes '(oneapi/)?tbb/' $all | outside 'core/parallel' | rule 'oneTBB only in core/parallel'
  includes '(hwy/|[a-z0-9]*intrin\.h|arm_(neon|sve)\.h)' $all |
    outside 'core/kernels/|core/gemm|tests/structure/' | rule 'SIMD only in core/kernels and core/gemm'
}
sources 'std::(jthread|async|thread[^:a-z_])|pthread_create' core autograd nn models examples |
  outside 'core/parallel' | rule 'threads only in core/parallel'

# A stream, a mapping or a library that opens files itself would wait for a pipe's writer, read a device without end, or
# end the program when another one shortens the file. (/proc has no whole files; storage and gemm map memory alone, and
# gnuplot gets files in memory.)
sources 'ifstream|[^_]fopen|freopen|istreambuf|zip_open ?\(|sys/mman\.h|mmap ?\(' core autograd nn models examples |
  grep -v '/proc/self' | outside '(core/(storage|gemm)|models/gnuplot)\.cpp:' | rule 'files are read by core/read_file'

sources 'json::(parse|sax_parse|accept)\(' core autograd nn models examples |
  outside 'core/io/json\.cpp' | rule 'JSON is parsed only in core/io/json.cpp'

# What is written elsewhere is half-written after a kill, and no test plants a full disk there.
sources 'ofstream|std::fstream|creat(64)?\(|[^_]mkdir\(|create_director|copy_file|fs::(copy|rename|resize_file)|O_(WRONLY|RDWR)' \
  core autograd nn models examples | grep -v '/proc/self' | outside 'core/(atomic_file|file_calls)\.|examples/boostgrad/process\.cpp:' |
  rule 'files are written by core/atomic_file'
# What reaches another program is quoted, and what comes back is checked, in one place. (The process starts itself.)
sources 'std::system ?\(|popen ?\(|posix_spawn|[^a-z]exec(l|v|le|ve|lp|vp|vpe) ?\(' core autograd nn models examples |
  outside 'models/gnuplot\.cpp:|examples/boostgrad/process\.cpp:' | rule 'programs are run by models/gnuplot.cpp'

fast='-Ofast|-ffast-math|-funsafe-math-optimizations|-ffinite-math-only|-fassociative-math|-freciprocal-math'
find . \( -name build -o -path ./tests/structure \) -prune -o \
  \( -name CMakeLists.txt -o -name '*.cmake' -o -name 'CMake*.json' \) -print |
  xargs grep -nE -e "$fast" /dev/null | rule 'no fast-math'
# shellcheck disable=SC2086
sources 'pragma GCC optimize|attribute__.*optimize|float_control|fp contract' $all | rule 'no fast-math'
if [ -n "$2" ]; then grep -noE -e "($fast).*" "$2" | cut -c 1-200 | rule 'no fast-math'; fi

# Catch2's Approx(0) is near nothing but zero, and its default tolerance is that of floats. [R40]
sources 'Approx[ (]' tests | rule 'close() instead of Approx'

# Outside a namespace a function of such a name is one more overload of the C library's, ambiguous as soon as a header of
# the next system declares that one. (close(), of three and more numbers, is no overload that a file could be closed by.)
c_names='accept|access|alarm|basename|bcmp|bcopy|bind|bzero|clock|connect|div|dup|ffs|gamma|index|j[01n]|kill|link|listen'
c_names="$c_names|mkdir|nice|open|pause|pipe|random|read|recv|remove|rename|rindex|select|send|signal|sleep|stat|step"
c_names="$c_names|sync|time|truncate|unlink|wait|write|y[01n]"
sources "^[A-Za-z_][A-Za-z0-9_:<>,& *]*[ *&]($c_names)\\(" tests examples | rule 'no global function named as one of the C library'

# ctest would make two tests of such a name, neither of which exists (a semicolon divides CMake lists).
find tests -name '*.cpp' -exec grep -zoHE 'TEST_CASE\([^{;]*;' {} + | tr -d '\n' | tr '\0' '\n' |
  rule 'no semicolon in a test name'

# An op that the list of all ops leaves out is verified by nobody. [R16] A templated op counts by its aliases.
awk '/^template/ { templated = 1; next }
     /^struct [A-Za-z]/ { op = $2; is_template[op] = templated }
     { templated = 0 }
     /static constexpr std::string_view name =/ { if (is_template[op]) base[op] = 1; else print FILENAME, op }
     /^using [A-Za-z]+ = [A-Za-z]+</ { split($4, from, "<"); if (base[from[1]]) print FILENAME, $2 }' autograd/ops/*.h |
  while read -r file op; do
    awk '/^using AllOps/, /;/' autograd/ops/all.h | grep -qw "$op" || echo "$file $op"
  done | rule 'every op is in AllOps'

# Every requirement carries a test: its tag stands in the name of one.
{ grep -rhE '(TEST_CASE|add_test)\(' --include='*.cpp' --include=CMakeLists.txt tests
  grep -rhE '^ *set\(tag_' tests/CMakeLists.txt; } >"$found.names"
n=1
while [ $n -le 43 ]; do
  grep -qF "[R$n]" "$found.names" || echo "R$n" | rule 'a test for every requirement'
  n=$((n + 1))
done
rm -f "$found.names"

for name in * .[!.]*; do
  case $name in
    core | autograd | nn | models | tests | examples | README.md | LICENSE | CMakeLists.txt | CMakePresets.json) ;;
    .* | build | build-* | runs | compile_commands.json) ;;  # settings, and what .gitignore names
    *) echo "$name" | rule 'no other name at the top' ;;
  esac
done

grep -noE '[^[]\]\([A-Za-z.][-A-Za-z0-9_./#]*\)' README.md | sed 's/.\](\(.*\))/ \1/' | while read -r line path; do
  [ -e "${path%%#*}" ] || echo "README.md:$line $path"
done | rule 'links of the README lead somewhere'

if [ -s "$found" ]; then
  cat "$found"
  exit 1
fi
