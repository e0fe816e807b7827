#include "autograd/graph_dump.h"

#include <map>
#include <unordered_map>

namespace bg {
namespace {

std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n')
      out += "\\n";
    else
      out += c;
  }
  return out + "\"";
}

std::string op_label(const Node& node) {
  std::string text(node.name());
  if (!node.scope.empty()) text += "\n" + node.scope;
  for (const Node::Value& v : node.outputs) text += str("\n", v.dtype, " ", v.shape);
  if (const int64_t bytes = node.saved_bytes()) text += str("\nsaved ", bytes, " bytes");
  return text;
}

}  // namespace

std::string to_dot(const Vars& outputs, size_t max_nodes) {
  std::map<uint64_t, const Node*, std::greater<>> waiting;  // latest first, so that users come before what they use
  std::unordered_map<const Meta*, std::string> leaves;
  std::string body;
  int64_t saved = 0;
  size_t shown = 0;
  auto id_of = [&](const Meta& meta, const Node::Value& value) {
    if (meta.node) {
      waiting.emplace(meta.node->id, meta.node.get());
      return str("n", meta.node->id);
    }
    auto [it, fresh] = leaves.emplace(&meta, str("leaf", leaves.size()));
    if (fresh)
      body +=
          str("  ", it->second, " [shape=box, label=", quoted(str("leaf\n", value.dtype, " ", value.shape)), "];\n");
    return it->second;
  };
  for (size_t k = 0; k < outputs.size(); ++k) {
    if (!outputs[k].requires_grad()) continue;
    body += str("  out", k, " [shape=plaintext, label=\"output ", k, "\"];\n");
    const std::string from = id_of(*outputs[k].meta(), {outputs[k].shape(), outputs[k].dtype()});
    body += str("  ", from, " -> out", k, ";\n");
  }
  while (!waiting.empty() && shown < max_nodes) {
    const Node& node = *waiting.begin()->second;
    waiting.erase(waiting.begin());
    ++shown;
    saved += node.saved_bytes();
    body += str("  n", node.id, " [label=", quoted(op_label(node)), "];\n");
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      if (!node.inputs[i]) continue;
      const std::string from = id_of(*node.inputs[i], node.input_values[i]);
      body += str("  ", from, " -> n", node.id, " [label=", quoted(node.input_name(static_cast<int>(i))), "];\n");
    }
  }
  return str("digraph boostgrad {\n  rankdir=TB;\n  node [shape=ellipse, fontname=\"sans-serif\"];\n  label=",
             quoted(str(shown, " ops, ", saved, " bytes saved for backward", waiting.empty() ? "" : "; cut off here")),
             ";\n", body, "}\n");
}

}  // namespace bg
