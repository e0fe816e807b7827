// boostgrad eval: perplexity of a trained model on a text.
#include <cstdio>
#include <iostream>

#include "core/format.h"
#include "examples/boostgrad/commands.h"
#include "examples/boostgrad/flags.h"
#include "models/builtin_text.h"
#include "models/corpus.h"
#include "models/unicode.h"

namespace bg {
namespace {

struct Flags {
  CommonFlags common;
  std::string run, data, split = "auto";
};

int run(const Flags& f) {
  f.common.apply();
  Run r = load_run(f.run);
  // A file is evaluated whole; of a folder the asked text, or the test text where there is one.
  std::string builtin;
  Corpus corpus;
  std::string_view text;
  std::string split = f.split;
  std::error_code ignored;
  if (f.data == "builtin:") {
    if (split != "auto") fail<UsageError>("eval", "the builtin text has no parts", "--split " + split, "no --split");
    text = builtin = builtin_text(40'000, 2);
    split = "other sentences of the builtin language";
  } else if (std::filesystem::is_directory(f.data, ignored)) {
    corpus = load_corpus(f.data);
    if (split == "auto") split = corpus.test.empty() ? "valid" : "test";
    text = split == "train" ? corpus.train : split == "valid" ? corpus.valid : corpus.test;
    if (split != "train" && split != "valid" && split != "test")
      fail<UsageError>("eval", "unknown --split", split, "train, valid or test");
    if (text.empty())
      fail<UsageError>("eval", str("the folder ", f.data, " has no such text"), "--split " + split, "train or valid");
  } else if (split == "auto") {
    text = *corpus.texts.emplace_back(load_text(f.data));
    split = "all";
  } else {
    corpus = load_corpus(f.data);
    text = split == "train" ? corpus.train : corpus.valid;
    if (split != "train" && split != "valid")
      fail<UsageError>("eval", "unknown --split of a file", split, "train or valid");
  }
  const Evaluation e = evaluate(*r.model, TokenStream(text, *r.tokenizer), *r.tokenizer, text, r.options);
  const std::optional<double> word = e.word_ppl();  // none in a text of white space
  if (f.common.json) {
    print_json(nlohmann::ordered_json{{"run", f.run},
                                      {"weights", r.weights},
                                      {"data", f.data},
                                      {"split", split},
                                      {"loss", e.loss},
                                      {"tokens", e.tokens},
                                      {"words", e.words},
                                      {"bytes", e.bytes},
                                      {"perplexity", e.token_ppl()},
                                      {"word_perplexity", word ? nlohmann::ordered_json(*word) : nullptr},
                                      {"byte_perplexity", e.byte_ppl().value()}});
    return 0;
  }
  std::printf(
      "%s (%s) on %s, %s\n  predicted   %lld tokens, %lld words, %lld bytes\n  loss        %.4f nats a token\n"
      "  perplexity  %.3f a token, %s a word, %.4f a byte\n",
      printable(f.run).c_str(), printable(r.weights).c_str(), printable(f.data).c_str(), printable(split).c_str(),
      static_cast<long long>(e.tokens), static_cast<long long>(e.words), static_cast<long long>(e.bytes), e.loss,
      e.token_ppl(), word ? formatted("%.3f", *word).c_str() : "-", e.byte_ppl().value());
  return 0;
}

const Command command("eval", "perplexity of a trained model on a text", [](CLI::App& app) -> Command::Run {
  auto f = std::make_shared<Flags>();
  app.add_option("--run", f->run, "run folder")->required();
  app.add_option("--data", f->data, "a file, evaluated whole; or a folder with test.txt or valid.txt")->required();
  app.add_option("--split", f->split, "train, valid or test: a part of the folder or, by 90 %, of the file");
  f->common.add(app);
  return [f] { return run(*f); };
});

}  // namespace
}  // namespace bg
