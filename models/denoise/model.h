// The models of the synthetic task and how they are trained.
//
// All are attention from a query (n, d) to the patterns (K, d), without biases or output projection, with logits
// exp(log_scale) q.k: boosted in M rounds (autograd/ops/boosted_attention.h; M = 1 is plain attention), or, with the
// weights of round 0 alone, iterated to its fixed point (autograd/ops/fixed_point.h).
#pragma once

#include <functional>

#include "autograd/ops/boosted_attention.h"
#include "autograd/ops/fixed_point.h"
#include "models/denoise/task.h"
#include "nn/module.h"

namespace bg::denoise {

class Retriever : public Module {
 public:
  /// Projections d x d, the gate's inner layer 32 wide. Weights and biases start in U(+-1/sqrt(fan_in)), log_scale at
  /// log 2, the scalar gate at 0.5 before its sigmoid.
  Retriever(int64_t d, int rounds, Gate gate, Rng rng);

  Var forward(const Var& queries, const Tensor& patterns) const;  ///< (n, d)
  Var weights(const Var& queries, const Tensor& patterns) const;  ///< round 0's softmax (n, K)

  // Round 0 iterated, from the queries: the fixed point as one node with the implicit gradient, and the same iteration
  // (as many steps) unrolled.
  Var fixed_point(const Var& queries, const Tensor& patterns, const FixedPointArgs& args) const;
  Var unrolled(const Var& queries, const Tensor& patterns, const FixedPointArgs& args) const;
  AttentionStep step(const Tensor& patterns) const;

 private:
  const Var& parameter(int input) const { return *inputs_[static_cast<size_t>(input)]; }
  Var keys(const Tensor& patterns) const;
  Var values(const Tensor& patterns) const;
  Var to_logits(const Tensor& patterns) const;  ///< exp(log_scale) w_q keys^T (d, K): logits are queries times this

  AttentionLayerArgs args_;
  const AttentionLayout& layout_;
  std::vector<Var*> inputs_;  // by the layout's positions; null for x and memory
};

/// 1 - cosine of output and target, mean over rows; targets have length 1.
Var cosine_loss(const Var& outputs, const Tensor& targets);

/// The paper's loss: cosine_loss + 0.5 cross-entropy, in which its code uses round 0's *weights* as the logits.
Var retrieval_loss(const Retriever& model, const Task& task, const Batch& batch);

struct Training {
  int steps = 150;
  int64_t batch = 512;
  double learning_rate = 3e-3;  ///< of Adam, without weight decay
  bool cosine = true;           ///< down to 0 at `steps`; else constant
  double clip = 1;              ///< largest norm of the gradient; 0: any
};

/// Trains on fresh batches of `data`; `after(step)` runs after each step, counted from 1.
void train(Module& model, const Task& task, Rng data, const Training& training,
           const std::function<Var(const Batch&)>& loss, const std::function<void(int step)>& after = {});

/// Percentage of 5,000 fresh queries that are answered right.
double accuracy(const Task& task, Rng& fresh, const std::function<Var(const Batch&)>& output);

/// Trains a boosted model as the paper does and scores it as its code does: the best accuracy after steps 50, 100 and
/// 150 and, once more, of the best of these states.
double train_and_score(Retriever& model, const Task& task, Rng data, Rng fresh);

}  // namespace bg::denoise
