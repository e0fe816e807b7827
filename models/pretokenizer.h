// GPT-2's pre-tokenisation: text is cut into words, and byte pairs merge only inside a word. The rule is the regular
// expression of Radford et al., "Language models are unsupervised multitask learners" (2019), with Unicode classes:
//
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// written out by hand, because the standard library's regular expressions know no Unicode and are far too slow.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace bg {

/// End of the word that starts at `begin` < text.size(); valid UTF-8 is assumed. Every byte belongs to one word.
std::size_t word_end(std::string_view text, std::size_t begin);

/// Cuts text into pieces of about `bytes` bytes whose words are the words of the whole. A border lies before a white
/// space that follows something else: no word spans it, and nothing after it looks back. The borders depend on the text
/// alone. A piece grows until such a border comes.
std::vector<std::string_view> split_at_words(std::string_view text, std::size_t bytes);

}  // namespace bg
