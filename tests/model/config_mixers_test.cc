// Families whose layers do not all attend.
#include <gmock/gmock.h>

#include "model/config_fixture.h"

namespace qlora {
namespace {

using testing::HasSubstr;

TEST_F(ConfigTest, MixersOfQwen3_5) {
  Json json = Minimal("qwen3_5_text");
  const DecoderConfig plain = Load(json);
  EXPECT_EQ(plain.layers[2].mixer, Mixer::kDeltaRule);
  EXPECT_EQ(plain.layers[3].mixer, Mixer::kAttention);
  EXPECT_TRUE(plain.output_gate && plain.one_plus_norm);
  EXPECT_EQ(plain.ropes[0].rotary_dim, 64);  // a quarter of 256
  json["full_attention_interval"] = 2;
  EXPECT_EQ(Load(json).layers[1].mixer, Mixer::kAttention);
  // The list wins, also with its older names.
  json["layer_types"] = {"mamba",     "linear_attention", "attention",
                         "attention", "linear_attention", "full_attention"};
  const DecoderConfig listed = Load(json);
  EXPECT_EQ(listed.layers[0].mixer, Mixer::kDeltaRule);
  EXPECT_EQ(listed.layers[1].mixer, Mixer::kDeltaRule);
  EXPECT_EQ(listed.layers[2].mixer, Mixer::kAttention);
  json["layer_types"][0] = "conv";
  EXPECT_THAT(Refusal(json), HasSubstr("layer type \"conv\" is not supported"));
  const auto refusal = [&](const char* key, const Json& value) {
    Json other = Minimal("qwen3_5_text");
    other[key] = value;
    return Refusal(other);
  };
  EXPECT_THAT(refusal("attn_output_gate", false), HasSubstr("attn_output_gate false"));
  EXPECT_THAT(refusal("linear_conv_kernel_dim", 0), HasSubstr("taps of a convolution is 0"));
  EXPECT_THAT(refusal("linear_num_value_heads", 0), HasSubstr("linear_num_value_heads is 0"));
  EXPECT_THAT(refusal("linear_num_value_heads", 17), HasSubstr("17 is not a multiple"));
  EXPECT_THAT(refusal("linear_value_head_dim", 0), HasSubstr("linear_value_head_dim is 0"));
}

TEST_F(ConfigTest, ClassesOfQwen3_5) {
  Json json = {{"model_type", "qwen3_5"},
               {"architectures", {"Qwen3_5ForConditionalGeneration"}},
               {"tie_word_embeddings", true},
               {"text_config", Minimal("qwen3_5_text")}};
  EXPECT_TRUE(Load(json).tie_word_embeddings);
  EXPECT_EQ(Load(json).module_prefix, "model.language_model.");
  json["architectures"] = {"Qwen3_5ForCausalLM"};
  EXPECT_EQ(Load(json).module_prefix, "model.");
  json["text_config"]["tie_word_embeddings"] = false;
  EXPECT_THAT(Refusal(json), HasSubstr("tie_word_embeddings is true, and false in text_config"));
  // Without a part for the text.
  EXPECT_EQ(Load(Minimal("qwen3_5")).model_type, "qwen3_5_text");
}

TEST_F(ConfigTest, LayersAndWidthsOfLfm2) {
  Json json = Minimal("lfm2");
  EXPECT_EQ(Load(json).layers[0].mixer, Mixer::kAttention);
  EXPECT_TRUE(Load(json).tie_word_embeddings);
  EXPECT_EQ(Load(json).intermediate_size, 256);  // 2/3 of 128, rounded up
  json["full_attn_idxs"] = {1, 4};
  const DecoderConfig config = Load(json);
  EXPECT_EQ(config.layers[0].mixer, Mixer::kShortConv);
  EXPECT_EQ(config.layers[4].mixer, Mixer::kAttention);
  EXPECT_EQ(config.conv_taps, 3);
  json["full_attn_idxs"] = {1, 6};
  EXPECT_THAT(Refusal(json), HasSubstr("full_attn_idxs a list of its layers"));
  json.erase("full_attn_idxs");
  json["tie_embedding"] = false;
  EXPECT_FALSE(Load(json).tie_word_embeddings);
  json["block_ff_dim"] = 1200;
  json["block_multiple_of"] = 10;
  json["block_ffn_dim_multiplier"] = 1.5;
  EXPECT_EQ(Load(json).intermediate_size, 1200);
  json["block_ffn_dim_multiplier"] = nullptr;
  EXPECT_EQ(Load(json).intermediate_size, 800);
  json["block_auto_adjust_ff_dim"] = false;
  EXPECT_EQ(Load(json).intermediate_size, 1200);
  json["conv_L_cache"] = 0;
  EXPECT_THAT(Refusal(json), HasSubstr("taps of a convolution is 0"));
}

}  // namespace
}  // namespace qlora
