// Testing the tester: planted wrong ops, one of each kind, must be rejected by the step that is there for it; and the
// verifier over all real ops must have looked at something.
#include <atomic>
#include <mutex>
#include <numeric>
#include <set>

#include "autograd/ops/all.h"
#include "autograd/verify/verify.h"
#include "core/parallel.h"
#include "tests/catch.h"
#include "tests/match.h"

using namespace bg;

namespace {

// -- A right op, and wrong ones made from it --------------------------------------------------------------------------

Tensor softmax_rows(const Tensor& x) {
  const Tensor c = x.contiguous();
  Tensor y = Tensor::empty(x.shape(), x.dtype());
  const int64_t n = x.size(-1);
  dispatch_float("softmax", x.dtype(), [&]<class T>() {
    T* out = y.mutable_data<T>("softmax");
    for (int64_t r = 0; r < x.numel() / n; ++r) {
      const T* row = c.data<T>() + r * n;
      const T top = *std::max_element(row, row + n);
      T sum = 0;
      for (int64_t j = 0; j < n; ++j) sum += out[r * n + j] = std::exp(row[j] - top);
      for (int64_t j = 0; j < n; ++j) out[r * n + j] /= sum;
    }
  });
  return y;
}

// dx = y (dy - k <y, dy>): k = 1 is right, k = 0 forgets the conserved sum.
Tensor softmax_gradient(const Tensor& y, const Tensor& dy, double k = 1) {
  const Tensor ydy = num::mul(y, dy);
  return num::sub(ydy, num::scale(num::mul(y, num::sum(ydy, {-1}, true)), k));
}

/// y = softmax(x) over the last dimension, right in every way. Wrong ops replace one member.
struct Right {
  static constexpr std::string_view name = "planted";
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> y(in[0].shape);
    const int64_t n = y.size(-1);
    for (int64_t r = 0; r < y.numel() / n; ++r) {
      S sum(0);
      for (int64_t j = 0; j < n; ++j) sum += y[r * n + j] = sc::exp(in[0][r * n + j]);
      for (int64_t j = 0; j < n; ++j) y[r * n + j] /= sum;
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor y = softmax_rows(in[0]);
    saved.keep_output(0, y);
    return y;
  }
  static Tensors backward(const Backward<Tensor, Args>& b) { return {softmax_gradient(b[0], b.dy())}; }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 4)", {}, {normal(r, {3, 4})}}, {"(2, 2, 3)", {}, {normal(r, {2, 2, 3})}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() {
    return {{"row dot dropped", [](auto& b) { return Tensors{softmax_gradient(b[0], b.dy(), 0)}; }}};
  }
};

struct WrongForward : Right {
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor y = softmax_rows(in[0]);
    saved.keep_output(0, y);
    return num::scale(y, 1 + 1e-11);
  }
};
struct Scaled : Right {
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return {num::scale(softmax_gradient(b[0], b.dy()), 1.001)};
  }
};
struct NoRowDot : Right {
  static Tensors backward(const Backward<Tensor, Args>& b) { return {softmax_gradient(b[0], b.dy(), 0)}; }
};
struct MinusSeven : Right {  // passes every test that uses a cotangent of ones
  static Tensors backward(const Backward<Tensor, Args>& b) { return {num::scale(softmax_gradient(b[0], b.dy()), -7)}; }
};
struct IgnoresCotangent : Right {
  static Tensors backward(const Backward<Tensor, Args>& b) { return {num::mul(b[0], b[0])}; }
};
struct NotQuiteLinear : Right {
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor g = softmax_gradient(b[0], b.dy());
    return {num::add(g, num::scale(num::mul(g, g), 1e-11))};
  }
};
struct AssumesContiguous : Right {  // [R5] reads the cotangent as if its elements lay one after the other
  static Tensors backward(const Backward<Tensor, Args>& b) {
    Tensor dy = Tensor::empty(b.dy().shape(), b.dy().dtype());
    dispatch_float(name, dy.dtype(), [&]<class T>() {
      const int64_t limit = static_cast<int64_t>(b.dy().storage()->bytes() / sizeof(T)) - b.dy().offset();
      for (int64_t i = 0; i < dy.numel(); ++i) dy.mutable_data<T>(name)[i] = b.dy().data<T>()[std::min(i, limit - 1)];
    });
    return {softmax_gradient(b[0], dy)};
  }
};
struct WritesInput : Right {  // [R8]
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    saved.keep_input(0, in[0]);
    const Tensor y = Right::forward(saved, in, a);
    return y;
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor g = softmax_gradient(b[1], b.dy());
    // past the version counter, as a kernel with a stray pointer would
    const_cast<double*>(b[0].data<double>())[0] += 1;
    return {g};
  }
};
struct WritesCotangent : Right {
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor g = softmax_gradient(b[0], b.dy());
    const_cast<double*>(b.dy().data<double>())[0] *= 2;
    return {g};
  }
};
struct NotRepeatable : Right {  // [R6]
  static Tensors backward(const Backward<Tensor, Args>& b) {
    static int calls = 0;
    return {num::scale(softmax_gradient(b[0], b.dy()), 1 + (++calls % 2) * 1e-15)};
  }
};
struct ThreadDependent : Right {
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return {num::scale(softmax_gradient(b[0], b.dy()), num_threads() == 4 ? 1 + 1e-15 : 1)};
  }
};
struct DependsOnWorker : Right {  // a few units in the last place by who did the work: V2 to V5 do not see it
  static Tensors backward(const Backward<Tensor, Args>& b) {
    Tensor g = softmax_gradient(b[0], b.dy());
    dispatch_float(name, g.dtype(), [&]<class T>() {
      T* p = g.mutable_data<T>(name);
      parallel_for(g.numel(), 16384, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) p[i] *= T(1 + 1e-15 * worker_index());
      });
    });
    return {g};
  }
};

