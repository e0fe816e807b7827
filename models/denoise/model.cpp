#include "models/denoise/model.h"

#include <cmath>

#include "autograd/ops/cross_entropy.h"
#include "autograd/ops/linear.h"
#include "autograd/ops/softmax.h"
#include "nn/init.h"
#include "nn/optim.h"
#include "nn/schedule.h"

namespace bg::denoise {
namespace {

constexpr int64_t kGateHidden = 32, kFreshQueries = 5000;

AttentionLayerArgs layer_args(int rounds, Gate gate) {
  AttentionLayerArgs a;
  a.memory = true;
  a.bias = false;
  a.project_out = false;
  a.learned_scale = true;
  a.rounds = rounds;
  a.gate = gate;
  return a;
}

Tensor first_value(std::string_view path, int64_t d, const Init& init) {
  const std::string_view name = path.substr(path.rfind('.') + 1);
  if (name == "log_scale") return Tensor::full({1}, std::log(2.0));
  if (name == "gate") return Tensor::full({1}, 0.5);
  if (name == "w_g") return init.weight({2 * d, d}, 2 * d);
  if (name == "b_g") return init.bias({d}, 2 * d);
  if (name == "w_1") return init.weight({2 * d + 1, kGateHidden}, 2 * d + 1);
  if (name == "b_1") return init.bias({kGateHidden}, 2 * d + 1);
  if (name == "w_2") return init.weight({kGateHidden, d}, kGateHidden);
  if (name == "b_2") return init.bias({d}, kGateHidden);
  return init.weight({d, d}, d);
}

}  // namespace

Retriever::Retriever(int64_t d, int rounds, Gate gate, Rng rng)
    : args_(layer_args(rounds, gate)), layout_(attention_layout(args_)), inputs_(layout_.inputs.size()) {
  const Init init = Init::uniform_fan_in(rng);
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (static_cast<int>(i) == layout_.x || static_cast<int>(i) == layout_.memory) continue;
    const std::string& name = layout_.inputs[i].name;
    inputs_[i] = &register_parameter(name, first_value(name, d, init));
  }
}

Var Retriever::forward(const Var& queries, const Tensor& patterns) const {
  Vars in;
  for (const Var* p : inputs_) in.push_back(p ? *p : Var());
  in[static_cast<size_t>(layout_.x)] = unsqueeze(queries, 0);  // one row of the batch: all queries share the memory
  in[static_cast<size_t>(layout_.memory)] = Var(patterns.unsqueeze(0));
  return squeeze(boosted_attention(in, args_), 0);
}

Var Retriever::keys(const Tensor& patterns) const { return matmul(Var(patterns), parameter(layout_.rounds[0].w_k)); }
Var Retriever::values(const Tensor& patterns) const { return matmul(Var(patterns), parameter(layout_.rounds[0].w_v)); }

Var Retriever::to_logits(const Tensor& patterns) const {
  const AttentionLayout::Round& r = layout_.rounds[0];
  return exp(parameter(r.log_scale)) * matmul(parameter(r.w_q), transpose(keys(patterns), 0, 1));
}

Var Retriever::weights(const Var& queries, const Tensor& patterns) const {
  return softmax(matmul(queries, to_logits(patterns)));
}

Var Retriever::fixed_point(const Var& queries, const Tensor& patterns, const FixedPointArgs& args) const {
  const AttentionLayout::Round& r = layout_.rounds[0];
  return attention_fixed_point(queries, parameter(r.w_q), keys(patterns), values(patterns), parameter(r.log_scale),
                               args);
}

Var Retriever::unrolled(const Var& queries, const Tensor& patterns, const FixedPointArgs& args) const {
  const int steps = solve_fixed_point(step(patterns), queries.value(), args).iterations;
  const Var a = to_logits(patterns), v = values(patterns);
  Var z = queries;
  for (int i = 0; i < steps; ++i) z = matmul(softmax(matmul(z, a)), v);
  return z;
}

AttentionStep Retriever::step(const Tensor& patterns) const {
  const NoGrad off;
  const AttentionLayout::Round& r = layout_.rounds[0];
  return {parameter(r.w_q).value(), keys(patterns).value(), values(patterns).value(), parameter(r.log_scale).item()};
}

Var cosine_loss(const Var& outputs, const Tensor& targets) {
  return 1 - mean(sum(outputs * Var(targets), {1}) / sqrt(sum(square(outputs), {1})));
}

Var retrieval_loss(const Retriever& model, const Task& task, const Batch& batch) {
  const Var q(batch.queries);
  return cosine_loss(model.forward(q, task.patterns()), batch.targets) +
         0.5 * cross_entropy(model.weights(q, task.patterns()), batch.ids);
}

void train(Module& model, const Task& task, Rng data, const Training& t, const std::function<Var(const Batch&)>& loss,
           const std::function<void(int step)>& after) {
  const NamedParameters parameters = model.parameters();
  Adam adam(parameters);
  Schedule schedule{.kind = t.cosine ? Schedule::Kind::cosine : Schedule::Kind::constant, .peak = t.learning_rate};
  schedule.total = t.steps;
  for (int step = 0; step < t.steps; ++step) {
    adam.zero_grad();
    loss(task.draw(t.batch, data)).backward();
    if (t.clip > 0) clip_grad_norm(parameters, t.clip);
    adam.step(schedule.at(step));
    if (after) after(step + 1);
  }
}

double accuracy(const Task& task, Rng& fresh, const std::function<Var(const Batch&)>& output) {
  const NoGrad off;
  const Batch b = task.draw(kFreshQueries, fresh);
  return task.accuracy(output(b).value(), b.ids);
}

double train_and_score(Retriever& model, const Task& task, Rng data, Rng fresh) {
  constexpr int kLookEvery = 50;
  auto look = [&] {
    return accuracy(task, fresh, [&](const Batch& b) { return model.forward(Var(b.queries), task.patterns()); });
  };
  double best = -1;
  StateDict best_state;
  train(
      model, task, data, {}, [&](const Batch& b) { return retrieval_loss(model, task, b); },
      [&](int step) {
        if (step % kLookEvery != 0) return;
        const double now = look();
        if (now <= best) return;
        best = now;
        best_state.clear();
        for (const auto& [path, value] : model.state_dict()) best_state[path] = value.clone();
      });
  model.load_state_dict(best_state);
  return std::max(best, look());
}

}  // namespace bg::denoise
