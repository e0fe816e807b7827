#include "autograd/verify/given.h"

#include <algorithm>

#include "autograd/verify/subject.h"
#include "core/tensor_ops.h"

namespace bg {
namespace verifier {
namespace {

Tensor to_tensor(const Arr<double>& a) { return Tensor::of(a.v, a.shape); }

Tensors to_tensors(const Arrs<double>& in) {
  Tensors out;
  for (const Arr<double>& a : in) out.push_back(to_tensor(a));
  return out;
}

Arrs<double> to_doubles(const Tensors& in) { return to_arrs<double>(in); }

class GivenPoint final : public Point {
 public:
  GivenPoint(Sample<NoArgs> sample, std::shared_ptr<const Given> f) : f_(std::move(f)) {
    label = std::move(sample.label);
    values = std::move(sample.inputs);
    zero_grads = std::move(sample.zero_grads);
    kink = std::move(sample.kink);
    inputs = f_->inputs;
    broadcasts = f_->broadcasts;
    convention = static_cast<bool>(f_->gradient_of);
    nonlinear = !f_->nonlinear.empty();
    has = {.reference = static_cast<bool>(f_->reference),
           .tangents = static_cast<bool>(f_->jvp),
           .wide = false,
           .node = false};
    bg::detail::check_input_count(f_->name, values.size(), inputs);
  }

  Run run(const Tensors& in, bool) const override {
    Given::Result result = f_->forward(in);
    Run r;
    r.out = result.outputs;
    r.backward = [this, in, own = std::move(result.backward)](const Tensors& dy, const Need& need, int mutant) {
      return mutant < 0 ? own(dy, need) : f_->mutants[static_cast<size_t>(mutant)].forward(in).backward(dy, need);
    };
    return r;
  }
  Arrs<double> reference(const Arrs<double>& in) const override { return to_doubles(f_->reference(like_values(in))); }
  Arrs<double> gradient_of(const Arrs<double>& in) const override {
    return to_doubles(f_->gradient_of(like_values(in)));
  }
  Arrs<Dual<double>> reference(const Arrs<Dual<double>>& in) const override {
    Arrs<double> x, u;
    for (const Arr<Dual<double>>& a : in) {
      x.push_back(part(a, &Dual<double>::v));
      u.push_back(part(a, &Dual<double>::d));
    }
    const Tensors at = like_values(x);
    const Tensors dy = f_->jvp(at, to_tensors(u));
    Arrs<Dual<double>> out;
    for (const Tensor& t : dy) {  // the values are not looked at: tangents come from here alone
      Arr<Dual<double>> a(t.shape());
      const std::vector<double> d = t.to_vector<double>();
      for (size_t k = 0; k < d.size(); ++k) a.v[k].d = d[k];
      out.push_back(std::move(a));
    }
    return out;
  }
  Arrs<long double> reference(const Arrs<long double>&) const override { fail(f_->name, "no formula in long double"); }
  Arrs<Dual<long double>> reference(const Arrs<Dual<long double>>&) const override {
    fail(f_->name, "no formula in long double");
  }
  Vars apply(const Vars&) const override { fail(f_->name, "the engine does not record a given function"); }
  Vars compose(const Vars& in) const override { return f_->compose(in); }

 private:
  // Integer inputs come back as what they were.
  Tensors like_values(const Arrs<double>& in) const {
    Tensors out = to_tensors(in);
    for (size_t i = 0; i < out.size(); ++i)
      if (values[i].defined() && !is_float(values[i].dtype())) out[i] = values[i];
    return out;
  }
  static Arr<double> part(const Arr<Dual<double>>& a, double Dual<double>::*member) {
    Arr<double> out(a.shape);
    for (size_t k = 0; k < a.v.size(); ++k) out.v[k] = a.v[k].*member;
    return out;
  }

  std::shared_ptr<const Given> f_;
};

}  // namespace

Entry make_entry(const Given& f) {
  auto need = [&](bool there, std::string_view what) {
    if (!there) fail<UsageError>("verify", str("the function has no ", what), {}, str("a Given with ", what));
  };
  need(!f.name.empty(), "name");
  need(!f.inputs.empty(), "inputs");
  need(static_cast<bool>(f.forward), "forward");
  need(static_cast<bool>(f.samples), "samples");
  need(f.convention.empty() == !f.gradient_of, "convention and gradient_of, or neither of them");
  Entry e;
  e.name = f.name;
  e.composed = static_cast<bool>(f.compose);
  e.f32_bound = f.f32_bound;
  e.convention = f.convention;
  e.nonlinear = f.nonlinear;
  for (const Given::Mutant& m : f.mutants) e.mutants.push_back({m.name, m.equivalent});
  auto shared = std::make_shared<const Given>(f);
  e.samples = [shared](Rng& rng) {
    std::vector<std::unique_ptr<Point>> points;
    for (Sample<NoArgs>& s : shared->samples(rng)) points.push_back(std::make_unique<GivenPoint>(std::move(s), shared));
    return points;
  };
  return e;
}

}  // namespace verifier

OpReport verify(const Given& f, const VerifyOptions& options) {
  return verifier::verify_entry(verifier::make_entry(f), options);
}

}  // namespace bg
