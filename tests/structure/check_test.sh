#!/bin/sh
# Every rule of check.sh must catch a violation planted in a copy of the sources:  check_test.sh ROOT
set -eu
root=${1:?usage: check_test.sh ROOT}
check=$root/tests/structure/check.sh
copy=$(mktemp -d)
trap 'rm -rf "$copy" "$copy.saved"' EXIT
for name in core autograd nn models tests examples README.md LICENSE CMakeLists.txt CMakePresets.json; do
  if [ -e "$root/$name" ]; then cp -r "$root/$name" "$copy"; fi
done
sh "$check" "$copy" || { echo "the copy fails before anything is planted"; exit 1; }

planted=0
# plant <rule> <file> <line>: the file with this line added must be reported under the rule, and only it.
plant() {
  if [ -e "$copy/$2" ]; then cp "$copy/$2" "$copy.saved"; else rm -f "$copy.saved"; fi
  printf '%s\n' "$3" >>"$copy/$2"
  output=$(sh "$check" "$copy" ${4:+"$4"}) && { echo "not caught: $3 in $2"; exit 1; }
  [ "$(echo "$output" | grep -c .)" = 1 ] || { echo "expected one violation, got: $output"; exit 1; }
  case $output in "$1: "*) ;; *) echo "expected rule '$1', got: $output"; exit 1 ;; esac
  if [ -e "$copy.saved" ]; then mv "$copy.saved" "$copy/$2"; else rm "$copy/$2"; fi
  planted=$((planted + 1))
}

plant layers core/planted.h '#include "autograd/var.h"'
plant layers core/planted.cpp '#  include <models/trainer.h>'
plant layers autograd/planted.h '#include "nn/module.h"'
plant layers nn/planted.cpp '  #include "models/trainer.h"'
plant layers models/planted.cpp '#include "examples/cli.h"'
plant layers models/planted.cpp '#include "tests/catch.h"'
plant layers examples/planted.cpp '#include "tests/catch.h"'
plant 'includes start at the root' nn/planted.cpp '#include "../models/trainer.h"'
plant 'BLAS only in core/gemm.cpp' core/tensor.cpp '#include <cblas.h>'
plant 'BLAS only in core/gemm.cpp' tests/bench/planted.cpp '#include <openblas/cblas.h>'
plant 'oneTBB only in core/parallel' core/tensor.cpp '#include <tbb/parallel_for.h>'
plant 'oneTBB only in core/parallel' models/planted.cpp '#include <oneapi/tbb/task_arena.h>'
plant 'SIMD only in core/kernels and core/gemm' core/tensor.cpp '#include <hwy/highway.h>'
plant 'SIMD only in core/kernels and core/gemm' nn/planted.h '#include <immintrin.h>'
plant 'threads only in core/parallel' models/planted.cpp 'std::thread worker;'
plant 'threads only in core/parallel' core/tensor.cpp 'auto f = std::async(g);'
plant 'files are read by core/read_file' models/planted.cpp 'std::ifstream in(path);'
plant 'files are read by core/read_file' core/tensor.cpp '#include <sys/mman.h>'
plant 'files are read by core/read_file' examples/planted.cpp 'FILE* f = std::fopen(path, "rb");'
plant 'programs are run by models/gnuplot.cpp' models/planted.cpp 'std::system(command.c_str());'
plant 'programs are run by models/gnuplot.cpp' core/tensor.cpp 'FILE* f = popen(command, "r");'
plant 'JSON is parsed only in core/io/json.cpp' models/planted.cpp 'auto j = nlohmann::json::parse(text);'
plant 'JSON is parsed only in core/io/json.cpp' core/io/npy.cpp 'auto j = json::parse(text, nullptr, false);'
plant 'files are written by core/atomic_file' models/planted.cpp 'std::ofstream out(path);'
plant 'files are written by core/atomic_file' examples/planted.cpp 'fs::copy_file(a, b);'
plant 'files are written by core/atomic_file' core/tensor.cpp 'int fd = open(path, O_WRONLY);'
plant 'no fast-math' CMakeLists.txt 'add_compile_options(-ffast-math)'
plant 'no fast-math' core/planted.cmake 'add_compile_options(-Ofast)'
plant 'no fast-math' core/tensor.cpp '#pragma GCC optimize("fast-math")'
plant 'no global function named as one of the C library' tests/core/planted.cpp 'Tensor index(int64_t i) { return {}; }'
plant 'no global function named as one of the C library' examples/planted.cpp 'static double y1(double x) { return x; }'
plant 'no semicolon in a test name' tests/core/planted.cpp 'TEST_CASE("one; two") { int x; }'
plant 'no semicolon in a test name' tests/nn/planted.cpp 'TEMPLATE_TEST_CASE(
    "a long name: one; two", "", float) {}'
plant 'every op is in AllOps' autograd/ops/planted.h 'struct Planted { static constexpr std::string_view name = "planted"; };'
plant 'every op is in AllOps' autograd/ops/indexing.h 'using Largest = Extreme<true>;'
plant 'close() instead of Approx' tests/core/planted.cpp 'CHECK(x == Approx(0));'
sed -i 's/\[R31\]//' "$copy"/tests/*/*.cpp
plant 'a test for every requirement' tests/core/planted.cpp '// [R31] in a comment is no test'
printf 'TEST_CASE("[R31] back") {}\n' >"$copy/tests/core/back.cpp"
plant 'links of the README lead somewhere' README.md 'see [this](core/nowhere.h)'
plant 'no other name at the top' utils.cpp '// a stray file'
mkdir "$copy/build"
plant 'no fast-math' build/commands.json '"command": "c++ -O3 -funsafe-math-optimizations x.cpp"' build/commands.json
echo "$planted planted violations caught"
