// boostgrad generate: text from a trained model.
#include <cstdio>
#include <iostream>

#include "examples/boostgrad/commands.h"
#include "examples/boostgrad/flags.h"
#include "models/generate.h"
#include "models/unicode.h"

namespace bg {
namespace {

struct Flags {
  CommonFlags common;
  std::string run, prompt;
  int64_t tokens = 200;
  SampleOptions sample;
  std::vector<std::string> stops;
  uint64_t seed = 1;
};

int run(const Flags& f) {
  f.common.apply();
  f.sample.validate();
  if (find_invalid_utf8(f.prompt) != std::string::npos)
    fail<UsageError>("generate", "bad --prompt", printable(f.prompt), "UTF-8 text");
  if (f.tokens < 0) fail<UsageError>("generate", "bad --tokens", str(f.tokens), "0 or more");
  Run r = load_run(f.run);
  const std::vector<int32_t> ids = r.tokenizer->encode(f.prompt);
  Rng rng(f.seed);
  if (!f.common.json) std::cout << f.prompt << std::flush;
  StopText until(f.stops);
  Utf8Stream characters;  // a token may be a part of a character, or none
  std::string text;
  const auto add = [&](const std::string& part) {
    text += part;
    if (!f.common.json) std::cout << part << std::flush;
  };
  const std::vector<int64_t> tokens =
      generate(*r.model, {ids.begin(), ids.end()}, f.tokens, f.sample, rng, [&](int64_t token) {
        const auto id = static_cast<int32_t>(token);
        add(characters.feed(until.feed(r.tokenizer->decode({&id, 1}))));
        return !until.found();
      });
  add(characters.feed(until.finish()) + characters.finish());
  if (!f.common.json) {
    std::cout << "\n";
    return 0;
  }
  print_json(nlohmann::ordered_json{{"run", f.run},
                                    {"prompt", f.prompt},
                                    {"text", text},
                                    {"tokens", tokens},
                                    {"stopped", until.found()},
                                    {"seed", f.seed}});
  return 0;
}

const Command command("generate", "text from a trained model", [](CLI::App& app) -> Command::Run {
  auto f = std::make_shared<Flags>();
  app.add_option("--run", f->run, "run folder")->required();
  app.add_option("--prompt", f->prompt, "text to go on from")->required();
  app.add_option("--tokens", f->tokens, "tokens to add (default 200)");
  app.add_option("--temperature", f->sample.temperature, "divides the logits; 0: the likeliest token (default 1)");
  app.add_option("--top-k", f->sample.top_k, "sample among the k likeliest; 0: all (default)");
  app.add_option("--top-p", f->sample.top_p,
                 "sample among the fewest likeliest whose probabilities sum to this; 1: all (default)");
  app.add_option("--repetition-penalty", f->sample.repetition_penalty,
                 "above 1: makes tokens that are in the text less likely (default 1)");
  app.add_option("--stop", f->stops, "end before this text; may be given several times")->allow_extra_args(false);
  app.add_option("--seed", f->seed, "seed of the sampling (default 1)");
  app.footer(
      "Beyond the model's --seq-len tokens, the earlier half of what it sees is dropped each time that its window is\n"
      "full, so that a token goes on costing little.");
  f->common.add(app);
  return [f] { return run(*f); };
});

}  // namespace
}  // namespace bg
