// The GPT-2 pattern as one hand-written step.
#include "models/pretokenizer.h"

#include <algorithm>

#include "models/unicode.h"

namespace bg {
namespace {

// End of the run of characters of one class that starts at `begin`, or of what fits before `limit`.
std::size_t run_end(std::string_view text, std::size_t begin, CharClass kind, std::size_t limit) {
  std::size_t i = begin;
  while (i < text.size()) {
    const Character c = character_at(text, i);
    if (c.kind != kind || i + c.bytes > limit) break;
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
  const std::size_t limit = begin + kLongestWord;
  // One optional space (U+0020 only), then a run of one class.
  const std::size_t first = begin + (text[begin] == ' ' ? 1 : 0);
  if (first < text.size()) {
    const CharClass kind = character_at(text, first).kind;
    if (kind != CharClass::space) return run_end(text, first, kind, limit);
  }
  // White space: all of it at the end of the text, else all but the last, which may lead the next word.
  const std::size_t end = run_end(text, begin, CharClass::space, limit);
  if (end == text.size() || character_at(text, end).kind == CharClass::space) return end;
  const std::size_t last = previous_character(text, end);
  return last > begin ? last : end;
}

namespace {

bool starts_with_space(std::string_view text, std::size_t i) {
  return (text[i] == ' ' || text[i] == '\n') &&
         character_at(text, previous_character(text, i)).kind != CharClass::space;
}

}  // namespace

std::size_t piece_end(std::string_view text, std::size_t begin, std::size_t bytes) {
  const std::size_t target = begin + std::max<std::size_t>(bytes, 1);
  if (target >= text.size()) return text.size();
  const std::size_t near = std::min(text.size() - target, kLongestWord) + target;
  for (std::size_t i = target; i < near; ++i)
    if (starts_with_space(text, i)) return i;
  for (std::size_t i = word_end(text, begin); i < text.size(); i = word_end(text, i)) {
    if (i < target) continue;
    const bool inside_run = character_at(text, previous_character(text, i)).kind == character_at(text, i).kind;
    if (inside_run || starts_with_space(text, i)) return i;
  }
  return text.size();
}

std::vector<std::string_view> split_at_words(std::string_view text, std::size_t bytes) {
  std::vector<std::string_view> pieces;
  for (std::size_t begin = 0, end; begin < text.size(); begin = end) {
    end = piece_end(text, begin, bytes);
    pieces.push_back(text.substr(begin, end - begin));
  }
  return pieces;
}

}  // namespace bg
