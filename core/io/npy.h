// NumPy's array files: .npy, one array, and .npz, a zip of named arrays.
//
// Read: versions 1, 2 and 3, f2, f4, f8, b1, i1 to i8 and u1 to u8 in either byte order, C or Fortran order (Fortran
// arrays become row-major), and shapes as Python 2 wrote them, (3L, 4L). What is no dtype of ours becomes one that
// holds it exactly: f2 f32, b1, i1, i2, u1 and u2 i32, u4 and u8 i64. Everything else - complex numbers, texts,
// structured and object arrays, a u8 beyond 2^63 - 1, bytes missing or left over - is refused with an Error that says
// what was found. Headers are parsed as what they are, a Python literal of three fields, and never evaluated.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <string_view>

#include "core/tensor.h"

namespace bg {

Tensor read_npy(const std::filesystem::path& path);
/// f32, f64, i32 or i64, any strides; all or nothing.
void write_npy(const std::filesystem::path& path, const Tensor& tensor);

/// The arrays by name: entry `x.npy` is `x`. A compressed archive may be small and its arrays not: what it states must
/// fit into half of the machine's memory, and no entry may hold more than it states.
std::map<std::string, Tensor> read_npz(const std::filesystem::path& path);
/// Uncompressed, as numpy.savez; equal content gives equal bytes; all or nothing.
void write_npz(const std::filesystem::path& path, const std::map<std::string, Tensor>& tensors);

/// The same on bytes in memory; `source` and `target` name them in errors.
Tensor parse_npy(std::string_view bytes, std::string_view source);
std::string npy_bytes(const Tensor& tensor);
std::map<std::string, Tensor> parse_npz(std::string_view bytes, std::string_view source);
/// With another limit, of all arrays together.
std::map<std::string, Tensor> parse_npz(std::string_view bytes, std::string_view source, size_t most_bytes);
std::string npz_bytes(const std::map<std::string, Tensor>& tensors, std::string_view target);

}  // namespace bg
