// Ops that move numbers without computing: reshape, permute, slice, place, concat, split.
// (Gather and scatter by index are in indexing.h.)
#pragma once

#include "autograd/ops/arithmetic.h"

namespace bg {

/// y = x with another shape of the same size (a view where strides allow);  dx = dy reshaped back.
struct Reshape {
  static constexpr std::string_view name = "reshape";
  static inline const std::array inputs{In{"x"}};
  struct Args {
    Shape shape;  // one size may be -1
  };

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    Arr<S> y = in[0];
    y.shape = a.shape;
    return {y};
  }
  static Tensor forward(Saved&, const Tensors& in, const Args& a) { return in[0].reshape(a.shape); }
  static Vars backward(const Backward<Var, Args>& b);
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(2, 6) to (3, 4)", {{3, 4}}, {normal(r, {2, 6})}},
            {"(4,) to (2, 2)", {{2, 2}}, {normal(r, {4})}},
            {"() to (1, 1)", {{1, 1}}, {normal(r, {})}},
            {"(2, 17) to (17, 2)", {{17, 2}}, {normal(r, {2, 17})}}};
  }
  static std::vector<Mutant<Var, Args>> mutants();
};
inline Var reshape(const Var& x, const Shape& shape) { return apply<Reshape>({shape}, {x})[0]; }

inline Vars Reshape::backward(const Backward<Var, Args>& b) { return {reshape(b.dy(), b.input_shape(0))}; }

/// y[i_p0, i_p1, ...] = x[i0, i1, ...]: dimension k of y is dimension dims[k] of x (a view);  dx = dy permuted back.
struct Permute {
  static constexpr std::string_view name = "permute";
  static inline const std::array inputs{In{"x"}};
  struct Args {
    std::vector<int> dims;
  };

  static std::vector<int> inverse(const std::vector<int>& dims) {
    std::vector<int> inv(dims.size());
    for (size_t k = 0; k < dims.size(); ++k) inv[static_cast<size_t>(dims[k])] = static_cast<int>(k);
    return inv;
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    const Shape& xs = in[0].shape;
    Shape ys = xs;
    for (int k = 0; k < xs.rank(); ++k) ys[k] = xs[a.dims[static_cast<size_t>(k)]];
    const Shape x_strides = contiguous_strides(xs);
    Arr<S> y(ys);
    for (int64_t i = 0; i < y.numel(); ++i) {
      int64_t rest = i, at = 0;
      for (int k = ys.rank() - 1; k >= 0; --k) {
        at += rest % ys[k] * x_strides[a.dims[static_cast<size_t>(k)]];
        rest /= ys[k];
      }
      y[i] = in[0][at];
    }
    return {y};
  }
  static Tensor forward(Saved&, const Tensors& in, const Args& a) { return in[0].permute(a.dims); }
  static Vars backward(const Backward<Var, Args>& b);
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"transpose", {{1, 0}}, {normal(r, {2, 3})}},
            {"cycle", {{2, 0, 1}}, {normal(r, {2, 3, 4})}},
            {"middle", {{0, 2, 1, 3}}, {normal(r, {2, 2, 3, 2})}},
            {"wide transpose", {{1, 0}}, {normal(r, {3, 17})}}};
  }
  static std::vector<Mutant<Var, Args>> mutants();
};
inline Var permute(const Var& x, std::vector<int> dims) {
  for (int& d : dims) d = x.shape().dim(d, Permute::name);
  return apply<Permute>({std::move(dims)}, {x})[0];
}
inline Var transpose(const Var& x, int a, int b) {
  std::vector<int> dims(static_cast<size_t>(x.rank()));
  for (int d = 0; d < x.rank(); ++d) dims[static_cast<size_t>(d)] = d;
  std::swap(dims[static_cast<size_t>(x.shape().dim(a, "transpose"))],
            dims[static_cast<size_t>(x.shape().dim(b, "transpose"))]);
  return permute(x, std::move(dims));
}

inline Vars Permute::backward(const Backward<Var, Args>& b) { return {permute(b.dy(), inverse(b.args.dims))}; }

inline std::vector<Mutant<Var, Permute::Args>> Permute::mutants() {
  return {{"permuted again instead of back, or copied flat", [](auto& b) {
             const Var twice = permute(b.dy(), b.args.dims);
             return Vars{twice.shape() == b.input_shape(0) && b.args.dims != inverse(b.args.dims)
                             ? twice
                             : reshape(b.dy(), b.input_shape(0))};
           }}};
}
inline std::vector<Mutant<Var, Reshape::Args>> Reshape::mutants() {
  return {{"gradient reversed", [](auto& b) {
             const std::vector<double> v = b.dy().value().template to_vector<double>();
             return Vars{
                 Var(Tensor::of(std::vector<double>(v.rbegin(), v.rend()), b.input_shape(0)).to(b.dy().dtype()))};
           }}};
}

