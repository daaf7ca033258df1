// Gemma 4's keys and their defaults.
#include <gmock/gmock.h>

#include <cmath>

#include "config/config_fixture.h"

namespace qlora {
namespace {

using testing::HasSubstr;

TEST_F(ConfigTest, DefaultsOfGemma4) {
  const DecoderConfig c = Load(Minimal("gemma4_text"));
  EXPECT_TRUE(c.tie_word_embeddings && c.value_norm && c.layer_scalar && !c.one_plus_norm);
  EXPECT_EQ(c.attention_scale, 1);
  EXPECT_EQ(c.final_softcap, 0);
  EXPECT_EQ(c.embed_scale, 8);
  EXPECT_EQ(c.per_layer_size, 256);
  EXPECT_EQ(c.per_layer_vocab, 262144);
  for (std::int64_t l = 0; l < 6; ++l) {
    const LayerConfig layer = c.layer(l);
    EXPECT_EQ(layer.window, l == 5 ? 0 : 512);
    EXPECT_EQ(layer.head_dim, l == 5 ? 512 : 256);
    EXPECT_EQ(layer.num_key_value_heads, 2);
    EXPECT_EQ(layer.intermediate_size, 128);
    EXPECT_TRUE(layer.has_own_kv() && !layer.k_is_v);
  }
  EXPECT_EQ(c.ropes[0].rope_theta, 1e6);
  EXPECT_EQ(c.ropes[0].rotary_dim, 512);
  EXPECT_EQ(c.ropes[0].divisors[63], 1);
  EXPECT_TRUE(std::isinf(c.ropes[0].divisors[64]));
  EXPECT_EQ(c.ropes[1].rope_theta, 1e4);
  EXPECT_EQ(c.ropes[1].rotary_dim, 256);
  EXPECT_TRUE(c.ropes[1].divisors.empty());
  const DecoderConfig unified = Load(Minimal("gemma4_unified"));
  EXPECT_EQ(unified.layers[0].window, 1024);
  EXPECT_EQ(unified.per_layer_size, 0);
  EXPECT_EQ(unified.module_prefix, "model.language_model.");
  EXPECT_EQ(Load({{"model_type", "gemma4"}, {"text_config", Minimal("gemma4_text")}}).model_type,
            "gemma4_text");
}

TEST_F(ConfigTest, LayersOfGemma4) {
  Json json = Minimal("gemma4_text");
  json["layer_types"] = {"sliding_attention", "full_attention",    "sliding_attention",
                         "full_attention",    "sliding_attention", "sliding_attention"};
  json["num_kv_shared_layers"] = 2;
  json["use_double_wide_mlp"] = true;
  json["global_head_dim"] = 128;
  json["num_global_key_value_heads"] = 1;
  const DecoderConfig c = Load(json);
  // The last layer sees everything, whatever the list says.
  EXPECT_EQ(c.layers[5].window, 0);
  EXPECT_EQ(c.notes.size(), 1u);
  EXPECT_EQ(c.layers[4].kv_layer, 2);
  EXPECT_EQ(c.layers[5].kv_layer, 3);
  EXPECT_EQ(c.layer(4).intermediate_size, 256);
  EXPECT_EQ(c.layer(3).intermediate_size, 128);
  EXPECT_EQ(c.layer(3).head_dim, 128);
  // Read with attention_k_eq_v alone.
  EXPECT_EQ(c.layer(3).num_key_value_heads, 2);
  json["attention_k_eq_v"] = true;
  EXPECT_EQ(Load(json).layer(3).num_key_value_heads, 1);
  EXPECT_TRUE(Load(json).layers[1].k_is_v);
  EXPECT_FALSE(Load(json).layers[0].k_is_v || Load(json).layers[5].k_is_v);
  // As files are saved anew.
  json["per_layer_config"] = {{"01", {{"head_dim", 64}, {"num_key_value_heads", 4}}},
                              {"3", {{"head_dim", 64}}},
                              {"05", {{"head_dim", 64}}}};
  EXPECT_EQ(Load(json).layer(1).head_dim, 64);
  EXPECT_EQ(Load(json).layer(1).num_key_value_heads, 4);
  EXPECT_EQ(Load(json).layer(3).num_key_value_heads, 2);
  EXPECT_EQ(Load(json).layer(0).head_dim, 256);
  json["per_layer_config"]["05"]["num_key_value_heads"] = 4;
  EXPECT_THAT(Refusal(json), HasSubstr("layer 5 would attend to the keys of layer 3"));
}

TEST_F(ConfigTest, RefusalsOfGemma4) {
  const auto refusal = [&](const char* key, const Json& value) {
    Json json = Minimal("gemma4_text");
    json[key] = value;
    return Refusal(json);
  };
  EXPECT_THAT(refusal("enable_moe_block", true), HasSubstr("num_experts"));
  Json experts = Minimal("gemma4_text");
  experts.update({{"enable_moe_block", true},
                  {"num_experts", 4},
                  {"top_k_experts", 5},
                  {"moe_intermediate_size", 8}});
  EXPECT_THAT(Refusal(experts), HasSubstr("top_k_experts is 5, expected 1 ... 4"));
  EXPECT_THAT(refusal("use_bidirectional_attention", "all"), HasSubstr("\"all\""));
  EXPECT_THAT(refusal("num_kv_shared_layers", 6), HasSubstr("num_kv_shared_layers 6 of 6"));
  // All layers before those that share have a window, and the last one has none.
  EXPECT_THAT(refusal("num_kv_shared_layers", 1), HasSubstr("is of the type of layer 5"));
  EXPECT_THAT(refusal("sliding_window", 0), HasSubstr("sliding_window 0"));
  EXPECT_THAT(refusal("vocab_size_per_layer_input", 100), HasSubstr("vocab_size_per_layer_input"));
  EXPECT_THAT(refusal("per_layer_config", {{"9", {{"head_dim", 64}}}}), HasSubstr("'9'"));
  EXPECT_THAT(refusal("per_layer_config", {{"1", {{"sliding_window", 64}}}}),
              HasSubstr("'sliding_window' of layer 1"));
  EXPECT_THAT(refusal("per_layer_config", {{"1", {{"head_dim", 64}}}}),
              HasSubstr("heads of 256 and of 64"));
  EXPECT_THAT(refusal("layer_types", {"full_attention"}), HasSubstr("layer_types needs 6"));
  EXPECT_THAT(refusal("rope_parameters", {{"full_attention", Json::object()}}),
              HasSubstr("'sliding_attention' is missing"));
  EXPECT_THAT(refusal("rope_parameters", {{"full_attention", {{"rope_type", "yarn"}}},
                                          {"sliding_attention", nullptr}}),
              HasSubstr("rope_type 'yarn'"));
  Json json = Minimal("gemma4_text");
  json["use_bidirectional_attention"] = "vision";
  EXPECT_EQ(Load(json).num_hidden_layers, 6);
}

}  // namespace
}  // namespace qlora
