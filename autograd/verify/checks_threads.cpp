// V6: what an op computes depends neither on the order of its chunks nor on the threads that share them.
#include "autograd/verify/checks.h"
#include "core/parallel.h"

namespace bg::verifier {
namespace {

constexpr Step kStep = Step::V6;
constexpr std::string_view kFirst = "; the element is the first that differs. Suspect ";

struct RestoreThreads {
  int before = num_threads();
  ~RestoreThreads() { set_num_threads(before); }
};

// What one forward and backward gave: outputs, then gradients.
struct Result {
  std::vector<std::string> names;
  Tensors values;
};

Result run(const Case& c) {
  const Subject& s = c.subject;
  const Forward f = s.forward(s.point.values);
  const Tensors g = s.backward(f, c.draws[0].v, s.need_all());
  Result r;
  for (size_t k = 0; k < f.out.size(); ++k) {
    r.names.push_back(str("output ", k));
    r.values.push_back(f.out[k]);
  }
  for (size_t i : s.differentiable()) {
    r.names.push_back(s.point.inputs[i].name);
    r.values.push_back(g[i]);
  }
  return r;
}

// Other bits, but the same numbers up to rounding?
bool rounding_apart(const Tensor& a, const Tensor& b) {
  if (!is_float(a.dtype()) || a.shape() != b.shape()) return false;
  const Worst worst = worst_of(flatten({a}), flatten({b}));
  return worst.error > 0 && worst.error <= kTolerance.structure * largest(b);
}

// Compares one run with the bits of the usual order on one thread.
bool same(Recorder& r, const std::string& what, const std::string& note, const Result& now, const Result& usual) {
  bool all = true;
  for (size_t k = 0; k < usual.values.size(); ++k) {
    if (rounding_apart(now.values[k], usual.values[k])) {
      all = false;
      r.inconclusive(
          kStep, what, usual.names[k],
          "right up to rounding, but no run can be repeated: suspect a sum in the order in which chunks come "
          "(under a lock, by atomic adds). Sum each chunk apart and add the parts in the order of their "
          "index");
      continue;
    }
    Failure* f = r.expect_same(kStep, what, usual.names[k], now.values[k], usual.values[k]);
    if (!f) continue;
    all = false;
    if (f->note.empty()) f->note = note;
  }
  return all;
}

// The usual order, on one thread. Cutting finely may regroup sums, so that only rounding may differ.
Result in_usual_order(Recorder& r, const Case& c, const Result& coarse) {
  Result fine = run(c);
  for (size_t k = 0; k < fine.values.size(); ++k)
    r.expect_close(kStep, "the same result when cut into many chunks", fine.names[k], fine.values[k], coarse.values[k],
                   kTolerance.structure);
  return fine;
}

void in_other_orders(Recorder& r, const Case& c, const Result& usual) {
  // Of a short sum, each other order gives the usual bits in one case of three.
  const int shuffles = r.options().quick ? 3 : 6;
  for (int seed = 0; seed <= shuffles; ++seed) {
    const ChunkOrder other(static_cast<uint64_t>(seed));
    const std::string order = seed == 0 ? "in reverse order" : str("in random order ", seed);
    same(r, str("chunks ", order, " give the bits of the usual order"),
         str("work was cut into chunks of one item, run one after the other ", order, " on a single thread", kFirst,
             "a sum in the order in which chunks come, or chunks that read or write the same element"),
         run(c), usual);
  }
}

void on_gathered_workers(Recorder& r, const Case& c, const Result& usual) {
  // Chunks of a microsecond overlap in every run. An unlocked update of an exact sum, once per chunk, takes
  // nanoseconds: on two busy cores one run lost it in half of all cases, four runs in three quarters.
  const int times = r.options().quick ? 1 : 4;
  for (int i = 1; i <= times; ++i)
    if (!same(r, str(num_threads(), " threads give the bits of 1"),
              str("work was cut into chunks of one item, run ", i, " with ", num_threads(),
                  " chunks starting at the same moment", kFirst,
                  "a race: a sum without a lock, or scratch memory that chunks share; "
                  "if other orders fail too, a sum in the order of arrival"),
              run(c), usual))
      return;
}

}  // namespace

void check_threads(Recorder& r, const std::vector<Case>& cases) {
  const RestoreThreads restore;
  std::vector<Result> coarse;  // with the usual chunks: for samples of this size, often one
  for (const Case& c : cases) coarse.push_back(run(c));
  const FineChunks fine;  // the samples are small: they would run on one thread whatever their number
  std::vector<std::optional<Result>> usual(cases.size());
  auto for_all = [&](auto&& check) {
    for (size_t i = 0; i < cases.size(); ++i) {
      r.enter(cases[i].subject.point);
      guarded(r, kStep, [&] { check(i); });
    }
  };
  set_num_threads(1);
  for_all([&](size_t i) {
    usual[i] = in_usual_order(r, cases[i], coarse[i]);
    in_other_orders(r, cases[i], *usual[i]);
  });
  const GatherWorkers together;
  for (int threads : {2, 4}) {
    set_num_threads(threads);
    for_all([&](size_t i) {
      if (usual[i]) on_gathered_workers(r, cases[i], *usual[i]);
    });
  }
}

}  // namespace bg::verifier
