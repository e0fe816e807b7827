// What every fuzz target holds the readers to: they give a value or throw bg::Error with one printable sentence, and
// what they gave can be written and read again with the same result.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "core/error.h"
#include "core/tensor.h"

namespace bg::fuzz {

/// Ends the process, which the fuzzer reports with the input.
inline void require(bool good, const std::string& what) {
  if (good) return;
  std::fprintf(stderr, "broken: %s\n", what.c_str());
  std::abort();
}

/// What `read` gives of the input, or nothing where it refuses. Any other exception ends the process.
template <class F>
std::optional<std::invoke_result_t<F>> value_or_refusal(std::string_view input, F read) {
  try {
    return read();
  } catch (const Error& e) {
    const std::string text = e.what();
    require(text.starts_with('[') && text.size() < 2000, "a message without form or end: " + text);
    constexpr std::string_view kLibrary = "json.exception";  // its messages begin so; an input may hold it as well
    require(text.find(kLibrary) == text.npos || input.find(kLibrary) != input.npos, "a library's message: " + text);
    for (const char c : text) require(static_cast<unsigned char>(c) >= ' ', "a control character in: " + text);
    static_cast<void>(nlohmann::json(text).dump());  // throws where the text is not UTF-8
    return std::nullopt;
  }
}

inline std::string_view bytes_of(const Tensor& t) {
  return dispatch_any(t.dtype(), [&]<class T>() -> std::string_view {
    return {reinterpret_cast<const char*>(t.data<T>()), static_cast<size_t>(t.numel()) * sizeof(T)};
  });
}

/// Equal to the last bit, names too.
template <class Tensors>
void require_equal(const Tensors& a, const Tensors& b) {
  require(a.size() == b.size(), "as many tensors");
  for (const auto& [name, t] : a) {
    const auto found = b.find(name);
    require(found != b.end(), "a tensor of the same name: " + name);
    const Tensor& u = found->second;
    require(t.dtype() == u.dtype() && t.shape() == u.shape() && bytes_of(t) == bytes_of(u), "the same values: " + name);
  }
}

}  // namespace bg::fuzz

/// The target: an input as text.
void read_input(std::string_view input);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  read_input({reinterpret_cast<const char*>(data), size});
  return 0;
}
