// Is the gradient of a function right? For any function of Vars, with no reference at hand: reverse mode is compared
// with differences of the function, per input and output; with forward mode where every op has a second derivative;
// and with itself asked for otherwise, since a backward is linear in its cotangent and knows no memory layout. What
// could not be seen is never called right.
#pragma once

#include "autograd/var.h"
#include "autograd/verify/report.h"

namespace bg {

/// An input in gradcheck's options: by its number among the function's inputs (or a model's parameters), or by name. A
/// name may be the last parts of paths, as "attn.bias" for every block's.
struct InputId {
  /*implicit*/ InputId(int at) : number(at) {}
  /*implicit*/ InputId(std::string path) : name(std::move(path)) {}
  /*implicit*/ InputId(const char* path) : name(path) {}

  int number = -1;
  std::string name;  ///< empty: by number
};

struct GradcheckOptions {
  uint64_t seed = 1;
  int directions = 3;       ///< random directions per input
  double tolerance = 1e-7;  ///< of <J^T v, u> against differences, over |v J u| + |J^T v u| (norms of their terms)
  double step = 1.5e-3;     ///< first step, along directions of length 1, in units of the input; shrinks as needed

  /// Inputs whose gradient is exactly zero here, as that of a shift under a softmax: required to be zero, and not
  /// required to be seen.
  std::vector<InputId> zero_inputs = {};
  /// Inputs that lie on a kink or a tie: their elements on the kink are left out (the gradient there must lie between
  /// the slopes of the two sides), and they need not be seen. For more than 64 elements nothing is compared.
  std::vector<InputId> kinked_inputs = {};
  /// Outputs that are constants to the gradient: without a graph on purpose (detach()), or with a derivative of zero,
  /// which is then required.
  std::vector<int> constant_outputs = {};
  /// The function whose derivative the gradient is by convention, such as x for a straight-through round(x) or -x for
  /// a reversed gradient; empty: f itself. It gets the inputs (or the parameters) and gives outputs of f's shapes.
  std::function<Vars(const Vars&)> gradient_of = {};
  /// Why the backward is not linear in the cotangent, where it is not on purpose (clipped gradients). Empty: it must
  /// be.
  std::string nonlinear = {};
};

/// From best to worst; a report's verdict is the worst of its findings.
enum class Verdict {
  right,
  inconclusive,        ///< something could not be seen; what, why, and what to do is told
  not_differentiable,  ///< the slope jumps at the point (a kink, a tie): there is no gradient to be right about
  wrong,
};
std::string_view name_of(Verdict v);

/// What was found about one input, or about one output as a whole.
struct GradcheckFailure {
  Verdict verdict = Verdict::wrong;
  std::string what = {};    ///< which comparison, in words
  std::string input = {};   ///< empty: about an output as a whole
  std::string output = {};  ///< "output 0"; empty where all of them took part
  std::string index = {};  ///< the worst element, "(1, 2) of (2, 3)" of the input; empty when no single one is to blame
  double analytic = 0;     ///< the gradient's value
  double reference = 0;    ///< what it was compared with
  double bound = 0;        ///< of the reference's own error
  double error = 0, tolerance = 0;
  double fd_step = 0;  ///< the difference's last step, in units of the input; 0 where none took part
  uint64_t seed = 0;
  std::string note = {};  ///< why, and what to do

  std::string to_string() const;  ///< under 15 lines
};

/// What was compared of one output's derivative with respect to one input.
struct GradcheckPair {
  std::string input;
  int output = 0;
  int64_t comparisons = 0;  ///< with differences
  double worst = 0;         ///< largest error, beyond what the differences themselves are unsure of
  /// The smallest relative error of the gradient that would have been noticed, in the sharpest comparison; infinite:
  /// none, as where the derivative is zero.
  double noticeable = 0;
  bool seen() const;  ///< an error of 1e-4 would have been noticed
};

struct GradcheckReport {
  Verdict verdict = Verdict::right;
  std::vector<GradcheckFailure> failures;  ///< worst first; at most one per input and one per output
  std::vector<GradcheckPair> pairs;        ///< every input with every output that has a graph
  std::vector<std::string> left_out;       ///< what was not compared, by declaration or because of sizes
  int64_t comparisons = 0;                 ///< all, those of the gradient with itself included
  double worst = 0;                        ///< largest error seen
  bool forward_mode = true;                ///< false: some op has no second derivative, so differences alone were used
  std::string note;                        ///< why forward mode was left out

  /// Every comparison agreed, and something was seen for every input and output that is not declared otherwise.
  bool passed() const { return verdict == Verdict::right; }
  std::string to_string() const;
};

/// Checks d f / d input for every input that requires a gradient (all floating ones when none does). Any shapes;
/// outputs of any floating or integer dtype, of which the floating ones are compared, one at a time (more than 32: in
/// groups). Inputs of up to 64 elements are also moved element by element. f must be a function: same inputs, same
/// outputs; draw dropout masks from a fixed key inside it. Errors: inputs to differentiate that are not f64
/// (differences of f32 functions are good to 1e-4 at best: use to(DType::f64)), no inputs, outputs that depend on none
/// of them, an f that gives other outputs when it runs again, options that name no input or output.
GradcheckReport gradcheck(const std::function<Vars(const Vars&)>& f, const Vars& inputs,
                          const GradcheckOptions& options = {});

/// The same over the parameters of a model: f runs it, the parameters are moved in place and put back.
///   gradcheck_parameters([&] { return Vars{loss(model(x))}; }, vars_of(model.parameters()));
/// `names` (optional) are used in reports and options.
GradcheckReport gradcheck_parameters(const std::function<Vars()>& f, const Vars& parameters,
                                     const std::vector<std::string>& names = {}, const GradcheckOptions& options = {});

}  // namespace bg
