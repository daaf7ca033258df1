#include "model/config_moe.h"

#include "base/check.h"

namespace qlora {
namespace {

// gpt-oss has older names of the keys beside those that count.
void ParseGptOssExperts(const ConfigKeys& keys, DecoderConfig& config) {
  config.moe.num_experts = keys.Int("num_local_experts", keys.Int("num_experts", 128));
  config.moe.num_experts_per_tok =
      keys.Int("num_experts_per_tok", keys.Int("experts_per_token", 4));
  config.moe.norm_topk_prob = true;
  if (const double limit = keys.Double("swiglu_limit", 7.0); limit != 7) {
    ThrowInvalidInput(
        "{}: swiglu_limit is {}, expected 7, to which transformers clamps whatever the key says",
        keys.where(), limit);
  }
}

// Of LFM2: leading layers with an MLP.
bool HasDenseLayers(const Family& family) { return family.mixers == MixerRule::kShortConv; }

}  // namespace

std::int64_t ExpertIntermediateSize(const ConfigKeys& keys, const Family& family) {
  if (family.model_type == "mixtral" || family.gpt_oss) return keys.Int("intermediate_size");
  return keys.Int("moe_intermediate_size", family.experts.intermediate_size);
}

// Families differ in the names of their keys, in what they are without them, and in what no key
// states. Experts in some layers only are supported where num_dense_layers says so.
void ParseMoe(const ConfigKeys& keys, const Family& family, DecoderConfig& config) {
  if (family.gpt_oss) return ParseGptOssExperts(keys, config);
  const ExpertDefaults& usual = family.experts;
  const bool mixtral = family.model_type == "mixtral";
  MoeConfig& moe = config.moe;
  moe.num_experts = keys.Int(mixtral ? "num_local_experts" : "num_experts", usual.num_experts);
  moe.num_experts_per_tok = keys.Int("num_experts_per_tok", usual.num_experts_per_tok);
  moe.norm_topk_prob = usual.always_normalized || keys.Bool("norm_topk_prob", usual.norm_topk_prob);
  if (usual.shared_intermediate_size > 0) {
    moe.shared_intermediate_size =
        keys.Int("shared_expert_intermediate_size", usual.shared_intermediate_size);
  }
  moe.score = usual.score;
  if (moe.score == RouterScore::kSigmoid) {
    moe.expert_bias = keys.Bool("use_expert_bias", true);
    moe.routed_scaling_factor = static_cast<float>(keys.Double("routed_scaling_factor", 1));
  }
  if (keys.Int("decoder_sparse_step", 1) != 1 ||
      (keys.Find("mlp_only_layers") != nullptr && !keys.Find("mlp_only_layers")->empty())) {
    ThrowInvalidInput("{}: decoder_sparse_step and mlp_only_layers are not supported",
                      keys.where());
  }
}

void ParseDenseLayers(const ConfigKeys& keys, const Family& family, DecoderConfig& config) {
  if (!HasDenseLayers(family)) return;
  const std::int64_t dense = keys.Int("num_dense_layers", 2);
  const std::int64_t width = keys.Int("intermediate_size", 7168);
  if (dense < 0 || dense > config.num_hidden_layers || width < 1 || width > 1 << 22) {
    ThrowInvalidInput(
        "{}: num_dense_layers is {} and their intermediate_size {}, expected 0 ... {} layers of a "
        "positive width",
        keys.where(), dense, width, config.num_hidden_layers);
  }
  for (std::int64_t l = 0; l < dense; ++l) {
    config.layers[l].is_dense = true;
    config.layers[l].intermediate_size = width;
  }
}

}  // namespace qlora
