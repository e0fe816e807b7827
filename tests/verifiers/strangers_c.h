// The list of the ops in strangers_c_1.h and strangers_c_2.h: 44 mistakes, each with its right twin.
#pragma once

#include "tests/verifiers/strangers_c_1.h"
#include "tests/verifiers/strangers_c_2.h"

namespace strangers_c {

template <template <bool> class... C>
struct Cases {};

using GroupC = Cases<
    // linearity
    Pinball, CountSketch, LogCosh, Saturate, BilinearScore, Student,
    // layout
    Roll, OuterRows, FactorPairs, ChannelScale, SquaredReluGate, Softsign,
    // f32
    InverseSoftplus, GramDistance, GlobalGain, PowerNorm, KineticEnergy,
    // forgotten
    GaussianKernel, ReadTable, SlopedAttention, TurnAbout, GaussianSample,
    // points
    Sinc, Celu, Biweight, TriangleWave, Spline, BoxCox,
    // threads
    Polynomial, Charges, WeightedRun, TaxiNorm, Frames,
    // shapes
    MaxWindow, Triplets, RowMetric, ChannelPower, CauchyRows, GroupPower,
    // formula
    Mirror, Solve, Deviation, Dice, Midpoint>;

}  // namespace strangers_c
