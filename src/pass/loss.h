// The output head and its loss, a chunk of rows at a time.
#ifndef QLORA_PASS_LOSS_H_
#define QLORA_PASS_LOSS_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "pass/decoder.h"

namespace qlora {

// Logits of inputs.head_rows [begin, begin + count), at most head_rows of the layout, into
// activations.logits.
MatrixView Logits(const Decoder& decoder, const PassInputs& inputs, std::int64_t begin,
                  std::int64_t count, Activations& activations);

// Sums over the supervised rows.
struct LossSum {
  double loss = 0;        // of -log p(target), or of its smoothed form
  std::int64_t hits = 0;  // rows whose most probable token is the target
};

// log p(target) of each supervised row is appended to logprobs, when given, in row order.
LossSum Loss(const Decoder& decoder, const PassInputs& inputs, Activations& activations,
             std::vector<double>* logprobs = nullptr);
// Of each supervised row, in row order: log p(target); 1 where the target is the most probable
// token, otherwise 0; the mean of the logits over the vocabulary; the entropy of all tokens.
struct RowScores {
  std::vector<double> logprobs;
  std::vector<double> hits;
  std::vector<double> mean_logits;
  std::vector<double> entropies;
};
RowScores ScoresOfRows(const Decoder& decoder, const PassInputs& inputs, Activations& activations);
// Also writes the gradient of the sum of row_scale * loss with respect to x_out to activations.dx,
// and adds the gradient of a trained head to `trained`. Needs inputs.row_scale. label_smoothing: of
// the loss, as ops::CrossEntropy has it.
LossSum LossAndGradient(const Decoder& decoder, const PassInputs& inputs, Activations& activations,
                        LoraAdapter& trained, double label_smoothing = 0);

// The sum over the head rows of KL(q || p), the divergence of the decoder's p from the q of the
// base, the same weights without the adapter. base (N, D): x_out of the base for the same rows.
// Needs activations with two rows of logits or more. trained: where not null, the gradient of scale
// times the sum goes on as in LossAndGradient.
double Divergence(const Decoder& decoder, const PassInputs& inputs, const ConstMatrixView& base,
                  double scale, Activations& activations, LoraAdapter* trained);

// The gradient of a loss with respect to the logits of a row: values at some columns, 0 elsewhere.
struct LogitGradient {
  std::vector<std::int32_t> columns;
  std::vector<double> values;
};
// For losses of a few logits: calls visit(m, logits) for each head row m in order, with its V
// logits. trained: where not null, the gradients that visit returns go on as in LossAndGradient.
using VisitLogits = std::function<LogitGradient(std::int64_t row, std::span<const double> logits)>;
void ForEachLogits(const Decoder& decoder, const PassInputs& inputs, Activations& activations,
                   LoraAdapter* trained, const VisitLogits& visit);

}  // namespace qlora

#endif  // QLORA_PASS_LOSS_H_
