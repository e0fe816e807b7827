#include "autograd/verify/lint.h"

#include <algorithm>
#include <cctype>
#include <set>

namespace bg::verifier {
namespace {

// Lanes of the widest vector of any processor (f32 of 512 bits): a longer row runs whole vectors in every kernel.
constexpr int64_t kWidestVector = 16;
constexpr int64_t kNarrowestVector = 4;  // a row of a multiple of it may have no rest after whole vectors

struct Value {
  Shape shape;
  std::vector<double> numbers;
  bool integer;
};

// An input in all samples that have it.
struct Input {
  In in;
  bool single_is_weak;  // where it is one number, that is the samples' doing
  std::vector<Value> values;

  template <class F>
  bool every(F f) const {
    return std::all_of(values.begin(), values.end(), f);
  }
  template <class F>
  bool some(F f) const {
    return std::any_of(values.begin(), values.end(), f);
  }
  bool single() const {  // one number in every sample
    return every([](const Value& v) { return v.numbers.size() <= 1; });
  }
};

// "rounds.*.w_q" for rounds.0.w_q
std::string without_numbers(const std::string& name) {
  std::string out;
  for (const char c : name) {
    const bool digit = std::isdigit(static_cast<unsigned char>(c));
    if (!digit) out += c;
    if (digit && !out.ends_with('*')) out += '*';
  }
  return out;
}

bool same_inputs(const Point& a, const Point& b) {
  return std::equal(a.inputs.begin(), a.inputs.end(), b.inputs.begin(), b.inputs.end(),
                    [](const In& x, const In& y) { return x.name == y.name; });
}

// By name. Where the number of inputs varies, those whose names differ in a number alone are one: parts of a list.
std::vector<Input> inputs_of_all(const std::vector<std::unique_ptr<Point>>& points) {
  const bool fixed =
      std::all_of(points.begin(), points.end(), [&](const auto& p) { return same_inputs(*p, *points[0]); });
  std::vector<Input> all;
  for (const auto& p : points)
    for (size_t i = 0; i < p->inputs.size(); ++i) {
      const Tensor& t = p->values[i];
      if (!t.defined() || t.numel() == 0) continue;
      In in = p->inputs[i];
      if (!fixed) in.name = without_numbers(in.name);
      auto at = std::find_if(all.begin(), all.end(), [&](const Input& x) { return x.in.name == in.name; });
      if (at == all.end()) at = all.insert(at, Input{std::move(in), i == 0 || p->broadcasts, {}});
      at->values.push_back({t.shape(), t.to(DType::f64).to_vector<double>(), is_index(t.dtype())});
    }
  if (std::all_of(all.begin(), all.end(), [](const Input& x) { return x.single(); }))
    for (Input& x : all) x.single_is_weak = true;
  return all;
}

// -- One value --------------------------------------------------------------------------------------------------------

bool constant(const Value& v) {
  return std::all_of(v.numbers.begin(), v.numbers.end(), [&](double x) { return x == v.numbers[0]; });
}

bool rows_equal(const Value& v) {
  const size_t row = v.numbers.size() / static_cast<size_t>(v.shape.rows());
  for (size_t i = row; i < v.numbers.size(); ++i)
    if (v.numbers[i] != v.numbers[i - row]) return false;
  return true;
}

bool rows_constant(const Value& v) {
  const size_t row = v.numbers.size() / static_cast<size_t>(v.shape.rows());
  for (size_t i = 0; i < v.numbers.size(); ++i)
    if (v.numbers[i] != v.numbers[i - i % row]) return false;
  return true;
}

bool is_matrix(const Value& v) { return v.shape.rank() >= 2; }
int64_t from_end(const Value& v, int k) { return v.shape[v.shape.rank() - k]; }
bool square(const Value& v) { return from_end(v, 1) == from_end(v, 2); }

bool symmetric(const Value& v) {
  if (!square(v)) return false;
  const size_t n = static_cast<size_t>(v.shape.back());
  for (size_t at = 0; at < v.numbers.size(); at += n * n)
    for (size_t i = 0; i < n; ++i)
      for (size_t j = 0; j < i; ++j)
        if (v.numbers[at + i * n + j] != v.numbers[at + j * n + i]) return false;
  return true;
}

bool repeats(const Value& v) { return std::set<double>(v.numbers.begin(), v.numbers.end()).size() < v.numbers.size(); }

// -- One input --------------------------------------------------------------------------------------------------------

// The weakest of: zero, one number everywhere, rows of one number each, equal rows. Zero implies the others.
std::string alike(const Input& x) {
  const double number = x.values[0].numbers[0];
  const bool one_number = x.every([&](const Value& v) { return constant(v) && v.numbers[0] == number; });
  if (x.single()) {
    if (!one_number || x.values.size() < 2) return {};
    return str("it is ", number, " in every sample: an error that vanishes there cannot be seen; add another number");
  }
  if (one_number && number == 0)
    return "every sample is zero: an error in what it multiplies cannot be seen; add one with random numbers";
  if (x.every(constant))
    return str("every sample is constant", one_number ? str(" (all ", number, ")") : "",
               ": elements that change places, and an error in anything but a sum over them, cannot be seen; add one "
               "with random numbers");
  if (x.in.differentiable && x.every(rows_equal) && x.some([](const Value& v) { return v.shape.rows() > 1; }))
    return "all rows are equal in every sample: one that is read or written in place of another cannot be seen; add "
           "one with random rows";
  if (x.in.differentiable && x.every(rows_constant) &&
      x.some([](const Value& v) { return v.shape.rank() > 0 && v.shape.back() > 1; }))
    return "each row is constant in every sample: an error in what is left of a row without its mean cannot be seen; "
           "add one with random rows";
  return {};
}

std::string sign(const Input& x) {
  if (!x.in.differentiable || x.in.domain == Domain::positive || x.in.domain == Domain::simplex) return {};
  bool positive = false, negative = false;
  for (const Value& v : x.values)
    for (double number : v.numbers) {
      positive = positive || number > 0;
      negative = negative || number < 0;
    }
  if (!positive && !negative) return {};
  if (positive && !negative)
    return "no sample has a negative number: an error below zero cannot be seen; add some, or declare Domain::positive";
  if (negative && !positive) return "no sample has a positive number: an error above zero cannot be seen; add some";
  return {};
}

void lint_matrices(const Input& x, std::vector<std::string>& found) {
  std::vector<Value> matrices;
  std::copy_if(x.values.begin(), x.values.end(), std::back_inserter(matrices), is_matrix);
  if (matrices.empty() || x.in.domain == Domain::symmetric || !std::all_of(matrices.begin(), matrices.end(), square))
    return;
  if (std::all_of(matrices.begin(), matrices.end(), [](const Value& v) { return v.shape.back() == 1; })) return;
  if (std::all_of(matrices.begin(), matrices.end(), symmetric) && !x.every(constant))
    found.push_back(
        "every matrix is symmetric: a transposed one cannot be seen; add one that is not, or declare "
        "Domain::symmetric");
  found.push_back(
      "every matrix is square: sizes that are confused cannot be seen; add one with unequal sides if the op takes it");
}

std::string name_of_dimension(int from_end) {
  if (from_end == 1) return "last dimension";
  if (from_end == 2) return "second to last dimension";
  return from_end == 3 ? "third to last dimension" : str(from_end, "th to last dimension");
}

void lint_sizes_of_one(const Input& x, std::vector<std::string>& found) {
  const char* advice =
      " is 1 in every sample: an error in an index or a sum along it cannot be seen; add one of 2 or 3";
  const bool batch = x.some(is_matrix) && x.every([](const Value& v) { return !is_matrix(v) || v.shape[0] == 1; });
  if (batch) found.push_back(str("the first dimension (batch)", advice));
  for (int k = 1; k <= Shape::kMaxRank; ++k) {
    bool any = false, all = true, first = true;
    for (const Value& v : x.values)
      if (v.shape.rank() >= k) {
        any = true;
        all = all && from_end(v, k) == 1;
        first = first && v.shape.rank() == k && k > 1;
      }
    if (any && all && !(batch && first)) found.push_back(str("the ", name_of_dimension(k), advice));
  }
}

void lint_widths(const Input& x, std::vector<std::string>& found) {
  int64_t widest = 0;
  bool multiples = true;
  for (const Value& v : x.values) {
    if (v.shape.rank() == 0) continue;
    widest = std::max(widest, v.shape.back());
    multiples = multiples && v.shape.back() % kNarrowestVector == 0;
  }
  if (widest > 0 && multiples)
    found.push_back(
        str("the last dimension is a multiple of ", kNarrowestVector,
            " in every sample: an error in what is left after whole vectors cannot be seen; add one of 7 or 17"));
  if (widest <= kWidestVector)
    found.push_back(str("no last dimension is longer than a vector of ", kWidestVector, " (at most ", widest,
                        "): an error after the first vector or block cannot be seen; add one of 17 or 33"));
}

std::vector<std::string> lint_input(const Input& x) {
  std::vector<std::string> found;
  const bool number = x.single() && !x.single_is_weak;
  std::string values = alike(x);
  if (values.empty() && !number) values = sign(x);
  if (!values.empty()) found.push_back(std::move(values));
  if (x.single()) {
    if (!number)
      found.push_back("it has one element in every sample: an index or a sum cannot be wrong; add one with several");
    return found;
  }
  lint_sizes_of_one(x, found);
  if (x.in.differentiable) {
    lint_matrices(x, found);
    lint_widths(x, found);
  } else if (x.every([](const Value& v) { return v.integer && !repeats(v); })) {
    found.push_back(
        "no sample repeats a number: of gradients that meet at one index, all but one could be lost unseen; add a "
        "repeated one if these are indices");
  }
  return found;
}

// -- The samples as a whole -------------------------------------------------------------------------------------------

void lint_arguments(const Entry& entry, const std::vector<std::unique_ptr<Point>>& points,
                    std::vector<std::string>& found) {
  const std::vector<Field> first = points[0]->compared_arguments(*points[0]);
  std::vector<bool> varied(first.size(), false);
  for (const size_t i : entry.fixed_arguments) {
    BG_CHECK(i >= 1 && i <= first.size(), entry.name, "fixed_arguments names no argument", str(i),
             str("1 to ", first.size()));
    varied[i - 1] = true;
  }
  for (const auto& p : points) {
    const std::vector<Field> fields = points[0]->compared_arguments(*p);
    for (size_t i = 0; i < fields.size(); ++i) varied[i] = varied[i] || fields[i].same != true;
  }
  for (size_t i = 0; i < first.size(); ++i)
    if (!varied[i])
      found.push_back(str("argument ", i + 1, " of ", first.size(), " (", first[i].type, ") is ",
                          first[i].text.empty() ? "the same" : first[i].text,
                          " in every sample: what depends on it is not verified; add one with another value"));
}

}  // namespace

std::vector<std::string> lint(const Entry& entry, const std::vector<std::unique_ptr<Point>>& points) {
  std::vector<std::string> found;
  if (points.empty()) return found;
  if (points.size() == 1)
    found.push_back("there is only one sample: what depends on shapes is not verified; add others of other shapes");
  for (const Input& x : inputs_of_all(points))
    for (const std::string& weakness : lint_input(x)) found.push_back(str(x.in.name, ": ", weakness));
  lint_arguments(entry, points, found);
  int64_t largest = 0;
  for (const auto& p : points) {
    int64_t elements = 0;
    for (const Tensor& t : p->values) elements += t.defined() ? t.numel() : 0;
    largest = std::max(largest, elements);
  }
  found.push_back(str("largest sample: ", largest, " elements"));
  return found;
}

}  // namespace bg::verifier
