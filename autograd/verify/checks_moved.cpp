// V1 and V2 at points that the author of the samples did not choose: the same inputs shifted, scaled, negated; other
// sizes, integers, arguments. A branch that was forgotten beyond |x| > 3, a series near zero, what is left of a row
// after whole vectors are wrong only there. The reference makes it nearly free. Skipped, and listed by reason: where
// forward or reference refuses the point or is not finite, where the function hardly moves any more (its gradient is
// then rounding), and where the reference has a kink nearby.
#include <algorithm>
#include <cmath>
#include <optional>

#include "autograd/verify/checks.h"

namespace bg::verifier {
namespace {

struct Move {
  std::string name;
  std::function<Tensor(const Tensor& x, size_t input, Rng& rng)> make;
  bool alone = false;  ///< of one input, another at each sample: of all together it would leave every range
};

Tensor shifted(const Tensor& x, double by, Rng& rng) {
  return num::add(x, Tensor::randn(x.shape(), rng, DType::f64, by));
}

// Every element times a number of its own in +-[1/4, 4].
Tensor scattered(const Tensor& x, Rng& rng) {
  Tensor factor = Tensor::rand(x.shape(), rng, -2, 2, DType::f64);
  double* p = factor.mutable_data<double>("moved point");
  for (int64_t k = 0; k < factor.numel(); ++k) p[k] = (rng.uniform() < 0.5 ? -1 : 1) * std::exp2(p[k]);
  return num::mul(x, factor);
}

const std::vector<Move>& moves() {
  auto scaled = [](double by) { return [by](const Tensor& x, size_t, Rng&) { return num::scale(x, by); }; };
  auto negated = [](size_t parity) {
    return [parity](const Tensor& x, size_t input, Rng&) { return input % 2 == parity ? num::scale(x, -1) : x; };
  };
  static const std::vector<Move> all{
      {"every number times 4", scaled(4)},
      {"every number times its own factor in +-[1/4, 4]",
       [](const Tensor& x, size_t, Rng& r) { return scattered(x, r); }},
      {"every number times 2^-10", scaled(0x1p-10)},
      {"the first, third, ... input negated", negated(0)},
      {"every number times 1/4", scaled(0.25)},
      {"every number times 1/32", scaled(1.0 / 32)},
      {"every number shifted by a normal one", [](const Tensor& x, size_t, Rng& r) { return shifted(x, 1, r); }},
      {"the second, fourth, ... input negated", negated(1)},
      {"every number shifted by a normal one times 5",
       [](const Tensor& x, size_t, Rng& r) { return shifted(x, 5, r); }},
      {"one input times 16", [](const Tensor& x, size_t, Rng&) { return num::scale(x, 16); }, true}};
  return all;
}

Tensors moved_inputs(const Subject& s, const Tensors& in, const Move& move, Rng& rng) {
  Tensors out = in;
  std::vector<size_t> inputs = s.differentiable();
  if (move.alone) inputs = {inputs[static_cast<size_t>(s.point.index) % inputs.size()]};
  for (size_t i : inputs) out[i] = projected(s.point.inputs[i].domain, move.make(in[i], i, rng));
  return out;
}

// A tensor of another shape, of numbers that the sample has; those of a differentiable input a little smaller, each by
// its own amount, since equal ones tie. Integers that rise (segments, offsets) go on rising, between the same ends.
Tensor redrawn(const Tensor& from, const Shape& shape, bool differentiable, Rng& rng) {
  constexpr double kApart = 1e-2;
  std::vector<double> numbers = from.to_vector<double>();
  if (numbers.empty()) return from;
  const bool rising = !is_float(from.dtype()) && std::is_sorted(numbers.begin(), numbers.end());
  std::vector<double> to(static_cast<size_t>(shape.numel()));
  for (double& x : to) x = numbers[rng.below(numbers.size())] * (differentiable ? 1 - kApart * rng.uniform() : 1);
  if (rising && !to.empty()) {
    std::sort(to.begin(), to.end());
    to.front() = numbers.front();
    to.back() = numbers.back();
  }
  return Tensor::of(std::move(to), shape).to(from.dtype());
}

Tensors redrawn(const Subject& s, const Tensors& in, const std::function<Shape(const Shape&)>& shape_of, Rng& rng) {
  Tensors out;
  for (size_t i = 0; i < in.size(); ++i) {
    const In& about = s.point.inputs[i];
    out.push_back(in[i].defined()
                      ? projected(about.domain, redrawn(in[i], shape_of(in[i].shape()), about.differentiable, rng))
                      : in[i]);
  }
  return out;
}

struct Redrawn {
  std::string how;
  Tensors in;
  bool meant = true;  ///< as far as one can tell: if forward and reference differ, one of them is wrong
};

// Does another size rest on this one - a multiple (four gates in one row), a sum (parts of a row)? Nothing says which
// other size it then shares in.
bool others_rest_on(const std::vector<int64_t>& sizes, int64_t size) {
  auto there = [&](int64_t n) { return std::find(sizes.begin(), sizes.end(), n) != sizes.end(); };
  for (const int64_t other : sizes) {
    if (other == size) continue;
    const int64_t small = std::min(size, other), large = std::max(size, other);
    if (large % small == 0 || there(size + other) || there(large - small)) return true;
  }
  return false;
}

// The same op beyond any vector and block: rows that are longer by an odd number, where all inputs have one shape; and
// every size that occurs, wherever it does, times a whole number, so that what was divisible still is. Then one more,
// so that something is left after whole vectors, and more than one where there was one: not everything divides.
std::vector<Redrawn> grown(const Subject& s, const Tensors& in, Rng& rng) {
  constexpr int64_t kWider = 37, kBeyond = 32, kMostElements = 1 << 14;  // more than two vectors of 16
  std::vector<Redrawn> out;
  if (!s.point.may_grow()) return out;
  std::vector<int64_t> sizes;
  bool one_shape = true;
  for (const Tensor& x : in) {
    if (!x.defined() || x.numel() == 0) return out;
    one_shape = one_shape && x.shape() == in[0].shape() && is_float(x.dtype());
    for (int d = 0; d < x.rank(); ++d)
      if (std::find(sizes.begin(), sizes.end(), x.size(d)) == sizes.end()) sizes.push_back(x.size(d));
  }
  auto add = [&](std::string how, bool meant, const std::function<Shape(const Shape&)>& shape_of) {
    int64_t elements = 0;
    for (const Tensor& x : in) elements += shape_of(x.shape()).numel();
    if (elements <= kMostElements) out.push_back({std::move(how), redrawn(s, in, shape_of, rng), meant});
  };
  auto resize = [&](int64_t size, int64_t now, bool meant) {
    add(str("every dimension of ", size, " is ", now), meant, [=](Shape shape) {
      for (int d = 0; d < shape.rank(); ++d)
        if (shape[d] == size) shape[d] = now;
      return shape;
    });
  };
  const int rank = in.empty() ? 0 : in[0].rank();
  const bool square = rank > 1 && in[0].size(-1) == in[0].size(-2);  // perhaps by nature
  if (one_shape && rank > 0 && !square)
    add("rows are 37 longer and one more", true, [](Shape shape) {
      shape[shape.rank() - 1] += kWider;
      if (shape.rank() > 1) ++shape[0];
      return shape;
    });
  for (const int64_t size : sizes) {
    if (others_rest_on(sizes, size)) continue;
    resize(size, size * (kBeyond / size + 1), true);
  }
  for (const int64_t size : sizes) resize(size, size == 1 ? 3 : size + 1, false);
  // One input has nothing else to fit; pictures become oblong, matrices of one or a batch may be square by nature.
  const bool free = in.size() == 1 && (!square || rank > 3);
  for (int d = 0; free && d < rank; ++d)
    add(str("dimension ", d, " is 2 longer"), false, [d](Shape shape) {
      shape[d] += 2;
      return shape;
    });
  return out;
}

// Counts and lengths below the sample's: where all integers are one number, every second is one less, if not below 1.
Tensor lowered(Tensor x) {
  std::vector<double> numbers = x.to_vector<double>();
  for (size_t k = 0; k < numbers.size(); k += 2)
    if (numbers[k] > 1) --numbers[k];
  return Tensor::of(std::move(numbers), x.shape()).to(x.dtype());
}

// Indices that meet, and others that nobody uses.
std::optional<Redrawn> other_integers(const Tensors& in, Rng& rng) {
  Redrawn out{"integers are drawn anew from their own", in};
  bool any = false;
  for (Tensor& x : out.in) {
    if (!x.defined() || is_float(x.dtype()) || x.numel() == 0) continue;
    const std::vector<double> numbers = x.to_vector<double>();
    const auto [least, most] = std::minmax_element(numbers.begin(), numbers.end());
    if (*least == *most) out.meant = false;
    x = *least == *most ? lowered(x) : redrawn(x, x.shape(), false, rng);
    any = true;
  }
  return any ? std::optional(std::move(out)) : std::nullopt;
}

class MovedPoint {
 public:
  /// `meant`: where forward and reference differ, one of them is wrong. Else the op may not be made for such a call.
  MovedPoint(Recorder& r, const Subject& s, const std::string& how, bool meant = true)
      : r_(r), s_(s), where_("where " + how + ": "), meant_(meant) {}