inline Var unsqueeze(const Var& x, int dim) { return reshape(x, x.value().unsqueeze(dim).shape()); }
inline Var squeeze(const Var& x, int dim) { return reshape(x, x.value().squeeze(dim).shape()); }

// -- Parts of a tensor ------------------------------------------------------------------------------------------------

/// Positions begin, begin + step, ... below end of one dimension; 0 <= begin <= end <= size, step >= 1.
struct Range {
  int dim = 0;
  int64_t begin = 0, end = 0, step = 1;

  int64_t count() const { return slice_count(begin, end, step); }
};

namespace detail {

/// f(i, k) for the flat position i in an array of shape `whole` of every element of a range, in order of k = 0, 1, ...
/// For references.
template <class F>
void for_range(const Shape& whole, const Range& range, F f) {
  const int d = whole.dim(range.dim, "range");
  int64_t inner = 1, k = 0;
  for (int j = d + 1; j < whole.rank(); ++j) inner *= whole[j];
  for (int64_t first = 0; first < whole.numel(); first += whole[d] * inner)
    for (int64_t p = range.begin; p < range.end; p += range.step)
      for (int64_t i = 0; i < inner; ++i) f(first + p * inner + i, k++);
}

}  // namespace detail

Var slice(const Var& x, int dim, int64_t begin, int64_t end, int64_t step = 1);
Var place(const Var& x, int dim, int64_t begin, int64_t size, int64_t step = 1);

/// y = x[..., begin:end:step, ...] along one dimension (a view);  dx = dy placed into zeros.
struct Slice {
  static constexpr std::string_view name = "slice";
  static inline const std::array inputs{In{"x"}};
  using Args = Range;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    Arr<S> y(in[0].shape.with_size(a.dim, a.count(), name));
    detail::for_range(in[0].shape, a, [&](int64_t i, int64_t k) { y[k] = in[0][i]; });
    return {y};
  }
  static Tensor forward(Saved&, const Tensors& in, const Args& a) { return in[0].slice(a.dim, a.begin, a.end, a.step); }
  static Vars backward(const Backward<Var, Args>& b) {
    const Shape& x = b.input_shape(0);
    return {place(b.dy(), b.args.dim, b.args.begin, x[x.dim(b.args.dim, name)], b.args.step)};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"last, middle part", {-1, 1, 3}, {normal(r, {2, 4})}},
            {"first", {0, 0, 2}, {normal(r, {3, 2})}},
            {"step 2, odd", {1, 0, 5, 2}, {normal(r, {2, 5, 3})}},
            {"step 3, past the last", {-2, 1, 7, 3}, {normal(r, {7, 2})}},
            {"whole", {0, 0, 1}, {normal(r, {1})}},
            {"wide", {-1, 1, 18}, {normal(r, {2, 19})}}};
  }
  static std::vector<Mutant<Var, Args>> mutants() {
    return {{"placed at the other end", [](auto& b) {
               const Shape& x = b.input_shape(0);
               const int64_t size = x[x.dim(b.args.dim, name)];
               const int64_t last = b.args.begin + (b.args.count() - 1) * b.args.step;
               return Vars{place(b.dy(), b.args.dim, size - 1 - last, size, b.args.step)};
             }}};
  }
};
inline Var slice(const Var& x, int dim, int64_t begin, int64_t end, int64_t step) {
  return apply<Slice>({dim, begin, end, step}, {x})[0];
}
/// x[..., index, ...] without the dimension.
inline Var select(const Var& x, int dim, int64_t index) { return squeeze(slice(x, dim, index, index + 1), dim); }

/// y = zeros with x at begin, begin + step, ... of a dimension of the given size: the transpose of slice;  dx = that
/// slice of dy.
struct Place {
  static constexpr std::string_view name = "place";
  static inline const std::array inputs{In{"x"}};
  struct Args {
    int dim = 0;
    int64_t begin = 0, size = 0, step = 1;

