// NumPy's array files: .npy, one array, and .npz, a zip of named arrays.
//
// Read: versions 1, 2 and 3, little-endian f4, f8, i4 and i8, in C or Fortran order (Fortran arrays become row-major).
// Everything else - other dtypes, big-endian, structured and object arrays, bytes missing or left over - is refused
// with an Error that says what was found. Headers are parsed as what they are, a Python literal of three fields, and
// never evaluated.
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

/// The arrays by name: entry `x.npy` is `x`.
std::map<std::string, Tensor> read_npz(const std::filesystem::path& path);
/// Uncompressed, as numpy.savez; equal content gives equal bytes; all or nothing.
void write_npz(const std::filesystem::path& path, const std::map<std::string, Tensor>& tensors);

/// The same on the bytes of one array in memory; `source` names them in errors.
Tensor parse_npy(std::string_view bytes, std::string_view source);
std::string npy_bytes(const Tensor& tensor);

}  // namespace bg