  void check(const Tensors& in, const Forward& author, const Draw& there, Rng& rng) {
    Arrs<double> want;
    Forward f;
    try {
      want = s_.point.reference(to_arrs<double>(in));
      f = s_.forward(in);
    } catch (const std::exception&) {
      return skip("forward or reference refuses it");
    }
    if (!finite(want)) return skip("the reference is not finite there");
    // What squares and exponentials have blown up, rounding has, too: scores of 1e7 leave a softmax nine digits.
    if (!(size_of(want) <= kBlownUp * norm(flatten(author.out))))
      return skip("the outputs are a thousand times larger");
    if (!right_values(f, want)) return;
    const Draw d = make_draw(s_, f, rng);
    if (!std::isfinite(norm(ju_of(d)))) return skip("the derivative is not finite there");
    const Tensors g = s_.backward(f, d.v, s_.need_all());
    for (size_t i : s_.differentiable()) {
      if (s_.declared_zero(i) || f.in[i].numel() == 0) continue;
      if (!(slope(d, i) > kFaint * slope(there, i)) || !(relative(f, d, i) > kFaint * relative(author, there, i))) {
        skip("the function hardly moves there");
        continue;
      }
      compare(f, d, i, g[i]);
    }
  }

 private:
  static constexpr double kFaint = 1e-4, kBlownUp = 1e3;

