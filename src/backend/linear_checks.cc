// The checks of weights and linears.
#include <fmt/format.h>

#include <algorithm>

#include "backend/op_checks.h"
#include "backend/packed_lora.h"

namespace qlora {
namespace {

void CheckFourBit(const Checker& check, const char* name, const QuantizedView& q,
                  std::int64_t cols) {
  check.Equal("columns of weight", cols, q.cols);
  check.AtLeast("rows of weight", 1, q.rows);
  check.AtLeast("block size of weight", 1, q.block_size);
  if (q.packed == nullptr || q.code == nullptr || q.scales == nullptr) {
    check.Fail(name, "dense values, blocks, or 4-bit values with code and scales", "neither");
  }
  if (q.scale_type == ScaleType::kDoubleBnb &&
      (q.nested.absmax == nullptr || q.nested.map == nullptr || q.nested.block_size < 1)) {
    check.Fail(name, "nested scales for a double-quantized weight", "none");
  }
}

void CheckBlocks(const Checker& check, const char* name, const BlockView& blocks,
                 std::int64_t cols) {
  check.Equal("columns of weight", cols, blocks.cols);
  const BlockFormatInfo& info = InfoOf(blocks.format);
  if (blocks.data == nullptr || cols % info.values != 0) {
    check.Fail(name, fmt::format("rows of whole {} blocks of {} values", info.name, info.values),
               fmt::format("{} columns", cols));
  }
}

// A frozen weight (rows, cols).

void CheckRanges(Checker& check, const ops::Linear& op) {
  if (op.order == SumOrder::kFew) check.AtLeast("few rows", op.x.rows, kMostFewRows);
  if (op.order == SumOrder::kFastest) check.Equal("ranges", 0, std::ssize(op.ranges));
  std::int64_t end = op.ranges.empty() ? op.x.rows : 0;
  for (const LoraRows& range : op.ranges) {
    check.Equal("begin of a range", end, range.begin);
    check.Equal("adapters of a range", std::ssize(op.linears), std::ssize(range.loras));
    end += range.rows;
  }
  check.Equal("rows of all ranges", op.x.rows, end);
  for (const LinearView& linear : op.linears) {
    if (op.order != SumOrder::kFastest && linear.lora.dropout > 0) {
      check.Fail("lora.dropout", "0 in this order of sums", "dropout");
    }
    if (!op.ranges.empty()) check.Absent("lora.a beside ranges", linear.lora.a);
  }
}

}  // namespace

void CheckWeight(Checker& check, const char* name, const WeightView& weight, std::int64_t cols) {
  switch (weight.form()) {
    case WeightForm::kDense:
      return check.Frozen(name, weight.dense, weight.dense.rows, cols);
    case WeightForm::kFourBit:
      return CheckFourBit(check, name, weight.quantized, cols);
    case WeightForm::kBlocks:
      return CheckBlocks(check, name, weight.blocks, cols);
  }
}

void CheckLinear(Checker& check, const LinearView& linear, std::int64_t in_features) {
  const std::int64_t out_features = linear.weight.rows();
  CheckWeight(check, "weight", linear.weight, in_features);
  if (!linear.bias.empty()) check.Wide("bias", linear.bias, 1, out_features);
  const LoraView& lora = linear.lora;
  if (!lora.a.empty()) {
    check.Wide("lora.a", lora.a, lora.a.rows, in_features);
    check.Wide("lora.b", lora.b, out_features, lora.a.rows);
    if (!lora.packed_a.empty()) {
      check.Activation("lora.packed_a", lora.packed_a, lora.a.rows, in_features);
      check.Activation("lora.packed_b", lora.packed_b, PackedRows(out_features, lora.a.rows),
                       kPackedRows);
    }
    if (!(lora.dropout >= 0 && lora.dropout < 1)) {
      check.Fail("lora.dropout", "a value in [0, 1)", fmt::format("{}", lora.dropout));
    }
  } else {
    check.Absent("lora.b", lora.b);
  }
}

void CheckOutput(Checker& check, const ConstMatrixView& x, const LinearView& linear,
                 std::int64_t rank, const LinearOutput& out, Store store) {
  check.Activation("y", out.y, x.rows, linear.weight.rows());
  if (rank == 0) {
    check.Absent("u", out.u);
  } else {
    check.Wide("u", out.u, x.rows, rank);
  }
  check.Apart("y", out.y, "x", x);
  check.Apart("y", out.y, "u", out.u);
  check.Apart("u", out.u, "x", x);
  if (out.base.empty()) return;
  check.Activation("base", out.base, x.rows, linear.weight.rows());
  if (store != Store::kAdd) check.Fail("base", "Store::kAdd", "Store::kSet");
  if (out.base.dtype != out.y.dtype) {
    check.Fail("base", NameOf(out.y.dtype), NameOf(out.base.dtype));
  }
  check.Apart("y", out.y, "base", out.base);
  check.Apart("u", out.u, "base", out.base);
}

void CheckParameterGradients(Checker& check, const LinearView& linear, const LinearGradient& g) {
  const std::int64_t rank = linear.lora.a.rows;
  if (rank == 0) {
    check.Absent("da_acc", g.da_acc);
    check.Absent("db_acc", g.db_acc);
  } else {
    check.Wide("da_acc", g.da_acc, rank, linear.weight.cols());
    check.Wide("db_acc", g.db_acc, linear.weight.rows(), rank);
  }
  check.Apart("da_acc", g.da_acc, "lora.a", linear.lora.a);
  check.Apart("db_acc", g.db_acc, "lora.b", linear.lora.b);
}

void Check(Checker& check, const ops::Linear& op) {
  check.Activation("x", op.x, op.x.rows, op.x.cols);
  check.Equal("number of outputs", std::ssize(op.linears), std::ssize(op.outputs));
  CheckRanges(check, op);
  for (std::size_t l = 0; l < op.linears.size(); ++l) {
    check.SetLinear(l);
    std::int64_t rank = op.linears[l].lora.a.rows;
    CheckLinear(check, op.linears[l], op.x.cols);
    for (const LoraRows& range : op.ranges) {
      CheckLinear(check, {op.linears[l].weight, {}, range.loras[l]}, op.x.cols);
      rank = std::max(rank, range.loras[l].a.rows);
    }
    // As wide as the layout, where it may serve wider adapters.
    if (!op.ranges.empty()) rank = std::max(rank, op.outputs[l].u.cols);
    CheckOutput(check, op.x, op.linears[l], rank, op.outputs[l], op.store);
  }
}

void Check(Checker& check, const ops::LinearBackward& op) {
  check.Activation("x", op.x, op.x.rows, op.x.cols);
  check.Equal("number of gradients", std::ssize(op.linears), std::ssize(op.gradients));
  // An empty dx is not computed: nothing below needs the gradient.
  if (!op.dx.empty()) check.Activation("dx", op.dx, op.x.rows, op.x.cols);
  check.Apart("dx", op.dx, "x", op.x);
  for (std::size_t l = 0; l < op.linears.size(); ++l) {
    check.SetLinear(l);
    CheckLinear(check, op.linears[l], op.x.cols);
    const LinearGradient& g = op.gradients[l];
    const std::int64_t rank = op.linears[l].lora.a.rows;
    check.Activation("dy", g.dy, op.x.rows, op.linears[l].weight.rows());
    if (rank == 0) {
      check.Absent("u", g.u);
    } else {
      check.Wide("u", g.u, op.x.rows, rank);
    }
    CheckParameterGradients(check, op.linears[l], g);
    check.Apart("dx", op.dx, "dy", g.dy);
  }
}

}  // namespace qlora
