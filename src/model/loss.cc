// The output head and its loss. Logits of all rows would be the largest matrix of a pass, so the
// supervised rows go through the head in chunks, forward and backward at once:
//   x = x_out[rows];  norm = RMSNorm(x);  logits = norm W^T;  loss = -log softmax(logits)[target]
#include <algorithm>

#include "base/matrix.h"
#include "model/decoder.h"

namespace qlora {
namespace {

// The supervised rows of a batch and their targets.
struct Supervised {
  explicit Supervised(const Batch& batch) {
    for (std::int64_t n = 0; n < batch.rows(); ++n) {
      if (batch.targets[n] == kIgnoreLabel) continue;
      rows.push_back(static_cast<std::int32_t>(n));
      targets.push_back(batch.targets[n]);
    }
  }

  std::vector<std::int32_t> rows;
  std::vector<std::int32_t> targets;
};

}  // namespace

MatrixView Decoder::Logits(std::span<const std::int32_t> rows, Activations& activations) const {
  const std::int64_t count = std::ssize(rows);
  const MatrixView x = Rows(activations.head_x, 0, count);
  const MatrixView norm = Rows(activations.head_norm, 0, count);
  const MatrixView logits = Rows(activations.logits, 0, count);
  backend_.Run(ops::GatherRows{activations.x_out, rows, x});
  backend_.Run(ops::RmsNorm{x, weights_.final_norm, config_.rms_norm_eps, norm,
                            Columns(activations.head_rstd, 0, count)});
  const LinearView head{{weights_.head, {}}, {}, {}};
  const LinearOutput out{logits, {}};
  backend_.Run(ops::Linear{{&head, 1}, norm, {&out, 1}});
  return logits;
}

// The mirror of Logits: head, norm, gather.
void Decoder::LogitsBackward(std::span<const std::int32_t> rows, MatrixView d_logits,
                             Activations& activations) const {
  const std::int64_t count = std::ssize(rows);
  const MatrixView norm = Rows(activations.head_norm, 0, count);
  const MatrixView dx = Rows(activations.head_dx, 0, count);
  const LinearView head{{weights_.head, {}}, {}, {}};
  const LinearGradient d_head{d_logits, {}, {}, {}};
  backend_.Run(ops::LinearBackward{{&head, 1}, norm, {&d_head, 1}, dx});
  if (adapter_ != nullptr && adapter_->head() != nullptr) {
    backend_.Run(ops::WeightGradient{d_logits, norm, adapter_->head()->gradient});
  }
  backend_.Run(ops::RmsNormBackward{dx, Rows(activations.head_x, 0, count), weights_.final_norm,
                                    Columns(activations.head_rstd, 0, count), dx});
  backend_.Run(ops::ScatterAddRows{dx, rows, activations.dx});
}

LossSum Decoder::Loss(const Batch& batch, std::span<const float> row_scale,
                      Activations& activations, std::vector<double>* logprobs) const {
  Memory& memory = backend_.memory();
  const Supervised all(batch);
  CheckIndices("targets", all.targets, config_.vocab_size);
  const bool training = !row_scale.empty();
  if (training) backend_.Run(ops::Zero{activations.dx});
  backend_.Run(ops::Zero{activations.sums});

  const std::int64_t total = std::ssize(all.rows);
  const std::int64_t chunk = activations.logits.rows;
  for (std::int64_t begin = 0; begin < total; begin += chunk) {
    const std::int64_t count = std::min(chunk, total - begin);
    const auto rows = std::span(all.rows).subspan(begin, count);
    const MatrixView logits = Logits(rows, activations);
    const MatrixView stats = Columns(activations.row_stats, 0, count);
    const MatrixView scale = Columns(activations.row_scale, 0, training ? count : 0);
    UploadWide(memory, row_scale.subspan(begin, scale.cols), scale);
    backend_.Run(ops::CrossEntropy{std::span(all.targets).subspan(begin, count),
                                   config_.final_softcap, scale, logits, Rows(stats, 0, 1),
                                   Rows(stats, 1, 1)});
    backend_.Run(ops::SumRows{stats, activations.sums});
    if (logprobs != nullptr) {
      for (const double value : DownloadReal(memory, Rows(stats, 0, 1))) {
        logprobs->push_back(value);
      }
    }
    if (training) LogitsBackward(rows, logits, activations);
  }
  const std::vector<double> sums = Download<double>(memory, activations.sums);
  return {-sums[0], static_cast<std::int64_t>(sums[1])};
}

}  // namespace qlora
