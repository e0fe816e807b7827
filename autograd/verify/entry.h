// Ops as the verifier sees them: the types of an op's struct are erased here, and nowhere else.
#pragma once

#include "autograd/verify/point.h"

namespace bg::verifier {

namespace detail {

template <class O>
class OpPoint final : public Point {
 public:
  using Args = typename O::Args;
  using Value = GradValue<O>;
  using Mutants = std::vector<Mutant<Value, Args>>;

  OpPoint(const OpPoint&) = default;
  OpPoint(Sample<Args> sample, std::shared_ptr<const Mutants> mutants,
          std::shared_ptr<const std::vector<Args>> all = std::make_shared<std::vector<Args>>())
      : args_(std::move(sample.args)), mutants_(std::move(mutants)), all_args_(std::move(all)) {
    label = std::move(sample.label);
    values = std::move(sample.inputs);
    zero_grads = std::move(sample.zero_grads);
    kink = std::move(sample.kink);
    inputs = inputs_of<O>(args_, values.size());
    if constexpr (requires { O::broadcasts; }) broadcasts = O::broadcasts;
    convention = has_convention<O>;
    nonlinear = requires { O::nonlinear; };
  }

  Run run(const Tensors& in, bool recording) const override {
    auto saved = std::make_shared<Saved>(recording);
    Run r;
    r.out = run_forward<O>(*saved, in, args_);
    if (!recording) return r;
    r.kept = bg::detail::saved_tensors(*saved, O::name);
    std::vector<Node::Value> infos;
    for (const Tensor& t : in) infos.push_back({t.shape(), t.dtype()});
    r.backward = [this, saved, infos](const Tensors& cotangents, const Need& need, int mutant) {
      return gradients(*saved, infos, cotangents, need, mutant);
    };
    return r;
  }
  Arrs<double> reference(const Arrs<double>& in) const override { return O::reference(in, args_); }
  Arrs<long double> reference(const Arrs<long double>& in) const override { return O::reference(in, args_); }
  Arrs<Dual<double>> reference(const Arrs<Dual<double>>& in) const override { return by_convention(in); }
  Arrs<Dual<long double>> reference(const Arrs<Dual<long double>>& in) const override { return by_convention(in); }
  Arrs<double> gradient_of(const Arrs<double>& in) const override { return by_convention(in); }
  Vars apply(const Vars& in) const override { return bg::apply<O>(args_, in); }
  Vars compose(const Vars& in) const override {
    if constexpr (has_compose<O>)
      return O::compose(in, args_);
    else
      fail(O::name, "the op has no compose");
  }
  bool may_grow() const override { return verifier::detail::single_values(args_); }
  std::vector<std::pair<std::string, std::unique_ptr<Point>>> other_arguments(
      const std::vector<size_t>& fixed) const override {
    std::vector<std::pair<std::string, std::unique_ptr<Point>>> out;
    auto add = [&](std::string how, Args args) {
      auto other = std::make_unique<OpPoint>(*this);
      other->args_ = std::move(args);
      other->inputs = inputs_of<O>(other->args_, values.size());
      out.emplace_back(std::move(how), std::move(other));
    };
    for (Varied<Args>& v : varied_fields(args_, fixed)) add(std::move(v.how), std::move(v.value));
    for (size_t k = 0; k < all_args_->size(); ++k) {
      const Args& args = (*all_args_)[k];
      if (detail::same(args, args_) != false) continue;
      add(str("the arguments are those of sample ", k), args);
      for (Varied<Args>& v : crossed_fields(args_, args, str("sample ", k))) add(std::move(v.how), std::move(v.value));
    }
    return out;
  }
  std::vector<Field> compared_arguments(const Point& other) const override {
    return compared_fields(args_, dynamic_cast<const OpPoint&>(other).args_);
  }

 private:
  template <class S>
  Arrs<S> by_convention(const Arrs<S>& in) const {
    if constexpr (has_convention<O>)
      return O::gradient_of(in, args_);
    else
      return O::reference(in, args_);
  }

  Tensors gradients(const Saved& saved, const std::vector<Node::Value>& infos, const Tensors& cotangents,
                    const Need& need, int mutant) const {
    const Tensors kept = bg::detail::saved_tensors(saved, O::name);
    const std::vector<Value> dy(cotangents.begin(), cotangents.end()), slots(kept.begin(), kept.end());
    const Backward<Value, Args> b(O::name, dy, slots, need, args_, infos);
    const std::vector<Value> g = mutant < 0 ? O::backward(b) : (*mutants_)[static_cast<size_t>(mutant)].backward(b);
    if constexpr (is_primitive<O>) {
      Tensors out;
      for (const Var& v : g) out.push_back(v.value());
      return out;
    } else {
      return g;
    }
  }

  Args args_;
  std::shared_ptr<const Mutants> mutants_;
  std::shared_ptr<const std::vector<Args>> all_args_;  ///< of all samples
};

}  // namespace detail

template <class O>
Entry make_entry() {
  static_assert(Op<O>, "see the list at the top of autograd/op.h for what an op must bring");
  Entry e;
  e.name = O::name;
  e.type = type_name<O>();
  e.primitive = is_primitive<O>;
  e.composed = has_compose<O>;
  if constexpr (requires { O::f32_bound; }) e.f32_bound = O::f32_bound;
  if constexpr (has_convention<O>) e.convention = O::convention;
  if constexpr (requires { O::nonlinear; }) e.nonlinear = O::nonlinear;
  if constexpr (requires { O::fixed_arguments; })
    e.fixed_arguments.assign(O::fixed_arguments.begin(), O::fixed_arguments.end());
  auto mutants = std::make_shared<const typename detail::OpPoint<O>::Mutants>(O::mutants());
  for (const auto& m : *mutants) e.mutants.push_back({m.name, m.equivalent});
  e.samples = [mutants](Rng& rng) {
    auto samples = O::samples(rng);
    auto args = std::make_shared<std::vector<typename O::Args>>();
    for (const auto& s : samples) args->push_back(s.args);
    std::vector<std::unique_ptr<Point>> points;
    for (auto& s : samples) points.push_back(std::make_unique<detail::OpPoint<O>>(std::move(s), mutants, args));
    return points;
  };
  return e;
}

}  // namespace bg::verifier
