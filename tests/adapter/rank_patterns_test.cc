// Entries of rank_pattern and alpha_pattern, read back as the file has them: sorted.
#include "adapter/rank_patterns.h"

#include <gtest/gtest.h>

#include "adapter/expert_stack.h"
#include "io/json.h"

namespace qlora {
namespace {

AdapterConfig Stored(const AdapterConfig& config) {
  std::vector<std::string> unknown;
  AdapterConfig stored = ParseAdapterConfig(FormatAdapterConfig(config), "a.json", unknown);
  stored.module_prefix = config.module_prefix;
  return stored;
}

void ExpectEach(const std::vector<RankedTarget>& targets) {
  AdapterConfig config;
  config.target_modules = std::string("all-linear");
  config.target_parameters = {"mlp.experts.down_proj", "mlp.experts.gate_up_proj"};
  config.r = 8;
  config.lora_alpha = 16;
  // What was there does not count.
  config.rank_pattern = {{".*", 3}};
  SetPatterns(targets, config);
  const AdapterConfig stored = Stored(config);
  for (const RankedTarget& target : targets) {
    EXPECT_EQ(RankOf(stored, target.path), target.rank) << target.path;
    EXPECT_EQ(AlphaOf(stored, target.path), target.alpha) << target.path;
  }
}

TEST(RankPatternsTest, NamesStandForAllThatTheyMatch) {
  AdapterConfig config;
  config.r = 8;
  SetPatterns({{"q_proj", "model.layers.0.self_attn.q_proj", 4, 8},
               {"q_proj", "model.layers.1.self_attn.q_proj", 4, 8},
               {"v_proj", "model.layers.0.self_attn.v_proj", 8, 8},
               {"v_proj", "model.layers.1.self_attn.v_proj", 2, 8}},
              config);
  const std::vector<std::pair<std::string, std::int64_t>> expected = {
      {"model.layers.1.self_attn.v_proj", 2}, {"q_proj", 4}};
  EXPECT_EQ(config.rank_pattern, expected);
  EXPECT_TRUE(config.alpha_pattern.empty());
}

// The name of a dense layer's linear is the end of the name of a parameter of experts.
TEST(RankPatternsTest, ANameDoesNotReachOthers) {
  ExpectEach({{"down_proj", "model.layers.0.mlp.down_proj", 4, 16},
              {"experts.down_proj", "model.layers.1.mlp.experts.down_proj", 8, 16},
              {"experts.gate_up_proj", "model.layers.1.mlp.experts.gate_up_proj", 16, 32}});
  ExpectEach({{"down_proj", "model.layers.0.mlp.down_proj", 8, 16},
              {"experts.down_proj", "model.layers.1.mlp.experts.down_proj", 4, 8},
              {"experts.down_proj", "model.layers.2.mlp.experts.down_proj", 4, 16},
              {"experts.gate_up_proj", "model.layers.1.mlp.experts.gate_up_proj", 16, 32},
              {"experts.gate_up_proj", "model.layers.2.mlp.experts.gate_up_proj", 8, 16}});
}

// A LoRA for each expert, written as parameters: what the options say, also of other linears.
TEST(RankPatternsTest, ParametersHaveTheRanksOfTheirExperts) {
  const DecoderConfig decoder =
      ParseDecoderConfig({{"model_type", "lfm2_moe"},
                          {"hidden_size", 16},
                          {"intermediate_size", 24},
                          {"num_hidden_layers", 4},
                          {"num_attention_heads", 4},
                          {"num_key_value_heads", 2},
                          {"head_dim", 4},
                          {"vocab_size", 20},
                          {"norm_eps", 1e-5},
                          {"max_position_embeddings", 64},
                          {"num_experts", 3},
                          {"num_experts_per_tok", 2},
                          {"moe_intermediate_size", 12},
                          {"layer_types", {"conv", "full_attention", "conv", "conv"}},
                          {"num_dense_layers", 1}},
                         "config.json");
  ASSERT_TRUE(NeedsParameters(decoder));
  using Patterns = std::vector<std::pair<std::string, std::int64_t>>;
  for (const Patterns& patterns :
       {Patterns{}, Patterns{{"w2", 4}}, Patterns{{"layers.2.feed_forward.experts.\\d.w2", 4}},
        Patterns{{".*layers.[12].*(w1|w3)", 5}, {"w2", 3}},
        Patterns{{"layers.0.feed_forward.w1", 2}}}) {
    AdapterConfig config;
    config.target_modules = std::vector<std::string>{"w1", "w2", "w3"};
    config.r = 6;
    config.lora_alpha = 12;
    config.rank_pattern = patterns;
    for (const bool use_rslora : {false, true}) {
      config.use_rslora = use_rslora;
      ASSERT_TRUE(HaveEqualExperts(config, decoder));
      AdapterConfig of_halves = Stored(ConfigOfParameters(config, decoder));
      for (std::int64_t l = 0; l < decoder.num_hidden_layers; ++l) {
        LinearPaths(decoder, l).ForEach([&](const std::string& path) {
          SCOPED_TRACE(path);
          const bool is_expert = path.find(".experts.") != std::string::npos;
          const std::int64_t parts = is_expert && !path.ends_with("w2") ? 2 : 1;
          EXPECT_EQ(IsTargetModule(of_halves, path), IsTargetModule(config, path));
          if (!IsTargetModule(config, path)) return;
          EXPECT_EQ(RankOf(of_halves, path), parts * RankOf(config, path));
          EXPECT_NEAR(ScaleOf(of_halves, path), ScaleOf(config, path), 1e-12);
        });
      }
    }
  }
}

// As PEFT computes it: by the rank of the module.
TEST(RankPatterns, ScalesFollowTheRankOfTheModule) {
  AdapterConfig config;
  config.r = 4;
  config.lora_alpha = 8;
  config.rank_pattern = {{"q_proj", 16}};
  EXPECT_EQ(ScaleOf(config, "model.layers.0.self_attn.v_proj"), 2);
  EXPECT_EQ(ScaleOf(config, "model.layers.0.self_attn.q_proj"), 0.5);
  config.use_rslora = true;
  EXPECT_EQ(ScaleOf(config, "model.layers.0.self_attn.v_proj"), 4);
  EXPECT_EQ(ScaleOf(config, "model.layers.0.self_attn.q_proj"), 2);
}

}  // namespace
}  // namespace qlora
