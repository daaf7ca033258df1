// A backend that measures where the time of a pass goes.
#ifndef QLORA_BENCH_TIMED_BACKEND_H_
#define QLORA_BENCH_TIMED_BACKEND_H_

#include <array>
#include <cstddef>

#include "backend/backend.h"
#include "base/stopwatch.h"

namespace qlora::bench {

// The ops of a step, by kind.
enum class Part : std::size_t {
  kProducts,
  kAttention,
  kNorms,
  kRope,
  kActivation,
  kLoss,
  kOptimizer,
  kOther,
};
inline constexpr std::size_t kParts = 8;
inline constexpr std::array<const char*, kParts> kPartNames = {
    "matrix products", "attention",     "RMSNorm",   "RoPE",
    "SwiGLU",          "cross-entropy", "optimizer", "embedding, rows"};

// Passes every op on to another backend, which must outlive it.
class TimedBackend final : public Backend {
 public:
  explicit TimedBackend(Backend& backend) : backend_(backend) {}

  // Seconds spent in each part since the last Reset.
  const std::array<double, kParts>& seconds() const { return seconds_; }
  void Reset() { seconds_ = {}; }

  std::size_t WorkspaceBytes(const BackendLimits& limits) const override {
    return backend_.WorkspaceBytes(limits);
  }
  void Reserve(const BackendLimits& limits) override { backend_.Reserve(limits); }

 private:
  // Calls op() and adds its time to a part.
  template <typename Op>
  auto Timed(Part part, const Op& op) {
    struct Timer {
      explicit Timer(double& to) : total(to) {}
      ~Timer() { total += watch.seconds(); }
      double& total;
      Stopwatch watch;
    } timer(seconds_[static_cast<std::size_t>(part)]);
    return op();
  }

