// Small random checkpoints of families that have none in tests/golden.
#ifndef QLORA_TESTS_CONVERT_FAMILY_MODELS_H_
#define QLORA_TESTS_CONVERT_FAMILY_MODELS_H_

#include <string>
#include <vector>

#include "config/config.h"
#include "convert/wide_model.h"
#include "model/linear_shapes.h"

namespace qlora {

// The keys that all have: 4 layers of width 32, 4 heads of 8 with 2 heads of keys, MLP of 24.
inline Json SmallConfig(const std::string& model_type, const Json& more) {
  Json json = {{"model_type", model_type}, {"hidden_size", 32},
               {"intermediate_size", 24},  {"num_hidden_layers", 4},
               {"num_attention_heads", 4}, {"num_key_value_heads", 2},
               {"vocab_size", 288},        {"max_position_embeddings", 128},
               {"rms_norm_eps", 1e-5}};
  json.update(more);
  return json;
}

// The families, each with the settings that make it one.
inline std::vector<Json> FamilyConfigs() {
  const Json yarn = {{"rope_type", "yarn"},
                     {"rope_theta", 1e4},
                     {"factor", 4.0},
                     {"original_max_position_embeddings", 32},
                     {"mscale", 1.0},
                     {"mscale_all_dim", 1.0},
                     {"llama_4_scaling_beta", 0.1}};
  const std::vector<std::string> attention(4, "attention");
  std::vector<std::string> gemma4;
  for (int l = 0; l < 6; ++l) gemma4.push_back(l % 2 == 0 ? "sliding_attention" : "full_attention");
  Json experts = SmallConfig("gemma4", {{"head_dim", 8},
                                        {"global_head_dim", 16},
                                        {"num_hidden_layers", 6},
                                        {"layer_types", gemma4},
                                        {"sliding_window", 6},
                                        {"hidden_size_per_layer_input", 0},
                                        {"attention_k_eq_v", true},
                                        {"enable_moe_block", true},
                                        {"num_experts", 6},
                                        {"top_k_experts", 2},
                                        {"moe_intermediate_size", 16},
                                        {"final_logit_softcapping", 30.0}});
  return {
      SmallConfig("granite", {{"attention_bias", true},
                              {"mlp_bias", true},
                              {"embedding_multiplier", 3.0},
                              {"attention_multiplier", 0.2},
                              {"residual_multiplier", 0.4},
                              {"logits_scaling", 3.0}}),
      SmallConfig("granitemoehybrid", {{"num_local_experts", 0},
                                       {"shared_intermediate_size", 24},
                                       {"layer_types", attention},
                                       {"residual_multiplier", 0.4}}),
      SmallConfig("granite_swa", {{"sliding_window", 6},
                                  {"layer_rope_theta", {1e4, 0.0, 1e4, 1e4}},
                                  {"tie_word_embeddings", false},
                                  {"embedding_multiplier", 3.0},
                                  {"attention_multiplier", 0.2},
                                  {"residual_multiplier", 0.4},
                                  {"logits_scaling", 3.0}}),
      SmallConfig("ministral3", {{"head_dim", 8}, {"rope_parameters", yarn}}),
      SmallConfig("olmo2", Json::object()),
      SmallConfig(
          "olmo3",
          {{"sliding_window", 6},
           {"rope_scaling",
            {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32}}}}),
      SmallConfig("exaone4", {{"sliding_window", nullptr},
                              {"layer_types", std::vector<std::string>(4, "full_attention")}}),
      SmallConfig("hunyuan_v1_dense",
                  {{"rope_scaling", {{"type", "dynamic"}, {"alpha", 100.0}, {"factor", 1.0}}}}),
      SmallConfig("ernie4_5", {{"head_dim", 8}}),
      SmallConfig("seed_oss", {{"head_dim", 12}}),
      SmallConfig("glm4", {{"head_dim", 8}}),
      SmallConfig("gemma", {{"head_dim", 8}}),
      SmallConfig("qwen2_5_vl",
                  {{"rope_scaling", {{"type", "mrope"}, {"mrope_section", {2, 1, 1}}}}}),
      SmallConfig("qwen3_vl_text",
                  {{"head_dim", 8},
                   {"rope_parameters", {{"rope_type", "default"}, {"mrope_section", {2, 1, 1}}}}}),
      SmallConfig("qwen3_5_text", {{"head_dim", 16},
                                   {"linear_num_key_heads", 2},
                                   {"linear_num_value_heads", 4},
                                   {"linear_key_head_dim", 8},
                                   {"linear_value_head_dim", 8},
                                   {"rope_parameters",
                                    {{"rope_type", "default"},
                                     {"rope_theta", 1e7},
                                     {"partial_rotary_factor", 0.5},
                                     {"mrope_section", {2, 1, 1}}}}}),
      SmallConfig("gemma4_text", {{"head_dim", 8},
                                  {"global_head_dim", 16},
                                  {"num_hidden_layers", 6},
                                  {"layer_types", gemma4},
                                  {"sliding_window", 6},
                                  {"num_kv_shared_layers", 2},
                                  {"use_double_wide_mlp", true},
                                  {"hidden_size_per_layer_input", 8},
                                  {"vocab_size_per_layer_input", 288},
                                  {"final_logit_softcapping", 30.0}}),
      SmallConfig("gemma4_unified", {{"head_dim", 8},
                                     {"global_head_dim", 16},
                                     {"num_hidden_layers", 6},
                                     {"layer_types", gemma4},
                                     {"sliding_window", 6},
                                     {"attention_k_eq_v", true},
                                     {"num_global_key_value_heads", 1},
                                     {"final_logit_softcapping", 30.0}}),
      experts,
      SmallConfig("qwen3_5_moe_text", {{"head_dim", 16},
                                       {"linear_num_key_heads", 2},
                                       {"linear_num_value_heads", 4},
                                       {"linear_key_head_dim", 8},
                                       {"linear_value_head_dim", 8},
                                       {"num_experts", 5},
                                       {"num_experts_per_tok", 2},
                                       {"moe_intermediate_size", 12},
                                       {"shared_expert_intermediate_size", 20},
                                       {"rope_parameters",
                                        {{"rope_type", "default"},
                                         {"rope_theta", 1e7},
                                         {"partial_rotary_factor", 0.5},
                                         {"mrope_section", {2, 1, 1}}}}}),
      SmallConfig("qwen3_next", {{"head_dim", 16},
                                 {"full_attention_interval", 2},
                                 {"linear_num_key_heads", 2},
                                 {"linear_num_value_heads", 4},
                                 {"linear_key_head_dim", 8},
                                 {"linear_value_head_dim", 8},
                                 {"num_experts", 5},
                                 {"num_experts_per_tok", 2},
                                 {"moe_intermediate_size", 12},
                                 {"shared_expert_intermediate_size", 20},
                                 {"partial_rotary_factor", 0.5}}),
      SmallConfig("gpt_oss", {{"head_dim", 12},
                              {"intermediate_size", 32},
                              {"num_local_experts", 4},
                              {"num_experts_per_tok", 2},
                              {"sliding_window", 6},
                              {"rope_parameters",
                               {{"rope_type", "yarn"},
                                {"rope_theta", 1.5e5},
                                {"factor", 4.0},
                                {"original_max_position_embeddings", 32}}}}),
      SmallConfig("lfm2", {{"norm_eps", 1e-5},
                           {"block_auto_adjust_ff_dim", false},
                           {"layer_types", {"conv", "full_attention", "conv", "conv"}}}),
      SmallConfig(
          "lfm3",
          {{"norm_eps", 1e-5},
           {"head_dim", 8},
           {"sliding_window", 6},
           {"layer_types", {"conv", "full_attention", "sliding_attention", "conv"}},
           {"rope_parameters",
            {{"full_attention",
              {{"rope_type", "default"}, {"rope_theta", 1e6}, {"partial_rotary_factor", 0.5}}},
             {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}}}}),
      SmallConfig(
          "spark2_5",
          {{"head_dim", 12},
           {"hidden_act", "gelu"},
           {"headwise_attn_output_gate", true},
           {"sliding_window", 6},
           {"layer_types",
            {"sliding_attention", "sliding_attention", "full_attention", "sliding_attention"}},
           {"rope_parameters",
            {{"full_attention", {{"rope_theta", 5e6}, {"partial_rotary_factor", 0.5}}},
             {"sliding_attention", {{"rope_theta", 1e4}, {"partial_rotary_factor", 1.0}}}}}}),
      SmallConfig("lfm2_moe", {{"norm_eps", 1e-5},
                               {"num_experts", 5},
                               {"num_experts_per_tok", 2},
                               {"moe_intermediate_size", 12},
                               {"num_dense_layers", 1},
                               {"layer_types", {"conv", "full_attention", "conv", "conv"}}}),
  };
}

