// boostgrad flow: rms of activations and gradients per module of a model, on one batch.
#include <cmath>
#include <iostream>

#include "core/atomic_file.h"
#include "examples/boostgrad/commands.h"
#include "examples/boostgrad/flags.h"
#include "models/builtin_text.h"
#include "models/corpus.h"
#include "models/footprint.h"
#include "models/gnuplot.h"
#include "nn/flow.h"

namespace bg {
namespace {

struct Flags {
  ModelFlags model;
  CommonFlags common;
  std::string run, data, svg;
  int64_t batch_size = 8;
  uint64_t seed = 1;
};

/// A model with the batch to run it on.
struct Setting {
  std::unique_ptr<Transformer> model;
  Tensor inputs, targets;
};

// The first windows of the validation text, in the model's tokens.
void take_text(Setting& s, const std::string& data, const Tokenizer& tokenizer, int64_t batch_size) {
  Corpus corpus;
  std::string builtin;
  std::string_view text;
  if (data == "builtin:") {
    text = builtin = builtin_text(40'000, 2);
  } else {
    corpus = load_corpus(data);
    text = corpus.valid;
  }
  const Batches batches(TokenStream(text, tokenizer),
                        {.batch_size = batch_size, .seq_len = s.model->config().seq_len, .order = Order::in_order});
  const Batch b = batches.get(0);
  s.inputs = Tensor::of(b.inputs, {b.rows, b.cols});
  s.targets = Tensor::of(b.targets, {b.rows, b.cols});
}

void take_noise(Setting& s, int64_t batch_size, Rng& rng) {
  const TransformerConfig& c = s.model->config();
  auto ids = [&] {
    std::vector<int64_t> v(static_cast<size_t>(batch_size * c.seq_len));
    for (int64_t& id : v) id = static_cast<int64_t>(rng.below(static_cast<uint64_t>(c.vocab)));
    return Tensor::of(std::move(v), {batch_size, c.seq_len});
  };
  s.inputs = ids();
  s.targets = ids();
}

Setting setting_of(const Flags& f) {
  if (f.batch_size < 1 || f.batch_size > 1'000'000)
    fail<UsageError>("flow", "bad --batch-size", str(f.batch_size), "1 to 10^6");
  Setting s;
  if (!f.run.empty()) {
    if (f.model.any())
      fail<UsageError>("flow", "a run brings its own model", str("--run ", f.run, " and options of a model"),
                       "one of the two");
    Run r = load_run(f.run);
    s.model = std::move(r.model);
    take_text(s, f.data.empty() ? r.options.data : f.data, *r.tokenizer, f.batch_size);
    return s;
  }
  TransformerConfig c{.d_model = 128, .layers = 4, .heads = 4, .seq_len = 64};
  f.model.apply(c);
  const auto bytes = make_tokenizer("byte", "");
  c.vocab = bytes->vocab_size();
  c.validate();
  check_memory("flow", c, static_cast<double>(f.batch_size) * static_cast<double>(c.seq_len));
  Rng rng(f.seed);
  s.model = std::make_unique<Transformer>(c, rng);
  s.model->eval();
  if (f.data.empty())
    take_noise(s, f.batch_size, rng);
  else
    take_text(s, f.data, *bytes, f.batch_size);
  return s;
}

nlohmann::ordered_json number(double x) {
  return std::isfinite(x) ? nlohmann::ordered_json(x) : nlohmann::ordered_json(str(x));
}

int run(const Flags& f) {
  f.common.apply();
  if (!f.svg.empty()) {
    check_writable(f.svg);
    require_gnuplot();
  }
  const Setting s = setting_of(f);
  const Flow flow = gradient_flow(*s.model, [&] { return s.model->loss(s.inputs, s.targets); });
  const auto draw = [&] {  // last, so that what has been computed is told even where the file cannot be written
    if (!f.svg.empty()) write_file_atomically(f.svg, gnuplot(flow.plot_script()));
    return 0;
  };
  if (!f.common.json) {
    std::cout << flow.table() << std::flush;
    return draw();
  }
  for (const FlowRow& r : flow.rows)
    std::cout << nlohmann::ordered_json{{"module", r.path},
                                        {"shape", str(r.shape)},
                                        {"activation_rms", number(r.activation)},
                                        {"gradient_rms", number(r.gradient)},
                                        {"parameters", r.parameters},
                                        {"weight_norm", number(r.weight)},
                                        {"weight_gradient_norm", number(r.weight_gradient)},
                                        {"ratio", number(r.ratio())},
                                        {"problem", r.problem}}
                     .dump()
              << "\n";
  std::cout
      << nlohmann::ordered_json{{"summary", true}, {"loss", number(flow.loss)}, {"dead_parameters", flow.dead}}.dump()
      << std::endl;
  return draw();
}

const Command command(
    "flow", "activations and gradients per module: where they vanish, explode or never arrive",
    [](CLI::App& app) -> Command::Run {
      auto f = std::make_shared<Flags>();
      app.add_option("--run", f->run, "a trained run, on its own text (else a fresh model)");
      app.add_option("--data", f->data, "text to take the batch from, or builtin: (default: the run's; else noise)");
      f->model.add(app);
      app.add_option("--batch-size", f->batch_size, "sequences in the batch")->capture_default_str();
      app.add_option("--seed", f->seed, "seed of a fresh model and of noise")->capture_default_str();
      app.add_option("--svg", f->svg, "also draw it into this file (with gnuplot)")->type_name("FILE");
      f->common.add(app);
      return [f] { return run(*f); };
    });

}  // namespace
}  // namespace bg
