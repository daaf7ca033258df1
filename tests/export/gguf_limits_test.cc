// Settings that llama.cpp would compute otherwise.
#include "export/gguf/gguf_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "config/gguf_config_layers.h"
#include "config/gguf_config_rope.h"
#include "config/gguf_names.h"
#include "export/gguf/gguf_metadata.h"
#include "io/json.h"
#include "qlora/error.h"

namespace qlora {
namespace {

using testing::HasSubstr;

DecoderConfig Config(const char* model_type, const Json& more) {
  Json json = {{"model_type", model_type},
               {"hidden_size", 64},
               {"intermediate_size", 96},
               {"num_hidden_layers", 4},
               {"num_attention_heads", 4},
               {"num_key_value_heads", 2},
               {"head_dim", 16}};
  json.update(more);
  return ParseDecoderConfig(json, "config.json");
}

// "" where the model can be written.
std::string Refusal(const DecoderConfig& config) {
  try {
    CheckGgufLimits(config, config.tie_word_embeddings);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
    return error.what();
  }
  return "";
}

Json Yarn(const Json& more) {
  Json scaling = {
      {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 512}};
  scaling.update(more);
  return {{"rope_scaling", scaling}};
}

TEST(GgufLimits, TheScaleOfScoresFollowsTheNumberOfLayers) {
  const Json scalar = {{"query_pre_attn_scalar", 16}, {"head_dim", 8}};
  Json large = scalar;
  large["num_hidden_layers"] = 46;
  EXPECT_FLOAT_EQ(GgufScoreFactor(Config("gemma2", scalar)), std::sqrt(0.5F));
  EXPECT_EQ(GgufScoreFactor(Config("gemma2", large)), 1.0F);
  large["num_hidden_layers"] = 62;
  EXPECT_EQ(GgufScoreFactor(Config("gemma3_text", large)), 1.0F);
}

// As the graphs of llama.cpp have them.
TEST(GgufLimits, WeightsWithAScaleAreThoseOfTheGraph) {
  const auto scaled = [](const char* model_type, const std::string& part) {
    return IsGgufScaled(GgufFamilyOf(model_type), "blk.0." + part + ".weight");
  };
  for (const char* part : {"attn_q", "attn_qkv", "attn_output", "ffn_up", "ffn_down"}) {
    const bool is_mlp = std::string_view(part).starts_with("ffn");
    EXPECT_TRUE(scaled("llama", part)) << part;
    EXPECT_EQ(scaled("phi3", part), !is_mlp) << part;
    EXPECT_FALSE(scaled("olmo2", part)) << part;
    EXPECT_TRUE(scaled("lfm3", part)) << part;
  }
  EXPECT_FALSE(scaled("llama", "attn_norm"));
  EXPECT_FALSE(IsGgufScaled(GgufFamilyOf("llama"), "token_embd.weight"));
  EXPECT_FALSE(scaled("gpt_oss", "ffn_up_exps"));
  EXPECT_TRUE(scaled("qwen3_moe", "ffn_up_exps"));
  EXPECT_FALSE(scaled("spark2_5", "attn_gate"));
  EXPECT_TRUE(scaled("lfm3", "attn_gate"));
  EXPECT_FALSE(scaled("lfm3", "shortconv.in_proj"));
  EXPECT_TRUE(scaled("qwen3_5_text", "attn_gate"));
  EXPECT_TRUE(scaled("qwen3_5_text", "ssm_out"));
  EXPECT_FALSE(scaled("qwen3_next", "ssm_out"));
  EXPECT_TRUE(scaled("qwen3_next", "ffn_up_shexp"));
  EXPECT_FALSE(scaled("qwen3_next", "ffn_up"));
}

TEST(GgufLimits, OfGemma4) {
  const auto refusal = [](const Json& more) {
    Json json = {{"layer_types",
                  {"sliding_attention", "full_attention", "sliding_attention", "full_attention"}},
                 {"hidden_size_per_layer_input", 0},
                 {"final_logit_softcapping", 30.0}};
    json.update(more);
    return Refusal(Config("gemma4_text", json));
  };
  EXPECT_EQ(refusal({{"num_kv_shared_layers", 2}}), "");
  EXPECT_EQ(refusal({{"attention_k_eq_v", true}}), "");
  EXPECT_THAT(refusal({{"final_logit_softcapping", nullptr}}), HasSubstr("caps logits at 30"));
  EXPECT_THAT(refusal({{"attention_bias", true}}), HasSubstr("attention_bias"));
  // The second layer before those that share has no window.
  EXPECT_THAT(refusal({{"num_kv_shared_layers", 1}}), HasSubstr("layer 3 shares the keys of"));
  EXPECT_THAT(refusal({{"hidden_size_per_layer_input", 8},
                       {"vocab_size", 32},
                       {"vocab_size_per_layer_input", 64}}),
              HasSubstr("vocab_size_per_layer_input"));
  const Json linear = {{"rope_type", "default"}, {"rope_theta", 1e4}};
  EXPECT_THAT(refusal({{"rope_parameters",
                        {{"sliding_attention", linear},
                         {"full_attention", {{"rope_type", "proportional"}, {"factor", 8.0}}}}}}),
              HasSubstr("a factor of rope_parameters"));
}

TEST(GgufLimits, KindsOfLayersThatLlamaCppDoesNotKnow) {
  const auto layers = [](const std::vector<std::string>& types, const Json& more) {
    Json json = {{"layer_types", types}, {"vocab_size", 32}};
    json.update(more);
    return json;
  };
  const std::string full = "full_attention";
  const std::string sliding = "sliding_attention";
  const std::vector<std::string> mixed = {"conv", full, sliding, full};
  EXPECT_EQ(Refusal(Config("lfm3", layers(mixed, Json::object()))), "");
  EXPECT_THAT(Refusal(Config("lfm3", layers({"conv", full, full, full}, Json::object()))),
              HasSubstr("layer_types without sliding_attention"));
  const Json partial = {
      {"rope_parameters",
       {{full, {{"rope_theta", 1e6}}},
        {sliding, {{"rope_type", "proportional"}, {"partial_rotary_factor", 0.5}}}}}};
  EXPECT_THAT(Refusal(Config("lfm3", layers(mixed, partial))),
              HasSubstr("a proportional rope_type of the layers with a window"));
  const Json gate = {{"headwise_attn_output_gate", true}};
  const std::vector<std::string> windows = {sliding, full, full, full};
  EXPECT_EQ(Refusal(Config("spark2_5", layers(windows, gate))), "");
  EXPECT_THAT(Refusal(Config("spark2_5", layers(windows, Json::object()))),
              HasSubstr("headwise_attn_output_gate false"));
  EXPECT_THAT(Refusal(Config("spark2_5", gate)), HasSubstr("layer_types without"));
  Json stays = gate;
  stays["rope_parameters"] = {{full, {{"partial_rotary_factor", 0.0}}}, {sliding, Json::object()}};
  EXPECT_EQ(Refusal(Config("spark2_5", layers(windows, stays))), "");
  Json biased = gate;
  biased["attention_bias"] = true;
  EXPECT_THAT(Refusal(Config("spark2_5", layers(windows, biased))), HasSubstr("a bias of o_proj"));
  EXPECT_EQ(Refusal(Config("granite_swa", {{"mlp_bias", true}, {"attention_bias", true}})), "");
  EXPECT_EQ(Refusal(Config("granite_swa", {{"layer_rope_theta", {5.0, 5.0, 5.0, 5.0}}})), "");
  EXPECT_THAT(Refusal(Config("granite_swa", {{"layer_rope_theta", {5.0, 5.0, 6.0, 5.0}}})),
              HasSubstr("a rope_theta of single layers"));
  EXPECT_EQ(Refusal(Config("granite_swa", {{"layer_rope_theta", {5.0, 5.0, 0.0, 5.0}}})), "");
  const Json no_window = {{"sliding_window", nullptr},
                          {"layer_types", std::vector<std::string>(4, full)}};
  EXPECT_EQ(Refusal(Config("exaone4", no_window)), "");
  EXPECT_THAT(Refusal(Config("exaone4", Json::object())), HasSubstr("in models of 64 layers"));
  EXPECT_EQ(Refusal(Config("exaone4", {{"num_hidden_layers", 64}})), "");
  EXPECT_THAT(Refusal(Config("exaone4", {{"num_hidden_layers", 64}, {"sliding_window", nullptr}})),
              HasSubstr("layer_types without sliding_attention"));
  // The files state no activation.
  EXPECT_THAT(Refusal(Config("llama", {{"hidden_act", "gelu_pytorch_tanh"}})),
              HasSubstr("a hidden_act other than silu"));
}

TEST(GgufLimits, LayersWithoutExpertsAreRefused) {
  Json json = {{"num_experts", 4},
               {"num_experts_per_tok", 2},
               {"moe_intermediate_size", 8},
               {"norm_topk_prob", true}};
  EXPECT_EQ(Refusal(Config("qwen3_moe", json)), "");
  json["mlp_only_layers"] = {1};
  EXPECT_THAT(Refusal(Config("qwen3_moe", json)), HasSubstr("expects experts in all layers"));
}

TEST(GgufLimits, ParametersOfYarnAreWrittenOrRefused) {
  EXPECT_EQ(Refusal(Config("qwen3", Yarn(Json::object()))), "");
  EXPECT_EQ(Refusal(Config("qwen3", Yarn({{"attention_factor", 1.0}}))), "");
  EXPECT_NEAR(GgufYarnFactor(Config("qwen3", Yarn({{"attention_factor", 1.0}})).ropes[0]),
              1 / (1 + 0.1 * std::log(4.0)), 1e-6);
  EXPECT_EQ(GgufYarnFactor(Config("qwen3", Yarn(Json::object())).ropes[0]), 1.0F);
  for (const Json& more :
       {Json{{"beta_fast", 64.0}}, Json{{"beta_slow", 2.0}}, Json{{"truncate", false}}}) {
    EXPECT_THAT(Refusal(Config("qwen3", Yarn(more))), HasSubstr("rope_type yarn"));
    // The llama graph reads factors of the frequencies.
    const DecoderConfig llama = Config("llama", Yarn(more));
    EXPECT_EQ(Refusal(llama), "");
    ASSERT_EQ(GgufRopeFactors(llama).size(), 1u);
    EXPECT_EQ(GgufRopeFactors(llama)[0].name, "rope_freqs.weight");
  }
}

TEST(GgufLimits, SettingsWithoutAKeyAreRefused) {
  const Json llama3 = {{"rope_scaling",
                        {{"rope_type", "llama3"},
                         {"factor", 8.0},
                         {"low_freq_factor", 1.0},
                         {"high_freq_factor", 4.0},
                         {"original_max_position_embeddings", 512}}}};
  EXPECT_THAT(Refusal(Config("qwen3", llama3)), HasSubstr("llama3"));
  EXPECT_EQ(Refusal(Config("llama", llama3)), "");
  EXPECT_THAT(Refusal(Config("qwen3", {{"attention_bias", true}})), HasSubstr("o_proj"));
  // llama.cpp loads this tensor of an ERNIE 4.5, and does not add it.
  EXPECT_THAT(Refusal(Config("ernie4_5", {{"use_bias", true}})), HasSubstr("o_proj"));
  EXPECT_THAT(Refusal(Config("qwen2", {{"head_dim", 32}})), HasSubstr("head_dim 32"));
  EXPECT_THAT(Refusal(Config("llama", {{"partial_rotary_factor", 0.5}})),
              HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(Refusal(Config("gemma2", {{"final_logit_softcapping", nullptr}})),
              HasSubstr("final_logit_softcapping"));
  EXPECT_THAT(Refusal(Config("gemma2", {{"tie_word_embeddings", false}})), HasSubstr("head"));
  EXPECT_THAT(Refusal(Config("smollm3", {{"no_rope_layers", {1, 0, 1, 1}}})),
              HasSubstr("no_rope_layers"));
}

TEST(GgufLimits, WindowsHaveAPeriod) {
  EXPECT_EQ(GgufWindowPeriod(Config("gemma2", Json::object())), 2u);
  EXPECT_EQ(GgufWindowPeriod(Config("gemma3_text", {{"sliding_window_pattern", 1}})), 1u);
  EXPECT_EQ(GgufWindowPeriod(Config("gemma3_text", {{"sliding_window_pattern", 3}})), 3u);
}

}  // namespace
}  // namespace qlora
