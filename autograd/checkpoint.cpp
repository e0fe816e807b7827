#include "autograd/checkpoint.h"

#include "autograd/op.h"

namespace bg {
namespace {

class CheckpointNode final : public Node {
 public:
  CheckpointNode(std::function<Vars(const Vars&)> f, size_t inputs, Rng* rng)
      : f_(std::move(f)), count_(static_cast<std::ptrdiff_t>(inputs)), rng_(rng), start_(rng ? *rng : Rng(0)) {}

  Saved saved;

  std::string_view name() const override { return "checkpoint"; }
  std::string input_name(int i) const override { return i < count_ ? str("input ", i) : str("parameter ", i - count_); }
  void release_saved() override { saved.release(); }
  int64_t saved_bytes() const override { return saved.bytes(); }

  Vars backward(const Vars& cotangents, const Need& need, bool create_graph) override {
    const Vars all = detail::saved_vars(saved, *this, shared_from_this());
    GradMode recording(true);
    // f gets stand-ins for its inputs, which cut their history off, and reads the parameters themselves.
    Vars inputs(all.begin(), all.begin() + count_);
    if (create_graph)
      inputs = detail::stand_ins_for(inputs);
    else
      for (size_t i = 0; i < inputs.size(); ++i) inputs[i] = Var(all[i].value(), need(i));
    const Vars outputs = rerun(inputs);
    Vars variables = inputs;
    variables.insert(variables.end(), all.begin() + count_, all.end());
    const std::vector<std::string> missed = other_leaves(outputs, variables);
    BG_CHECK(missed.empty(), "checkpoint", "the function reads a value that requires a gradient and was not listed",
             missed.empty() ? "" : missed[0], "every such value in `parameters`", "checkpoint(f, inputs, parameters)");
    return partial_gradients(outputs, cotangents, variables, need, create_graph);
  }

 private:
  Vars rerun(const Vars& inputs) const {
    if (!rng_) return f_(inputs);
    struct Restore {
      Rng* rng;
      Rng now;
      ~Restore() { *rng = now; }
    } restore{rng_, *rng_};
    *rng_ = start_;
    return f_(inputs);
  }

  std::function<Vars(const Vars&)> f_;
  std::ptrdiff_t count_;
  Rng* rng_;
  Rng start_;
};

}  // namespace

Vars checkpoint(const std::function<Vars(const Vars&)>& f, const Vars& inputs, const Vars& parameters, Rng* rng) {
  Vars all = inputs;
  all.insert(all.end(), parameters.begin(), parameters.end());
  std::vector<In> infos;
  for (size_t i = 0; i < all.size(); ++i) infos.emplace_back(str(i));
  if (!detail::should_record(all, infos)) return f(inputs);
  auto node = std::make_shared<CheckpointNode>(f, inputs.size(), rng);
  for (size_t i = 0; i < all.size(); ++i) node->saved.keep_input(static_cast<int>(i), all[i].value());
  node->saved.forgo_cheap(all);
  Tensors out;
  {
    NoGrad off;
    for (const Var& y : f(inputs)) out.push_back(y.value());
  }
  return detail::record(node, all, infos, out);
}

}  // namespace bg