// y = s x with one s: its gradient is a sum over all elements, which How adds up on several threads. The rows are so
// long that a chunk of one takes a while.
template <class How>
struct Gain {
  static constexpr std::string_view name = "planted";
  static inline const std::array inputs{In{"x"}, In{"s"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {zip(in[0], in[1], [](S x, S s) { return x * s; })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return num::mul(in[0], in[1]);
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor x = b[0].contiguous(), dy = b.dy().contiguous();
    Tensor ds = Tensor::empty(b[1].shape(), x.dtype());
    dispatch_float(name, x.dtype(), [&]<class T>() {
      *ds.mutable_data<T>(name) = How::dot(x.data<T>(), dy.data<T>(), x.size(0), x.size(1));
    });
    return {num::mul(dy, b[1]), ds};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(12, 256)", {}, {normal(r, {12, 256}), normal(r, {1})}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() {
    return {{"s's gradient doubled", [](auto& b) {
               const Tensors g = backward(b);
               return Tensors{g[0], num::scale(g[1], 2)};
             }}};
  }
};

// The races below are relaxed atomics: wrong in the same way as plain memory, but defined.
template <class T>
void store(std::atomic<T>& to, T value) {
  to.store(value, std::memory_order_relaxed);
}
template <class T>
T load(const std::atomic<T>& from) {
  return from.load(std::memory_order_relaxed);
}
template <class F>
void for_rows(int64_t rows, F&& f) {
  parallel_for(rows, 64, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) f(r);
  });
}
template <class T>
T row_dot(const T* a, const T* b, int64_t row, int64_t n) {
  return std::inner_product(a + row * n, a + (row + 1) * n, b + row * n, T(0));
}

struct UnlockedSum {  // each chunk adds what it has, once
  template <class T>
  static T dot(const T* a, const T* b, int64_t rows, int64_t n) {
    std::atomic<T> total{0};
    for_rows(rows, [&](int64_t r) { store(total, load(total) + row_dot(a, b, r, n)); });
    return total;
  }
};
struct LockedSum {  // no race, but a sum in the order of arrival
  template <class T>
  static T dot(const T* a, const T* b, int64_t rows, int64_t n) {
    T total = 0;
    std::mutex mutex;
    for_rows(rows, [&](int64_t r) {
      const T row = row_dot(a, b, r, n);
      const std::lock_guard lock(mutex);
      total += row;
    });
    return total;
  }
};
struct SumOfParts {  // the right way
  template <class T>
  static T dot(const T* a, const T* b, int64_t rows, int64_t n) {
    std::vector<T> part(static_cast<size_t>(rows));
    for_rows(rows, [&](int64_t r) { part[r] = row_dot(a, b, r, n); });
    return std::accumulate(part.begin(), part.end(), T(0));
  }
};

