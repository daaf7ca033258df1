// The output head and its loss. Logits of all rows would be the largest matrix of a pass, so the
// supervised rows go through the head in chunks, forward and backward at once:
//   x = x_out[rows];  norm = RMSNorm(x);  logits = norm W^T;  loss = -log softmax(logits)[target]
#include "pass/loss.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/matrix.h"

namespace qlora {
namespace {

// Indices [begin, begin + count).
IndexView Part(const IndexView& all, std::int64_t begin, std::int64_t count) {
  return {all.data + begin, count};
}

// The head of each range of head rows.
struct Heads {
  std::span<const AdapterRows> ranges;
  SumOrder order = SumOrder::kFastest;
};

// logits = norm W^T, with the head of the adapter of each row. begin: of the first row in
// head_rows.
void MultiplyHeads(const Decoder& decoder, const Heads& heads, std::int64_t begin,
                   const MatrixView& norm, const MatrixView& logits) {
  for (const AdapterRows& range : heads.ranges) {
    const std::int64_t first = std::max(range.begin, begin) - begin;
    const std::int64_t last = std::min(range.begin + range.rows, begin + norm.rows) - begin;
    if (first >= last) continue;
    const LinearView head{HeadOf(decoder.weights(), range.adapter), {}, {}};
    const LinearOutput out{Rows(logits, first, last - first), {}};
    decoder.backend().Run(ops::Linear{
        {&head, 1}, Rows(norm, first, last - first), {&out, 1}, Store::kSet, heads.order});
  }
}

// Logits of the next head rows, which are `rows` of a residual stream, into rows [at, at + count)
// of the buffers of the head. begin: of the first of them in head_rows.
MatrixView LogitsOf(const Decoder& decoder, const ConstMatrixView& stream, const IndexView& rows,
                    const Heads& heads, std::int64_t begin, std::int64_t at,
                    Activations& activations) {
  Backend& backend = decoder.backend();
  const MatrixView x = Rows(activations.head_x, at, rows.size);
  const MatrixView norm = Rows(activations.head_norm, at, rows.size);
  const MatrixView logits = Rows(activations.logits, at, rows.size);
  backend.Run(ops::GatherRows{stream, rows, x});
  backend.Run(ops::RmsNorm{x, decoder.weights().head_norm, decoder.config().stream_eps(), norm,
                           Columns(activations.head_rstd, at, rows.size)});
  MultiplyHeads(decoder, heads, begin, norm, logits);
  return logits;
}

// The mirror of Logits: head, norm, gather.
void LogitsBackward(const Decoder& decoder, const IndexView& rows, const MatrixView& d_logits,
                    Activations& activations, LoraAdapter& trained) {
  Backend& backend = decoder.backend();
  const MatrixView norm = Rows(activations.head_norm, 0, rows.size);
  const MatrixView dx = Rows(activations.head_dx, 0, rows.size);
  const LinearView head{HeadOf(decoder.weights(), &trained), {}, {}};
  const LinearGradient d_head{d_logits, {}, {}, {}};
  backend.Run(ops::LinearBackward{{&head, 1}, norm, {&d_head, 1}, dx});
  if (trained.head() != nullptr) {
    backend.Run(ops::WeightGradient{d_logits, norm, trained.head()->gradient});
  }
  backend.Run(ops::RmsNormBackward{dx, Rows(activations.head_x, 0, rows.size),
                                   decoder.weights().head_norm,
                                   Columns(activations.head_rstd, 0, rows.size), dx});
  backend.Run(ops::ScatterAddRows{dx, rows, activations.dx});
}

// Sums the losses of all supervised rows, chunk by chunk. Gradients of a chunk are computed before
// the next one overwrites its logits. The sums stay in the memory of the backend until the end, so
// that the host waits once. trained: null without gradients.
LossSum SumLoss(const Decoder& decoder, const PassInputs& inputs, Activations& activations,
                LoraAdapter* trained, double label_smoothing, std::vector<double>* logprobs) {
  Backend& backend = decoder.backend();
  if (trained != nullptr) {
    CheckTrained(inputs, *trained);
    if (inputs.row_scale.cols != inputs.targets.size) {
      ThrowRuntime("LossAndGradient: the inputs have no factor for each supervised row");
    }
    backend.Run(ops::Zero{activations.dx});
  }
  backend.Run(ops::Zero{activations.sums});

  const std::int64_t total = inputs.targets.size;
  const std::int64_t chunk = activations.logits.rows;
  for (std::int64_t begin = 0; begin < total; begin += chunk) {
    const std::int64_t count = std::min(chunk, total - begin);
    const MatrixView logits = Logits(decoder, inputs, begin, count, activations);
    const MatrixView stats = Columns(activations.row_stats, begin, count);
    const bool trains = trained != nullptr;
    const ConstMatrixView scale =
        trains ? Columns(inputs.row_scale, begin, count) : ConstMatrixView{};
    // Nothing that is trained on them is told of.
    const auto shown = [&](std::int64_t i) { return trains ? MatrixView{} : Rows(stats, i, 1); };
    backend.Run(ops::CrossEntropy{Part(inputs.targets, begin, count),
                                  decoder.config().final_softcap, scale, logits, Rows(stats, 0, 1),
                                  Rows(stats, 1, 1), static_cast<float>(label_smoothing), shown(2),
                                  shown(3)});
    backend.Run(ops::SumRows{Rows(stats, 0, 2), activations.sums});
    if (trained != nullptr) {
      LogitsBackward(decoder, Part(inputs.head_rows, begin, count), logits, activations, *trained);
    }
  }
  Memory& memory = backend.memory();
  if (logprobs != nullptr) {
    for (const double value :
         DownloadReal(memory, Columns(Rows(activations.row_stats, 0, 1), 0, total))) {
      logprobs->push_back(value);
    }
  }
  const std::vector<double> sums = Download<double>(memory, activations.sums);
  return {-sums[0], static_cast<std::int64_t>(sums[1])};
}

}  // namespace

MatrixView Logits(const Decoder& decoder, const PassInputs& inputs, std::int64_t begin,
                  std::int64_t count, Activations& activations) {
  // A prompt has one row of logits.
  const SumOrder order = inputs.order == SumOrder::kFastest ? SumOrder::kFastest : SumOrder::kFew;
  return LogitsOf(decoder, activations.x_out, Part(inputs.head_rows, begin, count),
                  {inputs.heads, order}, begin, 0, activations);
}

void ForEachLogits(const Decoder& decoder, const PassInputs& inputs, Activations& activations,
                   LoraAdapter* trained, const VisitLogits& visit) {
  Backend& backend = decoder.backend();
  Memory& memory = backend.memory();
  if (trained != nullptr) {
    CheckTrained(inputs, *trained);
    backend.Run(ops::Zero{activations.dx});
  }
  const double softcap = decoder.config().final_softcap;
  const std::int64_t chunk = activations.logits.rows;
  for (std::int64_t begin = 0; begin < inputs.head_rows.size; begin += chunk) {
    const std::int64_t count = std::min(chunk, inputs.head_rows.size - begin);
    const MatrixView logits = Logits(decoder, inputs, begin, count, activations);
    for (std::int64_t m = 0; m < count; ++m) {
      const MatrixView row = Rows(logits, m, 1);
      std::vector<double> values = DownloadReal(memory, row);
      if (softcap > 0) {
        for (double& value : values) value = softcap * std::tanh(value / softcap);
      }
      const LogitGradient gradient = visit(begin + m, values);
      if (trained == nullptr) continue;
      backend.Run(ops::Zero{row});
      for (std::size_t i = 0; i < gradient.columns.size(); ++i) {
        const std::int32_t column = gradient.columns[i];
        const double slope = softcap > 0 ? 1 - std::pow(values[column] / softcap, 2) : 1;
        const auto value = static_cast<float>(gradient.values[i] * slope);
        UploadWide(memory, {&value, 1}, Columns(row, column, 1));
      }
    }
    if (trained != nullptr) {
      LogitsBackward(decoder, Part(inputs.head_rows, begin, count), logits, activations, *trained);
    }
  }
}

LossSum Loss(const Decoder& decoder, const PassInputs& inputs, Activations& activations,
             std::vector<double>* logprobs) {
  return SumLoss(decoder, inputs, activations, nullptr, 0, logprobs);
}

RowScores ScoresOfRows(const Decoder& decoder, const PassInputs& inputs, Activations& activations) {
  Loss(decoder, inputs, activations);
  Memory& memory = decoder.backend().memory();
  const auto row = [&](std::int64_t i) {
    return DownloadReal(memory, Columns(Rows(activations.row_stats, i, 1), 0, inputs.targets.size));
  };
  return {row(0), row(1), row(2), row(3)};
}

LossSum LossAndGradient(const Decoder& decoder, const PassInputs& inputs, Activations& activations,
                        LoraAdapter& trained, double label_smoothing) {
  return SumLoss(decoder, inputs, activations, &trained, label_smoothing, nullptr);
}

double Divergence(const Decoder& decoder, const PassInputs& inputs, const ConstMatrixView& base,
                  double scale, Activations& activations, LoraAdapter* trained) {
  Backend& backend = decoder.backend();
  const std::int64_t total = inputs.head_rows.size;
  const std::int64_t chunk = activations.logits.rows / 2;  // rows of the base lie behind those of p
  if (total > 0 && chunk == 0) {
    ThrowRuntime("Divergence: the activations have no second row of logits for the base");
  }
  if (trained != nullptr) {
    CheckTrained(inputs, *trained);
    backend.Run(ops::Zero{activations.dx});
  }
  const MatrixView sum = Columns(activations.sums, 0, 1);
  backend.Run(ops::Zero{sum});
  const AdapterRows base_head{nullptr, 0, total};
  for (std::int64_t begin = 0; begin < total; begin += chunk) {
    const std::int64_t count = std::min(chunk, total - begin);
    const IndexView rows = Part(inputs.head_rows, begin, count);
    const MatrixView logits = Logits(decoder, inputs, begin, count, activations);
    const MatrixView of_base =
        LogitsOf(decoder, base, rows, {{&base_head, 1}}, begin, chunk, activations);
    const MatrixView kl = Columns(Rows(activations.row_stats, 0, 1), begin, count);
    backend.Run(ops::KlDivergence{decoder.config().final_softcap, static_cast<float>(scale),
                                  of_base, logits, kl});
    backend.Run(ops::SumRows{kl, sum});
    if (trained != nullptr) LogitsBackward(decoder, rows, logits, activations, *trained);
  }
  return Download<double>(backend.memory(), sum).front();
}

}  // namespace qlora
