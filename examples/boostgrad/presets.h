// Named starting points for boostgrad train and bench.
#pragma once

#include "models/trainer.h"

namespace bg {

/// quick: minutes on two cores. mini: hours. paper-small: the language model of arXiv 2604.03190, section 4.
inline TrainOptions preset(const std::string& name) {
  TrainOptions o;
  o.model.dropout = 0.1;
  if (name == "quick") {
    o.model = {.d_model = 128, .layers = 4, .heads = 4, .seq_len = 64};
    o.batch_size = 16;
    o.steps = 1000;
    o.lr = 1e-3;
    o.min_lr = 1e-4;
    o.warmup = 100;
  } else if (name == "mini") {
    o.model.d_model = 128;
    o.tokenizer = "bpe:4096";
    o.epochs = 1;
    o.lr = 1e-3;
    o.warmup = 300;
  } else if (name == "paper-small") {
    o.model.kv = Kv::residual;  // as the script behind the paper's tables has it
    o.decay = Decay::all;       // this too
    o.tokenizer = "bpe:16384";
    o.epochs = 15;
    o.warmup = 1500;
    o.window = Window::t;
  } else {
    fail<UsageError>("train", "unknown --preset", name, "quick, mini or paper-small");
  }
  return o;
}

}  // namespace bg