// In fixed point a sum is exact in every order: nothing but a lost update shows.
constexpr double kFixedPoint = 1LL << 50;
template <class T>
uint64_t fixed(T a, T b) {  // unsigned: sums beyond its range wrap around
  constexpr double kRange = 0x1p62;
  const double product = static_cast<double>(a) * static_cast<double>(b) * kFixedPoint;
  return std::abs(product) < kRange ? static_cast<uint64_t>(std::llround(product)) : 0;
}
double from_fixed(uint64_t total) { return static_cast<double>(static_cast<int64_t>(total)) / kFixedPoint; }
struct UnlockedFixedPoint {
  template <class T>
  static T dot(const T* a, const T* b, int64_t rows, int64_t n) {
    std::atomic<uint64_t> total{0};
    for_rows(rows, [&](int64_t r) {
      for (int64_t i = r * n; i < (r + 1) * n; ++i) store(total, load(total) + fixed(a[i], b[i]));
    });
    return static_cast<T>(from_fixed(total));
  }
};
struct AtomicFixedPoint {
  template <class T>
  static T dot(const T* a, const T* b, int64_t rows, int64_t n) {
    std::atomic<uint64_t> total{0};
    for_rows(rows, [&](int64_t r) {
      for (int64_t i = r * n; i < (r + 1) * n; ++i) total += fixed(a[i], b[i]);
    });
    return static_cast<T>(from_fixed(total));
  }
};

template <bool shared>
struct Scratch {
  template <class T>
  static T dot(const T* a, const T* b, int64_t rows, int64_t n) {
    std::vector<std::atomic<T>> scratch(static_cast<size_t>(shared ? n : num_threads() * n));
    std::vector<T> part(static_cast<size_t>(rows));
    for_rows(rows, [&](int64_t r) {
      std::atomic<T>* products = &scratch[shared ? 0 : worker_index() * n];
      for (int64_t j = 0; j < n; ++j) store(products[j], a[r * n + j] * b[r * n + j]);
      for (int64_t j = 0; j < n; ++j) part[r] += load(products[j]);
    });
    return std::accumulate(part.begin(), part.end(), T(0));
  }
};
template <bool by_all>
struct LastWrites {  // every chunk knows a sum, that of the last row is the whole
  template <class T>
  static T dot(const T* a, const T* b, int64_t rows, int64_t n) {
    std::atomic<T> total{0};
    for_rows(rows, [&](int64_t r) {
      if (by_all || r == rows - 1) store(total, std::inner_product(a, a + (r + 1) * n, b, T(0)));
    });
    return total;
  }
};
struct RightInOrderOnly {  // each row goes on from the one before
  template <class T>
  static T dot(const T* a, const T* b, int64_t rows, int64_t n) {
    std::vector<std::atomic<T>> upto(static_cast<size_t>(rows + 1));
    for_rows(rows, [&](int64_t r) { store(upto[r + 1], load(upto[r]) + row_dot(a, b, r, n)); });
    return upto.back();
  }
};

struct LeavesAGap : Right {  // the last element of every chunk but the last one is forgotten
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor g = softmax_gradient(b[0], b.dy());
    Tensor out = Tensor::zeros(g.shape(), g.dtype());
    dispatch_float(name, g.dtype(), [&]<class T>() {
      T* to = out.mutable_data<T>(name);
      const T* from = g.data<T>();
      const int64_t n = g.numel();
      parallel_for(n, 16384, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end - (end < n); ++i) to[i] = from[i];
      });
    });
    return {out};
  }
};
struct NaNGradient : Right {
  static Tensors backward(const Backward<Tensor, Args>& b) { return {num::scale(b.dy(), std::nan(""))}; }
};
struct WrongArity : Right {  // [R21]
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor g = softmax_gradient(b[0], b.dy());
    return {g, g};
  }
};
struct Throws : Right {
  static Tensors backward(const Backward<Tensor, Args>& b) { return {b[7]}; }
};
struct WrongCompose : Right {
  static Vars compose(const Vars& in, const Args&) { return {exp(in[0])}; }
};
struct SurvivingMutant : Right {
  static std::vector<Mutant<Tensor, Args>> mutants() {
    return {{"no error at all", [](auto& b) { return Right::backward(b); }}};
  }
};
struct ExcusedMutant : Right {
  static std::vector<Mutant<Tensor, Args>> mutants() {
    std::vector<Mutant<Tensor, Args>> all = Right::mutants();
    all.emplace_back(
        "no error at all", [](auto& b) { return Right::backward(b); }, "it is the right backward");
    return all;
  }
};
struct FalseExcuse : Right {
  static std::vector<Mutant<Tensor, Args>> mutants() {
    return {{"row dot dropped", [](auto& b) { return NoRowDot::backward(b); }, "so they say"}};
  }
};
struct NoMutants : Right {
  static std::vector<Mutant<Tensor, Args>> mutants() { return {}; }
};
struct OnlyExcuses : Right {
  static std::vector<Mutant<Tensor, Args>> mutants() {
    return {{"no error at all", [](auto& b) { return Right::backward(b); }, "it is the right backward"}};
  }
};
struct NoSamples : Right {
  static std::vector<Sample<Args>> samples(Rng&) { return {}; }
};
struct MutantThatNeverApplies : Right {
  static std::vector<Mutant<Tensor, Args>> mutants() {
    return {{"reads what is not there", [](auto& b) { return Tensors{b[7]}; }}};
  }
};

