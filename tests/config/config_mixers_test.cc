// Families whose layers do not all attend.
#include <gmock/gmock.h>

#include "config/config_fixture.h"
#include "model/linear_shapes.h"

namespace qlora {
namespace {

using testing::HasSubstr;

TEST_F(ConfigTest, MixersOfQwen3_5) {
  Json json = Minimal("qwen3_5_text");
  const DecoderConfig plain = Load(json);
  EXPECT_EQ(plain.layers[2].mixer, Mixer::kDeltaRule);
  EXPECT_EQ(plain.layers[3].mixer, Mixer::kAttention);
  EXPECT_TRUE(plain.output_gate == OutputGate::kFull && plain.one_plus_norm);
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

TEST_F(ConfigTest, ExpertsOfQwen3_5AndNext) {
  Json json = Minimal("qwen3_5_moe_text");
  json.erase("intermediate_size");
  const MoeConfig plain = Load(json).moe;
  EXPECT_EQ(plain.num_experts, 256);
  EXPECT_EQ(plain.num_experts_per_tok, 8);
  EXPECT_EQ(plain.shared_intermediate_size, 512);
  EXPECT_EQ(Load(json).intermediate_size, 512);
  json["norm_topk_prob"] = false;  // which its class does not read
  EXPECT_TRUE(Load(json).moe.norm_topk_prob);
  json["shared_expert_intermediate_size"] = 40;
  const DecoderConfig config = Load(json);
  EXPECT_EQ(LinearNames(config, 0).shared_in,
            (std::vector<std::string>{"mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj",
                                      "mlp.shared_expert_gate"}));
  EXPECT_EQ(ShapeLinears(config, 0).shared_in[2].out, 1);
  EXPECT_EQ(ShapeLinears(config, 0).shared_out[0].in, 40);
  json["shared_expert_intermediate_size"] = -1;
  EXPECT_THAT(Refusal(json), HasSubstr("shared_expert_intermediate_size is -1"));

  Json wrapped = {{"model_type", "qwen3_5_moe"}, {"text_config", Minimal("qwen3_5_moe_text")}};
  EXPECT_EQ(Load(wrapped).module_prefix, "model.language_model.");
  EXPECT_EQ(Load(Minimal("qwen3_5_moe")).model_type, "qwen3_5_moe_text");

  Json next = Minimal("qwen3_next");
  EXPECT_EQ(Load(next).moe.num_experts, 512);
  EXPECT_TRUE(Load(next).moe.norm_topk_prob);
  EXPECT_EQ(LinearNames(Load(next), 0).qkv,
            (std::vector<std::string>{"linear_attn.in_proj_qkvz", "linear_attn.in_proj_ba"}));
  next["norm_topk_prob"] = false;
  EXPECT_FALSE(Load(next).moe.norm_topk_prob);
  json["mlp_only_layers"] = {1};
  EXPECT_THAT(Refusal(json), HasSubstr("mlp_only_layers are not supported in a qwen3_5_moe_text"));
  for (const int experts : {0, -1}) {
    next["num_experts"] = experts;
    EXPECT_THAT(Refusal(next), HasSubstr("the number of experts"));
  }
}

TEST_F(ConfigTest, LayersOfQwenWithoutExperts) {
  for (const char* type : {"qwen3_moe", "qwen3_next"}) {
    Json json = Minimal(type);
    const auto dense = [&] {
      const DecoderConfig config = Load(json);
      std::vector<std::int64_t> layers;
      for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
        if (config.has_experts(l)) continue;
        layers.push_back(l);
        EXPECT_EQ(config.layer(l).intermediate_size, 128);
        EXPECT_EQ(LinearNames(config, l).down, (std::vector<std::string>{"mlp.down_proj"}));
        EXPECT_TRUE(LinearNames(config, l).shared_in.empty());
      }
      return layers;
    };
    using Layers = std::vector<std::int64_t>;
    EXPECT_EQ(dense(), Layers{});
    json["mlp_only_layers"] = {1, 4};
    EXPECT_EQ(dense(), (Layers{1, 4}));
    json["decoder_sparse_step"] = 2;
    EXPECT_EQ(dense(), (Layers{0, 1, 2, 4}));
    json["decoder_sparse_step"] = 0;
    EXPECT_THAT(Refusal(json), HasSubstr("decoder_sparse_step is 0"));
    json["decoder_sparse_step"] = 1;
    json["mlp_only_layers"] = "1";
    EXPECT_THAT(Refusal(json), HasSubstr("mlp_only_layers"));
  }
}

TEST_F(ConfigTest, ExpertsOfLfm2) {
  Json json = Minimal("lfm2_moe");
  json["layer_types"] = {"conv", "conv", "full_attention", "conv", "conv", "full_attention"};
  json["moe_intermediate_size"] = 24;
  const DecoderConfig config = Load(json);
  EXPECT_FALSE(config.has_experts(1));  // two layers, where no key says how many
  EXPECT_TRUE(config.has_experts(2));
  EXPECT_EQ(config.layer(1).intermediate_size, 128);
  EXPECT_EQ(config.layer(2).intermediate_size, 24);
  EXPECT_EQ(config.moe.score, RouterScore::kSigmoid);
  EXPECT_TRUE(config.moe.norm_topk_prob && config.moe.expert_bias);
  EXPECT_EQ(LinearNames(config, 1).down[0], "feed_forward.w2");
  EXPECT_EQ(LinearNames(config, 2).down[3], "feed_forward.experts.3.w2");
  json["num_dense_layers"] = 0;
  EXPECT_TRUE(Load(json).has_experts(0));
  json["num_dense_layers"] = 7;
  EXPECT_THAT(Refusal(json), HasSubstr("num_dense_layers is 7"));
  json["num_dense_layers"] = 1;
  json["routed_scaling_factor"] = 0;
  EXPECT_THAT(Refusal(json), HasSubstr("routed_scaling_factor is 0"));
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