  void skip(const std::string& why) const { r_.skip("moved points: " + why); }

  static std::vector<double> ju_of(const Draw& d) {
    std::vector<double> out;
    for (const Draw::Direction& dir : d.directions) out.push_back(dir.ju_norm);
    return out;
  }

  static double size_of(const Arrs<double>& arrays) {
    std::vector<double> sizes;
    for (const Arr<double>& a : arrays) sizes.push_back(norm(a.v));
    return norm(sizes);
  }
  static bool finite(const Arrs<double>& arrays) {
    for (const Arr<double>& a : arrays)
      for (const double e : a.v)
        if (!std::isfinite(e)) return false;
    return true;
  }

  // V1 at the moved point. False: there is nothing whose gradient could be compared.
  bool right_values(const Forward& f, const Arrs<double>& want) const {
    bool all = want.size() == f.out.size();
    for (size_t k = 0; all && k < want.size(); ++k) all = want[k].shape == f.out[k].shape();
    if (!all) {  // an op of matrices of 2 x 2 alone, say, that has no need to look
      skip("forward and reference give other shapes");
      return false;
    }
    for (size_t k = 0; k < want.size(); ++k)
      if (is_float(f.out[k].dtype()) && f.out[k].numel() > 0)
        all = right_value(f, k, Tensor::of(want[k].v, want[k].shape)) && all;
    return all;
  }
  bool right_value(const Forward& f, size_t k, const Tensor& want) const {
    const double top = largest(want), rounding = forward_rounding(s_, f, k, want);
    if (!(rounding <= kTolerance.visible * top)) {
      skip("an output that rounding swamps");
      return false;
    }
    const double tolerance = kTolerance.moved + (top > 0 ? rounding / top : 0);
    if (!meant_ && !(largest(num::sub(f.out[k], want)) <= tolerance * top)) {
      skip("forward and reference differ where the op may not be meant to work");
      return false;
    }
    Failure* e =
        r_.expect_close(Step::V1, where_ + "forward = reference", str("output ", k), f.out[k], want, tolerance, 0);
    if (e && e->note.empty()) e->note = kAway;
    return !e;
  }

