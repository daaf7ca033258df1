#include "pass/slot_pass.h"

#include <algorithm>
#include <cmath>

#include "base/matrix.h"
#include "pass/loss.h"
#include "pass/pass_shape.h"

namespace qlora {
namespace {

// The logits of a row on the host, where a penalty or a draw reads them: too few values for an op.
std::vector<float> LogitsOnHost(const Decoder& decoder, const MatrixView& row) {
  std::vector<float> logits = Download<float>(decoder.backend().memory(), row);
  if (const float cap = decoder.config().final_softcap; cap > 0) {
    for (float& logit : logits) logit = cap * std::tanh(logit / cap);
  }
  return logits;
}

}  // namespace

Arena ReserveSlots(const Decoder& decoder, const Adapters& adapters, std::int64_t rows) {
  Backend& backend = decoder.backend();
  const ActivationShape shape = EvalShape(decoder.config(), rows);
  BackendLimits limits = LimitsOf(decoder.config(), adapters, rows, shape.head_rows);
  limits.any_order = true;
  backend.Reserve(limits);
  return Arena(BytesOfPass(decoder.config(), adapters, decoder.precision(), shape),
               backend.memory());
}

void RunSlots(const Decoder& decoder, std::span<const SlotRows> slots, SumOrder order,
              const StatePool& pool, EvalMemory& passes, const VisitSlotLogits& visit) {
  std::int64_t rows = 0;
  for (const SlotRows& part : slots) rows += std::ssize(part.ids);
  Activations& activations = passes.ForRows(rows);
  const PassInputs inputs = PrepareSlotInputs(decoder, slots, order, pool, activations);
  Embed(decoder, inputs, activations);
  ForwardSlots(decoder, inputs, pool, activations);
  std::int64_t part = 0;
  std::int64_t taken = 0;  // rows of this part
  const std::int64_t total = inputs.head_rows.size;
  const std::int64_t most = std::min(activations.logits.rows, kMostFewRows);
  for (std::int64_t begin = 0; begin < total; begin += most) {
    const std::int64_t count = std::min(most, total - begin);
    const MatrixView logits = Logits(decoder, inputs, begin, count, activations);
    for (std::int64_t m = 0; m < count; ++m) {
      while (taken == slots[part].logit_rows) {
        ++part;
        taken = 0;
      }
      const std::int64_t first = std::ssize(slots[part].ids) - slots[part].logit_rows;
      visit(part, first + taken++, LogitsOnHost(decoder, Rows(logits, m, 1)));
    }
  }
}

}  // namespace qlora
