// Boostgrad's side of the comparison of gradient verifiers (tests/oracle/compare_verifiers.py): the faults of
// faults.json, each planted into a right op and given to verify<Op>() and to gradcheck(function).
//
//   planted FAULTS.json [--seed N] [--json]
//
// Exit 1 if either misses a fault, or rejects an op that is right.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "autograd/ops/all.h"
#include "autograd/verify/gradcheck.h"
#include "autograd/verify/verify.h"

using namespace bg;
using nlohmann::json;

namespace {

// -- Inputs, from the specification -----------------------------------------------------------------------------------

json specification;  // read once, in main

const json& fault_named(std::string_view id) {
  for (const json& f : specification.at("faults"))
    if (f.at("id") == id) return f;
  fail<UsageError>("planted", "the specification lacks a fault", str(id));
}

template <class Args>
Sample<Args> specified_sample(std::string_view id, const Args& args, Rng& r) {
  const json& given = fault_named(id).at("inputs");
  const json& inputs = given.is_string() ? specification.at(given.get<std::string>()).at("inputs") : given;
  Sample<Args> s("as specified", args, {});
  for (const json& in : inputs) {
    if (in.value("zero_gradient", false)) s.zero_grads.push_back(static_cast<int>(s.inputs.size()));
    if (in.contains("values")) {
      const auto values = in.at("values").get<std::vector<int64_t>>();
      s.inputs.push_back(Tensor::of(values, {static_cast<int64_t>(values.size())}));
    } else {
      Shape shape;
      for (const int64_t n : in.at("shape")) shape.push_back(n);
      s.inputs.push_back(normal(r, shape, in.value("stddev", 1.0)));
    }
  }
  return s;
}

// -- A fault: an op, arguments, and a wrong backward ------------------------------------------------------------------

/// The op as it should be, at the specified inputs; the fault is its mutant.
template <class Fault>
struct Right : Fault::Op {
  using Args = typename Fault::Op::Args;
  using Value = GradValue<typename Fault::Op>;

  static std::vector<Sample<Args>> samples(Rng& r) { return {specified_sample(Fault::id, Fault::args(), r)}; }
  static std::vector<Mutant<Value, Args>> mutants() { return {{std::string(Fault::id), &Fault::backward}}; }
};

/// The op with the fault in it.
template <class Fault>
struct Wrong : Right<Fault> {
  static auto backward(const Backward<typename Right<Fault>::Value, typename Right<Fault>::Args>& b) {
    return Fault::backward(b);
  }
};

template <class O>
struct FaultOf {
  using Op = O;
  using B = Backward<GradValue<O>, typename O::Args>;
  static typename O::Args args() { return {}; }
};

// -- Conserved sums ---------------------------------------------------------------------------------------------------

Tensor softmax_gradient(const Tensor& y, const Tensor& dy) {
  const Tensor ydy = num::mul(y, dy);
  return num::sub(ydy, num::mul(y, num::sum(ydy, {-1}, true)));
}

struct SoftmaxTimesMinusSeven : FaultOf<Softmax> {
  static constexpr std::string_view id = "softmax_times_minus_seven";
  static Tensors backward(const B& b) { return {num::scale(softmax_gradient(b[0], b.dy()), -7)}; }
};

struct LogSoftmaxScaled : FaultOf<LogSoftmax> {
  static constexpr std::string_view id = "log_softmax_scaled";
  static Tensors backward(const B& b) { return {num::scale(Op::backward(b)[0], 1.001)}; }
};

/// y = softmax(x / 0.7). An op of a user's own: no compose.
struct TemperedSoftmax {
  static constexpr std::string_view name = "tempered_softmax";
  static inline const std::array inputs{In{"x"}};
  static constexpr double kTemperature = 0.7;
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    return Softmax::reference<S>({map(in[0], [](S x) { return x / S(kTemperature); })}, a);
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return Softmax::forward(saved, {num::scale(in[0], 1 / kTemperature)}, a);
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return {num::scale(softmax_gradient(b[0], b.dy()), 1 / kTemperature)};
  }
};
struct SoftmaxTemperatureForgotten : FaultOf<TemperedSoftmax> {
  static constexpr std::string_view id = "softmax_temperature_forgotten";
  static Tensors backward(const B& b) { return {softmax_gradient(b[0], b.dy())}; }
};

