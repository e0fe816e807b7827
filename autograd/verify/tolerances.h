// The verifier's one table of tolerances. Never loosen one to make an op pass: the measured errors of right ops lie
// far below these, those of wrong ops far above.
//
// Errors of tensors are max|a - b| / max(1, max|b|); of inner products, |p - q| / (|v| |J u| + |J^T v| |u|). Both are
// free of the number of elements.
#pragma once

namespace bg::verifier {

struct Tolerances {
  double forward = 1e-13;     ///< V1: fast forward against the reference
  double exact = 1e-11;       ///< V2: backward against dual numbers
  double difference = 1e-9;   ///< V3: backward against differences of the forward
  double compose = 1e-11;     ///< V4: backward against the engine's gradient of compose, per element
  double jacobian = 1e-7;     ///< V5: every entry of the Jacobian, by differences
  double structure = 1e-12;   ///< V6: linearity, needs masks, strides, the engine
  double f32 = 1e-4;          ///< V7: f32 against f64, where an op states no bound of its own
  double f32_limit = 1e-3;    ///< V7: what no op may exceed
  double second = 1e-6;       ///< V8: second derivatives
  double vacuous = 1e-8;      ///< V9: a gradient below this share of the cotangent counts as zero and must be declared
  double zero = 1e-12;        ///< V9: a declared zero must be below this
  double visible = 1e-4;      ///< an oracle that is less sure than this share of its value decides nothing
  double step = 1.5e-3;       ///< first step of a finite difference along a direction of length 1
  double least_step = 1e-10;  ///< the smallest step that is tried
  double jump = 1e-5;         ///< a slope that jumps by more than this share at the point is a kink
  double scale_error = 1e-3;  ///< V10: the relative error planted in every gradient
  int max_jacobian = 64;      ///< V5: largest number of elements, of the outputs and of one input
};
inline constexpr Tolerances kTolerance;

}  // namespace bg::verifier
