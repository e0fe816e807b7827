#include <cstdio>

#include "autograd/engine.h"
#include "autograd/ops/all.h"

int main() {
  const bg::Var x(bg::Tensor::of({3.0}, {1}), true);
  bg::sum(x * x).backward();
  std::printf("d(x^2)/dx at 3 = %g\n", x.grad().item());
  return x.grad().item() == 6 ? 0 : 1;
}
