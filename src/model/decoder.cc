#include "model/decoder.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"
#include "model/pass.h"
#include "model/rope.h"

namespace qlora {
namespace {

bool HasAdapter(const PerLinear<LoraLinear>& layer) {
  bool found = false;
  layer.ForEach([&](const LoraLinear& lora) { found |= lora.rank > 0; });
  return found;
}

}  // namespace

Decoder::Decoder(Backend& backend, const DecoderConfig& config, const DecoderWeights& weights,
                 LoraAdapter* adapter, const Precision& precision, std::int64_t max_positions)
    : backend_(backend),
      config_(config),
      weights_(weights),
      adapter_(adapter),
      precision_(precision) {
  if (adapter != nullptr) {
    const auto& layers = adapter->layers();
    const auto lowest = std::find_if(layers.begin(), layers.end(), HasAdapter);
    lowest_trained_layer_ = adapter->embedding() != nullptr ? -1 : lowest - layers.begin();
  }
  for (std::size_t l = 0; l < weights.layers.size(); ++l) {
    const PerLinear<FrozenLinear>& frozen = weights.layers[l].linears;
    loras_.push_back(
        adapter == nullptr
            ? Combine(frozen, frozen,
                      [](const FrozenLinear&, const FrozenLinear&) -> LoraLinear* { return {}; })
            : Combine(frozen, adapter->layers()[l],
                      [](const FrozenLinear&, LoraLinear& lora) { return &lora; }));
  }
  rope_arena_ = Arena(RopeBytes(config, precision, max_positions), backend.memory());
  Carver carver(rope_arena_);
  ropes_ = LayoutRopes(carver, config, precision, max_positions);
}

std::vector<Decoder::RopePair> Decoder::LayoutRopes(Carver& carver, const DecoderConfig& config,
                                                    const Precision& precision,
                                                    std::int64_t max_positions) {
  std::vector<RopePair> ropes;
  for (const RopeConfig& rope : config.ropes) {
    const auto table = [&](bool beyond_original) {
      const MatrixView cos = carver.Matrix(precision.wide, max_positions, rope.rotary_dim / 2);
      const MatrixView sin = carver.Matrix(precision.wide, max_positions, rope.rotary_dim / 2);
      if (cos.data != nullptr) FillRopeTable(rope, beyond_original, cos, sin);
      return RopeTable{cos, sin};
    };
    RopePair pair;
    pair.original_positions = rope.original_max_position_embeddings;
    pair.below = table(false);
    pair.above = rope.type == RopeType::kLongrope && max_positions > pair.original_positions
                     ? table(true)
                     : pair.below;
    ropes.push_back(pair);
  }
  return ropes;
}

std::size_t Decoder::RopeBytes(const DecoderConfig& config, const Precision& precision,
                               std::int64_t max_positions) {
  Carver plan;
  LayoutRopes(plan, config, precision, max_positions);
  return plan.bytes();
}

Decoder::Pass Decoder::MakePass(const Batch& batch, const DropoutState& dropout) const {
  Pass pass;
  pass.rows = batch.rows();
  pass.positions = batch.positions;
  pass.max_position = *std::max_element(batch.positions.begin(), batch.positions.end());
  for (std::size_t s = 0; s + 1 < batch.sequence_begin.size(); ++s) {
    const std::int64_t begin = batch.sequence_begin[s];
    const std::int64_t rows = batch.sequence_begin[s + 1] - begin;
    pass.spans.push_back({begin, rows, begin, rows});
  }
  pass.dropout = dropout;
  return pass;
}

const RopeTable& Decoder::RopeOf(int rope, std::int64_t max_position) const {
  const RopePair& pair = ropes_[rope];
  const RopeTable& table = max_position < pair.original_positions ? pair.below : pair.above;
  if (max_position >= table.cos.rows) {
    ThrowRuntime("[decoder] position {} lies beyond the {} that were planned", max_position,
                 table.cos.rows);
  }
  return table;
}

AttentionShape Decoder::ShapeOf(const LayerConfig& layer) const {
  return {config_.num_attention_heads, config_.num_key_value_heads, config_.head_dim,
          config_.attention_scale,     config_.attention_softcap,   layer.window};
}

}  // namespace qlora
