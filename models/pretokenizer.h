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

/// The most bytes of a word. Longer ones are cut at a character, which bounds the memory and time that a text without
/// spaces takes; of such words alone the ids differ from those of other libraries, which do not cut them.
constexpr std::size_t kLongestWord = std::size_t{1} << 16;

/// End of the word that starts at `begin` < text.size(); valid UTF-8 is assumed. Every byte belongs to one word.
std::size_t word_end(std::string_view text, std::size_t begin);

/// Cuts text into pieces of about `bytes` bytes whose words are the words of the whole. A border lies before a white
/// space that follows something else: no word spans it, and nothing after it looks back; or, where there is none for
/// long, between two words within a run of letters, say. The borders depend on the text alone. A piece grows until such
/// a border comes.
std::vector<std::string_view> split_at_words(std::string_view text, std::size_t bytes);

/// Where the piece that starts at `begin` < text.size() ends.
std::size_t piece_end(std::string_view text, std::size_t begin, std::size_t bytes);

}  // namespace bg
