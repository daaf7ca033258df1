// The backend of the CPU: cuts ops into tasks and hands them to kernels chosen when it was made.
#include <algorithm>
#include <functional>

#include "backend/backend.h"
#include "backend/cpu/attention.h"
#include "backend/cpu/attention_tile.h"
#include "backend/cpu/columns.h"
#include "backend/cpu/linear.h"
#include "backend/cpu/prepacked.h"
#include "backend/cpu/rows.h"
#include "backend/reference_experts.h"
#include "base/check.h"

namespace qlora {
namespace {

// Elements of a task of an elementwise op: a few tens of microseconds.
constexpr std::int64_t kElementsPerTask = 32768;  // a multiple of kDynamicBlock
// Partial sums of SumOfSquares.
constexpr std::int64_t kMostPartialSums = 256;

reference::Mat<const float> FloatsOf(const ConstMatrixView& m) {
  return {static_cast<const float*>(m.data), m.rows, m.cols, m.stride};
}
reference::Mat<float> FloatsOf(const MatrixView& m) {
  return {static_cast<float*>(m.data), m.rows, m.cols, m.stride};
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(Context& context, DType compute)
      : context_(context),
        kernels_(cpu::SelectKernels(compute)),
        machine_{context, kernels_, workspace_} {}

  std::size_t WorkspaceBytes(const BackendLimits& limits) const override {
    return SizeOf(limits).Total(context_.threads());
  }
  void Reserve(const BackendLimits& limits) override {
    workspace_.Reserve(SizeOf(limits), context_.threads());
  }

  std::size_t PrepackedBytes(const QuantizedView& q) const override {
    return kernels_.most_prepacked_rows > 0 ? cpu::PrepackedBytes(q) : 0;
  }
  void Prepack(const QuantizedView& q, std::byte* out) override {
    QLORA_DCHECK(PrepackedBytes(q) > 0);
    cpu::Prepack(context_, q, out);
  }

 private:
  cpu::WorkspaceSize SizeOf(const BackendLimits& limits) const {
    const AttentionShape attention = {
        .heads = limits.heads, .kv_heads = limits.kv_heads, .head_dim = limits.head_dim};
    cpu::WorkspaceSize size =
        cpu::LinearWorkspace(kernels_, limits.rows, limits.gradient_rows, limits.features,
                             limits.features, limits.lora_rank);
    size = Max(size, cpu::RowWorkspace(limits.features));
    size = Max(size,
               cpu::LinearWorkspace(kernels_, limits.vocab_rows,
                                    std::min(limits.vocab_rows, limits.gradient_rows),
                                    limits.features, std::max(limits.vocab, limits.features), 0));
    if (limits.kv_heads > 0) {
      size = Max(size, cpu::AttentionForwardWorkspace(kernels_, attention));
      size = Max(size, cpu::AttentionBackwardWorkspace(kernels_, attention, limits.gradient_rows,
                                                       limits.gradient_length));
    }
    return size;
  }

  // Calls rows(begin, end) for ranges of [0, count) of about kElementsPerTask elements.
  template <typename Fn>
  void ForRows(std::int64_t count, std::int64_t cols, const Fn& rows) {
    const std::int64_t per_task =
        std::max<std::int64_t>(1, kElementsPerTask / std::max<std::int64_t>(1, cols));
    const auto task = [&](std::int64_t index, int) {
      rows(index * per_task, std::min(count, (index + 1) * per_task));
    };
    context_.ParallelFor((count + per_task - 1) / per_task, std::ref(task));
  }

  void DoEmbed(std::span<const std::int32_t> ids, ConstMatrixView table, float scale,
               MatrixView y) override {
    ForRows(y.rows, y.cols, [&](std::int64_t begin, std::int64_t end) {
      cpu::EmbedRows(ids, table, scale, y, begin, end);
    });
  }

  void DoRmsNorm(ConstMatrixView x, ConstMatrixView weight, float epsilon, MatrixView y,
                 MatrixView rstd) override {
    ForRows(x.rows, x.cols, [&](std::int64_t begin, std::int64_t end) {
      cpu::RmsNormRows(x, weight, epsilon, y, rstd, begin, end);
    });
  }

  void DoRmsNormBackward(ConstMatrixView dy, ConstMatrixView x, ConstMatrixView weight,
                         ConstMatrixView rstd, MatrixView dx, Store store) override {
    ForRows(x.rows, x.cols, [&](std::int64_t begin, std::int64_t end) {
      cpu::RmsNormBackwardRows(dy, x, weight, rstd, dx, store, begin, end);
    });
  }

  void DoLinear(std::span<const LinearView> linears, ConstMatrixView x,
                std::span<const LinearOutput> outputs, Store store) override {
    cpu::LinearForward(machine_, linears, x, outputs, store);
  }

  void DoLinearBackward(std::span<const LinearView> linears, ConstMatrixView x,
                        std::span<const LinearGradient> gradients, MatrixView dx,
                        Store store) override {
    cpu::LinearBackward(machine_, linears, x, gradients, dx, store);
  }

  void DoRope(std::span<const std::int32_t> positions, const RopeTable& table, std::int64_t heads,
              bool inverse, MatrixView x_inout) override {
    ForRows(x_inout.rows, x_inout.cols, [&](std::int64_t begin, std::int64_t end) {
      cpu::RopeRows(positions, table, heads, inverse, x_inout, begin, end);
    });
  }

  void DoAttention(const AttentionShape& shape, std::span<const AttentionSpan> spans,
                   ConstMatrixView q, ConstMatrixView k, ConstMatrixView v, MatrixView o,
                   MatrixView lse) override {
    cpu::AttentionForward(machine_, shape, spans, q, k, v, o, lse);
  }

  void DoAttentionBackward(const AttentionShape& shape, std::span<const AttentionSpan> spans,
                           ConstMatrixView d_o, ConstMatrixView q, ConstMatrixView k,
                           ConstMatrixView v, ConstMatrixView o, ConstMatrixView lse, MatrixView dq,
                           MatrixView dk, MatrixView dv) override {
    cpu::AttentionBackward(machine_, shape, spans, d_o, q, k, v, o, lse, dq, dk, dv);
  }

  void DoGatedActivation(Activation activation, ConstMatrixView gate, ConstMatrixView up,
                         MatrixView y) override {
    ForRows(y.rows, y.cols, [&](std::int64_t begin, std::int64_t end) {
      cpu::GatedRows(activation, gate, up, y, begin, end);
    });
  }

  void DoGatedActivationBackward(Activation activation, ConstMatrixView dy, ConstMatrixView gate,
                                 ConstMatrixView up, MatrixView d_gate, MatrixView d_up) override {
    ForRows(dy.rows, dy.cols, [&](std::int64_t begin, std::int64_t end) {
      cpu::GatedBackwardRows(activation, dy, gate, up, d_gate, d_up, begin, end);
    });
  }

  void DoCrossEntropy(std::span<const std::int32_t> targets, float softcap, double gradient_scale,
                      MatrixView logits_inout, MatrixView row_loss, MatrixView row_hit) override {
    ForRows(logits_inout.rows, logits_inout.cols, [&](std::int64_t begin, std::int64_t end) {
      cpu::CrossEntropyRows(targets, softcap, gradient_scale, logits_inout, row_loss, row_hit,
                            begin, end);
    });
  }

  void DoAdd(ConstMatrixView x, MatrixView y_acc) override {
    ForRows(x.rows, x.cols, [&](std::int64_t begin, std::int64_t end) {
      cpu::CopyRows(x, {}, y_acc, {}, true, begin, end);
    });
  }

  void DoGatherRows(ConstMatrixView x, std::span<const std::int32_t> rows, MatrixView y) override {
    ForRows(y.rows, y.cols, [&](std::int64_t begin, std::int64_t end) {
      cpu::CopyRows(x, rows, y, {}, false, begin, end);
    });
  }

  void DoScatterAddRows(ConstMatrixView x, std::span<const std::int32_t> rows,
                        MatrixView y_acc) override {
    ForRows(x.rows, x.cols, [&](std::int64_t begin, std::int64_t end) {
      cpu::CopyRows(x, {}, y_acc, rows, true, begin, end);
    });
  }

  // A row of router logits is short and each layer has one a token: the definition will do.
  void DoSelectExperts(ConstMatrixView logits, bool normalize, std::span<std::int32_t> experts,
                       MatrixView weights) override {
    reference::SelectExperts<float>(FloatsOf(logits), normalize, experts, FloatsOf(weights));
  }

  void DoSelectExpertsBackward(ConstMatrixView d_weights, std::span<const std::int32_t> experts,
                               ConstMatrixView weights, bool normalize,
                               MatrixView logits_inout) override {
    reference::SelectExpertsBackward<float>(FloatsOf(d_weights), experts, FloatsOf(weights),
                                            normalize, FloatsOf(logits_inout));
  }

  void DoScaleRows(ConstMatrixView x, ConstMatrixView scale, MatrixView y) override {
    ForRows(x.rows, x.cols,
            [&](std::int64_t begin, std::int64_t end) { cpu::ScaleRows(x, scale, y, begin, end); });
  }

  void DoRowDots(ConstMatrixView x, ConstMatrixView y, MatrixView dots) override {
    ForRows(x.rows, x.cols, [&](std::int64_t begin, std::int64_t end) {
      cpu::RowDots(x, y, Reshape(dots, 1), begin, end);
    });
  }

  void DoAddNoise(RandomKey key, ConstMatrixView magnitude, MatrixView y_acc) override {
    ForRows(y_acc.rows, y_acc.cols, [&](std::int64_t begin, std::int64_t end) {
      cpu::AddNoiseRows(key, magnitude, y_acc, begin, end);
    });
  }

  void DoWeightGradient(ConstMatrixView dy, ConstMatrixView x, MatrixView dw_acc) override {
    cpu::WeightGradient(machine_, dy, x, dw_acc);
  }

  void DoRowNorms(const WeightView& weight, const LoraView& lora, MatrixView norm,
                  MatrixView inverse) override {
    workspace_.Check(cpu::RowWorkspace(weight.cols()));
    constexpr std::int64_t kRowsPerTask = 16;
    const auto task = [&](std::int64_t index, int worker) {
      Carver carver(workspace_.worker(worker));
      const MatrixView values = carver.Matrix(DType::kF32, 1, weight.cols());
      const std::int64_t begin = index * kRowsPerTask;
      cpu::RowNormsRange(weight, lora, norm, inverse, values.Row<float>(0), begin,
                         std::min(weight.rows(), begin + kRowsPerTask));
    };
    context_.ParallelFor((weight.rows() + kRowsPerTask - 1) / kRowsPerTask, std::ref(task));
  }

  void DoScaleColumns(ConstMatrixView x, ConstMatrixView gain, ConstMatrixView bias, MatrixView y,
                      Store store) override {
    ForRows(x.rows, x.cols, [&](std::int64_t begin, std::int64_t end) {
      cpu::ScaleColumnsRows(x, gain, bias, y, store, begin, end);
    });
  }

  void DoColumnDots(ConstMatrixView x, ConstMatrixView y, MatrixView dots) override {
    ForRows(x.cols, x.rows, [&](std::int64_t begin, std::int64_t end) {
      cpu::ColumnDotsRange(x, y, dots, begin, end);
    });
  }

  void DoUpdate(const UpdateArgs& args, ConstMatrixView gradient, MatrixView param_inout,
                const Moment& m_inout, const Moment& v_inout) override {
    ForRows(gradient.cols, 1, [&](std::int64_t begin, std::int64_t end) {
      cpu::UpdateRange(args, gradient, param_inout, m_inout, v_inout, begin, end);
    });
  }

  double DoSumOfSquares(ConstMatrixView x) override {
    double partial[kMostPartialSums];
    const std::int64_t length =
        std::max(kElementsPerTask, (x.cols + kMostPartialSums - 1) / kMostPartialSums);
    const std::int64_t pieces = (x.cols + length - 1) / length;
    const auto task = [&](std::int64_t index, int) {
      partial[index] =
          cpu::SumOfSquaresRange(x, index * length, std::min(x.cols, (index + 1) * length));
    };
    context_.ParallelFor(pieces, std::ref(task));
    double total = 0;
    for (std::int64_t i = 0; i < pieces; ++i) total += partial[i];
    return total;
  }

  Context& context_;
  const cpu::Kernels& kernels_;
  cpu::Workspace workspace_;
  const cpu::Machine machine_;
};

}  // namespace

std::unique_ptr<Backend> MakeCpuBackend(Context& context, DType compute) {
  if (compute != DType::kF32 && compute != DType::kBF16) {
    ThrowInvalidInput("cpu backend: expected compute type F32 or BF16, found {}", NameOf(compute));
  }
  return std::make_unique<CpuBackend>(context, compute);
}

}  // namespace qlora
