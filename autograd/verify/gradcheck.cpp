// The functions that gradcheck takes, made ready for it: of inputs, and of a model's parameters.
#include "autograd/verify/gradcheck.h"

#include <algorithm>

#include "autograd/verify/gradcheck_reverse.h"

namespace bg {

GradcheckReport gradcheck(const std::function<Vars(const Vars&)>& f, const Vars& inputs,
                          const GradcheckOptions& options) {
  const bool chosen = std::any_of(inputs.begin(), inputs.end(), [](const Var& x) { return x.requires_grad(); });
  verifier::Target t;
  Vars in;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool leaf = is_float(inputs[i].dtype()) && (!chosen || inputs[i].requires_grad());
    in.emplace_back(inputs[i].value(), leaf);
    if (!leaf) continue;
    t.names.push_back(str("input ", i));
    t.leaves.push_back(in.back());
    t.numbers.push_back(static_cast<int>(i));
  }
  t.inputs = static_cast<int>(inputs.size());
  t.layouts = true;
  const std::vector<int> number = t.numbers;
  t.run = [&] {
    GradMode recording(true);
    return f(in);
  };
  t.at = [&in, &f, &options, number](size_t leaf, const Tensor& value, bool by_convention) {
    NoGrad off;
    Vars moved;
    for (const Var& x : in) moved.emplace_back(x.value());
    if (value.defined()) moved[static_cast<size_t>(number[leaf])] = Var(value);
    return by_convention && options.gradient_of ? options.gradient_of(moved) : f(moved);
  };
  t.elsewhere = [&in, &f, number](const Tensors& values, const verifier::Target::Then& then) {
    GradMode recording(true);
    Vars all, leaves;
    for (const Var& x : in) all.emplace_back(x.value());
    for (size_t i = 0; i < number.size(); ++i) {
      leaves.emplace_back(values[i], true);
      all[static_cast<size_t>(number[i])] = leaves.back();
    }
    then(leaves, f(all));
  };
  return verifier::check_gradients(std::move(t), options);
}

GradcheckReport gradcheck_parameters(const std::function<Vars()>& f, const Vars& parameters,
                                     const std::vector<std::string>& names, const GradcheckOptions& options) {
  BG_CHECK(names.empty() || names.size() == parameters.size(), "gradcheck", "wrong number of names", str(names.size()),
           str(parameters.size()));
  // Puts values into the parameters' memory, which the model shares, and the old ones back.
  class Moved {
   public:
    Moved(const Vars& parameters, const std::vector<size_t>& which, const Tensors& values) {
      for (size_t k = 0; k < which.size(); ++k) {
        places_.push_back(parameters[which[k]].value());
        before_.push_back(places_.back().clone());
        places_.back().copy_from(values[k], "gradcheck");
      }
    }
    ~Moved() {
      for (size_t k = 0; k < places_.size(); ++k) places_[k].copy_from(before_[k], "gradcheck");
    }
    Moved(const Moved&) = delete;

   private:
    Tensors places_, before_;
  };
  verifier::Target t;
  t.leaves = parameters;
  t.inputs = static_cast<int>(parameters.size());
  std::vector<size_t> every;
  for (size_t i = 0; i < parameters.size(); ++i) {
    t.names.push_back(names.empty() ? str("parameter ", i) : names[i]);
    t.numbers.push_back(static_cast<int>(i));
    every.push_back(i);
  }
  t.run = [&] {
    GradMode recording(true);
    return f();
  };
  t.at = [&](size_t leaf, const Tensor& value, bool by_convention) {
    NoGrad off;
    const Moved moved(parameters, value.defined() ? std::vector<size_t>{leaf} : std::vector<size_t>{}, {value});
    return by_convention && options.gradient_of ? options.gradient_of(parameters) : f();
  };
  t.elsewhere = [&parameters, &f, every](const Tensors& values, const verifier::Target::Then& then) {
    GradMode recording(true);
    const Moved moved(parameters, every, values);
    then(parameters, f());
  };
  return verifier::check_gradients(std::move(t), options);
}

}  // namespace bg
