// The memory-bound ops of a training step, on tensors beyond the caches.
#include <algorithm>

#include "autograd/engine.h"
#include "autograd/ops/arithmetic.h"
#include "autograd/ops/cross_entropy.h"
#include "autograd/ops/dropout.h"
#include "autograd/ops/embedding.h"
#include "autograd/ops/norm.h"
#include "autograd/ops/softmax.h"
#include "autograd/ops/unary.h"
#include "examples/boostgrad/bench/cases.h"
#include "nn/optim.h"

namespace bg::bench {
namespace {

/// Inputs, those that want a gradient first and marked so, and a function of them.
struct Problem {
  Vars inputs;
  std::function<Var(const Vars&)> op;
};

// Forward outside any graph; and the backward alone of a graph made once. Bytes of both; backward 0: there is none.
void add_cases(Cases& all, const std::string& name, const Shape& shape, double forward_bytes, double backward_bytes,
               const std::function<Problem()>& problem) {
  Case c{name, str(shape), "forward", DType::f32, Unit::bytes, forward_bytes};
  c.prepare = [=] {
    const Problem p = problem();
    return [=] {
      NoGrad off;
      return Vars{p.op(p.inputs)};
    };
  };
  all.push_back(c);
  if (backward_bytes == 0) return;
  c.pass = "backward";
  c.work = backward_bytes;
  c.prepare = [=] {
    const Problem p = problem();
    Vars wanted;
    for (const Var& v : p.inputs)
      if (v.requires_grad()) wanted.push_back(v);
    const Var y = p.op(p.inputs);
    Rng rng(2);
    const Var dy = y.rank() == 0 ? Var(Tensor::scalar(1)) : Var(Tensor::rand(y.shape(), rng, -1, 1));
    return [=] { return grad({y}, wanted, {dy}, {.retain_graph = true}); };
  };
  all.push_back(c);
}

Var uniform(const Shape& shape, uint64_t seed) {
  Rng rng(seed);
  return Var(Tensor::rand(shape, rng, -2, 2), true);
}

Tensor random_ids(int64_t n, int64_t vocab) {
  Rng rng(3);
  std::vector<int64_t> ids(static_cast<size_t>(n));
  for (int64_t& id : ids) id = static_cast<int64_t>(rng.below(static_cast<uint64_t>(vocab)));
  return Tensor::of(ids, {n});
}

Case adamw_case(const Shape& shape, double bytes) {
  Case c{"adamw", str(shape), "update", DType::f32, Unit::bytes, 7 * bytes};  // p, m, v read and written; gradient read
  c.prepare = [shape] {
    Var p = uniform(shape, 1);
    p.set_grad(uniform(shape, 2).value());
    auto optimizer = std::make_shared<AdamW>(NamedParameters{{"p", p}});
    return [optimizer] {
      optimizer->step(1e-4);
      return Vars{};
    };
  };
  return c;
}

}  // namespace

Cases op_cases(int64_t tensor_bytes, int64_t width, int64_t vocab) {
  const int64_t rows = std::max<int64_t>(1, tensor_bytes / (4 * width));
  const Shape shape{rows, width};
  const double n = 4.0 * static_cast<double>(shape.numel());
  Cases all;
  // one input, one output: backward reads the cotangent and what was saved, and writes one gradient
  auto unary = [&](const std::string& name, double backward, const std::function<Var(const Var&)>& f) {
    add_cases(all, name, shape, 2 * n, backward, [=] {
      return Problem{{uniform(shape, 1)}, [f](const Vars& in) { return f(in[0]); }};
    });
  };
  add_cases(all, "layer_norm", shape, 2 * n, 3 * n, [=] {
    return Problem{{uniform(shape, 1), uniform({width}, 2), uniform({width}, 3)},
                   [](const Vars& in) { return layer_norm(in[0], in[1], in[2]); }};
  });
  add_cases(all, "rms_norm", shape, 2 * n, 3 * n, [=] {
    return Problem{{uniform(shape, 1), uniform({width}, 2)}, [](const Vars& in) { return rms_norm(in[0], in[1]); }};
  });
  unary("gelu", 3 * n, [](const Var& x) { return gelu(x); });
  unary("softmax", 3 * n, [](const Var& x) { return softmax(x); });
  unary("dropout", 2 * n, [](const Var& x) { return dropout(x, 0.1, {1, 2}); });
  // no backward of its own: the cotangent is handed to both sides as it is
  add_cases(all, "residual_add", shape, 3 * n, 0, [=] {
    return Problem{{uniform(shape, 1), uniform(shape, 2)}, [](const Vars& in) { return in[0] + in[1]; }};
  });
  all.push_back(adamw_case(shape, n));

  const int64_t logit_rows = std::max<int64_t>(1, tensor_bytes / (4 * vocab));
  const double logits = 4.0 * static_cast<double>(logit_rows * vocab);
  add_cases(all, "cross_entropy", {logit_rows, vocab}, logits, 2 * logits, [=] {
    const Tensor targets = random_ids(logit_rows, vocab);
    return Problem{{uniform({logit_rows, vocab}, 1)},
                   [targets](const Vars& in) { return cross_entropy(in[0], targets); }};
  });
  const double looked_up = n + 4.0 * static_cast<double>(vocab * width) + 8.0 * static_cast<double>(rows);
  add_cases(all, "embedding", shape, looked_up, looked_up, [=] {
    const Tensor ids = random_ids(rows, vocab);
    return Problem{{uniform({vocab, width}, 1)}, [ids](const Vars& in) { return embedding(ids, in[0]); }};
  });
  return all;
}

}  // namespace bg::bench