/// y = sum of softmax: constant, so nothing is tested by it.
struct Vacuous : Right {
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    Arr<S> total{Shape{}};
    const Arrs<S> y = Right::reference(in, a);
    for (const S& e : y[0].v) total[0] += e;
    return {total};
  }
  static Tensor forward(Saved&, const Tensors& in, const Args&) { return num::sum(softmax_rows(in[0])); }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return {Tensor::zeros(b.input_shape(0), b.input_dtype(0))};
  }
};
struct VacuousDeclared : Vacuous {  // honest, but then there is nothing left that was compared
  static std::vector<Sample<Args>> samples(Rng& r) { return {{"(3, 4)", {}, {normal(r, {3, 4})}, {0}}}; }
};

/// y = softmax(x + c) with one c per row: c's gradient is zero, as a key bias's in attention.
struct Shifted {
  static constexpr std::string_view name = "planted";
  static inline const std::array inputs{In{"x"}, In{"c"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    return Right::reference(Arrs<S>{zip(in[0], in[1], [](S x, S c) { return x + c; })}, a);
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor y = softmax_rows(num::add(in[0], in[1]));
    saved.keep(y);
    return y;
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return {b.need(0) ? softmax_gradient(b[0], b.dy()) : Tensor(), Tensor()};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"declared", {}, {normal(r, {3, 4}), normal(r, {3, 1})}, {1}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() {
    return {{"row dot dropped", [](auto& b) { return Tensors{softmax_gradient(b[0], b.dy(), 0), Tensor()}; }}};
  }
};
struct UndeclaredZero : Shifted {
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"undeclared", {}, {normal(r, {3, 4}), normal(r, {3, 1})}}};
  }
};
struct FalselyDeclaredZero : Shifted {
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"x is not zero", {}, {normal(r, {3, 4}), normal(r, {3, 1})}, {0, 1}}};
  }
};
struct WrongUnderMask {  // y = a b, right only when both gradients are asked for
  static constexpr std::string_view name = "planted";
  static inline const std::array inputs{In{"a"}, In{"b"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    return Mul::reference(in, a);
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) { return Mul::forward(saved, in, a); }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor da = num::mul(b.dy(), b[1]), db = num::mul(b.dy(), b[0]);
    return {da, b.need(0) ? db : num::scale(db, 2)};
  }
  static std::vector<Sample<Args>> samples(Rng& r) { return {{"(3,)", {}, {normal(r, {3}), normal(r, {3})}}}; }
  static std::vector<Mutant<Tensor, Args>> mutants() {
    return {{"factors swapped", [](auto& b) { return Tensors{num::mul(b.dy(), b[0]), num::mul(b.dy(), b[1])}; }}};
  }
};

// The steps that rejected the op, in order of the ladder.
template <class O>
std::set<Step> rejecting_steps() {
  const OpReport r = verify<O>();
  INFO(r.to_string());
  CHECK_FALSE(r.passed());
  for (const Failure& f : r.failures) {
    const std::string text = f.to_string();
    CHECK(std::count(text.begin(), text.end(), '\n') < 20);
    CHECK_THAT(text, Contains("seed") && Contains("rerun      bg::verify<"));
  }
  std::set<Step> steps;
  for (const Failure& f : r.failures) steps.insert(f.step);
  return steps;
}
const std::set<Step> kOnlyStructure{Step::V6};

}  // namespace

