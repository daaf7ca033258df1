// The output head and its loss, a chunk of rows at a time.
#ifndef QLORA_PASS_LOSS_H_
#define QLORA_PASS_LOSS_H_

#include <cstdint>
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
// Also writes the gradient of the sum of row_scale * loss with respect to x_out to activations.dx,
// and adds the gradient of a trained head to `trained`. Needs inputs.row_scale. label_smoothing: of
// the loss, as ops::CrossEntropy has it.
LossSum LossAndGradient(const Decoder& decoder, const PassInputs& inputs, Activations& activations,
                        LoraAdapter& trained, double label_smoothing = 0);

}  // namespace qlora

#endif  // QLORA_PASS_LOSS_H_
