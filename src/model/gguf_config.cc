#include "model/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/check.h"
#include "model/config_moe.h"
#include "model/families.h"
#include "model/gguf_config_gemma4.h"
#include "model/gguf_config_layers.h"
#include "model/gguf_keys.h"
#include "model/gguf_names.h"

namespace qlora {
namespace {

// "llama, qwen2, ...": what general.architecture may be.
std::string SupportedArchitectures() {
  std::string names;
  for (const GgufArchitecture& row : GgufArchitectures()) {
    // Several model types have one architecture; the first row of a name stands for all.
    if (FindGgufArchitectureNamed(row.name) != &row) continue;
    names += (names.empty() ? "" : ", ") + std::string(row.name);
  }
  return names;
}

const GgufArchitecture& ArchitectureOf(const GgufReader& file) {
  if (const auto* type = file.Get<std::string>("general.type"); type && *type != "model") {
    ThrowInvalidInput("{}: holds a part that is no model by itself (general.type '{}'){}",
                      file.where(), *type,
                      *type == "adapter" ? "; give its model here, and the file as --adapter"
                                         : "; give the file of the model");
  }
  const auto& name = file.Require<std::string>("general.architecture");
  if (name == "clip") {
    ThrowInvalidInput(
        "{}: holds an image encoder (general.architecture clip, an mmproj file); give the file of "
        "its language model",
        file.where());
  }
  if (const GgufArchitecture* row = FindGgufArchitectureNamed(name)) return *row;
  ThrowInvalidInput("{}: general.architecture '{}' is not supported; supported: {}", file.where(),
                    name, SupportedArchitectures());
}

const TensorInfo& Table(const GgufReader& file, const char* name) {
  const TensorInfo* tensor = file.Find(name);
  if (tensor == nullptr) ThrowInvalidInput("{}: tensor '{}' is missing", file.where(), name);
  if (tensor->shape.size() != 2) {
    ThrowInvalidInput("{}: tensor '{}' has {} dimensions, expected 2", file.FileOf(*tensor), name,
                      tensor->shape.size());
  }
  return *tensor;
}

// The embedding has a row for each token, which llama.cpp demands.
std::int64_t VocabularySize(const GgufReader& file) {
  const std::int64_t rows = Table(file, "token_embd.weight").shape[0];
  const auto* tokens = file.Get<std::vector<std::string>>("tokenizer.ggml.tokens");
  if (tokens != nullptr && std::ssize(*tokens) != rows) {
    ThrowInvalidInput("{}: tokenizer.ggml.tokens has {} tokens, and token_embd.weight {} rows",
                      file.where(), tokens->size(), rows);
  }
  return rows;
}

void ParseHeads(const GgufKeys& keys, std::int64_t blocks, DecoderConfig& config) {
  config.num_attention_heads = keys.IntOfLayers("attention.head_count", blocks);
  config.num_key_value_heads =
      config.model_type.starts_with("lfm2")
          ? std::ranges::max(HeadsOfLfm(keys, blocks))
          : keys.IntOfLayers("attention.head_count_kv", blocks, config.num_attention_heads);
  if (config.num_attention_heads < 1) {
    ThrowInvalidInput("{}: attention.head_count must be positive", keys.where());
  }
  const std::int64_t share = config.hidden_size / config.num_attention_heads;
  config.head_dim = keys.Int("attention.key_length", share);
  const std::int64_t value_length = keys.Int("attention.value_length", share);
  if (value_length != config.head_dim) {
    ThrowInvalidInput(
        "{}: attention.key_length {} and attention.value_length {} differ, which is not supported",
        keys.where(), config.head_dim, value_length);
  }
}

void CheckDerivedHeads(const DecoderConfig& config, const std::string& where) {
  if (FindGgufArchitecture(config.model_type)->derived_heads &&
      config.num_attention_heads * config.head_dim != config.hidden_size) {
    ThrowInvalidInput("{}: {} heads of {} are not the embedding_length {}, as they are in a {}",
                      where, config.num_attention_heads, config.head_dim, config.hidden_size,
                      config.model_type);
  }
}

void ParseExperts(const GgufKeys& keys, const Family& family, std::int64_t blocks,
                  DecoderConfig& config) {
  config.moe.num_experts = keys.Int("expert_count");
  config.moe.num_experts_per_tok = keys.IntOfLayers("expert_used_count", blocks);
  // llama.cpp always divides the weights of a token's experts by their sum.
  config.moe.norm_topk_prob = true;
  if (config.model_type == "mixtral") return;  // feed_forward_length is an expert's
  if (config.moe.num_experts_per_tok < 1) {
    ThrowInvalidInput("{}: expert_used_count must be positive", keys.where());
  }
  config.intermediate_size = keys.Int("expert_feed_forward_length",
                                      config.intermediate_size / config.moe.num_experts_per_tok);
  if (family.experts.shared_intermediate_size > 0) {
    config.moe.shared_intermediate_size =
        keys.Int("expert_shared_feed_forward_length", config.intermediate_size);
  }
  config.moe.score = family.experts.score;
  if (config.moe.score != RouterScore::kSigmoid) return;
  config.moe.expert_bias = true;
  constexpr std::int64_t kSigmoids = 2;
  if (keys.Int("expert_gating_func") != kSigmoids) {
    ThrowInvalidInput("{}: expert_gating_func is {}, expected {} (sigmoids)", keys.where(),
                      keys.Int("expert_gating_func"), kSigmoids);
  }
}

// Leading layers with an MLP. Needs the layers.
void ParseDenseLayers(const GgufKeys& keys, std::int64_t blocks, DecoderConfig& config) {
  if (!config.model_type.starts_with("lfm2")) return;
  SetDenseLayers({"leading_dense_block_count", keys.Int("leading_dense_block_count", 0)},
                 {"feed_forward_length", keys.IntOfLayers("feed_forward_length", blocks)},
                 keys.where(), config);
}

// Blocks behind the layers predict several tokens at once, as drafts; they are no layers.
std::int64_t DraftBlocks(const GgufKeys& keys, const Family& family) {
  const std::int64_t drafts = keys.Int("nextn_predict_layers", 0);
  if (drafts != 0 && family.mixers != MixerRule::kDeltaRule) {
    ThrowInvalidInput(
        "{}: nextn_predict_layers is {}, and a {} has no blocks that draft tokens: llama.cpp takes "
        "all of its blocks for layers; convert the model once more",
        keys.where(), drafts, family.model_type);
  }
  return drafts;
}

// The sizes of mixers that are not attention.
void ParseMixers(const GgufKeys& keys, const Family& family, DecoderConfig& config) {
  if (family.mixers == MixerRule::kShortConv) config.conv_taps = keys.Int("shortconv.l_cache");
  if (family.mixers != MixerRule::kDeltaRule) return;
  config.conv_taps = keys.Int("ssm.conv_kernel");
  const std::int64_t size = keys.Int("ssm.state_size");
  const std::int64_t heads = keys.Int("ssm.time_step_rank");
  config.delta_rule = {heads, keys.Int("ssm.group_count"), size, size, !family.fused_delta};
}

void CheckInnerSize(const GgufKeys& keys, const DecoderConfig& config) {
  const std::int64_t heads = config.delta_rule.heads;
  const std::int64_t size = config.delta_rule.value_dim;
  if (heads == 0 || keys.Int("ssm.inner_size") == heads * size) return;
  ThrowInvalidInput(
      "{}: ssm.inner_size {} is not ssm.time_step_rank {} times ssm.state_size {}; heads of values "
      "of another size are not supported",
      keys.where(), keys.Int("ssm.inner_size"), heads, size);
}

// Granite's. A multiplier of 0 is none.
void ParseMultipliers(const GgufKeys& keys, DecoderConfig& config) {
  const auto read = [&](const char* key, double value) {
    if (value == 0) return 1.0F;
    if (!(value > 0 && value <= 1e6)) {
      ThrowInvalidInput("{}: {} is {}, expected a positive number", keys.where(), key, value);
    }
    return static_cast<float>(value);
  };
  const double scale = keys.Double("attention.scale", 0);
  if (scale != 0) config.attention_scale = read("attention.scale", scale);
  config.embed_scale = read("embedding_scale", keys.Double("embedding_scale", 0));
  config.noise_scale = config.embed_scale;
  config.residual_scale = read("residual_scale", keys.Double("residual_scale", 0));
  config.logit_scale = 1 / read("logit_scale", keys.Double("logit_scale"));
}

// What the architecture decides without a key.
void ParseBlocks(const GgufKeys& keys, const Family& family, DecoderConfig& config) {
  const GgufReader& file = keys.file();
  const auto has = [&](const char* name) { return file.Find(name) != nullptr; };
  config.qkv_bias = has("blk.0.attn_q.bias") || has("blk.0.attn_qkv.bias");
  config.o_bias = has("blk.0.attn_output.bias");
  config.mlp_bias = has("blk.0.ffn_up.bias");
  ApplyFamily(family, config);
  if (family.gpt_oss) config.hidden_act = Activation::kClampedSwiglu;
  if (family.gemma) {
    config.hidden_act = Activation::kGeluTanh;
    config.embed_scale = std::sqrt(static_cast<float>(config.hidden_size));
  }
  std::int64_t divisor = config.head_dim;
  if (family.query_scalar) {
    // The number of layers tells which Gemma it is: there is no key for the scale of scores.
    const std::int64_t layers_of_27b = config.model_type == "gemma2" ? 46 : 62;
    if (config.num_hidden_layers == layers_of_27b) {
      divisor = config.hidden_size / config.num_attention_heads;
    }
    const bool capped = config.model_type == "gemma2";
    if (capped) {
      config.attention_softcap =
          static_cast<float>(keys.Double("attn_logit_softcapping", family.attention_softcap));
    }
    config.final_softcap =
        static_cast<float>(keys.Double("final_logit_softcapping", family.final_softcap));
    if (capped && !(config.attention_softcap > 0 && config.final_softcap > 0)) {
      ThrowInvalidInput("{}: attn_logit_softcapping and final_logit_softcapping must be positive",
                        keys.where());
    }
  }
  config.attention_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(divisor)));
  if (family.multipliers) ParseMultipliers(keys, config);
}

}  // namespace

