// Forward-mode derivatives from the reverse-mode engine.
#pragma once

#include "autograd/engine.h"

namespace bg {

struct Jvp {
  Vars outputs;      ///< f(x)
  Tensors tangents;  ///< J t, one per output; zeros where an output does not depend on the inputs
};

/// J t of f at `inputs` along `tangents` (one per input, of its shape and dtype), by double backward: J^T v is linear
/// in v, and its derivative with respect to v is J. Every op in f must have a second derivative: primitive ops have,
/// fused ones through compose; any other throws.
Jvp jvp(const std::function<Vars(const Vars&)>& f, const Tensors& inputs, const Tensors& tangents);

namespace detail {
/// The same for outputs that are at hand; `leaves` are what they depend on.
Tensors tangents_of(const Vars& outputs, const Vars& leaves, const Tensors& tangents);
}  // namespace detail

}  // namespace bg
