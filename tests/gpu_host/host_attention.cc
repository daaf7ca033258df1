// A library of attention: the reference backend on float64 copies of the operands.
#include <cstring>
#include <deque>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/attention_groups.h"
#include "base/check.h"
#include "gpu_host/host_runtime.h"
#include "gpu_host/model.h"
#include "gpu_host/shadow.h"

namespace gpu_host {
namespace {

using qlora::BFloat16;
using qlora::ConstMatrixView;
using qlora::DType;
using qlora::MatrixView;
using qlora::ThrowRuntime;
using qlora::ops::Attention;
using qlora::ops::AttentionBackward;

// Copies of operands in float64, and the way back.
class WideCopies {
 public:
  ConstMatrixView In(const ConstMatrixView& m) {
    const MatrixView copy = Out({nullptr, m.dtype, m.rows, m.cols, m.stride});
    for (std::int64_t r = 0; r < m.rows; ++r) {
      for (std::int64_t c = 0; c < m.cols; ++c) {
        copy.Row<double>(r)[c] =
            m.dtype == DType::kF32 ? m.Row<float>(r)[c] : ToFloat(m.Row<BFloat16>(r)[c]);
      }
    }
    return copy;
  }
  MatrixView Out(const MatrixView& m) {
    std::vector<double>& values = copies_.emplace_back(m.rows * m.cols);
    const MatrixView copy = {values.data(), DType::kF64, m.rows, m.cols, m.cols};
    if (m.data != nullptr) results_.emplace_back(m, copy);
    return copy;
  }
  // Rounds the results once.
  void Store() const {
    for (const auto& [to, from] : results_) {
      for (std::int64_t r = 0; r < to.rows; ++r) {
        for (std::int64_t c = 0; c < to.cols; ++c) {
          const auto value = static_cast<float>(from.Row<double>(r)[c]);
          if (to.dtype == DType::kF32) {
            to.Row<float>(r)[c] = value;
          } else {
            to.Row<BFloat16>(r)[c] = qlora::ToBFloat16(value);
          }
        }
        ShadowWrittenByHost(static_cast<std::byte*>(to.data) + BytesOf(to.dtype, r * to.stride),
                            BytesOf(to.dtype, to.cols));
      }
    }
  }

 private:
  std::deque<std::vector<double>> copies_;
  std::vector<std::pair<MatrixView, MatrixView>> results_;
};

void CheckOperand(const ConstMatrixView& m) {
  const std::size_t bytes = qlora::BytesOf(m.dtype, (m.rows - 1) * m.stride + m.cols);
  if (m.dtype != DType::kBF16 || !qlora::cuda::IsBlasOperand(m) || !IsDeviceMemory(m.data, bytes)) {
    ThrowRuntime("gpu model: an operand ({}, {}) of {} is not for a library of attention", m.rows,
                 m.cols, NameOf(m.dtype));
  }
}

template <typename AnyAttention>
void CheckCall(const AnyAttention& op, std::span<std::byte> room) {
  for (const ConstMatrixView& m : {ConstMatrixView(op.q), ConstMatrixView(op.k),
                                   ConstMatrixView(op.v), ConstMatrixView(op.o)}) {
    CheckOperand(m);
  }
  if (op.shape.softcap != 0) ThrowRuntime("gpu model: a library of attention has no caps");
  std::int64_t end = 0;
  for (const qlora::AttentionSpan& s : op.spans) {
    if (s.q_begin != end || s.kv_begin != end || s.q_rows != s.kv_rows) {
      ThrowRuntime("gpu model: spans for a library of attention do not follow one another");
    }
    end += s.q_rows;
  }
  if (!IsDeviceMemory(room.data(), room.size()) ||
      reinterpret_cast<std::uintptr_t>(room.data()) % 256 != 0) {
    ThrowRuntime("gpu model: the room of a library of attention is not aligned device memory");
  }
}

class HostAttention final : public qlora::cuda::AttentionLibrary {
 public:
  bool Run(qlora::cuda::Stream stream, const Attention& op, std::span<std::byte> room) override {
    if (op.shape.head_dim % 16 != 0) return false;
    CheckCall(op, room);
    Queue(stream, op, room, [](Attention wide, WideCopies& copies) {
      wide.q = copies.In(wide.q);
      wide.k = copies.In(wide.k);
      wide.v = copies.In(wide.v);
      wide.o = copies.Out(wide.o);
      wide.lse = copies.Out(wide.lse);
      return wide;
    });
    return true;
  }
  bool Run(qlora::cuda::Stream stream, const AttentionBackward& op,
           std::span<std::byte> room) override {
    // As cuDNN: sums of dq, and dk and dv of each query head where heads share keys, for a group of
    // sequences at a time.
    const std::int64_t row_bytes = (op.shape.heads > op.shape.kv_heads ? 12 : 4) * op.q.cols;
    const std::vector<qlora::AttentionSpan> spans = qlora::cuda::WithRows(op.spans);
    const auto groups = qlora::cuda::GroupSpans(
        spans, {.rows = std::ssize(room) / row_bytes, .sequences = std::ssize(spans)});
    if (op.shape.head_dim % 16 != 0 || groups.empty()) return false;
    CheckCall(op, room);
    for (const MatrixView& m : {op.dq, op.dk, op.dv}) CheckOperand(m);
    Queue(stream, op, room, [](AttentionBackward wide, WideCopies& copies) {
      wide.d_o = copies.In(wide.d_o);
      wide.q = copies.In(wide.q);
      wide.k = copies.In(wide.k);
      wide.v = copies.In(wide.v);
      wide.o = copies.In(wide.o);
      wide.lse = copies.In(wide.lse);
      wide.dq = copies.Out(wide.dq);
      wide.dk = copies.Out(wide.dk);
      wide.dv = copies.Out(wide.dv);
      return wide;
    });
    return true;
  }

 private:
  // The spans are taken now, the operands when the op runs.
  template <typename AnyAttention, typename Widen>
  static void Queue(qlora::cuda::Stream stream, const AnyAttention& op, std::span<std::byte> room,
                    Widen widen) {
    const auto run = [op, room, widen, spans = std::vector(op.spans.begin(), op.spans.end())] {
      std::memset(room.data(), 0xff, room.size());  // NaN in all types
      WideCopies copies;
      AnyAttention wide = widen(op, copies);
      wide.spans = spans;
      qlora::MakeReferenceBackend()->Run(wide);
      copies.Store();
    };
    Enqueue(run, QueueOf(stream));
  }
};

}  // namespace

std::unique_ptr<qlora::cuda::AttentionLibrary> MakeHostAttention() {
  return std::make_unique<HostAttention>();
}

}  // namespace gpu_host
