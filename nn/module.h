// Module: a piece of a model with named parameters and named children. Parameters are addressed by path, such as
// blocks.3.attn.rounds.1.w_q, in the order in which they were registered; never by position.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "autograd/var.h"
#include "core/rng.h"

namespace bg {

/// What a forward pass takes from outside besides its inputs. Dropout masks come from `rng`, so that whoever owns it
/// can save it, rewind it and pass it on; a module in training mode with dropout > 0 throws without one.
struct Context {
  Rng* rng = nullptr;
};

struct NamedParameter {
  std::string path;
  Var var;  ///< a handle on the parameter itself: its value may be written in place
};
using NamedParameters = std::vector<NamedParameter>;
using StateDict = std::map<std::string, Tensor>;

class Module {
 public:
  virtual ~Module() = default;
  Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  /// The last part of this module's path; empty for a root.
  const std::string& name() const { return name_; }

  /// Every name of every parameter: own ones first, then the children's, each in the order of registration. A tied
  /// parameter appears under each of its names.
  NamedParameters named_parameters() const;
  /// Every parameter once, under its first name [R32].
  NamedParameters parameters() const;
  int64_t parameter_count() const;
  /// All modules below this one by path, parents before their children.
  std::vector<std::pair<std::string, const Module*>> named_modules() const;

  /// The values of parameters(), by path. They share memory with the module: clone() what must outlive the next step.
  StateDict state_dict() const;
  /// Copies values into the parameters. One error lists all that is missing, unexpected, or of a wrong shape or dtype;
  /// nothing is loaded then. `who` names the source in that error, such as a file.
  void load_state_dict(const StateDict& state, std::string_view who = "load_state_dict");

  /// Converts every parameter and drops its gradient. Handles obtained earlier, such as an optimizer's, are stale then.
  void to(DType dtype);
  void zero_grad();

  /// Training mode switches dropout on, here and in all children. Modules start in it.
  void train(bool on = true);
  void eval() { train(false); }
  bool training() const { return training_; }

 protected:
  /// Registers a parameter that requires a gradient. The reference stays valid as long as the module.
  Var& register_parameter(const std::string& name, const Tensor& value);
  /// Registers another module's parameter under a further name: both stay one parameter.
  Var& register_tied(const std::string& name, const Var& parameter);
  /// Makes and owns a child. A name with dots, such as blocks.3, is a path of its own.
  template <class M, class... A>
  M& add_child(const std::string& name, A&&... args) {
    auto child = std::make_unique<M>(std::forward<A>(args)...);
    M& result = *child;
    adopt(name, std::move(child));
    return result;
  }
  /// Puts this module's name on the scope of what runs while the object lives: every forward starts with it.
  [[nodiscard]] Scope enter() const { return Scope(name_); }

 private:
  void adopt(const std::string& name, std::unique_ptr<Module> child);
  void check_name(const std::string& name) const;
  void collect(const std::string& prefix, NamedParameters& out) const;
  template <class F>
  void for_each_slot(F&& f);

  std::string name_;
  bool training_ = true;
  std::deque<std::pair<std::string, Var>> parameters_;  // a deque never moves its elements
  std::vector<std::unique_ptr<Module>> children_;
};

/// Throws one error in the name of `who` that lists how `state` differs from `expected`: what is missing, unexpected or
/// of a wrong shape or dtype.
void check_state_fits(const StateDict& expected, const StateDict& state, std::string_view who);

/// The parameters alone, for functions that take Vars.
Vars vars_of(const NamedParameters& parameters);

}  // namespace bg
