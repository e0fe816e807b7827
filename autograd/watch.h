// Watching values as they are recorded: for tools that look at a model from outside, such as the gradient flow.
#pragma once

#include <functional>
#include <string>

#include "autograd/var.h"

namespace bg {

/// While one lives, `see` gets the outputs of every op that this thread records, with the scope in which it ran, such
/// as blocks.3.attn. The last value recorded in a module's scope is what the module returned.
class WatchOutputs {
 public:
  using See = std::function<void(const std::string& scope, const Vars& outputs)>;
  explicit WatchOutputs(See see);
  ~WatchOutputs();
  WatchOutputs(const WatchOutputs&) = delete;
  WatchOutputs& operator=(const WatchOutputs&) = delete;

 private:
  friend void tell_watchers(const std::string& scope, const Vars& outputs);
  See see_;
  WatchOutputs* outer_;
};

void tell_watchers(const std::string& scope, const Vars& outputs);

}  // namespace bg
