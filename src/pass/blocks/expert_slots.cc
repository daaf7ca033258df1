#include "pass/blocks/expert_slots.h"

#include <algorithm>
#include <utility>

#include "pass/linear_group.h"

namespace qlora {

ExpertSlots LayoutSlots(LayerCarver& c, const MoeConfig& moe) {
  const std::int64_t slots = c.rows * moe.num_experts_per_tok;
  ExpertSlots out;
  out.router = c.Wide(c.rows, moe.num_experts);
  out.pair_weights = c.Wide(c.rows, moe.num_experts_per_tok);
  out.slot_weights = c.Wide(1, slots);
  out.routing = {c.Indices(slots), c.Indices(slots), c.Indices(slots), c.Indices(slots),
                 c.Indices(moe.num_experts + 1)};
  out.begin.resize(moe.num_experts + 1);
  return out;
}

void FetchBegin(const LayerContext& context, ExpertSlots& slots) {
  const auto fetch = [&](const auto& view, std::vector<std::int32_t>& values) {
    values.resize(view.size);
    context.backend().memory().Download(view.data, values.data(),
                                        values.size() * sizeof(std::int32_t));
  };
  fetch(slots.routing.begin, slots.begin);
  const std::vector<AdapterRows>& ranges = context.inputs.adapters;
  if (ranges.size() == 1) return;
  const std::vector<std::int32_t> experts = std::exchange(slots.begin, {0});
  std::vector<std::int32_t> tokens;  // of an expert in rising order
  fetch(slots.routing.tokens, tokens);
  for (std::size_t e = 0; e + 1 < experts.size(); ++e) {
    const auto end = tokens.begin() + experts[e + 1];
    for (const AdapterRows& range : ranges) {
      const auto next =
          std::lower_bound(tokens.begin() + slots.begin.back(), end, range.begin + range.rows);
      slots.begin.push_back(static_cast<std::int32_t>(next - tokens.begin()));
    }
  }
}

ExpertBuffers LayoutExpertBuffers(Carver& carver, const DecoderConfig& config,
                                  const Precision& precision, std::int64_t rows, bool training) {
  ExpertBuffers out;
  const MoeConfig& moe = config.experts();
  if (moe.num_experts == 0) return out;
  const std::int64_t slots = rows * moe.num_experts_per_tok;
  out.slot = carver.Matrix(precision.activation, slots, config.hidden_size);
  out.shared = SharedExpert::LayoutScratch(carver, config, precision, rows, training);
  if (!training) return out;
  out.d_slot = carver.Matrix(precision.activation, slots, config.hidden_size);
  out.d_slot_weights = carver.Matrix(precision.wide, 1, slots);
  out.d_pair_weights = carver.Matrix(precision.wide, rows, moe.num_experts_per_tok);
  if (config.mlp_bias) out.d_bias_weights = carver.Matrix(precision.wide, 1, slots);
  return out;
}

}  // namespace qlora