/// Attention of one head with its backward written out, P computed again.
struct PlainAttention : Attention {
  enum class Slip { none, row_sum_dropped, causal_off_by_one, padding_ignored };

  static Tensors backward(const Backward<Tensor, Args>& b) { return backward_with(b, Slip::none); }
  static Tensors backward_with(const Backward<Tensor, Args>& b, Slip slip) {
    const Tensor &q = b[0], &k = b[1], &v = b[2];
    const double scale = 1 / std::sqrt(static_cast<double>(q.size(2)));
    const Tensor s = num::scale(num::matmul(q, k.transpose(1, 2)), scale);
    const Tensor p = softmax(hidden(s, b.args.causal, b[5], slip)).value();
    const Tensor dp = num::matmul(b.dy(), v.transpose(1, 2));
    const Tensor ds = num::scale(slip == Slip::row_sum_dropped ? num::mul(p, dp) : softmax_gradient(p, dp), scale);
    Tensors g{num::matmul(ds, k), num::matmul(ds.transpose(1, 2), q), num::matmul(p.transpose(1, 2), b.dy())};
    g.resize(b.input_count());  // lengths, where given, have no gradient
    return g;
  }

 private:
  // s (B, Tq, Tk) with -infinity where a query does not see a key.
  static Tensor hidden(Tensor s, bool causal, const Tensor& lengths, Slip slip) {
    const int64_t queries = s.size(1), keys = s.size(2);
    const int64_t ahead = slip == Slip::causal_off_by_one ? 0 : keys - queries;
    dispatch_float(name, s.dtype(), [&]<class T>() {
      T* at = s.mutable_data<T>(name);
      for (int64_t r = 0; r < s.size(0); ++r)
        for (int64_t i = 0; i < queries; ++i)
          for (int64_t j = 0; j < keys; ++j, ++at) {
            const bool padding = lengths.defined() && slip != Slip::padding_ignored && j >= lengths.flat(r);
            if (padding || (causal && j > i + ahead)) *at = -std::numeric_limits<T>::infinity();
          }
    });
    return s;
  }
};
using Slip = PlainAttention::Slip;

struct AttentionRowSumDropped : FaultOf<PlainAttention> {
  static constexpr std::string_view id = "attention_row_sum_dropped";
  static Tensors backward(const B& b) { return Op::backward_with(b, Slip::row_sum_dropped); }
};

struct LayerNormMeanKept : FaultOf<LayerNorm> {
  static constexpr std::string_view id = "layer_norm_mean_kept";
  static Tensors backward(const B& b) {
    const Tensor r = b[2].unsqueeze(-1), h = num::mul(num::sub(b[0], b[1].unsqueeze(-1)), r);
    const Tensor gy = num::mul(b.dy(), b[3]);
    const Tensor mean_gh = num::scale(num::sum(num::mul(gy, h), {-1}, true), 1.0 / static_cast<double>(h.size(-1)));
    Tensors g = Op::backward(b);
    g[0] = num::mul(r, num::sub(gy, num::mul(h, mean_gh)));
    return g;
  }
};

struct RmsNormEpsOmitted : FaultOf<RMSNorm> {
  static constexpr std::string_view id = "rms_norm_eps_omitted";
  static Tensors backward(const B& b) {
    const Tensor& x = b[0];
    const double d = static_cast<double>(x.size(-1));
    const Tensor r = pow(sum(Var(num::mul(x, x)), {-1}, true) / d, -0.5).value(), h = num::mul(x, r);
    const Tensor gy = num::mul(b.dy(), b[2]);
    const Tensor mean_gh = num::scale(num::sum(num::mul(gy, h), {-1}, true), 1 / d);
    return {num::mul(r, num::sub(gy, num::mul(h, mean_gh))), num::reduce_to(num::mul(b.dy(), h), b.input_shape(1))};
  }
};

struct CrossEntropyCountsIgnored : FaultOf<CrossEntropy> {
  static constexpr std::string_view id = "cross_entropy_counts_ignored";
  static Tensors backward(const B& b) {
    const double counted = static_cast<double>(detail::count_targets(b[1], kIgnoreIndex));
    return {num::scale(Op::backward(b)[0], counted / static_cast<double>(b[1].numel())), Tensor()};
  }
};

