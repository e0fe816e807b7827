// Gives ops by strangers to verify<Op>() and to gradcheck(f):
//
//   strangers a|b|c|difficult|weak [--seed N] [--json] [--only NAME] [--show]
//   strangers right [--seeds N]                  right twins and difficult ops at N seeds: none may be called wrong
//
// Exit 1 where too much is missed or anything right is rejected: a and b, a wrong op that `verify` misses beyond those
// named in kMissed, or a right twin that it does not pass beyond those of kBitsDepend, or that either calls wrong;
// difficult, a right op called wrong, or more than five inconclusive; weak, a list whose weakness the lint does not
// name and whose wrong op is not rejected.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "autograd/verify/subject.h"
#include "autograd/verify/verify.h"
#include "core/format.h"
#include "core/hash.h"
#include "tests/verifiers/strangers.h"

using namespace bg;
using namespace bg::strangers;
using Json = nlohmann::ordered_json;

namespace {

struct Options {
  std::string group, only;
  uint64_t seed = 1, seeds = 10;
  bool json = false, show = false;
};

// gradcheck(f) at every sample of an op, each with what the sample declares. Its worst verdict.
Verdict gradcheck_all(const verifier::Entry& entry, const Options& o) {
  Verdict worst = Verdict::right;
  Rng rng(o.seed, hash_bytes(entry.name));
  for (const auto& point : entry.samples(rng)) {
    GradcheckOptions options{.seed = o.seed};
    Vars inputs;
    for (size_t i = 0; i < point->values.size(); ++i) {
      const Tensor& x = point->values[i];
      const bool leaf = point->inputs[i].differentiable && x.defined() && is_float(x.dtype());
      inputs.emplace_back(x, leaf);
      if (leaf && !point->kink.empty()) options.kinked_inputs.emplace_back(static_cast<int>(i));
    }
    for (const int i : point->zero_grads) options.zero_inputs.emplace_back(i);
    options.nonlinear = entry.nonlinear;
    if (point->convention)
      options.gradient_of = [&](const Vars& in) {
        Tensors values;
        for (const Var& x : in) values.push_back(x.value());
        Vars out;
        for (const Arr<double>& y : point->gradient_of(verifier::to_arrs<double>(values)))
          out.emplace_back(Tensor::of(y.v, y.shape));
        return out;
      };
    try {
      const GradcheckReport r = gradcheck([&](const Vars& in) { return point->apply(in); }, inputs, options);
      if (o.show && !r.passed()) std::printf("%s: %s", point->label.c_str(), r.to_string().c_str());
      worst = std::max(worst, r.verdict);
    } catch (const Error& e) {
      if (o.show) std::printf("%s: %s\n", point->label.c_str(), e.what());
      worst = Verdict::wrong;
    }
  }
  return worst;
}

// What the lint says of a weak list of each kind: a part of it. A list of another kind must have its wrong op rejected.
const std::map<std::string, std::string> kExpected = {
    {"zeros", "every sample is zero"},
    {"batch 1", "(batch) is 1"},
    {"constant rows", "is constant"},
    {"square shapes only", "every matrix is square"},
    {"an argument never varied: the step is always 1", "argument "},
    {"a mask of ones only", "all 1"},
};

bool names_weakness(const OpReport& r, const std::string& kind) {
  const auto expected = kExpected.find(kind);
  return expected != kExpected.end() && std::any_of(r.advice.begin(), r.advice.end(), [&](const std::string& a) {
           return a.find(expected->second) != std::string::npos;
         });
}

const char* word(const OpReport& r) { return r.passed() ? "passes" : r.wrong() ? "wrong" : "inconclusive"; }

// Wrong ops that are let through, each with the reason why no step sees it.
const std::map<std::string, std::string> kMissed = {
    {"axis_softmax", "wrong for an axis that no sample has"},
    {"rotary", "wrong in f32 at a position that no sample has"},
    {"gauss_kernel", "wrong for a length scale of another shape than the samples have"},
    {"learned_pad", "wrong for a pair of arguments that no sample has"},
    {"border_pool", "wrong for an argument that no sample has: the pad is always 0"},
    {"global_gain", "wrong in f32 in sums of 100,000 terms and more"},
    {"power_norm", "wrong in f32 where powers of an input leave its range"},
    {"kinetic_energy", "wrong in f32 where one input is far smaller than the other"},
};

// Right twins that add in the order in which their chunks come: V6 finds that no run can be repeated.
const std::map<std::string, std::string> kBitsDepend = {{"column_affine", "its bits depend on threads"},
                                                        {"threaded_rows", "its bits depend on threads"}};

int check_pairs(const Options& o, const std::vector<Pair>& pairs, bool weak) {
  int caught = 0, caught_by_function = 0, rejected = 0, unsure = 0, rejected_by_function = 0, named = 0, count = 0;
  int bad = 0;
  std::string explained;
  auto explain = [&](const char* what, const std::map<std::string, std::string>& reasons, const std::string& name) {
    const auto why = reasons.find(name);
    explained += str(what, ": ", name, ": ", why == reasons.end() ? "not expected" : why->second, "\n");
  };
  for (const Pair& p : pairs) {
    if (!o.only.empty() && p.name != o.only) continue;
    ++count;
    const OpReport wrong = verifier::verify_entry(p.wrong, {.seed = o.seed});
    const OpReport right = verifier::verify_entry(p.right, {.seed = o.seed});
    const Verdict f_wrong = gradcheck_all(p.wrong, o), f_right = gradcheck_all(p.right, o);
    caught += wrong.wrong();
    caught_by_function += f_wrong == Verdict::wrong;
    rejected += right.wrong();
    unsure += !right.wrong() && !right.passed();
    rejected_by_function += f_right == Verdict::wrong;
    const bool lint = names_weakness(wrong, p.kind);
    named += wrong.wrong() || lint;
    bad += right.wrong() || f_right == Verdict::wrong || (!right.passed() && !kBitsDepend.count(p.name)) ||
           (weak ? !wrong.wrong() && !lint : !wrong.wrong() && !kMissed.count(p.name));
    if (!weak && !wrong.wrong()) explain("missed", kMissed, p.name);
    if (!right.passed()) explain("not passed, though right", kBitsDepend, p.name);
    if (o.show) std::printf("%s%s", wrong.to_string().c_str(), right.to_string().c_str());
    if (o.json)
      std::printf("%s\n", Json{{"name", p.name},
                               {"kind", p.kind},
                               {"mistake", p.mistake},
                               {"verify", word(wrong)},
                               {"verify_right", word(right)},
                               {"gradcheck", name_of(f_wrong)},
                               {"gradcheck_right", name_of(f_right)},
                               {"advice", wrong.advice}}
                              .dump()
                              .c_str());
    else
      std::printf("%-34s %-18s verify %-12s (right: %s)  gradcheck %s (right: %s)\n", p.name.c_str(), p.kind.c_str(),
                  word(wrong), word(right), std::string(name_of(f_wrong)).c_str(),
                  std::string(name_of(f_right)).c_str());
  }
  if (!o.json) {
    std::printf(
        "verify: %d of %d caught, %d right rejected, %d right inconclusive; gradcheck(f): %d caught, %d right "
        "rejected\n",
        caught, count, rejected, unsure, caught_by_function, rejected_by_function);
    std::printf("%s", explained.c_str());
    if (weak) std::printf("%d of %d weak lists named, or their wrong op rejected\n", named, count);
  }
  return bad > 0;
}

int check_difficult(const Options& o) {
  int called_wrong = 0, inconclusive = 0, count = 0;
  auto note = [&](const std::string& name, bool wrong, bool passed, const std::string& text) {
    ++count;
    called_wrong += wrong;
    inconclusive += !wrong && !passed;
    if (o.json)
      std::printf("%s\n", Json{{"name", name},
                               {"verdict", passed  ? "passes"
                                           : wrong ? "wrong"
                                                   : "inconclusive"}}
                              .dump()
                              .c_str());
    else if (!passed || o.show)
      std::printf("%s", text.c_str());
  };
  for (const verifier::Entry& e : difficult_ops()) {
    if (!o.only.empty() && e.name != o.only) continue;
    const OpReport r = verifier::verify_entry(e, {.seed = o.seed});
    note(e.name, r.wrong(), r.passed(), r.to_string());
  }
  if (!o.json)
    std::printf("verify: %d right ops of difficult kinds, %d called wrong, %d inconclusive\n", count, called_wrong,
                inconclusive);
  bool bad = called_wrong > 0 || inconclusive > 5;
  called_wrong = inconclusive = count = 0;
  for (const Function& f : difficult_functions(o.seed)) {
    if (!o.only.empty() && f.name != o.only) continue;
    const GradcheckReport r = gradcheck(f.f, f.inputs, {.seed = o.seed});
    const bool wrong = r.verdict == Verdict::wrong;
    note(f.name, wrong, r.passed(), str(f.name, ": ", r.to_string()));
  }
  if (!o.json)
    std::printf("gradcheck(f): %d right functions at difficult points, %d called wrong, %d inconclusive or at a kink\n",
                count, called_wrong, inconclusive);
  return bad || called_wrong > 0;
}

// Right code at many seeds: how often is it called wrong?
int check_right(const Options& o) {
  int called_wrong = 0, count = 0;
  std::vector<verifier::Entry> entries = difficult_ops();
  for (const std::vector<Pair>& group : {group_a(), group_b(), group_c(), weak_lists()})
    for (const Pair& p : group) entries.push_back(p.right);
  for (const verifier::Entry& e : entries)
    for (uint64_t seed = 1; seed <= o.seeds; ++seed) {
      const OpReport r = verifier::verify_entry(e, {.seed = seed});
      ++count;
      called_wrong += r.wrong();
      if (r.wrong()) std::printf("%s", r.to_string().c_str());
    }
  std::printf("verify: %d right ops at %d seeds: %d of %d called wrong\n", static_cast<int>(entries.size()),
              static_cast<int>(o.seeds), called_wrong, count);
  return called_wrong > 0;
}

Options parse(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--seed" && i + 1 < argc)
      o.seed = std::strtoull(argv[++i], nullptr, 10);
    else if (word == "--seeds" && i + 1 < argc)
      o.seeds = std::strtoull(argv[++i], nullptr, 10);
    else if (word == "--only" && i + 1 < argc)
      o.only = argv[++i];
    else if (word == "--json")
      o.json = true;
    else if (word == "--show")
      o.show = true;
    else
      o.group = word;
  }
  return o;
}

}  // namespace

int main(int argc, char** argv) try {
  const Options o = parse(argc, argv);
  if (o.group == "a") return check_pairs(o, group_a(), false);
  if (o.group == "b") return check_pairs(o, group_b(), false);
  if (o.group == "c") return check_pairs(o, group_c(), false);
  if (o.group == "right") return check_right(o);
  if (o.group == "weak") return check_pairs(o, weak_lists(), true);
  if (o.group == "difficult") return check_difficult(o);
  std::fprintf(stderr,
               "usage: strangers a|b|c|difficult|weak [--seed N] [--json] [--only NAME] [--show]\n"
               "       strangers right [--seeds N]\n");
  return 2;
} catch (const std::exception& e) {
  std::fprintf(stderr, "strangers: %s\n", e.what());
  return 1;
}