  void DoEmbed(std::span<const std::int32_t> ids, ConstMatrixView table, float scale,
               MatrixView y) override {
    Timed(Part::kOther, [&] { backend_.Embed(ids, table, scale, y); });
  }
  void DoRmsNorm(ConstMatrixView x, ConstMatrixView weight, float epsilon, MatrixView y,
                 MatrixView rstd) override {
    Timed(Part::kNorms, [&] { backend_.RmsNorm(x, weight, epsilon, y, rstd); });
  }
  void DoRmsNormBackward(ConstMatrixView dy, ConstMatrixView x, ConstMatrixView weight,
                         ConstMatrixView rstd, MatrixView dx, Store store) override {
    Timed(Part::kNorms, [&] { backend_.RmsNormBackward(dy, x, weight, rstd, dx, store); });
  }
  void DoLinear(std::span<const LinearView> linears, ConstMatrixView x,
                std::span<const LinearOutput> outputs, Store store) override {
    Timed(Part::kProducts, [&] { backend_.Linear(linears, x, outputs, store); });
  }
  void DoLinearBackward(std::span<const LinearView> linears, ConstMatrixView x,
                        std::span<const LinearGradient> gradients, MatrixView dx,
                        Store store) override {
    Timed(Part::kProducts, [&] { backend_.LinearBackward(linears, x, gradients, dx, store); });
  }
  void DoRope(std::span<const std::int32_t> positions, const RopeTable& table, std::int64_t heads,
              bool inverse, MatrixView x_inout) override {
    Timed(Part::kRope, [&] { backend_.Rope(positions, table, heads, inverse, x_inout); });
  }
  void DoAttention(const AttentionShape& shape, std::span<const AttentionSpan> spans,
                   ConstMatrixView q, ConstMatrixView k, ConstMatrixView v, MatrixView o,
                   MatrixView lse) override {
    Timed(Part::kAttention, [&] { backend_.Attention(shape, spans, q, k, v, o, lse); });
  }
  void DoAttentionBackward(const AttentionShape& shape, std::span<const AttentionSpan> spans,
                           ConstMatrixView d_o, ConstMatrixView q, ConstMatrixView k,
                           ConstMatrixView v, ConstMatrixView o, ConstMatrixView lse, MatrixView dq,
                           MatrixView dk, MatrixView dv) override {
    Timed(Part::kAttention,
          [&] { backend_.AttentionBackward(shape, spans, d_o, q, k, v, o, lse, dq, dk, dv); });
  }
  void DoGatedActivation(Activation activation, ConstMatrixView gate, ConstMatrixView up,
                         MatrixView y) override {
    Timed(Part::kActivation, [&] { backend_.GatedActivation(activation, gate, up, y); });
  }
  void DoGatedActivationBackward(Activation activation, ConstMatrixView dy, ConstMatrixView gate,
                                 ConstMatrixView up, MatrixView d_gate, MatrixView d_up) override {
    Timed(Part::kActivation,
          [&] { backend_.GatedActivationBackward(activation, dy, gate, up, d_gate, d_up); });
  }
  void DoCrossEntropy(std::span<const std::int32_t> targets, float softcap, double gradient_scale,
                      MatrixView logits_inout, MatrixView row_loss, MatrixView row_hit) override {
    Timed(Part::kLoss, [&] {
      backend_.CrossEntropy(targets, softcap, gradient_scale, logits_inout, row_loss, row_hit);
    });
  }
  void DoAdd(ConstMatrixView x, MatrixView y_acc) override {
    Timed(Part::kOther, [&] { backend_.Add(x, y_acc); });
  }
  void DoGatherRows(ConstMatrixView x, std::span<const std::int32_t> rows, MatrixView y) override {
    Timed(Part::kOther, [&] { backend_.GatherRows(x, rows, y); });
  }
  void DoScatterAddRows(ConstMatrixView x, std::span<const std::int32_t> rows,
                        MatrixView y_acc) override {
    Timed(Part::kOther, [&] { backend_.ScatterAddRows(x, rows, y_acc); });
  }
  void DoSelectExperts(ConstMatrixView logits, bool normalize, std::span<std::int32_t> experts,
                       MatrixView weights) override {
    Timed(Part::kOther, [&] { backend_.SelectExperts(logits, normalize, experts, weights); });
  }
  void DoSelectExpertsBackward(ConstMatrixView d_weights, std::span<const std::int32_t> experts,
                               ConstMatrixView weights, bool normalize,
                               MatrixView logits_inout) override {
    Timed(Part::kOther, [&] {
      backend_.SelectExpertsBackward(d_weights, experts, weights, normalize, logits_inout);
    });
  }
  void DoScaleRows(ConstMatrixView x, ConstMatrixView scale, MatrixView y) override {
    Timed(Part::kOther, [&] { backend_.ScaleRows(x, scale, y); });
  }
  void DoRowDots(ConstMatrixView x, ConstMatrixView y, MatrixView dots) override {
    Timed(Part::kOther, [&] { backend_.RowDots(x, y, dots); });
  }
  void DoAddNoise(RandomKey key, ConstMatrixView magnitude, MatrixView y_acc) override {
    Timed(Part::kOther, [&] { backend_.AddNoise(key, magnitude, y_acc); });
  }
  void DoWeightGradient(ConstMatrixView dy, ConstMatrixView x, MatrixView dw_acc) override {
    Timed(Part::kProducts, [&] { backend_.WeightGradient(dy, x, dw_acc); });
  }
  void DoRowNorms(const WeightView& weight, const LoraView& lora, MatrixView norm,
                  MatrixView inverse) override {
    Timed(Part::kProducts, [&] { backend_.RowNorms(weight, lora, norm, inverse); });
  }
  void DoScaleColumns(ConstMatrixView x, ConstMatrixView gain, ConstMatrixView bias, MatrixView y,
                      Store store) override {
    Timed(Part::kOther, [&] { backend_.ScaleColumns(x, gain, bias, y, store); });
  }
  void DoColumnDots(ConstMatrixView x, ConstMatrixView y, MatrixView dots) override {
    Timed(Part::kOther, [&] { backend_.ColumnDots(x, y, dots); });
  }
  void DoUpdate(const UpdateArgs& args, ConstMatrixView gradient, MatrixView param_inout,
                const Moment& m_inout, const Moment& v_inout) override {
    Timed(Part::kOptimizer,
          [&] { backend_.Update(args, gradient, param_inout, m_inout, v_inout); });
  }
  double DoSumOfSquares(ConstMatrixView x) override {
    return Timed(Part::kOptimizer, [&] { return backend_.SumOfSquares(x); });
  }

  Backend& backend_;
  std::array<double, kParts> seconds_ = {};
};

}  // namespace qlora::bench

#endif  // QLORA_BENCH_TIMED_BACKEND_H_
