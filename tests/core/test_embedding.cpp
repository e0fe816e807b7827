// Embedding rows and their gradient against naive loops; repeated ids; bad ids; threads.
#include "core/error.h"
#include "core/kernels/embedding.h"
#include "tests/core/kernel_support.h"

using namespace bg;
using namespace bg::test;
namespace k = bg::kernels;

namespace {

std::vector<int64_t> random_ids(int64_t n, int64_t vocab, uint64_t seed) {
  Rng rng(seed);
  std::vector<int64_t> ids(n);
  for (auto& id : ids) id = static_cast<int64_t>(rng.below(vocab));
  return ids;
}

}  // namespace

TEMPLATE_TEST_CASE("embedding gathers rows and adds every gradient row, repeated ids too [R31]", "[embedding]", float,
                   double) {
  using T = TestType;
  struct Shape {
    int64_t n, vocab, d;
  };
  for (auto [n, vocab, d] : {Shape{0, 3, 2}, {1, 1, 1}, {7, 3, 5}, {100, 17, 64}, {1000, 5, 131}}) {
    auto ids = random_ids(n, vocab, 1);
    for (bool all_equal : {false, true}) {
      if (all_equal) std::fill(ids.begin(), ids.end(), vocab - 1);
      INFO(n << " ids of " << vocab << " by " << d << (all_equal ? ", all equal" : ""));
      const auto table = normals<T>(vocab * d, 2), dy = normals<T>(n * d, 3), before = normals<T>(vocab * d, 4);
      std::vector<T> out(n * d), dtable = before;
      k::embedding_forward(table.data(), ids.data(), out.data(), n, vocab, d);
      k::embedding_backward(dy.data(), ids.data(), dtable.data(), n, vocab, d);
      std::vector<long double> want(before.begin(), before.end());
      int64_t wrong = 0;
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < d; ++j) {
          wrong += out[i * d + j] != table[ids[i] * d + j];
          want[ids[i] * d + j] += dy[i * d + j];
        }
      }
      CHECK(wrong == 0);
      CHECK(relative_error(dtable, want) < (sizeof(T) == 4 ? 2 * std::numeric_limits<T>::epsilon() : 1e-13));
    }
  }
}

TEST_CASE("embedding refuses ids outside the table, and writes nothing then", "[embedding]") {
  std::vector<float> table(6, 1), out(4, 7), dtable(6, 0);
  for (int64_t bad : {int64_t{-1}, int64_t{3}}) {
    const int64_t ids[] = {2, bad};
    CHECK_THROWS_AS(k::embedding_forward(table.data(), ids, out.data(), 2, 3, 2), Error);
    CHECK_THROWS_AS(k::embedding_backward(table.data(), ids, dtable.data(), 2, 3, 2), Error);
    try {
      k::embedding_forward(table.data(), ids, out.data(), 2, 3, 2);
    } catch (const Error& e) {
      CHECK(e.what() == str("[embedding] id 1 is out of range: got ", bad, ", expected 0 to 2."));
    }
  }
  CHECK(out == std::vector<float>(4, 7));
  CHECK(dtable == std::vector<float>(6, 0));
}

TEMPLATE_TEST_CASE("embedding gradients have the same bits for any number of threads", "[embedding]", float, double) {
  using T = TestType;
  const int64_t n = 4096, vocab = 300, d = 200;
  auto ids = random_ids(n, vocab, 5);
  std::fill(ids.begin(), ids.begin() + n / 2, 7);
  const auto dy = normals<T>(n * d, 6);
  check_same_bits_for_threads([&] {
    std::vector<T> dtable(vocab * d);
    k::embedding_backward(dy.data(), ids.data(), dtable.data(), n, vocab, d);
    return dtable;
  });
}
