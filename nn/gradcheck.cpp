#include "nn/gradcheck.h"

namespace bg {

GradcheckReport gradcheck(const Module& model, const std::function<Vars()>& f, const GradcheckOptions& options) {
  const NamedParameters parameters = model.parameters();
  std::vector<std::string> paths;
  for (const NamedParameter& p : parameters) paths.push_back(p.path);
  return gradcheck_parameters(f, vars_of(parameters), paths, options);
}

}  // namespace bg
