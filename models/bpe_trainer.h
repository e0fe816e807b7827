// Learns byte-pair merges from text (Sennrich et al., "Neural machine translation of rare words with subword units",
// ACL 2016, on the bytes of GPT-2's words).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/on_progress.h"

namespace bg {

/// One merge: two neighbouring tokens become one.
struct BpeMerge {
  int32_t left, right;
  bool operator==(const BpeMerge&) const = default;
};

/// Tokens as their bytes, by id, and the merges in the order in which they apply.
struct BpeModel {
  std::vector<std::string> tokens;
  std::vector<BpeMerge> merges;
};

/// The 256 bytes in the order of GPT-2's vocabulary: printable ones first.
const std::string& gpt2_byte_order();

/// Starts from the 256 bytes and merges, until there are vocab_size tokens, the pair that occurs most often; among
/// equally frequent pairs the one with the smallest left id, then the smallest right id. Stops early when no pair
/// occurs twice. The result depends on the text alone, not on threads. `text` must be valid UTF-8. Takes 8
/// bytes for each byte of the distinct words.
BpeModel train_bpe(std::string_view text, int64_t vocab_size, const OnProgress& progress = {});

}  // namespace bg
