// The GPT-2 pattern as one hand-written step.
#include "models/pretokenizer.h"

#include "models/unicode.h"

namespace bg {
namespace {

// End of the run of characters of one class that starts at `begin`.
std::size_t run_end(std::string_view text, std::size_t begin, CharClass kind) {
  std::size_t i = begin;
  while (i < text.size()) {
    const Character c = character_at(text, i);
    if (c.kind != kind) break;
    i += c.bytes;
  }
  return i;
}

// Length of an English contraction at `begin`, or 0.
std::size_t contraction(std::string_view text, std::size_t begin) {
  for (const std::string_view form : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
    if (text.substr(begin, form.size()) == form) return form.size();
  }
  return 0;
}

}  // namespace

std::size_t word_end(std::string_view text, std::size_t begin) {
  if (text[begin] == '\'') {
    if (const std::size_t bytes = contraction(text, begin)) return begin + bytes;
  }
  // One optional space (U+0020 only), then a run of one class.
  const std::size_t first = begin + (text[begin] == ' ' ? 1 : 0);
  if (first < text.size()) {
    const CharClass kind = character_at(text, first).kind;
    if (kind != CharClass::space) return run_end(text, first, kind);
  }
  // White space: all of it at the end of the text, else all but the last, which may lead the next word.
  const std::size_t end = run_end(text, begin, CharClass::space);
  if (end == text.size()) return end;
  const std::size_t last = previous_character(text, end);
  return last > begin ? last : end;
}

std::vector<std::string_view> split_at_words(std::string_view text, std::size_t bytes) {
  std::vector<std::string_view> pieces;
  std::size_t begin = 0;
  for (std::size_t i = bytes; i < text.size(); ++i) {
    if (text[i] != ' ' && text[i] != '\n') continue;
    if (i == 0 || character_at(text, previous_character(text, i)).kind == CharClass::space) continue;
    pieces.push_back(text.substr(begin, i - begin));
    begin = i;
    i += bytes;
  }
  if (begin < text.size()) pieces.push_back(text.substr(begin));
  return pieces;
}

}  // namespace bg