TEST_CASE("a right op passes, with every step at work") {
  const OpReport r = verify<Right>();
  INFO(r.to_string());
  CHECK(r.passed());
  CHECK(r.samples == 2);
  for (Step s : {Step::V1, Step::V2, Step::V3, Step::V5, Step::V6, Step::V9, Step::V10})
    CHECK(r.count(s).comparisons > 0);
  CHECK(r.na.at("V4") == "fused op without compose");
  CHECK(r.mutants_killed() == r.mutants_counted());
  CHECK(r.mutants.at(0).killed_by == "V2 at sample 0");
  CHECK(verify<Shifted>().passed());
}

TEST_CASE("[R4] wrong values are rejected by the oracles") {
  CHECK(rejecting_steps<WrongForward>() == std::set{Step::V1});
  CHECK(rejecting_steps<Scaled>() == std::set{Step::V2, Step::V3, Step::V5});
  CHECK(rejecting_steps<NoRowDot>() == std::set{Step::V2, Step::V3, Step::V5});
  CHECK(rejecting_steps<MinusSeven>() == std::set{Step::V2, Step::V3, Step::V5});
  CHECK(rejecting_steps<WrongCompose>() == std::set{Step::V4, Step::V8});
}

TEST_CASE("[R5] [R6] [R8] what only structure can see is rejected by V6 alone") {
  CHECK(rejecting_steps<IgnoresCotangent>().count(Step::V6));
  CHECK(rejecting_steps<NotQuiteLinear>().count(Step::V6));
  CHECK(rejecting_steps<AssumesContiguous>() == kOnlyStructure);
  CHECK(rejecting_steps<WritesInput>().count(Step::V6));
  CHECK(rejecting_steps<WritesCotangent>().count(Step::V6));
  CHECK(rejecting_steps<NotRepeatable>() == kOnlyStructure);
  CHECK(rejecting_steps<ThreadDependent>() == kOnlyStructure);
  // the samples fit into one chunk of 16384: only the verifier's fine chunks show these two
  CHECK(rejecting_steps<DependsOnWorker>() == kOnlyStructure);
  CHECK(rejecting_steps<LeavesAGap>() == kOnlyStructure);
  CHECK(rejecting_steps<WrongUnderMask>() == kOnlyStructure);
}

TEST_CASE("[R6] work shared by threads: wrong ways to share are rejected by V6, at every seed") {
  const int seeds = 20;
  auto rejected = [&]<class How>(bool quick) {
    int n = 0;
    for (int seed = 1; seed <= seeds; ++seed) {
      const OpReport r = verify<Gain<How>>({.seed = static_cast<uint64_t>(seed), .quick = quick});
      n += !r.passed();
      // several runs of the same op are compared in V7, too, and there a race shows now and then
      for (const Failure& f : r.failures) CHECK((f.step == Step::V6 || f.step == Step::V7));
    }
    return n;
  };
  for (const bool quick : {false, true}) {
    CHECK(rejected.operator()<UnlockedSum>(quick) == seeds);
    CHECK(rejected.operator()<LockedSum>(quick) == seeds);
    CHECK_FALSE(verify<Gain<LockedSum>>({.quick = quick}).wrong());  // right numbers, but not repeatable
    CHECK(rejected.operator()<LastWrites<true>>(quick) == seeds);
    CHECK(rejected.operator()<RightInOrderOnly>(quick) == seeds);
    CHECK(rejected.operator()<SumOfParts>(quick) == 0);
    CHECK(rejected.operator()<LastWrites<false>>(quick) == 0);
    // exact in any order, but a fixed point knows one scale only, and gradients have many
    CHECK(rejected.operator()<AtomicFixedPoint>(quick) == seeds);
    CHECK(rejected.operator()<Scratch<false>>(quick) == 0);
  }
  // right in any order on one thread: only chunks that do run at the same time give these away
  CHECK(rejected.operator()<UnlockedFixedPoint>(false) == seeds);
  CHECK(rejected.operator()<Scratch<true>>(false) == seeds);
}

