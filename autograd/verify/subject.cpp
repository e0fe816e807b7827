#include "autograd/verify/subject.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/engine.h"
#include "core/hash.h"
#include "core/norm.h"

namespace bg::verifier {

Forward Subject::forward(const Tensors& in, bool recording) const {
  NoGrad off;
  return {point.run(in, recording), in};
}

Tensors Subject::backward(const Forward& f, const Tensors& cotangents, const Need& need) const {
  NoGrad off;
  Tensors g;
  if (mutant_ < 0) {
    g = f.backward(cotangents, need, -1);
  } else {
    try {
      g = f.backward(cotangents, need, mutant_);
    } catch (const std::exception& e) {
      throw DoesNotApply(e.what());
    }
  }
  BG_CHECK(g.size() == f.in.size(), "backward", "wrong number of gradients", str(g.size()), str(f.in.size()));
  for (size_t i = 0; i < g.size(); ++i) {
    if (!need(i)) {
      g[i] = Tensor();
      continue;
    }
    const Tensor& x = f.in[i];
    if (!g[i].defined()) g[i] = Tensor::zeros(x.shape(), x.dtype());
    if (point.broadcasts) g[i] = reduce_gradient(Var(g[i]), x.shape()).value();
    BG_CHECK(g[i].shape() == x.shape() && g[i].dtype() == x.dtype(), "backward",
             str("wrong kind of gradient for input ", i, " (", point.inputs[i].name, ")"),
             str(g[i].dtype(), " ", g[i].shape()), str(x.dtype(), " ", x.shape()));
  }
  if (corrupt_) corrupt_(g);
  return g;
}

Tensors Subject::gradients(const Tensors& in, const Tensors& cotangents) const {
  return backward(forward(in), cotangents, need_all());
}

std::vector<size_t> Subject::differentiable() const {
  std::vector<size_t> out;
  for (size_t i = 0; i < point.inputs.size(); ++i)
    if (point.inputs[i].differentiable && point.values[i].defined() && is_float(point.values[i].dtype()))
      out.push_back(i);
  return out;
}

bool Subject::declared_zero(size_t input) const {
  return std::find(point.zero_grads.begin(), point.zero_grads.end(), static_cast<int>(input)) != point.zero_grads.end();
}

Need Subject::need_all() const {
  std::vector<bool> needed(point.inputs.size(), false);
  for (size_t i : differentiable()) needed[i] = true;
  return Need(std::move(needed));
}

Tensor Subject::direction(size_t input, const Tensor& u) const {
  switch (point.inputs[input].domain) {
    case Domain::simplex:  // rows keep their sum
      return u.rank() ? num::sub(u, num::scale(num::sum(u, {-1}, true), 1.0 / static_cast<double>(u.size(-1)))) : u;
    case Domain::symmetric:
      return num::scale(num::add(u, u.transpose(-1, -2)), 0.5);
    case Domain::any:
    case Domain::positive:
      break;
  }
  return u;
}

// -- Numbers ----------------------------------------------------------------------------------------------------------

std::vector<double> flatten(const Tensors& tensors) {
  std::vector<double> out;
  for (const Tensor& t : tensors) {
    if (!t.defined() || !is_float(t.dtype())) continue;
    const std::vector<double> x = t.to_vector<double>();
    out.insert(out.end(), x.begin(), x.end());
  }
  return out;
}

double norm(std::span<const double> x) { return norm2(x); }

double largest(const Tensor& t) {
  double top = 0;
  for (const double x : flatten({t}))
    if (std::isfinite(x)) top = std::max(top, std::abs(x));
  return top;
}

double beyond(double error, double bound) { return error <= bound ? 0 : error - bound; }

double dot(std::span<const double> x, std::span<const double> y) {
  BG_CHECK(x.size() == y.size(), "verify", "sizes differ", str(x.size(), " and ", y.size()), "equal sizes");
  double s = 0;
  for (size_t i = 0; i < x.size(); ++i) s += x[i] * y[i];
  return s;
}

Tensors random_cotangents(const Tensors& outputs, Rng& rng) {
  Tensors v;
  for (const Tensor& y : outputs)
    v.push_back(is_float(y.dtype()) ? Tensor::randn(y.shape(), rng, DType::f64).to(y.dtype())
                                    : Tensor::zeros(y.shape(), y.dtype()));
  return v;
}

Tensors map_all(const Tensors& in, const std::function<Tensor(const Tensor&)>& f) {
  Tensors out;
  for (const Tensor& t : in) out.push_back(f(t));
  return out;
}

Tensors clones(const Tensors& in) {
  return map_all(in, [](const Tensor& t) { return t.clone(); });
}

Tensors converted(const Tensors& in, DType dtype) {
  return map_all(in, [dtype](const Tensor& t) { return t.defined() && is_float(t.dtype()) ? t.to(dtype) : t; });
}

Tensors perturbed(const Tensors& in, double ulp, Rng& rng) {
  return map_all(converted(in, DType::f64), [&](const Tensor& t) {
    if (!t.defined() || !is_float(t.dtype())) return t;
    return num::mul(t, Tensor::rand(t.shape(), rng, 1 - ulp, 1 + ulp, DType::f64));
  });
}

Tensors perturbed(const Point& point, const Tensors& in, double ulp, Rng& rng) {
  Tensors out = perturbed(in, ulp, rng);
  for (size_t i = 0; i < out.size(); ++i)
    if (out[i].defined() && is_float(out[i].dtype())) out[i] = projected(point.inputs[i].domain, out[i]);
  return out;
}

Tensor projected(Domain domain, const Tensor& x) {
  auto magnitudes = [&] {
    std::vector<double> p = x.to_vector<double>();
    for (double& e : p) e = std::abs(e);
    return Tensor::of(std::move(p), x.shape());
  };
  switch (domain) {
    case Domain::any:
      break;
    case Domain::positive:
      return magnitudes();
    case Domain::simplex: {
      if (x.rank() == 0 || x.numel() == 0) return x;
      const Tensor p = magnitudes();
      return num::div(p, num::sum(p, {-1}, true));
    }
    case Domain::symmetric:
      return num::scale(num::add(x, x.transpose(-1, -2)), 0.5);
  }
  return x;
}

Arr<double> to_arr(const Tensor& t) {
  Arr<double> a;
  a.shape = t.shape();
  a.v = t.to_vector<double>();
  return a;
}

template <class T>
std::vector<T> directional(const Point& point, const Tensors& in, const Tensors& outputs, size_t input,
                           const Tensor& u) {
  Arrs<Dual<T>> x = to_arrs<Dual<T>>(in);
  const std::vector<double> d = u.to_vector<double>();
  for (size_t k = 0; k < d.size(); ++k) x[input].v[k].d = d[k];
  const Arrs<Dual<T>> y = point.reference(x);
  BG_CHECK(y.size() == outputs.size(), "reference", "wrong number of outputs", str(y.size()), str(outputs.size()));
  std::vector<T> out;
  for (size_t k = 0; k < y.size(); ++k) {
    if (!is_float(outputs[k].dtype())) continue;
    BG_CHECK(y[k].numel() == outputs[k].numel(), "reference", str("output ", k, " has another size than forward's"),
             str(y[k].shape), str(outputs[k].shape()));
    for (const Dual<T>& e : y[k].v) out.push_back(e.d);
  }
  return out;
}
template std::vector<double> directional<double>(const Point&, const Tensors&, const Tensors&, size_t, const Tensor&);
template std::vector<long double> directional<long double>(const Point&, const Tensors&, const Tensors&, size_t,
                                                           const Tensor&);

Tensors moved(Tensors in, size_t input, const Tensor& u, double t) {
  in[input] = num::add(in[input], num::scale(u, t));
  return in;
}

Worst worst_of(std::span<const double> a, std::span<const double> b) {
  auto rank = [&](size_t i) {  // 2: not finite although it should be, 1: not finite in b, 0: a number
    return std::isfinite(a[i]) == std::isfinite(b[i]) && !std::isnan(a[i]) ? 0 : std::isfinite(b[i]) ? 2 : 1;
  };
  auto error = [&](size_t i) { return a[i] == b[i] ? 0 : std::abs(a[i] - b[i]); };  // equal infinities
  Worst w;
  for (size_t i = 0; i < a.size(); ++i) {
    if (w.at >= 0) {
      const int mine = rank(i), theirs = rank(static_cast<size_t>(w.at));
      if (mine < theirs || (mine == theirs && !(error(i) > w.error))) continue;
    }
    w = {static_cast<int64_t>(i), error(i)};
  }
  return w;
}

std::string describe_non_finite(const Tensor& t) {
  if (!t.defined() || !is_float(t.dtype())) return {};
  const int64_t bad = num::first_non_finite(t);
  if (bad < 0) return {};
  const double x = t.flat(bad);
  return str(std::isnan(x) ? "nan" : x < 0 ? "-inf" : "inf", " at ", describe_index(t.shape(), bad));
}

std::string describe_non_finite(std::string_view what, const Tensors& tensors) {
  for (size_t k = 0; k < tensors.size(); ++k)
    if (const std::string bad = describe_non_finite(tensors[k]); !bad.empty()) return str(what, " ", k, " is ", bad);
  return {};
}

uint64_t checksum(const Tensor& t) {
  if (!t.defined()) return 0;
  return hash_bytes({reinterpret_cast<const char*>(t.storage()->data()), t.storage()->bytes()});
}

std::string describe_index(const Shape& shape, int64_t flat) {
  Shape index = shape;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    index[d] = flat % shape[d];
    flat /= shape[d];
  }
  return str(index, " of ", shape);
}

