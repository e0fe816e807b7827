// Named tensors in one file, in the safetensors format, which other tools read and write too: eight bytes with the
// length of a JSON header, the header, and the tensors' bytes one after another.
//
// Nothing in a file is trusted: header length, JSON, duplicate names, dtypes, shapes, overflow, and that the tensors'
// ranges cover the data exactly - no gap, no overlap, nothing beyond the end - are all checked before a byte of data is
// read, and each failure is an Error that names the file, the tensor and the number.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"

namespace bg {

/// What such a file holds, or a part of it. F32, F64, I32, I64 and BF16 are read and written as they are. Other
/// programs' F16, F8_E4M3 and F8_E5M2 are read as f32, BOOL, I8, I16, U8 and U16 as i32, U32 and U64 as i64, each
/// exactly. The other types of the format (complex numbers, the remaining ones below 16 bits) may be in a file but
/// cannot be read.
struct TensorFile {
  std::map<std::string, Tensor> tensors;
  std::map<std::string, std::string> metadata;
};

/// A header alone: what is in a file and where.
struct TensorFileHeader {
  struct Entry {
    std::string type;            ///< as the format names it: F32, BOOL, F8_E4M3, ...
    std::optional<DType> dtype;  ///< of what reading it gives; none: it cannot be read
    Shape shape;
    size_t begin, end;  ///< bytes from the start of the data
  };
  std::map<std::string, Entry> tensors;
  std::map<std::string, std::string> metadata;
  size_t data_begin = 0;  ///< bytes from the start of the file
};

/// The metadata key under which the checksum is stored: eight hexadecimal digits, the CRC-32 of all other metadata
/// (key, NUL, value, NUL, in order of keys) and then of every tensor in order of names: "name dtype shape", NUL, its
/// bytes; dtype is ours (f32), or the format's name of a type that is not (F16). It depends on the content, not on the
/// layout, so it survives a rewrite by another tool. Absent from the metadata that reading returns.
inline constexpr std::string_view kChecksumKey = "boostgrad.crc32";

/// Reads a whole file into new tensors; verifies the checksum if there is one. Throws Error when one of them cannot be
/// read.
TensorFile read_safetensors(const std::filesystem::path& path);
/// The same of the named tensors alone, whatever lies beside them. Throws Error when there is none of a name.
TensorFile read_safetensors(const std::filesystem::path& path, const std::vector<std::string>& names);

/// Reads the header alone, and checks it; of the data, only the size.
TensorFileHeader read_safetensors_header(const std::filesystem::path& path);

/// Writes all or nothing (core/atomic_file.h), with a checksum. Equal content gives equal bytes: tensors are ordered by
/// element size, larger first, then by name, so that each is aligned.
void write_safetensors(const std::filesystem::path& path, const TensorFile& file);

/// The same on bytes in memory; `source` names them in errors.
TensorFile parse_safetensors(std::string_view bytes, std::string_view source);
TensorFile parse_safetensors(std::string_view bytes, std::string_view source, const std::vector<std::string>& names);
std::string safetensors_bytes(const TensorFile& file);
TensorFileHeader parse_safetensors_header(std::string_view bytes, std::string_view source);

}  // namespace bg
