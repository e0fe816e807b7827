// The matrix products of a training step.
#include <algorithm>

#include "core/gemm.h"
#include "examples/boostgrad/bench/cases.h"

namespace bg::bench {
namespace {

// y (rows, out) = x (rows, in) w, w (in, out) or, transposed, (out, in).
struct Product {
  std::string name;
  int64_t rows, in, out;
  bool transposed = false;
};

void add_products(std::vector<Product>& all, const TransformerConfig& c, int64_t rows, int64_t head_rows) {
  const int64_t d = c.d_model, mlp = c.mlp_ratio * d, later = c.rounds - 1;
  auto add_shape = [&](const Product& made) {
    for (Product& p : all)
      if (p.rows == made.rows && p.in == made.in && p.out == made.out && p.transposed == made.transposed) {
        if (p.name.find(made.name) == std::string::npos) p.name += ", " + made.name;
        return;
      }
    all.push_back(made);
  };
  auto add = [&](const std::string& name, int64_t in, int64_t out) { add_shape({name, rows, in, out}); };
  const bool boosted = c.model == nn::AttentionKind::boosted && later > 0;
  if (boosted && c.kv == Kv::input) {  // one product for all that is projected from x
    add("boosted qkv and later kv", d, 3 * d + later * 2 * d);
    add("later q", d, d);
  } else {
    add("qkv", d, 3 * d);
  }
  if (boosted && c.gate == Gate::linear) add("half of the gate", d, d);
  if (boosted && c.gate == Gate::mlp) {
    add("half of the gate's first layer", d, nn::SelfAttentionOptions().gate_hidden);
    add("gate's second layer", nn::SelfAttentionOptions().gate_hidden, d);
  }
  add("attention out", d, d);
  add("mlp up", d, mlp);
  add("mlp down", mlp, d);
  add_shape({"lm head", std::min(rows, head_rows), d, c.vocab, true});
}

// C (m, n) = op(a) op(b).
template <class T>
Case gemm_case(std::string name, std::string pass, Trans ta, Trans tb, int64_t m, int64_t n, int64_t k) {
  Case c{std::move(name), str(m, " x ", n, " x ", k), std::move(pass), dtype_of<T>};
  c.work = 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
  c.prepare = [=] {
    Rng rng(1);
    const Tensor a = Tensor::randn({m, k}, rng, dtype_of<T>), b = Tensor::randn({k, n}, rng, dtype_of<T>);
    Tensor y = Tensor::empty({m, n}, dtype_of<T>);
    return [=]() mutable {
      gemm<T>(ta, tb, m, n, k, T(1), a.data<T>(), ta == Trans::yes ? m : k, b.data<T>(), tb == Trans::yes ? k : n, T(0),
              y.mutable_data<T>("bench"), n);
      return Vars{};
    };
  };
  return c;
}

template <class T>
Cases gemm_cases_of(const std::vector<TransformerConfig>& models, int64_t rows, int64_t head_rows) {
  constexpr Trans no = Trans::no, yes = Trans::yes;
  std::vector<Product> products;
  for (const TransformerConfig& model : models) add_products(products, model, rows, head_rows);
  Cases all;
  for (const Product& p : products) {
    all.push_back(gemm_case<T>(p.name, "forward", no, p.transposed ? yes : no, p.rows, p.out, p.in));
    all.push_back(gemm_case<T>(p.name, "dX", no, p.transposed ? no : yes, p.rows, p.in, p.out));
    all.push_back(p.transposed ? gemm_case<T>(p.name, "dW", yes, no, p.out, p.in, p.rows)
                               : gemm_case<T>(p.name, "dW", yes, no, p.in, p.out, p.rows));
  }
  return all;
}

}  // namespace

Cases gemm_cases(const std::vector<TransformerConfig>& models, int64_t rows, int64_t head_rows, DType dtype) {
  return dtype == DType::f64 ? gemm_cases_of<double>(models, rows, head_rows)
                             : gemm_cases_of<float>(models, rows, head_rows);
}

}  // namespace bg::bench
