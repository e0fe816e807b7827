// The number formats of other programs' files, beside Boostgrad's own: what is exact in one of our dtypes is converted.
#pragma once

#include <string>
#include <string_view>

#include "core/tensor.h"

namespace bg {

/// One number as a file holds it.
struct ElementFormat {
  enum class Kind {
    ieee,      ///< 2, 4 or 8 bytes
    bfloat16,  ///< 2 bytes
    e4m3,      ///< 1 byte, NVIDIA's and Arm's F8_E4M3 without infinities (arXiv 2209.05433)
    e5m2,      ///< 1 byte, the upper half of an IEEE number of 2 bytes
    boolean,   ///< 1 byte, anything but 0 is true
    signed_int,
    unsigned_int,
  };
  Kind kind;
  int bytes;
  bool big_endian = false;

  /// The dtype that holds every such number exactly: f32 for 2-byte and 1-byte floats, i32 for booleans and for
  /// integers of up to 16 bits, i64 for u32. A u64 is read as i64, as long as it is below 2^63.
  DType dtype() const;
};

/// A new tensor from the numbers, row by row: numel(shape) times format.bytes. Throws Error `[op] where: ...` for an
/// unsigned number beyond 2^63 - 1.
Tensor read_elements(std::string_view bytes, const Shape& shape, const ElementFormat& format, std::string_view op,
                     std::string_view where);

}  // namespace bg
