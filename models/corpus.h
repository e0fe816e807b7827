// The text that a language model learns from: finding it, checking it, dividing it.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace bg {

using Text = std::shared_ptr<const std::string>;

/// A text file, or what comes through a pipe (core/read_file.h), that is not empty and valid UTF-8. Throws Error saying
/// what is wrong with it,
/// UsageError where the path names no text to read.
Text load_text(const std::filesystem::path& path);

/// Three texts; the views are valid as long as the corpus or a copy of it lives.
struct Corpus {
  std::string_view train, valid;
  std::string_view test;    ///< empty when there is none
  std::vector<Text> texts;  ///< what the views show

  /// Frees the training text, which is most of it, once it is encoded.
  void drop_train();
};

/// The corpus that the option --data names: `builtin:`, a folder or a file. A folder holds train.txt, valid.txt and, if
/// there is one, test.txt. Of a single file the first 90 % of its bytes train and the rest validates; the border is
/// moved to the start of the character that it falls into. Throws UsageError for what is missing, and Error for
/// what is empty, not UTF-8 or too short to divide.
Corpus load_corpus(const std::filesystem::path& path);

}  // namespace bg
