// Loading and dividing text.
#include "models/corpus.h"

#include <algorithm>
#include <string>

#include "core/error.h"
#include "core/format.h"
#include "core/read_file.h"
#include "models/builtin_text.h"
#include "models/unicode.h"

namespace bg {
namespace {

namespace fs = std::filesystem;

Corpus divide(const Text& whole, const fs::path& path) {
  const std::string_view text = *whole;
  std::size_t border = text.size() / 10 * 9 + text.size() % 10 * 9 / 10;  // 90 %, without overflow
  if (border > 0) border = previous_character(text, border + 1);          // start of the character at the border
  BG_CHECK(border > 0, "corpus", str("the text is too short to divide into training and validation text"),
           str(path.string(), " with ", counted(std::ssize(text), "byte")), "", "a longer text");
  return {text.substr(0, border), text.substr(border), {}, {whole}};
}

Corpus load_folder(const fs::path& folder) {
  Corpus corpus;
  const auto load = [&](const char* name) {
    return std::string_view(*corpus.texts.emplace_back(load_text(folder / name)));
  };
  for (const char* name : {"train.txt", "valid.txt"}) {
    if (!is_there(folder / name))
      fail<UsageError>("corpus", str("the folder ", folder.string(), " has no ", name), "",
                       "train.txt, valid.txt and perhaps test.txt", "name a single text file to have it divided");
  }
  corpus.train = load("train.txt");
  corpus.valid = load("valid.txt");
  if (is_there(folder / "test.txt")) corpus.test = load("test.txt");
  return corpus;
}

// With a byte-order mark it is no UTF-8.
void check_no_utf16_mark(std::string_view text, const fs::path& path) {
  if (text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff"))
    fail("corpus", str(path.string(), " is in UTF-16"), "its byte-order mark at the beginning", "UTF-8 text",
         "iconv -f utf-16 -t utf-8");
}

// UTF-16 without a byte-order mark passes for UTF-8 where its characters are Latin, Greek or Cyrillic: with a control
// character, mostly zero, in every second place.
void check_not_utf16(std::string_view text, const fs::path& path) {
  constexpr std::size_t kLooked = std::size_t{1} << 16;
  const std::size_t size = std::min(text.size(), kLooked);
  std::size_t controls[2] = {};
  for (std::size_t i = 0; i < size; ++i)
    controls[i % 2] +=
        static_cast<unsigned char>(text[i]) < ' ' && std::string_view("\t\n\f\r").find(text[i]) == text.npos;
  for (const std::size_t place : {0, 1}) {
    if (4 * controls[place] <= size || 2 * controls[1 - place] > controls[place]) continue;
    fail("corpus", str(path.string(), " looks like UTF-16"), "control characters in every second place", "UTF-8 text",
         str("iconv -f utf-16", place == 1 ? "le" : "be", " -t utf-8"));
  }
}

}  // namespace

Text load_text(const fs::path& path) {
  const auto text = std::make_shared<const std::string>(read_named_file(path, FileKind::text));
  BG_CHECK(!text->empty(), "corpus", str(path.string(), " is empty"), "", "some text", "another text");
  check_no_utf16_mark(*text, path);
  check_utf8(*text, path.string());
  check_not_utf16(*text, path);
  return text;
}

void Corpus::drop_train() {
  std::vector<Text> kept;
  for (std::string_view* part : {&valid, &test}) {
    kept.push_back(std::make_shared<const std::string>(*part));
    *part = *kept.back();
  }
  train = {};
  texts = std::move(kept);
}

Corpus load_corpus(const fs::path& path) {
  if (path == "builtin:") {
    constexpr std::size_t kBytes = 400'000;
    const auto text = std::make_shared<const std::string>(builtin_text(kBytes));
    const std::string_view all = *text;
    return {all.substr(0, kBytes * 9 / 10), all.substr(kBytes * 9 / 10), {}, {text}};
  }
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return load_folder(path);
  return divide(load_text(path), path);
}

}  // namespace bg
