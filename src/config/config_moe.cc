#include "config/config_moe.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "io/json.h"

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

std::vector<std::int64_t> MlpOnlyLayers(const ConfigKeys& keys) {
  const Json* list = keys.Find("mlp_only_layers");
  if (list == nullptr) return {};
  return JsonAs<std::vector<std::int64_t>>(*list, "mlp_only_layers", keys.where());
}

}  // namespace

std::int64_t ExpertIntermediateSize(const ConfigKeys& keys, const Family& family) {
  if (family.experts.local_names) return keys.Int("intermediate_size");
  return keys.Int("moe_intermediate_size", family.experts.intermediate_size);
}

std::int64_t NumberOfExperts(const ConfigKeys& keys, const char* key, std::int64_t otherwise) {
  const char* const names[] = {"num_experts", "num_local_experts"};
  if (keys.Find(names[0]) != nullptr && keys.Find(names[1]) != nullptr &&
      keys.Int(names[0]) != keys.Int(names[1])) {
    ThrowInvalidInput("{}: {} is {} and {} is {}; expected one number of experts", keys.where(),
                      names[0], keys.Int(names[0]), names[1], keys.Int(names[1]));
  }
  for (const char* const name : {key, names[0], names[1]}) {
    if (keys.Find(name) != nullptr) return keys.Int(name);
  }
  return otherwise;
}

// Families differ in the names of their keys, in what they are without them, and in what no key
// states.
void ParseMoe(const ConfigKeys& keys, const Family& family, DecoderConfig& config) {
  if (family.gpt_oss) return ParseGptOssExperts(keys, config);
  const ExpertDefaults& usual = family.experts;
  MoeConfig& moe = config.moe;
  moe.num_experts = NumberOfExperts(keys, usual.local_names ? "num_local_experts" : "num_experts",
                                    usual.num_experts);
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
  if (usual.has_dense_layers) return;
  if (keys.Int("decoder_sparse_step", 1) != 1 || !MlpOnlyLayers(keys).empty()) {
    ThrowInvalidInput("{}: decoder_sparse_step and mlp_only_layers are not supported in a {}",
                      keys.where(), family.model_type);
  }
}

void ParseDenseLayers(const ConfigKeys& keys, const Family& family, DecoderConfig& config) {
  if (family.mixers == MixerRule::kShortConv) {
    return SetDenseLayers({"num_dense_layers", keys.Int("num_dense_layers", 2)},
                          {"intermediate_size", keys.Int("intermediate_size", 7168)}, keys.where(),
                          config);
  }
  if (!family.experts.has_dense_layers) return;
  const std::int64_t step = keys.Int("decoder_sparse_step", 1);
  const std::vector<std::int64_t> listed = MlpOnlyLayers(keys);
  if (step < 1) {
    ThrowInvalidInput("{}: decoder_sparse_step is {}, expected 1 or more", keys.where(), step);
  }
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    if ((l + 1) % step == 0 && std::ranges::find(listed, l) == listed.end()) continue;
    config.layers[l].is_dense = true;
    config.layers[l].intermediate_size = keys.Int("intermediate_size");
  }
}

void SetDenseLayers(const StatedNumber& count, const StatedNumber& width, const std::string& where,
                    DecoderConfig& config) {
  const std::int64_t layers = config.num_hidden_layers;
  if (count.value < 0 || count.value > layers || width.value < 1 || width.value > 1 << 22) {
    ThrowInvalidInput("{}: {} is {} and {} {}, expected 0 ... {} layers of a positive width", where,
                      count.key, count.value, width.key, width.value, layers);
  }
  for (std::int64_t l = 0; l < count.value; ++l) {
    config.layers[l].is_dense = true;
    config.layers[l].intermediate_size = width.value;
  }
}

}  // namespace qlora
