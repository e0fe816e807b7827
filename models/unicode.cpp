// Character classes and UTF-8 checks on top of utf8proc, with a table for ASCII, which is nearly all of most texts.
#include "models/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdio>

#include "core/error.h"

namespace bg {
namespace {

bool is_white_space(int32_t c) {  // the White_Space property; the general category alone would miss the first two lines
  return (c >= 0x09 && c <= 0x0d) || c == 0x20 ||                                                   //
         c == 0x85 ||                                                                               //
         c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||  //
         c == 0x202f || c == 0x205f || c == 0x3000;
}

CharClass classify(int32_t c) {
  if (is_white_space(c)) return CharClass::space;
  switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
      return CharClass::letter;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
      return CharClass::number;
    default:
      return CharClass::other;
  }
}

const std::array<CharClass, 128> kAscii = [] {
  std::array<CharClass, 128> table;
  for (int c = 0; c < 128; ++c) table[c] = classify(c);
  return table;
}();

// Bytes of the character at `position` and its code point; 0 bytes when it is not valid UTF-8.
std::size_t decode(std::string_view text, std::size_t position, int32_t& code_point) {
  const auto* from = reinterpret_cast<const utf8proc_uint8_t*>(text.data() + position);
  const utf8proc_ssize_t bytes =
      utf8proc_iterate(from, static_cast<utf8proc_ssize_t>(text.size() - position), &code_point);
  return bytes < 0 ? 0 : static_cast<std::size_t>(bytes);
}

bool breaks_line(int32_t c) {  // or does worse to a terminal
  const utf8proc_category_t category = utf8proc_category(c);
  return category == UTF8PROC_CATEGORY_CC || category == UTF8PROC_CATEGORY_ZL || category == UTF8PROC_CATEGORY_ZP;
}

bool is_ascii(char c) { return static_cast<signed char>(c) >= 0; }

std::string escape(unsigned char byte) {
  switch (byte) {
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    default:
      char text[8];
      std::snprintf(text, sizeof text, "\\x%02x", byte);
      return text;
  }
}

}  // namespace

Character character_at(std::string_view text, std::size_t position) {
  const char c = text[position];
  if (is_ascii(c)) return {kAscii[static_cast<std::size_t>(c)], 1};
  int32_t code_point = 0;
  const std::size_t bytes = decode(text, position, code_point);
  return {classify(code_point), bytes};
}

std::size_t previous_character(std::string_view text, std::size_t position) {
  do --position;
  while (position > 0 && (static_cast<unsigned char>(text[position]) & 0xc0) == 0x80);
  return position;
}

std::size_t find_invalid_utf8(std::string_view text) {
  for (std::size_t i = 0; i < text.size();) {
    if (is_ascii(text[i])) {
      ++i;
      continue;
    }
    int32_t code_point = 0;
    const std::size_t bytes = decode(text, i, code_point);
    if (bytes == 0) return i;
    i += bytes;
  }
  return std::string_view::npos;
}

void check_utf8(std::string_view text, std::string_view name) {
  const std::size_t bad = find_invalid_utf8(text);
  if (bad == std::string_view::npos) return;
  fail("text", str(name, " is not UTF-8"),
       str("byte ", escape(static_cast<unsigned char>(text[bad])), " at position ", bad), "UTF-8 text",
       "convert it first, for example with iconv -t utf-8");
}

namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";

// Whether more bytes may yet make a character of these, which are none: a first byte and too few that go on from it.
bool may_become_character(std::string_view bytes) {
  const auto first = static_cast<unsigned char>(bytes[0]);
  const std::size_t needed = first >= 0xf0 && first <= 0xf4 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || bytes.size() >= needed) return false;
  return std::all_of(bytes.begin() + 1, bytes.end(),
                     [](char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; });
}

}  // namespace

std::string Utf8Stream::feed(std::string_view bytes) {
  pending_ += bytes;
  std::string out;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const std::size_t good = std::min(find_invalid_utf8(rest), rest.size());
    out += rest.substr(0, good);
    rest.remove_prefix(good);
    if (rest.empty() || may_become_character(rest)) break;
    out += kReplacement;
    rest.remove_prefix(1);
  }
  pending_ = std::string(rest);
  return out;
}

std::string Utf8Stream::finish() {
  std::string out;
  for (std::size_t i = 0; i < pending_.size(); ++i) out += kReplacement;
  pending_.clear();
  return out;
}

std::string printable(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    int32_t code_point = 0;
    std::size_t bytes = decode(text, i, code_point);
    if (bytes == 0 || breaks_line(code_point)) {
      bytes = bytes == 0 ? 1 : bytes;
      for (std::size_t k = i; k < i + bytes; ++k) out += escape(static_cast<unsigned char>(text[k]));
    } else {
      out += text.substr(i, bytes);
    }
    i += bytes;
  }
  return out;
}

}  // namespace bg