// -- Broadcasting and accumulation ------------------------------------------------------------------------------------

struct BiasFromLastRow : FaultOf<Linear> {
  static constexpr std::string_view id = "bias_from_last_row";
  static Tensors backward(const B& b) {
    Tensors g = Op::backward(b);
    const Tensor rows = b.dy().reshape({b.dy().shape().rows(), b.dy().size(-1)});
    if (b.need(2)) g[2] = rows.select(0, rows.size(0) - 1).clone();
    return g;
  }
};

struct BroadcastMeanForSum : FaultOf<Mul> {
  static constexpr std::string_view id = "broadcast_mean_for_sum";
  static Vars backward(const B& b) {
    const double share = static_cast<double>(b.input_shape(1).numel()) / static_cast<double>(b.dy().shape().numel());
    return {b.dy() * b[1], b.dy() * b[0] * share};
  }
};

/// y = x x^T.
struct Gram {
  static constexpr std::string_view name = "gram";
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const Arr<S>& x = in[0];
    Arr<S> y(Shape{x.size(0), x.size(0)});
    for (int64_t i = 0; i < x.size(0); ++i)
      for (int64_t j = 0; j < x.size(0); ++j)
        for (int64_t k = 0; k < x.size(1); ++k) y(i, j) += x(i, k) * x(j, k);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    return num::matmul(in[0], in[0].transpose(0, 1));
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return {num::add(num::matmul(b.dy(), b[0]), num::matmul(b.dy().transpose(0, 1), b[0]))};
  }
};
struct SecondUseLost : FaultOf<Gram> {
  static constexpr std::string_view id = "second_use_lost";
  static Tensors backward(const B& b) { return {num::matmul(b.dy(), b[0])}; }
};

struct RepeatedIdsOverwritten : FaultOf<Embedding> {
  static constexpr std::string_view id = "repeated_ids_overwritten";
  static Tensors backward(const B& b) {
    Tensor g = Tensor::zeros(b.input_shape(1), b.dy().dtype());
    for (int64_t i = 0; i < b[0].numel(); ++i)
      g.select(0, static_cast<int64_t>(b[0].flat(i))).copy_from(b.dy().select(0, i));
    return {Tensor(), g};
  }
};

/// y (B, H, T, d) = k (B, G, T, d) with y_h = k_(h / (H / G)).
struct RepeatHeads {
  static constexpr std::string_view name = "repeat_heads";
  static inline const std::array inputs{In{"k"}};
  static constexpr int64_t kTimes = 2;
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const Arr<S>& k = in[0];
    Arr<S> y(Shape{k.size(0), k.size(1) * kTimes, k.size(2), k.size(3)});
    for (int64_t b = 0; b < y.size(0); ++b)
      for (int64_t h = 0; h < y.size(1); ++h)
        for (int64_t t = 0; t < y.size(2); ++t)
          for (int64_t j = 0; j < y.size(3); ++j) y(b, h, t, j) = k(b, h / kTimes, t, j);
    return {y};
  }
  static Tensor forward(Saved&, const Tensors& in, const Args&) {
    const Shape& s = in[0].shape();
    return in[0].unsqueeze(2).expand({s[0], s[1], kTimes, s[2], s[3]}).reshape({s[0], s[1] * kTimes, s[2], s[3]});
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Shape& s = b.input_shape(0);
    return {num::sum(b.dy().reshape({s[0], s[1], kTimes, s[2], s[3]}), {2})};
  }
};
struct RepeatedHeadsTiled : FaultOf<RepeatHeads> {
  static constexpr std::string_view id = "repeated_heads_tiled";
  static Tensors backward(const B& b) {
    const Shape& s = b.input_shape(0);
    return {num::sum(b.dy().reshape({s[0], RepeatHeads::kTimes, s[1], s[2], s[3]}), {1})};
  }
};

// -- Strides and masks ------------------------------------------------------------------------------------------------

