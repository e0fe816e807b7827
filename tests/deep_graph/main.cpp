// A chain of a million nodes is built, walked and destroyed; ctest runs this with a stack of 256 kB. [R12] [R14]
#include <iostream>

#include "autograd/engine.h"
#include "autograd/graph_dump.h"
#include "autograd/ops/arithmetic.h"
#include "core/storage.h"

using namespace bg;

namespace {

Var chain(const Var& x, int length) {
  Var y = x;
  for (int i = 0; i < length; ++i) y = y + 1;
  return y;
}

bool run() {
  bool right = true;
  auto expect = [&](bool ok, const char* what) {
    if (!ok) std::cerr << "wrong: " << what << "\n";
    right = right && ok;
  };
  Var x(Tensor::of({2.0}, {1}), true);
  chain(x, 1'000'000).backward();
  expect(x.grad().flat(0) == 1, "gradient of the chain");
  chain(x, 1'000'000);  // destroyed without a walk
  const Var y = chain(x * x, 100'000);
  expect(to_dot({y}, 200'000).size() > 1'000'000, "the picture of a deep graph");
  const Var g = grad({y}, {x}, {}, {.create_graph = true})[0];
  expect(g.value().flat(0) == 4, "recorded gradient");
  expect(grad({g}, {x})[0].value().flat(0) == 2, "second derivative");
  return right;
}

}  // namespace

int main() {
  const size_t before = memory_stats().live_bytes;
  const bool right = run();
  const size_t after = memory_stats().live_bytes;
  if (after != before) std::cerr << "live bytes: " << before << " before, " << after << " after\n";
  return right && after == before ? 0 : 1;
}
