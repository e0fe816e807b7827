// The list of the ops in strangers_a_1.h and strangers_a_2.h: 44 mistakes, each with its right twin.
#pragma once

#include "tests/verifiers/strangers_a_1.h"
#include "tests/verifiers/strangers_a_2.h"

namespace strangers_a {

template <template <bool> class... C>
struct Cases {};

using GroupA = Cases<
    // linearity
    Swish, RowError, MovingAverage, TemperedLogSoftmax, ScaledRows, MeanVariance,
    // layout
    SiluGate, RowLogSumExp, CosineRows, RunningSum, SlopedTanh, EdgeProduct,
    // f32
    Standardise, UnitRows, SmallAttention, SmoothStep, TurnPairs, SlopedSoftplus,
    // forgotten
    NormalLoss, RowBag, LstmCell, Lerp, GatedScan,
    // points
    ExactGelu, ExpRatio, AngleLoss, Oscillator, SignedPower,
    // threads
    ColumnAffine, RemainingSum, RowEntropy, NeighbourDifference, ThreadedRows,
    // shapes
    WindowMean, AxisSoftmax, RowLength, SegmentLargest, Convolve1d,
    // formula
    RootMeanSquareNorm, Selu, FocalLoss, RunningProduct, Blur, MetricDistance>;

}  // namespace strangers_a