// -- Layouts ----------------------------------------------------------------------------------------------------------

const std::vector<Layout>& layouts() {
  static const std::vector<Layout> all{{"transposed", reversed_layout},
                                       {"offset (a contiguous slice of a larger tensor)", offset_layout},
                                       {"sliced with step 2", sliced_layout},
                                       {"padded (rows of a wider tensor)", padded_layout},
                                       {"windows (whole rows of a larger tensor)", window_layout},
                                       {"channels last", channels_last_layout}};
  return all;
}

namespace {
Tensor nan_tensor(const Shape& shape, DType dtype) {
  return Tensor::full(shape, is_float(dtype) ? std::numeric_limits<double>::quiet_NaN() : -1, dtype);
}
}  // namespace

Tensor reversed_layout(const Tensor& t) {
  if (!t.defined()) return t;
  std::vector<int> reversed(static_cast<size_t>(t.rank()));
  for (int d = 0; d < t.rank(); ++d) reversed[static_cast<size_t>(d)] = t.rank() - 1 - d;
  return t.permute(reversed).clone().permute(reversed);
}

Tensor sliced_layout(const Tensor& t) {
  if (!t.defined()) return t;
  Shape large = t.shape();
  for (int d = 0; d < t.rank(); ++d) large[d] = 2 * large[d] + 1;
  large.push_back(3);  // a scalar gets a gap, too
  Tensor view = nan_tensor(large, t.dtype()).select(-1, 1);
  for (int d = 0; d < t.rank(); ++d) view = view.slice(d, 1, std::max<int64_t>(1, 2 * t.size(d)), 2);
  view.copy_from(t, "sliced layout");
  return view;
}

