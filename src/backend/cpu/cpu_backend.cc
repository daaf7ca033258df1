// The backend of the CPU: cuts ops into tasks and hands them to kernels chosen when it was made.
#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

#include "backend/backend.h"
#include "backend/cpu/attention/attention.h"
#include "backend/cpu/causal_conv.h"
#include "backend/cpu/delta/delta_rule.h"
#include "backend/cpu/gemm/prepacked.h"
#include "backend/cpu/int8/coded_operand.h"
#include "backend/cpu/int8/int8_product.h"
#include "backend/cpu/linear/linear.h"
#include "backend/cpu/row_ops.h"
#include "backend/cpu/views.h"
#include "backend/expert_ranges.h"
#include "base/check.h"
#include "base/matrix.h"

namespace qlora {
namespace {

// Elements of a task of an elementwise op: a few tens of microseconds.
constexpr std::int64_t kElementsPerTask = 32768;  // a multiple of kDynamicBlock
// Partial sums of SumOfSquares.
constexpr std::int64_t kMostPartialSums = 256;

cpu::Kernels KernelsOf(const Compute& compute) {
  cpu::Kernels kernels = cpu::SelectKernels(compute.operands);
  if (compute.frozen != FrozenProducts::kFloat) kernels.int8 = &cpu::KernelsOf(ActiveInt8Dots());
  kernels.int8_backward = compute.frozen == FrozenProducts::kInt8;
  return kernels;
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(Context& context, const Compute& compute)
      : context_(context),
        kernels_(KernelsOf(compute)),
        machine_{context, kernels_, workspace_},
        float_machine_{context, cpu::SelectKernels(DType::kF32), workspace_} {}

  std::size_t WorkspaceBytes(const BackendLimits& limits) const override {
    return SizeOf(limits).Total(context_.threads());
  }
  void Reserve(const BackendLimits& limits) override {
    workspace_.Reserve(SizeOf(limits), context_.threads());
  }

  Memory& memory() const override { return HostMemory(); }

  // A copy has large pages, unlike a mapped file.
  const void* Adopt(const void* host, std::size_t bytes, WeightUse use, Carver& carver) override {
    // Training reads each weight a few times per step for thousands of rows, which hides the cost
    // of small pages; generation reads all weights once per token and is limited by that reading.
    if (use == WeightUse::kTraining) return host;
    void* copy = carver.Matrix(DType::kU8, 1, static_cast<std::int64_t>(bytes)).data;
    if (copy == nullptr) return nullptr;
    constexpr std::size_t kPiece = std::size_t{4} << 20;
    const auto task = [&](std::int64_t piece, int) {
      const std::size_t begin = piece * kPiece;
      std::memcpy(static_cast<std::byte*>(copy) + begin,
                  static_cast<const std::byte*>(host) + begin, std::min(kPiece, bytes - begin));
    };
    context_.ParallelFor(static_cast<std::int64_t>((bytes + kPiece - 1) / kPiece), std::ref(task));
    return copy;
  }

  std::size_t PrepackedBytes(const WeightView& weight) const override {
    // Codes are made of a weight as it is stored.
    if (kernels_.int8 != nullptr) return cpu::RowScaleBytes(weight);
    return weight.form() == WeightForm::kFourBit ? cpu::PrepackedBytes(kernels_, weight.quantized)
                                                 : 0;
  }
  void Prepack(const WeightView& weight, std::byte* out) override {
    QLORA_DCHECK(PrepackedBytes(weight) > 0);
    if (kernels_.int8 != nullptr) return cpu::PackRowScales(context_, weight, out);
    cpu::Prepack(machine_, weight.quantized, out);
  }

 private:
  QuantizedView DoQuantize(const ConstMatrixView& host, const QuantizeOptions& options,
                           const MatrixView& storage) override {
    return QuantizeInto(context_, host, options, BytesIn(storage));
  }

  cpu::WorkspaceSize SizeOf(const BackendLimits& limits) const {
    const AttentionShape attention = {
        .heads = limits.heads, .kv_heads = limits.kv_heads, .head_dim = limits.head_dim};
    // The maximum, not the sum: ops run one after the other and each carves the same workspace
    // again.
    cpu::WorkspaceSize size = cpu::RowWorkspace(limits.features);
    size =
        Max(size, cpu::LinearWorkspace(kernels_, limits.rows, limits.gradient_rows, limits.features,
                                       limits.features, limits.lora_rank, limits.any_order));
    // The output head: vocab_rows rows at a time, V outputs, no adapter (rank 0). Its backward pass
    // takes no more rows at a time than its forward pass.
    size = Max(size, cpu::LinearWorkspace(kernels_, limits.vocab_rows,
                                          std::min(limits.vocab_rows, limits.gradient_rows),
                                          limits.features, std::max(limits.vocab, limits.features),
                                          0, limits.any_order));
    if (limits.kv_heads > 0) {
      size = Max(size, cpu::AttentionForwardWorkspace(kernels_, attention));
      size = Max(size, cpu::AttentionBackwardWorkspace(kernels_, attention, limits.gradient_rows,
                                                       limits.gradient_length));
    }
    if (limits.delta_rule.heads > 0) {
      size = Max(size, cpu::DeltaForwardWorkspace(float_machine_.kernels, limits.delta_rule));
      size = Max(size, cpu::DeltaBackwardWorkspace(float_machine_.kernels, limits.delta_rule,
                                                   limits.gradient_length));
    }
    return size;
  }

  // Calls run(range) for ranges of [0, count) that have about kElementsPerTask elements, of which
  // there are `length` for each.
  template <typename Fn>
  void ForRanges(std::int64_t count, std::int64_t length, const Fn& run) {
    // The cut depends on the shapes alone, never on the number of threads: results of ops that sum
    // within a range are the same bits for every number of threads.
    const std::int64_t per_task =
        std::max<std::int64_t>(1, kElementsPerTask / std::max<std::int64_t>(1, length));
    const auto task = [&](std::int64_t index, int) {
      run(cpu::Range{index * per_task, std::min(count, (index + 1) * per_task)});
    };
    context_.ParallelFor(cpu::Pieces(count, per_task), std::ref(task));
  }
  // Calls run(op, range) for ranges of the rows or of the columns of m.
  template <typename Op>
  void ForRows(const ConstMatrixView& m, const Op& op, void (*run)(const Op&, cpu::Range)) {
    ForRanges(m.rows, m.cols, [&](cpu::Range rows) { run(op, rows); });
  }
  template <typename Op>
  void ForColumns(const ConstMatrixView& m, const Op& op, void (*run)(const Op&, cpu::Range)) {
    ForRanges(m.cols, m.rows, [&](cpu::Range columns) { run(op, columns); });
  }
  void CopyRows(const cpu::RowCopy& copy) { ForRows(copy.y, copy, cpu::CopyRows); }

  void DoRun(const Op& op) override {
    std::visit([this](const auto& any) { Call(any); }, op);
  }

  void Call(const ops::Embed& op) {
    if (op.table.form() != WeightForm::kDense) return ForRows(op.y, op, cpu::EmbedDecodedRows);
    CopyRows({.x = op.table.dense, .from = op.ids, .y = op.y, .scale = op.scale});
  }
  // Ranges of columns, as for ScatterAddRows: two rows of dy may be added to the row of the same
  // token.
  void Call(const ops::EmbedBackward& op) { ForColumns(op.dy, op, cpu::EmbedBackwardColumns); }
  void Call(const ops::AddNoise& op) { ForRows(op.y_acc, op, cpu::AddNoiseRows); }

  void Call(const ops::RmsNorm& op) { ForRows(op.x, op, cpu::RmsNormRows); }
  void Call(const ops::RmsNormBackward& op) { ForRows(op.x, op, cpu::RmsNormBackwardRows); }
  void Call(const ops::Rope& op) { ForRows(op.x_inout, op, cpu::RopeRows); }
  void Call(const ops::GatedActivation& op) { ForRows(op.y, op, cpu::GatedRows); }
  void Call(const ops::GatedActivationBackward& op) { ForRows(op.dy, op, cpu::GatedBackwardRows); }
  void Call(const ops::CrossEntropy& op) { ForRows(op.logits_inout, op, cpu::CrossEntropyRows); }
  void Call(const ops::KlDivergence& op) { ForRows(op.logits_inout, op, cpu::KlDivergenceRows); }

  // An expert that no token was routed to has N = 0, but kernels demand Product::rows > 0.
  void Call(const ops::Linear& op) {
    for (const LinearOutput& out : op.outputs) {
      if (!out.base.empty()) CopyRows({.x = out.base, .y = out.y});
    }
    if (op.x.rows > 0) cpu::LinearForward(machine_, op);
  }
  void Call(const ops::LinearBackward& op) {
    if (op.x.rows > 0) cpu::LinearBackward(machine_, op);
  }
  void Call(const ops::ExpertLinear& op) {
    ForEachExpert(op, [this](const ops::Linear& linear) { Call(linear); });
  }
  void Call(const ops::ExpertLinearBackward& op) {
    ForEachExpert(op, [this](const ops::LinearBackward& linear) { Call(linear); });
  }
  void Call(const ops::WeightGradient& op) {
    if (op.dy.rows > 0) cpu::WeightGradient(machine_, op);
  }

  void Call(const ops::Attention& op) {
    if (op.q.rows > 0) cpu::AttentionForward(machine_, op);
  }
  void Call(const ops::AttentionBackward& op) {
    if (op.q.rows > 0) cpu::AttentionBackward(machine_, op);
  }
  void Call(const ops::AttentionSinks& op) { ForRows(op.o_inout, op, cpu::AttentionSinksRows); }

  // Calls run(op, span, range) for ranges of the rows of each span, counted from its start.
  template <typename Op>
  void ForSpans(const Op& op, void (*run)(const Op&, const SequenceSpan&, cpu::Range)) {
    const std::int64_t per_task =
        std::max<std::int64_t>(1, kElementsPerTask / std::max<std::int64_t>(1, op.x.cols));
    cpu::ParallelParts(
        machine_, std::ssize(op.spans),
        [&](std::int64_t s) { return cpu::Pieces(op.spans[s].rows, per_task); },
        [&](std::int64_t s, std::int64_t part, int) {
          const std::int64_t begin = part * per_task;
          run(op, op.spans[s], {begin, std::min(op.spans[s].rows, begin + per_task)});
        });
  }
  // Windows change when no row reads them any more.
  void Call(const ops::CausalConv& op) {
    ForSpans(op, cpu::CausalConvRows);
    if (op.window_inout.empty()) return;
    for (const SequenceSpan& span : op.spans) cpu::ShiftWindow(op, span);
  }
  void Call(const ops::CausalConvBackward& op) { ForSpans(op, cpu::CausalConvBackwardRows); }
  void Call(const ops::GatedDeltaRule& op) { cpu::GatedDeltaRule(float_machine_, op); }
  void Call(const ops::GatedDeltaRuleBackward& op) {
    cpu::GatedDeltaRuleBackward(float_machine_, op);
  }

  void Call(const ops::Copy& op) { CopyRows({.x = op.x, .y = op.y}); }
  void Call(const ops::Add& op) { CopyRows({.x = op.x, .y = op.y_acc, .add = true}); }
  void Call(const ops::GatherRows& op) { CopyRows({.x = op.x, .from = op.rows, .y = op.y}); }
  void Call(const ops::ScaleRows& op) { CopyRows({.x = op.x, .y = op.y, .scales = op.scale}); }
  // Tasks are ranges of columns, because rows may be added to the same row.
  void Call(const ops::ScatterAddRows& op) {
    constexpr std::int64_t kColumns = 64;
    ForRanges(cpu::Pieces(op.x.cols, kColumns), kColumns * op.x.rows, [&](cpu::Range pieces) {
      const std::int64_t first = pieces.begin * kColumns;
      const std::int64_t count = std::min(pieces.end * kColumns, op.x.cols) - first;
      cpu::CopyRows({.x = Columns(op.x, first, count),
                     .y = Columns(op.y_acc, first, count),
                     .to = op.rows,
                     .add = true},
                    {0, op.x.rows});
    });
  }
  void Call(const ops::Zero& op) {
    ForRanges(op.y.rows, op.y.cols, [&](cpu::Range rows) {
      for (std::int64_t n = rows.begin; n < rows.end; ++n) {
        std::memset(static_cast<std::byte*>(op.y.data) + BytesOf(op.y.dtype, n * op.y.stride), 0,
                    BytesOf(op.y.dtype, op.y.cols));
      }
    });
  }

  void Call(const ops::RouteExperts& op) { cpu::RouteExperts(op); }
  void Call(const ops::RouteExpertsBackward& op) { cpu::RouteExpertsBackward(op); }
  void Call(const ops::GateRows& op) { ForRows(op.x, op, cpu::GateRows); }
  void Call(const ops::GateRowsBackward& op) { ForRows(op.dy, op, cpu::GateRowsBackward); }
  void Call(const ops::RowDots& op) {
    ForRanges(op.x.rows, op.x.cols,
              [&](cpu::Range rows) { cpu::RowDots(op.x, op.y, Reshape(op.dots, 1), rows); });
  }

  void Call(const ops::RowNorms& op) {
    workspace_.Check(cpu::RowWorkspace(op.weight.cols()));
    constexpr std::int64_t kRowsPerTask = 16;
    const std::int64_t rows = op.weight.rows();
    const auto task = [&](std::int64_t index, int worker) {
      Carver carver(workspace_.worker(worker));
      // One row of W + scale B A per worker: the merged weight of (O, I) values is never formed.
      const MatrixView values = carver.Matrix(DType::kF32, 1, op.weight.cols());
      const std::int64_t begin = index * kRowsPerTask;
      cpu::RowNormsRange(op, values.Row<float>(0), {begin, std::min(rows, begin + kRowsPerTask)});
    };
    context_.ParallelFor(cpu::Pieces(rows, kRowsPerTask), std::ref(task));
  }
  void Call(const ops::ScaleColumns& op) { ForRows(op.x, op, cpu::ScaleColumnsRows); }
  void Call(const ops::ColumnDots& op) { ForColumns(op.x, op, cpu::ColumnDotsColumns); }
  void Call(const ops::ColumnSquares& op) { ForColumns(op.x, op, cpu::ColumnSquaresColumns); }

  void Call(const ops::Update& op) {
    ForRanges(op.gradient.cols, 1, [&](cpu::Range elements) { cpu::UpdateRange(op, elements); });
  }
  void Call(const ops::SumOfSquares& op) {
    double partial[kMostPartialSums];
    const std::int64_t n = op.x.cols;
    // The pieces and the order in which their sums are added are functions of n, so the norm of the
    // gradient, by which updates are clipped, does not change with the number of threads.
    const std::int64_t length = std::max(kElementsPerTask, cpu::Pieces(n, kMostPartialSums));
    const std::int64_t pieces = cpu::Pieces(n, length);
    const auto task = [&](std::int64_t index, int) {
      partial[index] =
          cpu::SumOfSquaresRange(op.x, {index * length, std::min(n, (index + 1) * length)});
    };
    context_.ParallelFor(pieces, std::ref(task));
    *op.sum.Row<double>(0) = std::accumulate(partial, partial + pieces, 0.0);
  }
  void Call(const ops::SumRows& op) {
    for (std::int64_t k = 0; k < op.values.rows; ++k) {
      const float* values = op.values.Row<float>(k);
      double& sum = op.sums_acc.Row<double>(0)[k];
      sum = std::accumulate(values, values + op.values.cols, sum);
    }
  }

  Context& context_;
  const cpu::Kernels kernels_;
  cpu::Workspace workspace_;
  const cpu::Machine machine_;
  const cpu::Machine float_machine_;  // with products in float32
};

}  // namespace

std::unique_ptr<Backend> MakeCpuBackend(Context& context, const Compute& compute) {
  if (compute.operands != DType::kF32 && compute.operands != DType::kBF16) {
    ThrowInvalidInput("cpu backend: expected compute type F32 or BF16, found {}",
                      NameOf(compute.operands));
  }
  return std::make_unique<CpuBackend>(context, compute);
}

}  // namespace qlora