DecoderConfig ParseGgufConfig(const GgufReader& file) {
  const GgufArchitecture& architecture = ArchitectureOf(file);
  const GgufKeys keys(file, architecture.name);
  DecoderConfig config;
  config.model_type = architecture.model_type;
  // Llama, Mistral and Mixtral are one architecture; experts have other names of modules.
  if (config.model_type == "llama" && keys.Int("expert_count", 0) > 0) {
    config.model_type = "mixtral";
  }
  if (config.model_type == "granite" && keys.Int("expert_count", 0) > 0) {
    ThrowInvalidInput("{}: experts of a granite (expert_count) are not supported", file.where());
  }
  // Olmo 2 and 3 are one architecture; the windows tell.
  if (config.model_type == "olmo2" && keys.Int("attention.sliding_window", 0) > 0) {
    config.model_type = "olmo3";
  }
  const Family& family = FamilyOf(config.model_type, file.where());

  const std::int64_t blocks = keys.Int("block_count");
  if (blocks < 1 || blocks > kMaxLayers) {
    ThrowInvalidInput("{}: num_hidden_layers is {}, expected 1 ... {}", file.where(), blocks,
                      kMaxLayers);
  }
  config.num_hidden_layers = blocks - DraftBlocks(keys, family);
  config.max_position_embeddings = keys.Int("context_length");
  config.hidden_size = keys.Int("embedding_length");
  config.rms_norm_eps = static_cast<float>(keys.Double("attention.layer_norm_rms_epsilon"));
  config.vocab_size = VocabularySize(file);
  // Gemma 1 and 2 are tied in any case: a head of their own is a tensor too many.
  config.tie_word_embeddings = config.model_type == "gemma" || config.model_type == "gemma2" ||
                               file.Find("output.weight") == nullptr;
  if (family.gemma4) {
    ParseGemma4Sizes(keys, blocks, config);
  } else {
    // Experts have a key of their own.
    const bool has_width = family.moe && keys.Has("expert_feed_forward_length");
    config.intermediate_size = keys.IntOfLayers(
        "feed_forward_length", blocks, has_width ? std::optional<std::int64_t>(0) : std::nullopt);
    ParseHeads(keys, blocks, config);
  }
  if (family.moe) ParseExperts(keys, family, blocks, config);
  ParseMixers(keys, family, config);
  ParseBlocks(keys, family, config);
  CheckSizes(config, file.where());
  CheckInnerSize(keys, config);
  CheckDerivedHeads(config, file.where());
  if (config.max_position_embeddings < 1) {
    ThrowInvalidInput("{}: context_length must be positive", file.where());
  }
  if (family.gemma4) {
    ParseGemma4GgufLayers(keys, blocks, config);
  } else {
    ParseGgufLayers(keys, blocks, config);
  }
  if (family.moe) ParseDenseLayers(keys, blocks, config);
  CheckLayerSizes(config, file.where());
  return config;
}

}  // namespace qlora