  // How much the outputs move when an input does; and the same free of the size of both.
  static double slope(const Draw& d, size_t i) { return d.directions[i].ju_norm / d.directions[i].u_norm; }
  static double relative(const Forward& f, const Draw& d, size_t i) {
    const double x = norm(flatten({f.in[i]})), y = norm(flatten(f.out));
    return x > 0 && y > 0 ? slope(d, i) * (x / y) : 0;
  }

  void compare(const Forward& f, const Draw& d, size_t i, const Tensor& g) {
    if (const std::string bad = describe_non_finite(g); !bad.empty()) {
      r_.fail(Step::V2, where_ + "a finite gradient", s_.point.inputs[i].name, str("the gradient is ", bad));
      return;
    }
    const Draw::Direction& dir = d.directions[i];
    const std::vector<double> gi = flatten({s_.direction(i, g)});
    const double p = dot(gi, flatten({dir.u})), q = dir.v_ju, scale = d.v_norm * dir.ju_norm + norm(gi) * dir.u_norm;
    double error = std::abs(p - q) / scale;
    if (!(error <= kTolerance.moved)) {
      if (kink_near(s_, f, d, i, error * scale)) return skip("a kink is near");
      if (differences_agree(s_, f, d, i, p)) return skip("the reference has another slope than forward");
      const double rounding = rounding_of(s_, f, d, i);
      if (rounding > kTolerance.visible * scale) return skip("the function is badly conditioned there");
      error = beyond(error, rounding / scale);
    }
    Failure* e = r_.expect(Step::V2, where_ + "<backward(v), u> = <v, J u> by dual numbers", s_.point.inputs[i].name, p,
                           q, error, kTolerance.moved);
    if (e) e->note = kAway;
  }

  static constexpr const char* kAway =
      "right at the sample and wrong away from it; if the op is not meant for such values, declare the Domain of the "
      "input (autograd/op.h), or let forward refuse them";

  Recorder& r_;
  const Subject& s_;
  std::string where_;
  bool meant_;
};

// Other shapes, indices and arguments than the author's. The first samples take them all, later ones one each.
void check_varied(Recorder& r, const Subject& s, const Forward& f, const Draw& d, Rng& rng) {
  const size_t at = static_cast<size_t>(s.point.index), whole = r.options().quick ? 1 : 3;
  Rng draw = rng.fork(0);
  auto chosen = [&](size_t k, size_t count) { return at < whole || (!r.options().quick && k == at % count); };
  auto attempt = [&](const std::string& how, auto&& check) {
    try {
      check();
    } catch (const std::exception&) {
      r.skip("moved points: " + how + ", of which backward makes something else");
    }
  };
  const std::vector<Redrawn> larger = grown(s, f.in, draw);
  for (size_t k = 0; k < larger.size(); ++k)
    if (chosen(k, larger.size()))
      attempt("other sizes", [&] { MovedPoint(r, s, larger[k].how, larger[k].meant).check(larger[k].in, f, d, draw); });
  if (const auto other = other_integers(f.in, draw))
    attempt("other integers", [&] { MovedPoint(r, s, other->how, other->meant).check(other->in, f, d, draw); });
  attempt("other arguments", [&] {
    const auto others = s.point.other_arguments(r.entry().fixed_arguments);
    for (size_t k = 0; k < others.size(); ++k)
      if (chosen(k, others.size()))
        attempt("other arguments",
                [&] { MovedPoint(r, s.at(*others[k].second), others[k].first).check(f.in, f, d, draw); });
  });
}

}  // namespace

void check_moved(Recorder& r, const Subject& s, const Forward& f, const Draw& d, Rng& rng) {
  if (!s.point.has.tangents || !s.point.has.reference) return;
  // the quick look takes two of the moves, others at each of the first samples
  const size_t count = moves().size(), tried = r.options().quick ? 2 : count;
  const size_t first = static_cast<size_t>(s.point.index) * tried;
  if (r.options().quick && s.point.index > 7) return;
  for (size_t k = 0; k < tried; ++k) {
    const Move& move = moves()[(first + k) % count];
    Rng draw = rng.fork(k + 1);
    MovedPoint(r, s, move.name).check(moved_inputs(s, f.in, move, draw), f, d, draw);
  }
  check_varied(r, s, f, d, rng);
}

}  // namespace bg::verifier
