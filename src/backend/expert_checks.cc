// The checks of the ops of a mixture of experts.
#include <algorithm>

#include "backend/expert_ranges.h"
#include "backend/op_checks.h"

namespace qlora {
namespace {

// The linears of all experts, `group` for each, and the ranges of their rows in x.
void CheckExperts(Checker& check, std::span<const LinearView> linears,
                  std::span<const std::int32_t> begin, std::int64_t group,
                  const ConstMatrixView& x) {
  check.AtLeast("size of begin", 2, std::ssize(begin));
  check.Equal("first of begin", 0, begin.front());
  check.Equal("last of begin", x.rows, begin.back());
  for (std::size_t e = 1; e < begin.size(); ++e) check.AtLeast("begin", begin[e - 1], begin[e]);
  check.AtLeast("linears of an expert", 1, group);
  check.AtLeast("most linears of an expert", group, kMostExpertLinears);
  check.Equal("linears", (std::ssize(begin) - 1) * group, std::ssize(linears));
  for (std::size_t l = 0; l < linears.size(); ++l) {
    check.SetLinear(l);
    CheckLinear(check, linears[l], x.cols);
  }
}

// The largest rank of linear i of all experts.
std::int64_t LargestRank(std::span<const LinearView> linears, std::int64_t group, std::int64_t i) {
  std::int64_t largest = 0;
  for (std::int64_t l = i; l < std::ssize(linears); l += group) {
    largest = std::max(largest, linears[l].lora.a.rows);
  }
  return largest;
}

}  // namespace

void Check(Checker& check, const ops::ExpertLinear& op) {
  check.Activation("x", op.x, op.x.rows, op.x.cols);
  const std::int64_t group = std::ssize(op.outputs);
  CheckExperts(check, op.linears, op.begin, group, op.x);
  for (std::int64_t i = 0; i < group; ++i) {
    // u has room for the expert of the largest rank; others use its first columns.
    CheckOutput(check, op.x, op.linears[i], LargestRank(op.linears, group, i), op.outputs[i],
                Store::kSet);
  }
}

void Check(Checker& check, const ops::ExpertLinearBackward& op) {
  check.Activation("x", op.x, op.x.rows, op.x.cols);
  check.Activation("dx", op.dx, op.x.rows, op.x.cols);
  check.Apart("dx", op.dx, "x", op.x);
  // dy and u are given with the first `group` gradients, for the rows of all experts.
  const std::int64_t group =
      std::ssize(op.linears) / std::max<std::int64_t>(1, std::ssize(op.begin) - 1);
  CheckExperts(check, op.linears, op.begin, group, op.x);
  check.Equal("number of gradients", std::ssize(op.linears), std::ssize(op.gradients));
  for (std::size_t l = 0; l < op.linears.size(); ++l) {
    check.SetLinear(l);
    CheckParameterGradients(check, op.linears[l], op.gradients[l]);
  }
  for (std::int64_t i = 0; i < group; ++i) {
    const LinearGradient& g = op.gradients[i];
    check.Activation("dy", g.dy, op.x.rows, op.linears[i].weight.rows());
    const std::int64_t rank = LargestRank(op.linears, group, i);
    if (rank == 0) {
      check.Absent("u", g.u);
    } else {
      check.Wide("u", g.u, op.x.rows, rank);
    }
    check.Apart("dx", op.dx, "dy", g.dy);
    check.Apart("dx", op.dx, "u", g.u);
  }
}

void Check(Checker& check, const ops::RouteExperts& op) {
  // Every token has k experts, so pairs and slots have the same number.
  const std::int64_t N = op.logits.rows;
  const std::int64_t pairs = N * op.weights.cols;
  check.Wide("logits", op.logits, N, op.logits.cols);
  check.Wide("weights", op.weights, N, op.weights.cols);
  check.AtLeast("experts to choose from", op.weights.cols, op.logits.cols);
  check.Equal("experts", pairs, op.routing.experts.size);
  check.Equal("pairs", pairs, op.routing.pairs.size);
  check.Equal("tokens", pairs, op.routing.tokens.size);
  check.Equal("slots", pairs, op.routing.slots.size);
  check.Equal("begin", op.logits.cols + 1, op.routing.begin.size);
  check.Apart("weights", op.weights, "logits", op.logits);
  if (!op.bias.empty()) check.Wide("bias", op.bias, 1, op.logits.cols);
}

void Check(Checker& check, const ops::RouteExpertsBackward& op) {
  check.Wide("logits_inout", op.logits_inout, op.logits_inout.rows, op.logits_inout.cols);
  check.Wide("weights", op.weights, op.logits_inout.rows, op.weights.cols);
  check.Wide("d_weights", op.d_weights, op.logits_inout.rows, op.weights.cols);
  check.Equal("experts", op.weights.rows * op.weights.cols, op.experts.size);
  check.Apart("logits_inout", op.logits_inout, "weights", op.weights);
  check.Apart("logits_inout", op.logits_inout, "d_weights", op.d_weights);
}

void Check(Checker& check, const ops::GateRows& op) {
  check.Activation("x", op.x, op.x.rows, op.x.cols);
  check.Activation("gate", op.gate, op.x.rows, 1);
  check.Activation("y", op.y, op.x.rows, op.x.cols);
  check.ApartOrSame("y", op.y, "x", op.x);
  check.Apart("y", op.y, "gate", op.gate);
}

void Check(Checker& check, const ops::GateRowsBackward& op) {
  check.Activation("dy", op.dy, op.dy.rows, op.dy.cols);
  check.Activation("x", op.x, op.dy.rows, op.dy.cols);
  check.Activation("gate", op.gate, op.dy.rows, 1);
  check.Activation("d_gate", op.d_gate, op.dy.rows, 1);
  check.Activation("dx", op.dx, op.dy.rows, op.dy.cols);
  check.ApartOrSame("d_gate", op.d_gate, "gate", op.gate);
  check.Apart("d_gate", op.d_gate, "dy", op.dy);
  check.Apart("d_gate", op.d_gate, "x", op.x);
  check.ApartOrSame("dx", op.dx, "dy", op.dy);
  check.Apart("dx", op.dx, "x", op.x);
  check.Apart("dx", op.dx, "gate", op.gate);
  check.Apart("dx", op.dx, "d_gate", op.d_gate);
}

}  // namespace qlora
