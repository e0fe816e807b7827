#include "core/shape.h"

namespace bg {

void Shape::refuse(std::string_view op) const {
  BG_CHECK(std::none_of(begin(), end(), [](int64_t s) { return s < 0; }), op, "negative size", str(*this),
           "sizes of 0 or more");
  fail(op, "too many elements", str(*this), "fewer than 2^59");
}

int64_t added_sizes(std::string_view op, std::initializer_list<int64_t> sizes) {
  int64_t total = 0;
  for (const int64_t s : sizes) {
    BG_CHECK(s >= 0, op, "negative size", str(s), "0 or more");
    BG_CHECK(!__builtin_add_overflow(total, s, &total) && total <= Shape::kMaxElements, op, "sizes add up to too many",
             str(s, " more"), "fewer than 2^59");
  }
  return total;
}

Shape contiguous_strides(const Shape& shape) {
  Shape strides = Shape::filled(shape.rank(), 1);
  for (int i = shape.rank() - 2; i >= 0; --i) strides[i] = strides[i + 1] * std::max<int64_t>(shape[i + 1], 1);
  return strides;
}

Shape position_of(const Shape& shape, int64_t flat) {
  Shape index = shape;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    index[d] = flat % shape[d];
    flat /= shape[d];
  }
  return index;
}

Shape broadcast_shapes(const Shape& a, const Shape& b, std::string_view op) {
  const int rank = std::max(a.rank(), b.rank());
  Shape out = Shape::filled(rank, 1);
  for (int i = 1; i <= rank; ++i) {
    const int64_t x = i <= a.rank() ? a[a.rank() - i] : 1, y = i <= b.rank() ? b[b.rank() - i] : 1;
    BG_CHECK(x == y || x == 1 || y == 1, op, "shapes do not broadcast", str(a, " and ", b),
             str("equal sizes or 1 at dimension -", i), "reshape or unsqueeze one of them");
    out[rank - i] = x == 1 ? y : x;
  }
  out.numel(op);
  return out;
}

Shape reshaped(const Shape& x, const Shape& wanted) {
  constexpr std::string_view op = "reshape";
  Shape shape = wanted;
  int free_dim = -1;
  for (int d = 0; d < shape.rank(); ++d) {
    if (shape[d] != -1) continue;
    BG_CHECK(free_dim < 0, op, "more than one free size", str(wanted), "at most one -1");
    free_dim = d;
    shape[d] = 1;
  }
  const int64_t known = shape.numel(op), n = x.numel();
  if (free_dim >= 0) {
    BG_CHECK(known > 0 && n % known == 0, op, "sizes do not divide", str(x, " into ", wanted),
             str("a shape with ", n, " elements"));
    shape[free_dim] = n / known;
  }
  BG_CHECK(shape.numel(op) == n, op, "number of elements differs", str(x, " into ", shape),
           str("a shape with ", n, " elements"));
  return shape;
}

}  // namespace bg
