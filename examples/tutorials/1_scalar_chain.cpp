// Tutorial 1: the chain rule by machine. y = tanh(w x + b)^2 for three numbers, its gradient, and the gradient's
// gradient; each compared with the formula worked out on paper.
#include <cmath>
#include <cstdio>

#include "autograd/engine.h"
#include "autograd/ops/unary.h"

using namespace bg;

int main() {
  // Three leaves: values that we want derivatives for.
  Var w(Tensor::scalar(0.7, DType::f64), true), x(Tensor::scalar(1.5, DType::f64), true),
      b(Tensor::scalar(-0.2, DType::f64), true);

  const Var t = tanh(w * x + b);  // every operation is recorded as it runs
  const Var y = t * t;
  y.backward();  // walks the record backwards, multiplying local derivatives

  // On paper: dy/dw = 2 t (1 - t^2) x
  const double tv = std::tanh(0.7 * 1.5 - 0.2), slope = 2 * tv * (1 - tv * tv);
  std::printf("dy/dw  machine %.12f  paper %.12f\n", w.grad().item(), slope * 1.5);
  std::printf("dy/dx  machine %.12f  paper %.12f\n", x.grad().item(), slope * 0.7);
  std::printf("dy/db  machine %.12f  paper %.12f\n", b.grad().item(), slope);

  // Gradients are Vars too: ask for a graph of the gradient and differentiate it again.
  const Var u = tanh(w * x + b), z = u * u;
  const Var dz = grad({z}, {b}, {}, {.create_graph = true})[0];
  const double second = grad({dz}, {b})[0].item(), paper = 2 * (1 - tv * tv) * (1 - 3 * tv * tv);
  std::printf("d2y/db2 machine %.12f  paper %.12f\n", second, paper);

  const bool right = std::abs(w.grad().item() - slope * 1.5) < 1e-14 && std::abs(second - paper) < 1e-14;
  std::printf(right ? "all agree\n" : "they differ\n");
  return right ? 0 : 1;
}