Tensor offset_layout(const Tensor& t) {
  if (!t.defined()) return t;
  constexpr int64_t kBefore = 3, kBehind = 2;
  const Tensor whole = nan_tensor({kBefore + t.numel() + kBehind}, t.dtype());
  Tensor view = whole.slice(0, kBefore, kBefore + t.numel()).reshape(t.shape());
  view.copy_from(t, "offset layout");
  return view;
}

Tensor padded_layout(const Tensor& t) {
  if (!t.defined() || t.rank() == 0) return offset_layout(t);
  constexpr int64_t kLeft = 1, kRight = 2;
  Shape wide = t.shape();
  wide[t.rank() - 1] += kLeft + kRight;
  Tensor view = nan_tensor(wide, t.dtype()).slice(-1, kLeft, kLeft + t.size(-1));
  view.copy_from(t, "padded layout");
  return view;
}

Tensor window_layout(const Tensor& t) {
  if (!t.defined() || t.rank() < 3) return offset_layout(t);
  Shape large = t.shape();
  for (int d = 0; d < t.rank() - 1; ++d) large[d] += 3;
  Tensor view = nan_tensor(large, t.dtype());
  for (int d = 0; d < t.rank() - 1; ++d) view = view.slice(d, 1, 1 + t.size(d));
  view.copy_from(t, "window layout");
  return view;
}

Tensor channels_last_layout(const Tensor& t) {
  if (!t.defined() || t.rank() < 3) return reversed_layout(t);
  std::vector<int> order{0}, back(static_cast<size_t>(t.rank()));
  for (int d = 2; d < t.rank(); ++d) order.push_back(d);
  order.push_back(1);
  for (size_t k = 0; k < order.size(); ++k) back[static_cast<size_t>(order[k])] = static_cast<int>(k);
  return t.permute(order).clone().permute(back);
}

Tensor expanded_layout(const Tensor& t, int dim) {
  if (!t.defined()) return t;
  Tensor first = t;
  for (int d = 0; d < t.rank(); ++d)
    if ((dim < 0 || d == dim) && t.size(d) > 0) first = first.slice(d, 0, 1);
  return first.clone().expand(t.shape());
}

}  // namespace bg::verifier