TEST_CASE("[R6] a failure of shared work says what was done, what it suggests, and the first element that differs") {
  struct CountsChunks : Right {  // element 7 is right if seven others were done before
    static Tensors backward(const Backward<Tensor, Args>& b) {
      Tensor g = softmax_gradient(b[0], b.dy());
      dispatch_float(name, g.dtype(), [&]<class T>() {
        T* p = g.mutable_data<T>(name);
        std::atomic<int64_t> done{0};
        parallel_for(g.numel(), 64, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i)
            if (done++ != i && i == 7) p[i] *= T(1 + 1e-6);
        });
      });
      return {g};
    }
  };
  const OpReport r = verify<CountsChunks>();
  REQUIRE(r.failures.size() > 0);
  const Failure& f = r.failures[0];
  CHECK(f.what == "chunks in reverse order give the bits of the usual order");
  CHECK(f.index == "(1, 3) of (3, 4)");
  CHECK_THAT(f.note, Contains("on a single thread") && Contains("the first that differs") &&
                         Contains("a sum in the order in which chunks come, or chunks that read or write the same"));
  const OpReport race = verify<Gain<Scratch<true>>>();
  REQUIRE(race.failures.size() > 0);
  CHECK_THAT(race.failures[0].what, Contains("threads give the bits of 1"));
  CHECK(race.failures[0].index == "(0,) of (1,)");
  CHECK_THAT(race.failures[0].note,
             Contains("starting at the same moment") && Contains("scratch memory that chunks share"));
  CHECK(race.failures[0].note.size() < 300);  // what a report shows of it
}

TEST_CASE("what proves nothing is rejected by V9") {
  CHECK(rejecting_steps<NaNGradient>().count(Step::V9));
  CHECK(rejecting_steps<Vacuous>().count(Step::V9));
  CHECK(rejecting_steps<VacuousDeclared>().count(Step::V9));
  CHECK(rejecting_steps<NoSamples>() == std::set{Step::V9});
  CHECK(rejecting_steps<UndeclaredZero>() == std::set{Step::V9});
  CHECK(rejecting_steps<FalselyDeclaredZero>().count(Step::V9));
}

TEST_CASE("f32: too large an error is rejected by V7, an op for f64 alone is not") {
  struct RoughInF32 : Right {
    static Tensors backward(const Backward<Tensor, Args>& b) {
      return {num::scale(softmax_gradient(b[0], b.dy()), b.dy().dtype() == DType::f32 ? 1.01 : 1)};
    }
  };
  CHECK(rejecting_steps<RoughInF32>() == std::set{Step::V7});
  struct OnlyF64 : Right {
    static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
      (void)in[0].data<double>();
      return Right::forward(saved, in, a);
    }
  };
  const OpReport r = verify<OnlyF64>();
  CHECK(r.passed());
  CHECK_THAT(r.na.at("V7"), Contains("refuses f32") && Contains("wrong dtype"));
}

TEST_CASE("[R21] what an op throws is reported, not thrown") {
  CHECK_THAT(verify<WrongArity>().to_string(), Contains("wrong number of gradients: got 2, expected 1"));
  CHECK_THAT(verify<Throws>().to_string(), Contains("reads a slot that forward did not keep"));
}

TEST_CASE("negative controls: survivors, excuses and mutants that never apply") {
  CHECK(rejecting_steps<SurvivingMutant>() == std::set{Step::V10});
  CHECK(rejecting_steps<FalseExcuse>() == std::set{Step::V10});
  CHECK(rejecting_steps<MutantThatNeverApplies>() == std::set{Step::V10});
  CHECK(rejecting_steps<NoMutants>() == std::set{Step::V10});
  CHECK(rejecting_steps<OnlyExcuses>() == std::set{Step::V10});
  CHECK_THAT(verify<NoMutants>().to_string(), Contains("mutants() has none that counts"));
  const OpReport r = verify<ExcusedMutant>();
  CHECK(r.passed());
  CHECK(r.mutants.at(1).not_counted == "it is the right backward");
}