// The names of parameters that hold the experts of a layer; empty where each is a module.
inline std::vector<std::string> ExpertParameters(const DecoderConfig& decoder) {
  if (!decoder.joins_experts()) return {};
  const std::string experts = JoinedExpertsName(decoder);
  return {experts + ".gate_up_proj", experts + ".down_proj"};
}

// The tensors of a checkpoint, told anew.
inline std::vector<TensorInfo> FamilyTensors(const DecoderConfig& c) {
  const std::int64_t d = c.hidden_size;
  std::vector<TensorInfo> infos;
  const auto add = [&](const std::string& name, std::vector<std::int64_t> shape) {
    infos.push_back({name, DType::kF32, std::move(shape)});
  };
  add("model." + std::string(c.names.embedding) + ".weight", {c.vocab_size, d});
  add("model." + std::string(c.names.final_norm) + ".weight", {d});
  if (!c.tie_word_embeddings) add("lm_head.weight", {c.vocab_size, d});
  if (c.per_layer_size > 0) {
    add("model.embed_tokens_per_layer.weight", {c.per_layer_vocab, c.per_layer_features()});
    add("model.per_layer_projection_norm.weight", {c.per_layer_size});
  }
  for (std::int64_t l = 0; l < c.num_hidden_layers; ++l) {
    const std::string layer = "model.layers." + std::to_string(l) + ".";
    const auto norm = [&](std::string_view name, std::int64_t size) {
      add(layer + std::string(name) + ".weight", {size});
    };
    const auto group = [&](const std::vector<std::string>& names,
                           const std::vector<LinearShape>& shapes, bool bias) {
      for (std::size_t i = 0; i < names.size(); ++i) {
        add(layer + names[i] + ".weight", {shapes[i].out, shapes[i].in});
        if (bias) add(layer + names[i] + ".bias", {shapes[i].out});
      }
    };
    const PerLinear<std::string> names = LinearNames(c, l);
    const PerLinear<LinearShape> shapes = ShapeLinears(c, l);
    const Mixer mixer = c.layers[l].mixer;
    const bool attends = mixer == Mixer::kAttention;
    group(names.qkv, shapes.qkv, attends && c.qkv_bias);
    group({names.o}, {shapes.o}, attends && c.o_bias);
    group(names.gate_up, shapes.gate_up, c.mlp_bias);
    group(names.down, shapes.down, c.mlp_bias);
    group(names.per_layer_gate, shapes.per_layer_gate, false);
    group(names.per_layer_out, shapes.per_layer_out, false);
    for (const LinearShape& shape : shapes.per_layer_model) {
      add("model.per_layer_model_projection.weight", {shape.out, shape.in});
    }
    if (c.per_layer_size > 0) norm("post_per_layer_input_norm", d);
    if (c.layer_scalar) add(layer + "layer_scalar", {1});
    if (const std::int64_t n = c.side_moe.num_experts; n > 0) {
      for (const char* name : {"post_feedforward_layernorm_1", "pre_feedforward_layernorm_2",
                               "post_feedforward_layernorm_2"}) {
        norm(name, d);
      }
      add(layer + "router.proj.weight", {n, d});
      add(layer + "router.scale", {d});
      add(layer + "router.per_expert_scale", {n});
      add(layer + "experts.gate_up_proj", {n, 2 * c.side_intermediate_size, d});
      add(layer + "experts.down_proj", {n, d, c.side_intermediate_size});
    }
    group(names.shared_in, shapes.shared_in, false);
    group(names.shared_out, shapes.shared_out, false);
    if (c.has_experts(l)) {
      add(layer + RouterName(c) + ".weight", {c.moe.num_experts, d});
      if (c.moe.router_bias) add(layer + RouterName(c) + ".bias", {c.moe.num_experts});
      if (c.moe.expert_bias) add(layer + ExpertBiasName(c), {c.moe.num_experts});
    }
    if (c.sinks) add(layer + "self_attn.sinks", {c.num_attention_heads});
    if (c.input_norms) norm(c.names.input_norm, d);
    if (c.input_norms) norm(c.names.mlp_norm, d);
    if (c.post_norms) norm(c.names.post_attn_norm, d);
    if (c.post_norms) norm(c.names.post_mlp_norm, d);
    if (mixer == Mixer::kShortConv) add(layer + "conv.conv.weight", {d, 1, c.conv_taps});
    if (mixer == Mixer::kDeltaRule) {
      const std::string part = layer + "linear_attn.";
      add(part + "conv1d.weight", {c.delta_conv_features(), 1, c.conv_taps});
      add(part + "A_log", {c.delta_rule.heads});
      add(part + "dt_bias", {c.delta_rule.heads});
      add(part + "norm.weight", {c.delta_rule.value_dim});
    }
    if (!attends || c.qk_norm == QkNorm::kNone) continue;
    norm(c.names.q_norm, c.q_norm_size(l));
    if (c.layers[l].has_own_kv()) norm(c.names.k_norm, c.k_norm_size(l));
  }
  return infos;
}

// Writes config.json, random weights and the tokenizer of tests/golden into a new folder.
inline void WriteFamilyModel(const fs::path& dir, const Json& json) {
  fs::create_directories(dir);
  WriteTextFile(dir / "config.json", FormatJson(json));
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    fs::copy_file(kGolden / "llama-tiny" / name, dir / name);
  }
  const std::vector<TensorInfo> infos = FamilyTensors(ParseDecoderConfig(json, "config.json"));
  // Vectors too, so that norms and biases that change places are seen.
  const auto writer = CreateSafetensors(dir / "model.safetensors", infos, {});
  std::uint64_t seed = 1;
  for (const TensorInfo& info : infos) {
    const bool is_vector = info.shape.size() == 1;
    std::vector<float> values = NormalValues(
        info.elements(), is_vector ? 0.2 : 1 / std::sqrt(double(info.shape[1])), seed++);
    if (info.name.find("norm") != std::string::npos || info.name.ends_with("layer_scalar") ||
        info.name.ends_with("scale")) {
      for (float& value : values) value += 1;
    }
    writer->Write(std::as_bytes(std::span(values)));
  }
  writer->Finish();
}

}  // namespace qlora

#endif  // QLORA_TESTS_CONVERT_FAMILY_MODELS_H_