struct CotangentTakenForContiguous : FaultOf<Softmax> {
  static constexpr std::string_view id = "cotangent_taken_for_contiguous";
  static Tensors backward(const B& b) {
    Tensor dy = Tensor::empty(b.dy().shape(), b.dy().dtype());
    dispatch_float(id, dy.dtype(), [&]<class T>() {
      const int64_t last = static_cast<int64_t>(b.dy().storage()->bytes() / sizeof(T)) - b.dy().offset() - 1;
      for (int64_t i = 0; i < dy.numel(); ++i) dy.mutable_data<T>(id)[i] = b.dy().data<T>()[std::min(i, last)];
    });
    return {softmax_gradient(b[0], dy)};
  }
};

struct CausalMaskOffByOne : FaultOf<PlainAttention> {
  static constexpr std::string_view id = "causal_mask_off_by_one";
  static AttentionArgs args() { return {.causal = true}; }
  static Tensors backward(const B& b) { return Op::backward_with(b, Slip::causal_off_by_one); }
};

struct PaddingMaskIgnored : FaultOf<PlainAttention> {
  static constexpr std::string_view id = "padding_mask_ignored";
  static AttentionArgs args() { return {.lengths = true}; }
  static Tensors backward(const B& b) { return Op::backward_with(b, Slip::padding_ignored); }
};

struct WeightsOnlyWithInput : FaultOf<Linear> {
  static constexpr std::string_view id = "weights_only_with_input";
  static Tensors backward(const B& b) {
    Tensors g = Op::backward(b);
    if (!b.need(0)) g[1] = Tensor();
    return g;
  }
};

// -- The boosted node -------------------------------------------------------------------------------------------------

template <BoostFault kFault>
struct BoostedFault : FaultOf<BoostedAttention> {
  static AttentionLayerArgs args() {
    return {.heads = 2, .causal = true, .rounds = 2, .kv = Kv::residual, .gate = Gate::linear};
  }
  static Tensors backward(const B& b) { return BoostedAttention::backward_with(b, kFault); }
};
struct BoostedResidualSign : BoostedFault<BoostFault::residual_sign_flipped> {
  static constexpr std::string_view id = "boosted_residual_sign";
};
struct BoostedGateToFDropped : BoostedFault<BoostFault::gate_to_f_dropped> {
  static constexpr std::string_view id = "boosted_gate_to_f_dropped";
};
struct BoostedKeysValuesDropped : BoostedFault<BoostFault::key_value_dropped> {
  static constexpr std::string_view id = "boosted_keys_values_dropped";
};
struct BoostedValueBiasDropped : BoostedFault<BoostFault::value_bias_dropped> {
  static constexpr std::string_view id = "boosted_value_bias_dropped";
};

using AllFaults = OpList<SoftmaxTimesMinusSeven, LogSoftmaxScaled, SoftmaxTemperatureForgotten, AttentionRowSumDropped,
                         LayerNormMeanKept, RmsNormEpsOmitted, CrossEntropyCountsIgnored, BiasFromLastRow,
                         BroadcastMeanForSum, SecondUseLost, RepeatedIdsOverwritten, RepeatedHeadsTiled,
                         CotangentTakenForContiguous, CausalMaskOffByOne, PaddingMaskIgnored, WeightsOnlyWithInput,
                         BoostedResidualSign, BoostedGateToFDropped, BoostedKeysValuesDropped, BoostedValueBiasDropped>;

// -- Asking the verifier ----------------------------------------------------------------------------------------------

struct Answer {
  bool rejected = false;
  std::vector<std::string> by = {};  // the steps, or the verdict
  double seconds = 0;
  std::string text = {};

  json to_json() const { return {{"rejected", rejected}, {"by", by}, {"seconds", seconds}}; }
};

template <class F>
Answer timed(F ask) {
  const auto start = std::chrono::steady_clock::now();
  Answer a = ask();
  a.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return a;
}

template <class O>
Answer ask_verify(uint64_t seed) {
  return timed([&] {
    const OpReport r = verify<O>({.seed = seed});
    Answer a{.rejected = !r.passed(), .text = r.to_string()};
    for (int s = 1; s <= kSteps; ++s)
      if (r.failed(static_cast<Step>(s))) a.by.push_back(name_of(static_cast<Step>(s)));
    return a;
  });
}

