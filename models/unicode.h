// UTF-8 and the few character classes that tokenizers need. Decoding and classes come from utf8proc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace bg {

/// What GPT-2's pre-tokenisation tells apart: Unicode general categories L* and N*, the White_Space property, the rest.
enum class CharClass : uint8_t { letter, number, space, other };

struct Character {
  CharClass kind;
  std::size_t bytes;  // length in UTF-8
};

/// The character that starts at byte `position` of valid UTF-8.
Character character_at(std::string_view text, std::size_t position);

/// Where the character that ends just before byte `position` (> 0) of valid UTF-8 starts.
std::size_t previous_character(std::string_view text, std::size_t position);

/// Position of the first byte that is not part of valid UTF-8, or std::string_view::npos.
std::size_t find_invalid_utf8(std::string_view text);

/// Throws Error unless `text` is valid UTF-8; `name` (a path, "prompt") says in the message which text it is.
void check_utf8(std::string_view text, std::string_view name);

/// Valid UTF-8 out of bytes that come in pieces, as a model's tokens do: a character that is split between pieces is
/// given when its last byte has come, and bytes that are no character give U+FFFD, the replacement character.
class Utf8Stream {
 public:
  std::string feed(std::string_view bytes);
  std::string finish();  ///< what an unfinished character at the end gives
 private:
  std::string pending_;  // the beginning of a character
};

/// The text as one printable line of valid UTF-8: control characters and bytes that are not UTF-8 become \n, \t, \x1b.
std::string printable(std::string_view text);

}  // namespace bg
