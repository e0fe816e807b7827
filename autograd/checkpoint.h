// Activation checkpointing: trade a second forward for memory.
#pragma once

#include <functional>

#include "autograd/engine.h"
#include "core/rng.h"

namespace bg {

/// Runs `f` on `inputs` without keeping what it computes on the way, and runs it again in backward.
///
/// Values that f reads besides `inputs` and that need gradients go into `parameters`; forgetting one is found in
/// backward. Gradients of gradients are those without checkpointing (the second run is kept for them). When f draws
/// dropout masks from `rng`, pass it: the second run starts from the same state and so sees the same masks, and
/// gradients have the same bits as without checkpointing.
Vars checkpoint(const std::function<Vars(const Vars&)>& f, const Vars& inputs, const Vars& parameters = {},
                Rng* rng = nullptr);

}  // namespace bg
