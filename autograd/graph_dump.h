// Pictures of graphs, for looking at what was recorded and what it keeps in memory.
#pragma once

#include "autograd/var.h"

namespace bg {

/// The graph behind `outputs` in Graphviz's DOT language: one node per op (name, scope, output shapes, bytes saved for
/// backward), one box per leaf that requires a gradient, edges labelled with input names. Graphs of more than
/// `max_nodes` ops are cut off, which the label says. Render it with: dot -Tsvg graph.dot
std::string to_dot(const Vars& outputs, size_t max_nodes = 2000);

}  // namespace bg