    Range range(const Shape& x) const {
      const int64_t n = x[x.dim(dim, name)];
      BG_CHECK(begin >= 0 && begin <= size && step >= 1 && slice_count(begin, size, step) >= n, name,
               "range out of bounds", str(n, " from ", begin, " on by steps of ", step, " into size ", size),
               "0 <= begin, step of 1 or more, and room for all");
      return {dim, begin, n == 0 ? begin : begin + (n - 1) * step + 1, step};
    }
  };

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    Arr<S> y(in[0].shape.with_size(a.dim, a.size, name));
    detail::for_range(y.shape, a.range(in[0].shape), [&](int64_t i, int64_t k) { y[i] = in[0][k]; });
    return {y};
  }
  static Tensor forward(Saved&, const Tensors& in, const Args& a) {
    Tensor y = Tensor::zeros(in[0].shape().with_size(a.dim, a.size, name), in[0].dtype());
    const Range r = a.range(in[0].shape());
    y.slice(r.dim, r.begin, r.end, r.step).copy_from(in[0], name);
    return y;
  }
  static Vars backward(const Backward<Var, Args>& b) {
    const Range r = b.args.range(b.input_shape(0));
    return {slice(b.dy(), r.dim, r.begin, r.end, r.step)};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"last, middle part", {-1, 1, 4}, {normal(r, {2, 2})}},
            {"step 2", {1, 0, 6, 2}, {normal(r, {2, 3, 2})}},
            {"step 3, negative dimension", {-2, 1, 7, 3}, {normal(r, {2, 3})}},
            {"no room", {0, 0, 3}, {normal(r, {3})}},
            {"wide", {-1, 1, 19}, {normal(r, {2, 17})}}};
  }
  static std::vector<Mutant<Var, Args>> mutants() {
    return {{"read from the other end", [](auto& b) {
               const Range r = b.args.range(b.input_shape(0));
               return Vars{slice(b.dy(), r.dim, b.args.size - r.end, b.args.size - r.begin, r.step)};
             }}};
  }
};
inline Var place(const Var& x, int dim, int64_t begin, int64_t size, int64_t step) {
  return apply<Place>({dim, begin, size, step}, {x})[0];
}
/// Zeros around one dimension.
inline Var pad(const Var& x, int dim, int64_t before, int64_t after) {
  return place(x, dim, before, added_sizes("pad", {before, x.size(dim), after}));
}

Vars split(const Var& x, std::vector<int64_t> sizes, int dim);

/// y = the inputs one after another along a dimension;  each dx is its part of dy. All of one dtype, and of one shape
/// but for that dimension.
struct Concat {
  static constexpr std::string_view name = "concat";
  struct Args {
    int dim = 0;
  };

  static std::vector<In> inputs_for(const Args&, size_t count) {
    std::vector<In> out;
    for (size_t i = 0; i < count; ++i) out.emplace_back(str("x", i));
    return out;
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    int64_t total = 0, begin = 0;
    for (const Arr<S>& x : in) total += x.shape[x.shape.dim(a.dim, name)];
    Arr<S> y(in[0].shape.with_size(a.dim, total, name));
    for (const Arr<S>& x : in) {
      const int64_t n = x.shape[x.shape.dim(a.dim, name)];
      detail::for_range(y.shape, {a.dim, begin, begin + n}, [&](int64_t i, int64_t k) { y[i] = x[k]; });
      begin += n;
    }
    return {y};
  }
  static Tensor forward(Saved&, const Tensors& in, const Args& a) {
    BG_CHECK(!in.empty(), name, "nothing to join", "0 tensors", "1 or more");
    int64_t total = 0, begin = 0;
    for (size_t i = 0; i < in.size(); ++i) {
      const int64_t n = in[i].size(a.dim);
      BG_CHECK(in[i].rank() == in[0].rank() && in[i].dtype() == in[0].dtype() &&
                   in[0].shape().with_size(a.dim, n, name) == in[i].shape(),
               name, str("input ", i, " does not fit input 0"), str(in[i].dtype(), " ", in[i].shape()),
               str(in[0].dtype(), " ", in[0].shape(), " but for dimension ", a.dim));
      total = added_sizes(name, {total, n});
    }
    Tensor y = Tensor::empty(in[0].shape().with_size(a.dim, total, name), in[0].dtype());
    for (const Tensor& x : in) {
      y.slice(a.dim, begin, begin + x.size(a.dim)).copy_from(x, name);
      begin += x.size(a.dim);
    }
    return y;
  }
  static Vars backward(const Backward<Var, Args>& b) { return split(b.dy(), sizes(b), b.args.dim); }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"two, rows", {0}, {normal(r, {1, 3}), normal(r, {2, 3})}},
            {"three, last", {-1}, {normal(r, {2, 1}), normal(r, {2, 3}), normal(r, {2, 2})}},
            {"middle, equal sizes", {1}, {normal(r, {2, 2, 3}), normal(r, {2, 2, 3})}},
            {"one", {0}, {normal(r, {3})}},
            {"wide, last", {-1}, {normal(r, {2, 17}), normal(r, {2, 3})}}};
  }
  static std::vector<Mutant<Var, Args>> mutants() {
    return {{"first part's gradient doubled",
             [](auto& b) {
               Vars g = backward(b);
               g[0] = g[0] + g[0];
               return g;
             }},
            {"parts in reverse order", [](auto& b) {
               std::vector<int64_t> n = sizes(b);
               std::reverse(n.begin(), n.end());
               Vars g = split(b.dy(), n, b.args.dim);
               std::reverse(g.begin(), g.end());
               return g;
             }}};
  }

 private:
  static std::vector<int64_t> sizes(const Backward<Var, Args>& b) {
    std::vector<int64_t> out;
    for (size_t i = 0; i < b.input_count(); ++i)
      out.push_back(b.input_shape(i)[b.input_shape(i).dim(b.args.dim, name)]);
    return out;
  }
};
inline Var concat(const Vars& parts, int dim) { return apply<Concat>({dim}, parts)[0]; }
/// The inputs, all of one shape, along a new dimension.
inline Var stack(const Vars& parts, int dim) {
  Vars rows;
  for (const Var& p : parts) {
    BG_CHECK(p.shape() == parts[0].shape(), "stack", "shapes differ", str(p.shape()), str(parts[0].shape()));
    rows.push_back(unsqueeze(p, dim));
  }
  BG_CHECK(!rows.empty(), "stack", "nothing to join", "0 tensors", "1 or more");
  return concat(rows, dim < 0 ? dim + rows[0].rank() : dim);
}

