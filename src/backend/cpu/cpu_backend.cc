// The backend of the CPU: cuts ops into tasks and hands them to kernels chosen when it was made.
#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

#include "backend/backend.h"
#include "backend/cpu/attention.h"
#include "backend/cpu/attention_tile.h"
#include "backend/cpu/columns.h"
#include "backend/cpu/linear.h"
#include "backend/cpu/prepacked.h"
#include "backend/cpu/rows.h"
#include "backend/expert_ranges.h"
#include "backend/reference_experts.h"
#include "base/check.h"
#include "base/matrix.h"

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
std::span<const std::int32_t> SpanOf(IndexView view) {
  return {view.data, static_cast<std::size_t>(view.size)};
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

  Memory& memory() override { return HostMemory(); }

  // A copy has large pages, unlike a mapped file.
  const void* Adopt(const void* host, std::size_t bytes, WeightUse use, Carver& carver) override {
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

  QuantizedView Quantize(const ConstMatrixView& host, const QuantizeOptions& options,
                         const MatrixView& storage) override {
    return QuantizeInto(context_, host, options, BytesIn(storage));
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

  void DoRun(const Op& op) override {
    std::visit([this](const auto& any) { Call(any); }, op);
  }

  void Call(const ops::Embed& op) {
    ForRows(op.y.rows, op.y.cols, [&](std::int64_t begin, std::int64_t end) {
      cpu::EmbedRows(SpanOf(op.ids), op.table, op.scale, op.y, begin, end);
    });
  }

  // Tasks are ranges of columns, because rows may have the same id.
  void Call(const ops::EmbedBackward& op) {
    ForRows(op.dy.cols, op.dy.rows, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = 0; n < op.dy.rows; ++n) {
        const float* dy = op.dy.Row<float>(n);
        float* row = op.d_table_acc.Row<float>(op.ids.data[n]);
        for (std::int64_t d = begin; d < end; ++d) row[d] += op.scale * dy[d];
      }
    });
  }

  void Call(const ops::RmsNorm& op) {
    ForRows(op.x.rows, op.x.cols, [&](std::int64_t begin, std::int64_t end) {
      cpu::RmsNormRows(op.x, op.weight, op.epsilon, op.y, op.rstd, begin, end);
    });
  }

  void Call(const ops::RmsNormBackward& op) {
    ForRows(op.x.rows, op.x.cols, [&](std::int64_t begin, std::int64_t end) {
      cpu::RmsNormBackwardRows(op.dy, op.x, op.weight, op.rstd, op.dx, op.store, begin, end);
    });
  }

  void Call(const ops::Linear& op) {
    if (op.x.rows == 0) return;
    cpu::LinearForward(machine_, op.linears, op.x, op.outputs, op.store);
  }
  void Call(const ops::LinearBackward& op) {
    if (op.x.rows == 0) return;
    cpu::LinearBackward(machine_, op.linears, op.x, op.gradients, op.dx, op.store);
  }
  void Call(const ops::ExpertLinear& op) {
    ForEachExpert(op, [this](const ops::Linear& linear) { Call(linear); });
  }
  void Call(const ops::ExpertLinearBackward& op) {
    ForEachExpert(op, [this](const ops::LinearBackward& linear) { Call(linear); });
  }

  void Call(const ops::Rope& op) {
    ForRows(op.x_inout.rows, op.x_inout.cols, [&](std::int64_t begin, std::int64_t end) {
      cpu::RopeRows(SpanOf(op.positions), op.table, op.heads, op.inverse, op.x_inout, begin, end);
    });
  }

  void Call(const ops::Attention& op) {
    if (op.q.rows == 0) return;
    cpu::AttentionForward(machine_, op.shape, op.spans, op.q, op.k, op.v, op.o, op.lse);
  }
  void Call(const ops::AttentionBackward& op) {
    if (op.q.rows == 0) return;
    cpu::AttentionBackward(machine_, op.shape, op.spans, op.d_o, op.q, op.k, op.v, op.o, op.lse,
                           op.dq, op.dk, op.dv);
  }

  void Call(const ops::GatedActivation& op) {
    ForRows(op.y.rows, op.y.cols, [&](std::int64_t begin, std::int64_t end) {
      cpu::GatedRows(op.activation, op.gate, op.up, op.y, begin, end);
    });
  }
  void Call(const ops::GatedActivationBackward& op) {
    ForRows(op.dy.rows, op.dy.cols, [&](std::int64_t begin, std::int64_t end) {
      cpu::GatedBackwardRows(op.activation, op.dy, op.gate, op.up, op.d_gate, op.d_up, begin, end);
    });
  }

  void Call(const ops::CrossEntropy& op) {
    const MatrixView& logits = op.logits_inout;
    ForRows(logits.rows, logits.cols, [&](std::int64_t begin, std::int64_t end) {
      cpu::CrossEntropyRows(SpanOf(op.targets), op.softcap, op.row_scale, logits, op.logprob,
                            op.hit, begin, end);
    });
  }

  void Call(const ops::SumRows& op) {
    for (std::int64_t k = 0; k < op.values.rows; ++k) {
      double& sum = op.sums_acc.Row<double>(0)[k];
      for (std::int64_t n = 0; n < op.values.cols; ++n) {
        sum += static_cast<double>(op.values.Row<float>(k)[n]);
      }
    }
  }

  void Call(const ops::Copy& op) {
    ForRows(op.y.rows, op.y.cols, [&](std::int64_t begin, std::int64_t end) {
      cpu::CopyRows(op.x, {}, op.y, {}, false, begin, end);
    });
  }

  void Call(const ops::Zero& op) {
    ForRows(op.y.rows, op.y.cols, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = begin; n < end; ++n) {
        std::memset(static_cast<std::byte*>(op.y.data) + BytesOf(op.y.dtype, n * op.y.stride), 0,
                    BytesOf(op.y.dtype, op.y.cols));
      }
    });
  }

  void Call(const ops::Add& op) {
    ForRows(op.x.rows, op.x.cols, [&](std::int64_t begin, std::int64_t end) {
      cpu::CopyRows(op.x, {}, op.y_acc, {}, true, begin, end);
    });
  }

  void Call(const ops::GatherRows& op) {
    ForRows(op.y.rows, op.y.cols, [&](std::int64_t begin, std::int64_t end) {
      cpu::CopyRows(op.x, SpanOf(op.rows), op.y, {}, false, begin, end);
    });
  }

  // Tasks are ranges of columns, because rows may be added to the same one.
  void Call(const ops::ScatterAddRows& op) {
    constexpr std::int64_t kColumns = 64;
    const std::int64_t blocks = (op.x.cols + kColumns - 1) / kColumns;
    ForRows(blocks, kColumns * op.x.rows, [&](std::int64_t begin, std::int64_t end) {
      const std::int64_t first = begin * kColumns;
      const std::int64_t count = std::min(end * kColumns, op.x.cols) - first;
      cpu::CopyRows(Columns(op.x, first, count), {}, Columns(op.y_acc, first, count),
                    SpanOf(op.rows), true, 0, op.x.rows);
    });
  }

  // A row of router logits is short and each layer has one a token: the definition will do.
  void Call(const ops::RouteExperts& op) {
    reference::SelectExperts<float>(FloatsOf(op.logits), op.normalize, op.routing.experts.data,
                                    FloatsOf(op.weights));
    reference::FillSlots(op.weights.cols, op.routing);
  }
  void Call(const ops::RouteExpertsBackward& op) {
    reference::SelectExpertsBackward<float>(FloatsOf(op.d_weights), op.experts.data,
                                            FloatsOf(op.weights), op.normalize,
                                            FloatsOf(op.logits_inout));
  }

  void Call(const ops::ScaleRows& op) {
    ForRows(op.x.rows, op.x.cols, [&](std::int64_t begin, std::int64_t end) {
      cpu::ScaleRows(op.x, op.scale, op.y, begin, end);
    });
  }

  void Call(const ops::RowDots& op) {
    ForRows(op.x.rows, op.x.cols, [&](std::int64_t begin, std::int64_t end) {
      cpu::RowDots(op.x, op.y, Reshape(op.dots, 1), begin, end);
    });
  }

  void Call(const ops::AddNoise& op) {
    ForRows(op.y_acc.rows, op.y_acc.cols, [&](std::int64_t begin, std::int64_t end) {
      cpu::AddNoiseRows(op.key, op.magnitude, op.y_acc, begin, end);
    });
  }

  void Call(const ops::WeightGradient& op) {
    if (op.dy.rows == 0) return;
    cpu::WeightGradient(machine_, op.dy, op.x, op.dw_acc);
  }

  void Call(const ops::RowNorms& op) {
    workspace_.Check(cpu::RowWorkspace(op.weight.cols()));
    constexpr std::int64_t kRowsPerTask = 16;
    const std::int64_t rows = op.weight.rows();
    const auto task = [&](std::int64_t index, int worker) {
      Carver carver(workspace_.worker(worker));
      const MatrixView values = carver.Matrix(DType::kF32, 1, op.weight.cols());
      const std::int64_t begin = index * kRowsPerTask;
      cpu::RowNormsRange(op.weight, op.lora, op.norm, op.inverse, values.Row<float>(0), begin,
                         std::min(rows, begin + kRowsPerTask));
    };
    context_.ParallelFor((rows + kRowsPerTask - 1) / kRowsPerTask, std::ref(task));
  }

  void Call(const ops::ScaleColumns& op) {
    ForRows(op.x.rows, op.x.cols, [&](std::int64_t begin, std::int64_t end) {
      cpu::ScaleColumnsRows(op.x, op.gain, op.bias, op.y, op.store, begin, end);
    });
  }

  void Call(const ops::ColumnDots& op) {
    ForRows(op.x.cols, op.x.rows, [&](std::int64_t begin, std::int64_t end) {
      cpu::ColumnDotsRange(op.x, op.y, op.dots, begin, end);
    });
  }

  void Call(const ops::ColumnSquares& op) {
    ForRows(op.x.cols, op.x.rows, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t n = 0; n < op.x.rows; ++n) {
        double* sums = op.sums_acc.Row<double>(0);
        for (std::int64_t i = begin; i < end; ++i) {
          const double value = op.x.dtype == DType::kBF16
                                   ? static_cast<double>(ToFloat(op.x.Row<BFloat16>(n)[i]))
                                   : static_cast<double>(op.x.Row<float>(n)[i]);
          sums[i] += value * value;
        }
      }
    });
  }

  void Call(const ops::Update& op) {
    ForRows(op.gradient.cols, 1, [&](std::int64_t begin, std::int64_t end) {
      cpu::UpdateRange(op.args, op.gradient, op.param_inout, op.m_inout, op.v_inout, begin, end);
    });
  }

  void Call(const ops::SumOfSquares& op) {
    double partial[kMostPartialSums];
    const std::int64_t n = op.x.cols;
    const std::int64_t length =
        std::max(kElementsPerTask, (n + kMostPartialSums - 1) / kMostPartialSums);
    const std::int64_t pieces = (n + length - 1) / length;
    const auto task = [&](std::int64_t index, int) {
      partial[index] =
          cpu::SumOfSquaresRange(op.x, index * length, std::min(n, (index + 1) * length));
    };
    context_.ParallelFor(pieces, std::ref(task));
    *op.sum.Row<double>(0) = std::accumulate(partial, partial + pieces, 0.0);
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
