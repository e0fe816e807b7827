// Rows of a table by index.
#pragma once

#include "autograd/ops/indexing.h"
#include "core/kernels/embedding.h"
#include "core/tensor_ops.h"

namespace bg {

/// y[i, ...] = table[ids[i], ...] for ids of any shape (i32 or i64) and a table (V, d); y is (ids' shape, d).
/// dtable[v] = sum over all i with ids[i] = v of dy[i], repeated ids included: ids are sorted, and each id's rows
/// summed in order, so that no thread adds into another's row. Saves ids.
struct Embedding {
  static constexpr std::string_view name = "embedding";
  static inline const std::array inputs{In{"ids", false}, In{"table"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const int64_t d = in[1].size(1);
    Arr<S> y(with_last(in[0].shape, d));
    for (int64_t i = 0; i < in[0].numel(); ++i)
      for (int64_t j = 0; j < d; ++j) y[i * d + j] = in[1][in[0].index(i) * d + j];
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    BG_CHECK(in[1].rank() == 2, name, "table is not a matrix", str(in[1].shape()), "(rows, width)");
    const Tensor ids = num::checked_indices(name, "id", in[0], in[1].size(0)), table = in[1].contiguous();
    const int64_t d = table.size(1);
    Tensor y = Tensor::empty(with_last(ids.shape(), d), table.dtype());
    dispatch_float(name, table.dtype(), [&]<class T>() {
      kernels::embedding_forward(table.data<T>(), ids.data<int64_t>(), y.mutable_data<T>(name), ids.numel(),
                                 table.size(0), d);
    });
    saved.keep_input(0, ids);
    return y;
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &ids = b[0], dy = b.dy().contiguous();
    const Shape& table = b.input_shape(1);
    Tensor dtable = Tensor::zeros(table, dy.dtype());
    dispatch_float(name, dy.dtype(), [&]<class T>() {
      kernels::embedding_backward(dy.data<T>(), ids.data<int64_t>(), dtable.mutable_data<T>(name), ids.numel(),
                                  table[0], table[1]);
    });
    return {Tensor(), dtable};
  }
  static Vars compose(const Vars& in, const Args&) {
    const Tensor& ids = in[0].value();
    return {reshape(index_select(in[1], ids.reshape({ids.numel()})), with_last(ids.shape(), in[1].size(1)))};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    auto ids = [](std::vector<int64_t> v, const Shape& s) { return Tensor::of(std::move(v), s); };
    return {{"(4,) of (5, 3)", {}, {ids({4, 0, 2, 0}, {4}), normal(r, {5, 3})}},
            {"all ids equal", {}, {ids({1, 1, 1, 1, 1, 1}, {2, 3}), normal(r, {3, 2})}},
            {"i32", {}, {Tensor::of(std::vector<int32_t>{2, 1, 2}, {3}), normal(r, {3, 4})}},
            {"single id", {}, {ids({1}, {}), normal(r, {2, 3})}},
            {"several strips", {}, {ids({3, 0, 3, 1}, {4}), normal(r, {5, 150})}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() {
    return {{"the last of repeated ids wins",
             [](auto& b) {
               const Tensor dy = b.dy().reshape({b[0].numel(), b.input_shape(1)[1]});
               Tensor g = Tensor::zeros(b.input_shape(1), dy.dtype());
               for (int64_t i = 0; i < b[0].numel(); ++i)
                 g.select(0, b[0].template data<int64_t>()[i]).copy_from(dy.select(0, i));
               return Tensors{Tensor(), g};
             }},
            {"gradient to the next row", [](auto& b) {
               const Tensor g = backward(b)[1];
               Tensor moved = Tensor::zeros(g.shape(), g.dtype());
               const int64_t rows = g.size(0);
               moved.slice(0, 1, rows).copy_from(g.slice(0, 0, rows - 1));
               moved.slice(0, 0, 1).copy_from(g.slice(0, rows - 1, rows));
               return Tensors{Tensor(), moved};
             }}};
  }

 private:
  static Shape with_last(Shape s, int64_t size) {
    s.push_back(size);
    return s;
  }
};

/// Rows ids[...] of table (V, d) as (ids' shape, d). Throws, with position and value, on an id outside [0, V).
inline Var embedding(const Tensor& ids, const Var& table) { return apply<Embedding>({}, {Var(ids), table})[0]; }

}  // namespace bg