TEST_CASE("[R2] [R3] a report names op, sample, input, worst index, both values, error, tolerance, seed, rerun") {
  struct OneWrong : Right {  // one element of the gradient
    static Tensors backward(const Backward<Tensor, Args>& b) {
      Tensor g = softmax_gradient(b[0], b.dy());
      if (g.rank() == 2) g.mutable_data<double>(name)[7] += 0.25;
      return {g};
    }
  };
  const OpReport r = verify<OneWrong>({.seed = 5});
  const auto at = std::find_if(r.failures.begin(), r.failures.end(), [](auto& f) { return f.step == Step::V2; });
  REQUIRE(at != r.failures.end());
  CHECK(at->op == "planted");
  CHECK(at->sample == 0);
  CHECK(at->input == "x");
  CHECK(at->index == "(1, 3) of (3, 4)");
  CHECK(close(at->analytic - at->reference, 0.25, 1e-9));
  CHECK(at->error > at->tolerance);
  CHECK(at->rerun.starts_with("bg::verify<"));
  CHECK(at->rerun.ends_with("OneWrong>({.seed = 5, .sample = 0})"));
  for (const char* label : {"analytic", "reference", "error", "tolerance", "seed       5"})
    CHECK_THAT(at->to_string(), Contains(label));
  // the sample alone sees the same numbers
  const OpReport again = verify<OneWrong>({.seed = 5, .sample = 0});
  CHECK(again.failures.at(0).analytic == r.failures.at(0).analytic);
  CHECK(verify<OneWrong>({.seed = 5, .sample = 1}).passed());
}

TEST_CASE("[R3] the rerun line names what can be run: the program for a listed op, the call for one's own") {
  struct Mine : Exp {  // the name of a listed op does not make it one
    static Vars backward(const Backward<Var, Args>& b) { return {b.dy()}; }
  };
  const std::string mine = verify<Mine>({.seed = 3, .quick = true}).failures.at(0).rerun;
  CHECK(mine.starts_with("bg::verify<"));
  CHECK(mine.ends_with("Mine>({.seed = 3, .quick = true, .sample = 0})"));
  const auto& all = verifier::all_entries();
  verifier::Entry broken = *std::find_if(all.begin(), all.end(), [](auto& e) { return e.name == "exp"; });
  CHECK(broken.type == "bg::Exp");
  broken.samples = [](Rng&) -> std::vector<std::unique_ptr<verifier::Point>> { return {}; };
  const OpReport r = verifier::verify_entry(broken, {.seed = 3});
  CHECK(r.failures.at(0).rerun == "boostgrad gradcheck --op exp --seed 3");
  // one sample alone: mutants that only another sample rejects are no failure
  for (const verifier::Entry& e : all)
    if (e.name == "max" || e.name == "clamp") CHECK(verifier::verify_entry(e, {.quick = true, .sample = 0}).passed());
}

TEST_CASE("[R4] [R16] [R18] [R20] every op passes, and something was looked at in each") {
  std::set<std::string> without_compose;
  int64_t samples = 0, comparisons = 0, mutants = 0;
  for (const verifier::Entry& e : verifier::all_entries()) {
    const OpReport r = verifier::verify_entry(e, {.seed = 1, .quick = true});
    INFO(r.to_string());
    CHECK(r.passed());
    CHECK(r.mutants_killed() == r.mutants_counted());
    CHECK(r.count(Step::V1).comparisons > 0);
    if (r.na.count("V2") == 0) {
      CHECK(r.count(Step::V2).comparisons > 0);
      CHECK(r.mutants_counted() > 0);
      CHECK(r.count(Step::V8).comparisons > 0);                  // double backward: right, or refused
      CHECK((r.jvp_error >= 0) == (e.primitive || e.composed));  // forward mode, wherever there is a double backward
    }
    CHECK(r.na.count("V7") == (r.na.count("V2") ? 1 : 0));  // every op works in f32
    if (r.na.count("V4")) without_compose.insert(r.op);
    samples += r.samples;
    comparisons += r.comparisons();
    mutants += r.mutants_counted();
  }
  CHECK(verifier::all_entries().size() == AllOps::size);
  CHECK(samples >= 3 * static_cast<int64_t>(AllOps::size));
  CHECK(comparisons >= 100 * static_cast<int64_t>(AllOps::size));
  CHECK(mutants >= 10 * static_cast<int64_t>(AllOps::size));
  // primitive ops have no second formula to be compared with; any other op needs one
  const std::set<std::string> primitives = [] {
    std::set<std::string> names;
    for (const verifier::Entry& e : verifier::all_entries())
      if (e.primitive) names.insert(e.name);
    return names;
  }();
  CHECK(without_compose == primitives);
}
