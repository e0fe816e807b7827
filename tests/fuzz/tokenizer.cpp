// An input is a tokenizer.json, or `+` and a JSON merge patch (RFC 7396) on a small one that is good.
#include "models/tokenizer.h"

#include "core/io/json.h"
#include "models/unicode.h"
#include "tests/fuzz/fuzz.h"

using namespace bg;

namespace {

std::string patched(std::string_view patch) {
  static const std::string good = BpeTokenizer::train("ab ab abc", 258).to_json();
  nlohmann::json file = parse_json_or_null(good);
  file.merge_patch(parse_json_or_null(patch));
  return file.dump();
}

// Decoding is the inverse of encoding.
void encode_and_decode(const Tokenizer& tokenizer, const Tokenizer& again, std::string_view text) {
  const std::vector<int32_t> ids = tokenizer.encode(text);
  fuzz::require(tokenizer.decode(ids) == text, "the text that was encoded");
  fuzz::require(again.encode(text) == ids, "the same ids after saving and reading");
}

}  // namespace

void read_input(std::string_view input) {
  const std::string file = input.starts_with('+') ? patched(input.substr(1)) : std::string(input);
  const auto tokenizer = fuzz::value_or_refusal(input, [&] { return Tokenizer::parse(file); });
  if (!tokenizer) return;
  const auto again = Tokenizer::parse((*tokenizer)->to_json());
  fuzz::require((*tokenizer)->fingerprint() == again->fingerprint(), "the same tokenizer after saving and reading");
  encode_and_decode(**tokenizer, *again, "abc ab\u00e9  <x> \n ab<x>y<");
  const std::string_view text = std::string_view(file).substr(0, 4096);
  encode_and_decode(**tokenizer, *again, text.substr(0, find_invalid_utf8(text)));
}