template <class O>
Answer ask_gradcheck(uint64_t seed) {
  Rng rng(seed);
  const auto sample = O::samples(rng)[0];
  const std::vector<In> infos = inputs_of<O>(sample.args, sample.inputs.size());
  Vars in;
  for (size_t i = 0; i < infos.size(); ++i) in.emplace_back(sample.inputs[i], infos[i].differentiable);
  const std::vector<int>& zero = sample.zero_grads;
  return timed([&] {
    const GradcheckReport r = gradcheck([&](const Vars& x) { return apply<O>(sample.args, x); }, in,
                                        {.seed = seed, .zero_inputs = {zero.begin(), zero.end()}});
    return Answer{.rejected = !r.passed(), .by = {std::string(name_of(r.verdict))}, .text = r.to_string()};
  });
}

struct Row {
  std::string id;
  Answer verify, gradcheck, right_verify, right_gradcheck;
};

template <class Fault>
Row try_fault(uint64_t seed) {
  using W = Wrong<Fault>;
  using R = Right<Fault>;
  return {std::string(Fault::id), ask_verify<W>(seed), ask_gradcheck<W>(seed), ask_verify<R>(seed),
          ask_gradcheck<R>(seed)};
}

void print(const Row& r, bool as_json) {
  if (as_json) {
    std::printf("%s\n", json{{"fault", r.id},
                             {"verify", r.verify.to_json()},
                             {"gradcheck", r.gradcheck.to_json()},
                             {"right_verify", r.right_verify.to_json()},
                             {"right_gradcheck", r.right_gradcheck.to_json()}}
                            .dump()
                            .c_str());
    return;
  }
  std::string by;
  for (const std::string& s : r.verify.by) by += (by.empty() ? "" : " ") + s;
  std::printf("%-32s verify %-6s %-24s %.3f s   gradcheck %s\n", r.id.c_str(), r.verify.rejected ? "caught" : "MISSED",
              by.c_str(), r.verify.seconds, r.gradcheck.rejected ? "caught" : "MISSED");
  if (r.right_verify.rejected) std::printf("  FALSE ALARM of verify\n%s\n", r.right_verify.text.c_str());
  if (r.right_gradcheck.rejected) std::printf("  FALSE ALARM of gradcheck\n%s\n", r.right_gradcheck.text.c_str());
}

int run(const char* path, uint64_t seed, bool as_json) {
  std::ifstream file(path);
  BG_CHECK(file, "planted", "cannot read the specification", path, "the path of faults.json");
  specification = json::parse(file);
  struct Score {
    size_t caught = 0, alarms = 0;
    double seconds = 0;

    void count(const Answer& wrong, const Answer& right) {
      caught += wrong.rejected;
      alarms += right.rejected;
      seconds += wrong.seconds;
    }
    bool perfect() const { return caught == AllFaults::size && alarms == 0; }
  } by_verify, by_gradcheck;
  AllFaults::for_each([&]<class Fault>() {
    const Row r = try_fault<Fault>(seed);
    print(r, as_json);
    by_verify.count(r.verify, r.right_verify);
    by_gradcheck.count(r.gradcheck, r.right_gradcheck);
  });
  const size_t specified = specification.at("faults").size();
  BG_CHECK(AllFaults::size == specified, "planted", "faults are specified that are not planted here",
           str(AllFaults::size), str(specified));
  for (const auto& [name, score] : {std::pair{"verify", by_verify}, std::pair{"gradcheck", by_gradcheck}})
    if (!as_json)
      std::printf("%-9s  %zu of %zu caught, %zu false alarms on the right ops, %.2f s\n", name, score.caught,
                  AllFaults::size, score.alarms, score.seconds);
  return by_verify.perfect() && by_gradcheck.perfect() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t seed = 1;
  bool as_json = false;
  const char* path = nullptr;
  for (int i = 1; i < argc; ++i) {
    if (!std::strcmp(argv[i], "--json"))
      as_json = true;
    else if (!std::strcmp(argv[i], "--seed") && i + 1 < argc)
      seed = std::strtoull(argv[++i], nullptr, 10);
    else
      path = argv[i];
  }
  if (!path) {
    std::fprintf(stderr, "usage: planted FAULTS.json [--seed N] [--json]\n");
    return 2;
  }
  try {
    return run(path, seed, as_json);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
