// The file form of tokenizers; read through Tokenizer::load and written through Tokenizer::save.
#pragma once

#include <string>
#include <vector>

#include "models/tokenizer.h"

namespace bg {

/// A byte-level BPE as the content of a tokenizer.json of the Hugging Face `tokenizers` library.
std::string tokenizer_json(const BpeModel& model, const std::vector<AddedToken>& added);

}  // namespace bg
