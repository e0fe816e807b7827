// What an evaluation counts: perplexity by token, word and byte of the same predictions, with counts by hand.
#include <algorithm>
#include <cmath>

#include "models/trainer.h"
#include "tests/match.h"
#include "tests/models/lm_support.h"

using namespace bg;
using namespace bg::test;

namespace {

TrainOptions windows(Window window, int64_t seq_len) {
  TrainOptions o;
  o.window = window;
  o.model.seq_len = seq_len;
  o.batch_size = 2;
  return o;
}

struct Counts {
  int64_t tokens, words, bytes;
  bool operator==(const Counts&) const = default;
};

Counts counts(std::string_view text, const Tokenizer& tokenizer, const TrainOptions& o) {
  const Evaluation e = count_evaluated(TokenStream(text, tokenizer), tokenizer, text, o);
  return {e.tokens, e.words, e.bytes};
}

// Words of a text, by the bytes after a first one that is never predicted.
int64_t words(const std::string& text) {
  return counts("\n" + text, ByteTokenizer(), windows(Window::t_plus_1, 4)).words;
}

}  // namespace

TEST_CASE("evaluation: words and bytes are those of the predicted tokens") {
  BpeModel bpe;
  for (const char byte : gpt2_byte_order()) bpe.tokens.emplace_back(1, byte);
  for (const auto& [left, right] : std::vector<std::pair<std::string, std::string>>{
           {"t", "h"}, {"th", "e"}, {" ", "c"}, {" c", "a"}, {" ca", "t"}}) {
    const auto id = [&](const std::string& token) {
      return static_cast<int32_t>(std::find(bpe.tokens.begin(), bpe.tokens.end(), token) - bpe.tokens.begin());
    };
    bpe.merges.emplace_back(id(left), id(right));
    bpe.tokens.push_back(left + right);
  }
  const BpeTokenizer tokenizer(bpe);
  const std::string text = "the cat sat";  // the | " cat" | " " | s | a | t
  REQUIRE(tokenizer.encode(text).size() == 6);
  // all but "the"
  CHECK(counts(text, tokenizer, windows(Window::t_plus_1, 3)) == Counts{5, 2, 8});
  CHECK(counts(text, tokenizer, windows(Window::t_plus_1, 100)) == Counts{5, 2, 8});
  // the " cat" " "; s a t: neither "the" nor "s", with which its word begins
  CHECK(counts(text, tokenizer, windows(Window::t, 3)) == Counts{4, 1, 7});
  // the " cat" " " s; the rest is dropped, and the word that it continues was predicted with its s
  CHECK(counts(text, tokenizer, windows(Window::t, 4)) == Counts{3, 2, 6});
  CHECK(counts(text, tokenizer, windows(Window::t, 2)) == Counts{3, 2, 6});  // " cat", s, t
  // bytes a c2 a0 e6 | 97 a5 e6 9c | ac: a no-break space; characters begin with the windows' tokens 0, 3 and 6
  CHECK(counts("a\xc2\xa0\xe6\x97\xa5\xe6\x9c\xac", ByteTokenizer(), windows(Window::t, 4)) == Counts{6, 1, 6});
  CHECK_THROWS_WITH(count_evaluated(TokenStream(text, tokenizer), tokenizer, "the cat", windows(Window::t, 2)),
                    Contains("not those of the text"));
  CHECK_THROWS_WITH(count_evaluated(TokenStream("the cat", tokenizer), tokenizer, text, windows(Window::t, 2)),
                    Contains("not those of the text"));
}

TEST_CASE("evaluation: words are what stands between white space") {
  CHECK(words(" \n\t ") == 0);
  CHECK(words("one") == 1);
  CHECK(words("  one, two\r\n\nthree-four  ") == 3);
  CHECK(words("a\xc2\xa0"
              "b\xe3\x80\x80\xe6\x97\xa5\xe6\x9c\xac") == 3);
}

TEST_CASE("evaluation: a byte tokenizer's perplexity by token is that by byte") {
  const ByteTokenizer byte;
  std::string text;
  while (text.size() < 127) text += "Words, and \xc3\xa9t\xc3\xa9.\n ";
  text.resize(127);
  for (const Window window : {Window::t_plus_1, Window::t})
    for (const int64_t seq_len : {64, 127, 10}) {
      TrainOptions o = windows(window, seq_len);
      o.model = tiny_config();
      o.model.vocab = 256;
      o.model.seq_len = seq_len;
      Rng rng(1);
      Transformer model(o.model, rng);
      enliven(model, rng);
      const Evaluation e = evaluate(model, TokenStream(text, byte), byte, text, o);
      INFO("seq_len " << seq_len << ", " << e.tokens << " tokens");
      CHECK(e.bytes == e.tokens);
      CHECK(*e.byte_ppl() == e.token_ppl());
      const double tokens_a_word = static_cast<double>(e.tokens) / static_cast<double>(e.words);
      CHECK(close(*e.word_ppl(), std::exp(e.loss * tokens_a_word), 1e-12));
      CHECK(e.token_ppl() > 1);
    }
  Evaluation white;
  white.tokens = white.bytes = 3;
  CHECK(!white.word_ppl());
  CHECK(white.byte_ppl());
}