/// y0, y1, ... = consecutive parts of the given sizes along a dimension (views);  dx = their gradients joined. The
/// sizes must add up to the whole.
struct Split {
  static constexpr std::string_view name = "split";
  static inline const std::array inputs{In{"x"}};
  struct Args {
    std::vector<int64_t> sizes;
    int dim = 0;
  };

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    Arrs<S> out;
    int64_t begin = 0;
    for (const int64_t n : a.sizes) {
      out.push_back(Slice::reference(in, {a.dim, begin, begin + n})[0]);
      begin += n;
    }
    return out;
  }
  static Tensors forward(Saved&, const Tensors& in, const Args& a) {
    Tensors out;
    int64_t begin = 0;
    for (const int64_t n : a.sizes) {
      BG_CHECK(n >= 0 && n <= in[0].size(a.dim) - begin, name, "sizes do not fit", describe(a, in[0]),
               "sizes that add up to it");
      out.push_back(in[0].slice(a.dim, begin, begin + n));
      begin += n;
    }
    BG_CHECK(begin == in[0].size(a.dim), name, "sizes do not fit", describe(a, in[0]), "sizes that add up to it");
    return out;
  }
  static Vars backward(const Backward<Var, Args>& b) {
    Vars parts;
    for (size_t i = 0; i < b.args.sizes.size(); ++i) parts.push_back(b.dy(i));
    return {concat(parts, b.args.dim)};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"rows", {{1, 2}, 0}, {normal(r, {3, 2})}},
            {"last, three", {{2, 1, 3}, -1}, {normal(r, {2, 6})}},
            {"middle, halves", {{2, 2}, 1}, {normal(r, {2, 4, 3})}},
            {"one", {{5}, 0}, {normal(r, {5})}},
            {"wide, last", {{17, 2}, -1}, {normal(r, {2, 19})}}};
  }
  static std::vector<Mutant<Var, Args>> mutants() {
    return {{"gradient of the last part lost",
             [](auto& b) {
               Vars parts;
               for (size_t i = 0; i < b.args.sizes.size(); ++i) parts.push_back(b.dy(i));
               parts.back() = parts.back() * 0;
               return Vars{concat(parts, b.args.dim)};
             }},
            {"parts in reverse order", [](auto& b) {
               Vars parts;
               for (size_t i = b.args.sizes.size(); i-- > 0;) parts.push_back(b.dy(i));
               return Vars{concat(parts, b.args.dim)};
             }}};
  }

 private:
  static std::string describe(const Args& a, const Tensor& x) {
    std::string sizes;
    for (const int64_t n : a.sizes) sizes += str(sizes.empty() ? "" : " + ", n);
    return str(sizes, " of size ", x.size(a.dim), " at dimension ", a.dim, " of ", x.shape());
  }
};
inline Vars split(const Var& x, std::vector<int64_t> sizes, int dim) {
  return apply<Split>({std::move(sizes), dim}, {x});
}

}  // namespace bg
