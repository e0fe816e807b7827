#include "core/io/safetensors.h"

#include "tests/fuzz/fuzz.h"

using namespace bg;

void read_input(std::string_view input) {
  const auto header = fuzz::value_or_refusal(input, [&] { return parse_safetensors_header(input, "x"); });
  const auto file = fuzz::value_or_refusal(input, [&] { return parse_safetensors(input, "x"); });
  if (!header) return fuzz::require(!file, "a file is read only where its header is");
  for (const auto& item : header->tensors) {
    const auto& name = item.first;
    const auto& entry = item.second;
    const auto one = fuzz::value_or_refusal(input, [&] { return parse_safetensors(input, "x", {name}); });
    if (!one) continue;
    const Tensor& t = one->tensors.at(name);
    fuzz::require(entry.dtype == t.dtype() && entry.shape == t.shape(), "a tensor is as its header says");
  }
  if (!file) return;
  const TensorFile again = parse_safetensors(safetensors_bytes(*file), "again");
  fuzz::require_equal(file->tensors, again.tensors);
  fuzz::require(file->metadata == again.metadata, "the same metadata");
}
