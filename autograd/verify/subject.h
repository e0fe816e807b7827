// A sample under test: the op's forward and backward as plain calls, with a planted error where a negative control
// asks for one; and the small numeric tools that the checks share.
#pragma once

#include <span>

#include "autograd/verify/difference.h"
#include "autograd/verify/point.h"
#include "autograd/verify/tolerances.h"
#include "core/tensor_ops.h"

namespace bg::verifier {

/// One forward: what went in, what came out, what was kept.
struct Forward : Run {
  Tensors in;
};

/// An error planted into finished gradients.
using Corruption = std::function<void(Tensors& gradients)>;

/// Thrown when a mutant itself fails at a sample: it does not apply there.
class DoesNotApply : public Error {
 public:
  using Error::Error;
};

class Subject {
 public:
  explicit Subject(const Point& point, int mutant = -1, Corruption corrupt = {})
      : point(point), mutant_(mutant), corrupt_(std::move(corrupt)) {}

  const Point& point;

  /// The same backward, right or wrong, at another point.
  Subject at(const Point& other) const { return Subject(other, mutant_, corrupt_); }
  Forward forward(const Tensors& in, bool recording = true) const;
  /// Gradients as the engine would hand them out: summed over broadcast dimensions, checked for number, shape and
  /// dtype, zeros where the op says "exactly zero", undefined where not needed.
  Tensors backward(const Forward& f, const Tensors& cotangents, const Need& need) const;
  /// Both at once, everything needed.
  Tensors gradients(const Tensors& in, const Tensors& cotangents) const;

  std::vector<size_t> differentiable() const;  ///< the inputs that have gradients
  bool declared_zero(size_t input) const;
  /// The size of a cotangent's numbers: 1, or small where the backward is linear for small ones only.
  double unit() const { return point.nonlinear ? 0x1p-20 : 1; }
  /// A direction in which the input may move: projected to the tangent space of its domain.
  Tensor direction(size_t input, const Tensor& u) const;
  Need need_all() const;

 private:
  int mutant_;
  Corruption corrupt_;
};

// -- Numbers ----------------------------------------------------------------------------------------------------------

/// All floating elements of all tensors, row-major, one after the other.
std::vector<double> flatten(const Tensors& tensors);
double norm(std::span<const double> x);
/// The largest magnitude of the finite elements; 0 when there is none.
double largest(const Tensor& t);
/// What is left of an error beyond a bound; NaN stays NaN.
double beyond(double error, double bound);
double dot(std::span<const double> x, std::span<const double> y);

/// Random normal where floating, zeros elsewhere: a cotangent for these outputs.
Tensors random_cotangents(const Tensors& outputs, Rng& rng);

Tensors map_all(const Tensors& in, const std::function<Tensor(const Tensor&)>& f);
Tensors clones(const Tensors& in);
/// Floating tensors in another dtype, others as they are.
Tensors converted(const Tensors& in, DType dtype);
/// The nearest thing to x in the set that an input lives in.
Tensor projected(Domain domain, const Tensor& x);
/// Every floating element off by up to `ulp` of itself, in f64.
Tensors perturbed(const Tensors& in, double ulp, Rng& rng);
/// The same for inputs, which stay in their domains.
Tensors perturbed(const Point& point, const Tensors& in, double ulp, Rng& rng);

Arr<double> to_arr(const Tensor& t);
template <class S>
Arrs<S> to_arrs(const Tensors& tensors) {
  Arrs<S> out;
  for (const Tensor& t : tensors) {
    Arr<S> a;
    if (t.defined()) {
      const Arr<double> x = to_arr(t);
      a.shape = x.shape;
      a.v.assign(x.v.begin(), x.v.end());
    }
    out.push_back(std::move(a));
  }
  return out;
}

/// J u, exactly, for the direction u of one input; floating outputs only, flattened. T: double or long double.
template <class T = double>
std::vector<T> directional(const Point& point, const Tensors& in, const Tensors& outputs, size_t input,
                           const Tensor& u);
/// `in` with one input moved by t along u.
Tensors moved(Tensors in, size_t input, const Tensor& u, double t);

/// The element in which a differs most from b, one that is not finite in a alone before all others; -1 when there is
/// none.
struct Worst {
  int64_t at = -1;
  double error = 0;  ///< |a - b|; 0 for equal infinities, NaN where either is NaN
};
Worst worst_of(std::span<const double> a, std::span<const double> b);

/// "nan at (1) of (3)" for the first element that is not finite; empty when all are.
std::string describe_non_finite(const Tensor& t);
/// The same over all floating tensors: "output 0 is nan at (1) of (3)".
std::string describe_non_finite(std::string_view what, const Tensors& tensors);

/// Checksum of a tensor's whole storage, gaps between strided elements included.
uint64_t checksum(const Tensor& t);

/// "(1, 2) of (2, 3)"
std::string describe_index(const Shape& shape, int64_t flat);

// -- Layouts: the same numbers elsewhere in memory --------------------------------------------------------------------

struct Layout {
  std::string name;  ///< such as "transposed"
  std::function<Tensor(const Tensor&)> make;
};
/// Those below that keep every number.
const std::vector<Layout>& layouts();

Tensor reversed_layout(const Tensor& t);  ///< strides rise instead of fall (a transposed tensor)
Tensor sliced_layout(const Tensor& t);    ///< every second element of a larger storage; the gaps hold NaN
Tensor offset_layout(const Tensor& t);    ///< a contiguous slice of a larger storage, with NaN on both sides
Tensor padded_layout(const Tensor& t);    ///< rows of a wider tensor; what lies between them is NaN
Tensor window_layout(const Tensor& t);    ///< whole rows of a larger tensor: each matrix of a batch has a gap behind it
/// As pictures with channels last: the second dimension varies fastest in memory.
Tensor channels_last_layout(const Tensor& t);
/// The first index of `dim` repeated with stride 0; dim < 0: of every dimension.
Tensor expanded_layout(const Tensor& t, int dim);

}  // namespace bg::verifier
