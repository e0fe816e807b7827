// 44 ops by an author who does not know what a verifier looks at, each once with a subtle mistake and once right.
// Eight kinds: not linear in the cotangent, memory layout, f32 alone, a forgotten gradient, points the author did not
// think of, threads, shapes and indices, formulas. At the ordinary samples given most of the mistakes cannot be seen;
// `mistake` says what is wrong and when it shows.
#pragma once

#include "strangers_b_1.h"
#include "strangers_b_2.h"
#include "strangers_b_3.h"

namespace strangers_b {

template <template <bool> class... C>
struct Cases {};

using GroupB = Cases<RunningLse, AnchorLoss, CausalConv, LowerSolve, GatedScan, TemperedLogProbs,    // linearity
                     PseudoHuber, PairCosine, SharpSoftplus, SoftRound, CausalLinear,                // layout
                     LogOneMinusExp, RowContrast, Modulate, SoftCap, LogCosh, Rotary,                // f32
                     Distill, LogitStats, GaussKernel, DiagonalState, GemPool, LearnedPad,           // forgotten
                     LogNormalCdf, ExpStep, AngleLoss, SmoothTable, LogBessel,                       // points
                     MovingAverage, NoisyRows, CosinePower, GroupScale, Roughness,                   // threads
                     WeightNorm, PickedPhases, RaggedSoftmax, RunningProduct, ChainSum, BorderPool,  // shapes
                     UnitRows, FoldedMean, FrameEnergy, ListRanking, LogDet>;                        // formula

}  // namespace strangers_b
