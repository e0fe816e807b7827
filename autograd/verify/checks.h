// The checks of the ladder, as plain functions on a sample. Each reports to a Recorder what it compared.
#pragma once

#include <optional>

#include "autograd/verify/subject.h"
#include "autograd/verify/verify.h"

namespace bg::verifier {

/// Collects comparisons into a report. Knows which sample is being looked at.
class Recorder {
 public:
  Recorder(OpReport& report, const VerifyOptions& options, const Entry& entry)
      : report_(report), options_(options), entry_(entry) {}

  void enter(const Point& point) { point_ = &point; }
  void leave() { point_ = nullptr; }
  /// Does the report want causes (the worst element) searched for? Not for mutants: that they fail is enough.
  bool explains() const { return explains_; }
  void set_explains(bool on) { explains_ = on; }

  /// Counts one comparison; anything but error <= tolerance (NaN, too) is a failure. Returns it for details, or null.
  Failure* expect(Step step, std::string_view what, std::string_view input, double analytic, double reference,
                  double error, double tolerance);
  /// Elementwise: max|a - b| / max(floor, max|b|). A floor of 0 compares small tensors at their own size.
  Failure* expect_close(Step step, std::string_view what, std::string_view input, const Tensor& analytic,
                        const Tensor& reference, double tolerance, double floor = 1);
  /// Bit for bit.
  Failure* expect_same(Step step, std::string_view what, std::string_view input, const Tensor& a, const Tensor& b);
  Failure* fail(Step step, std::string_view what, std::string_view input, const std::string& note);

  /// Nothing could be seen where the ladder needs something: neither right nor wrong. `advice` says what to do.
  Failure* inconclusive(Step step, std::string_view what, std::string_view input, const std::string& advice);
  /// A comparison is left out because others stand in for it; counted by reason.
  void skip(const std::string& reason);

  /// Was there a gradient of this input to compare, or was the true one zero?
  void saw(size_t input, bool something);
  /// Inputs by name whose gradient was zero at every sample.
  std::vector<std::string> never_seen() const;

  OpReport& report() { return report_; }
  const Entry& entry() const { return entry_; }
  const VerifyOptions& options() const { return options_; }

 private:
  std::string rerun() const;
  Failure* keep(Step step, std::string_view what, std::string_view input, bool inconclusive);

  OpReport& report_;
  const VerifyOptions& options_;
  const Entry& entry_;
  const Point* point_ = nullptr;
  bool explains_ = true;
  std::map<std::string, bool> seen_;
  Failure discarded_;
};

/// A random cotangent, a random direction for every input, and <v, J u> by dual numbers: what V2 compares gradients
/// with. Computed once for the op, used again for each of its mutants.
struct Draw {
  Tensors v;
  double v_norm = 0;
  struct Direction {
    Tensor u;
    double v_ju = 0, ju_norm = 0, u_norm = 0;
    mutable std::optional<double> rounding;  ///< of <v, J u>: see rounding_of
  };
  std::vector<Direction> directions;  // one per input; undefined u where the input has no gradient
};
/// `balanced`: output elements that move little get a larger cotangent, so that all count alike.
Draw make_draw(const Subject& subject, const Forward& f, Rng& rng, bool balanced = false);

/// <v, J e_k> for every element k of an input: the exact gradient by dual numbers. Slow; for small inputs.
Tensor exact_gradient(const Point& point, const Forward& f, const Tensors& v, size_t input);

/// How far <v, J u> may be off in double where everything is right: the formula in long double, at the point and at
/// points within rounding of it. Large where the function is badly conditioned.
double rounding_of(const Subject& s, const Forward& f, const Draw& d, size_t input);

/// Does the reference's derivative jump within rounding of the point, by enough to explain an error of <v, J u>? A bend
/// that is smooth fades as its ends come closer.
bool kink_near(const Subject& s, const Forward& f, const Draw& d, size_t input, double error);

/// Do differences of forward agree with <gradient, u> = `gu`, and not with <v, J u>? Then forward and gradient are of
/// one function, and the reference's slope of another: a branch that it takes elsewhere, at a tie.
bool differences_agree(const Subject& s, const Forward& f, const Draw& d, size_t input, double gu);

/// Is J u of this input so small that it may be rounding, and nothing else?
bool is_zero(const Subject& s, const Forward& f, const Draw& d, size_t input);

/// Where forward is not the reference to the last digits: what rounding does to an output, in its own units. 0 where
/// the function is well conditioned.
double forward_rounding(const Subject& s, const Forward& f, size_t output, const Tensor& reference);

/// Would an error in this input's gradient be seen here? Not where the true one is zero, or rounding swamps it.
bool can_see(const Subject& s, const Forward& f, const Draw& d, size_t input);

void check_forward(Recorder& r, const Subject& s, const Forward& f);               // V1
void check_declared(Recorder& r, const Subject& s, const Forward& f, Rng& rng);    // V9: no gradient is forgotten
void check_exact(Recorder& r, const Subject& s, const Forward& f, const Draw& d);  // V2, V9
/// The same for one input and a gradient at hand.
void check_exact(Recorder& r, const Subject& s, const Forward& f, const Draw& d, size_t input, const Tensor& g);
/// V1 and V2 away from the author's points; `d` is the draw at the point.
void check_moved(Recorder& r, const Subject& s, const Forward& f, const Draw& d, Rng& rng);
void check_difference(Recorder& r, const Subject& s, const Forward& f, const Draw& d);  // V3
/// V3 at a point that is declared a kink: is it one?
void check_kink(Recorder& r, const Subject& s, const Forward& f, const Draw& d);
void check_compose(Recorder& r, const Subject& s, const Forward& f, const Draw& d);                               // V4
void check_jacobian(Recorder& r, const Subject& s, const Forward& f);                                             // V5
void check_structure(Recorder& r, const Subject& s, const Forward& f, const Draw& d, Rng& rng);                   // V6
void check_precision(Recorder& r, const Subject& s, const Forward& f, const Draw& d, double bound, Rng& rng);     // V7
void check_second(Recorder& r, const Subject& s, const Forward& f, const Draw& d, const Entry& entry, Rng& rng);  // V8

/// A sample with what the checks of several backwards share.
struct Case {
  Subject subject;
  Forward forward;
  std::vector<Draw> draws;
};
/// V6 over all samples at once: the same bits with chunks in any order, and on 1, 2 and 4 threads.
void check_threads(Recorder& r, const std::vector<Case>& cases);
/// V10: every mutant and every generated error is rejected by the checks above.
void check_controls(Recorder& r, const Entry& entry, const std::vector<Case>& cases);

/// Runs a check; what it throws becomes a failure of the step. DoesNotApply passes through.
template <class F>
void guarded(Recorder& r, Step step, F&& check) {
  try {
    check();
  } catch (const DoesNotApply&) {
    throw;
  } catch (const std::exception& e) {
    r.fail(step, "an exception instead of a result", "", e.what());
  }
}

}  // namespace bg::verifier
