// `qlora-bench` on the shapes of families: each kind of layer takes steps and makes tokens with
// random weights.
#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <string>

#include "bench/bench_model.h"
#include "bench/bench_program.h"
#include "hub/known_models.h"
#include "pass/flops.h"

namespace qlora {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

// Sizes of all; the families have more keys, and some other values.
nlohmann::json Sizes() {
  return {{"vocab_size", 256},        {"hidden_size", 64},
          {"intermediate_size", 96},  {"num_hidden_layers", 4},
          {"num_attention_heads", 4}, {"num_key_value_heads", 2},
          {"head_dim", 32},           {"max_position_embeddings", 64}};
}

nlohmann::json With(nlohmann::json more) {
  nlohmann::json config = Sizes();
  config.update(more);
  return config;
}

const nlohmann::json kGemma4 = {
    {"model_type", "gemma4_text"},
    {"global_head_dim", 64},
    {"vocab_size_per_layer_input", 256},
    {"hidden_size_per_layer_input", 32},
    {"num_kv_shared_layers", 2},
    {"use_double_wide_mlp", true},
    {"sliding_window", 8},
    {"layer_types",
     {"sliding_attention", "full_attention", "sliding_attention", "full_attention"}}};

nlohmann::json SideExperts() {
  nlohmann::json config = With(kGemma4);
  config["hidden_size_per_layer_input"] = 0;
  config.update({{"enable_moe_block", true},
                 {"num_experts", 4},
                 {"top_k_experts", 2},
                 {"moe_intermediate_size", 32}});
  return config;
}

nlohmann::json Experts(const char* model_type) {
  return With({{"model_type", model_type},
               {"num_experts", 8},
               {"num_local_experts", 8},
               {"num_experts_per_tok", 2},
               {"moe_intermediate_size", 32}});
}

nlohmann::json SharedExpert() {
  nlohmann::json config = Experts("qwen3_5_moe_text");
  config.update({{"shared_expert_intermediate_size", 32},
                 {"linear_num_key_heads", 2},
                 {"linear_num_value_heads", 4},
                 {"linear_key_head_dim", 32},
                 {"linear_value_head_dim", 32}});
  return config;
}

nlohmann::json ConvExperts() {
  nlohmann::json config = Experts("lfm2_moe");
  config["layer_types"] = {"conv", "full_attention", "conv", "full_attention"};
  config["num_dense_layers"] = 1;
  return config;
}

const std::map<std::string, nlohmann::json> kShapes = {
    {"llama", With({{"model_type", "llama"}})},
    {"biases", With({{"model_type", "qwen2"}})},
    {"per-layer embeddings", With(kGemma4)},
    {"experts beside the MLP", SideExperts()},
    {"experts", Experts("qwen3_moe")},
    {"experts with biases, sinks", Experts("gpt_oss")},
    {"shared expert, delta rule", SharedExpert()},
    {"experts, short convolution", ConvExperts()},
    {"scales", With({{"model_type", "granite"}, {"logits_scaling", 8}})}};

class BenchShapeTest : public BenchTest {
 protected:
  // The words of a measurement of one short step or a few tokens.
  Words Bench(const char* what, const nlohmann::json& config, Words more = {}) const {
    Words words = {what,
                   "--shape",
                   Write("config.json", config.dump()).string(),
                   "--lora_r=2",
                   "--steps=1",
                   "--max_length=16",
                   "--new_tokens=2",
                   "--threads=1",
                   "--prompt_tokens=8"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
};

TEST_F(BenchShapeTest, StepsOfAllKindsOfLayersHaveTheLossOfAGuess) {
  for (const auto& [name, config] : kShapes) {
    const nlohmann::json report = RunJson(Bench("step", config));
    int losses = 0;
    for (const nlohmann::json& row : report.at("results")) {
      if (row.at("unit") != "nats") continue;
      ++losses;
      // One of 256 tokens, and logits that random weights spread.
      EXPECT_NEAR(row.at("value").get<double>(), std::log(256), 1) << name;
    }
    EXPECT_EQ(losses, 2) << name;
  }
}

TEST_F(BenchShapeTest, MakesTokensWithAllKindsOfLayers) {
  for (const auto& [name, config] : kShapes) {
    const Outcome outcome = Run(Bench("decode", config));
    EXPECT_EQ(outcome.code, 0) << name << ": " << outcome.err;
  }
}

TEST_F(BenchShapeTest, KeepsTheFirstLayers) {
  const Outcome outcome = Run(Bench("step", With(kGemma4), {"--num_hidden_layers=3"}));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("config.json L3"));
  bench::ModelBenchOptions options;
  options.shape = "gemma-4-E2B";
  options.num_hidden_layers = 14;
  const DecoderConfig config = bench::ConfigOf(options, 512);
  ASSERT_EQ(std::ssize(config.layers), 14);
  for (std::int64_t l = 0; l < 14; ++l) EXPECT_EQ(config.layers[l].has_own_kv(), l < 6) << l;
  EXPECT_THAT(Refused(Bench("step", With(kGemma4), {"--num_hidden_layers=5"})),
              HasSubstr("expected at most 4"));
}

TEST_F(BenchShapeTest, KeepsAnyNumberOfLayersOfAnyModel) {
  bench::ModelBenchOptions options;
  for (const std::string& name : KnownModelNames()) {
    options.shape = name;
    options.num_hidden_layers = 0;
    const std::int64_t all = bench::ConfigOf(options, 512).num_hidden_layers;
    for (std::int64_t layers = 1; layers <= all; ++layers) {
      options.num_hidden_layers = layers;
      EXPECT_NO_THROW(bench::ConfigOf(options, 512)) << name << ", " << layers;
    }
  }
}

class BenchModelsTest : public BenchShapeTest {
 protected:
  // The words of a table of one model of four layers.
  Words Models(Words more) const {
    const std::string config = Write("config.json", With(kGemma4).dump()).string();
    Words words = {"models",    "--models",    config,           "--lora_r=2",
                   "--steps=1", "--threads=1", "--max_length=16"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
};

TEST_F(BenchModelsTest, HasARowForEachFormatAndType) {
  const Outcome outcome = Run(Models({"--weight_formats=nf4,Q4_0"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("| model | weights | arithmetic | tokens/s |"));
  for (const std::string format : {"nf4", "Q4_0"}) {
    for (const std::string type : {"float32", "bfloat16", "int8"}) {
      EXPECT_THAT(outcome.out, HasSubstr("| " + format + " | " + type + " |"));
    }
  }
  EXPECT_THAT(outcome.out, Not(HasSubstr("~")));
}

TEST_F(BenchModelsTest, MarksWhatTheFirstLayersAreScaledTo) {
  const Words part = {"--compute_dtypes=float32", "--num_hidden_layers=3"};
  const Outcome outcome = Run(Models(part));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("config.json, 3 of 4 layers | nf4 | float32 | ~"));
  EXPECT_THAT(outcome.out, HasSubstr("~: the first layers were measured"));
  // Of more layers than there are: all of them, as they were measured.
  const nlohmann::json whole =
      RunJson(Models({"--compute_dtypes=float32", "--num_hidden_layers=5"}));
  const nlohmann::json& row = whole.at("results").at(0);
  EXPECT_EQ(row.at("layers"), 4);
  EXPECT_EQ(row.at("all_layers"), 4);
  EXPECT_GT(row.at("limit_share").get<double>(), 0);
}

TEST_F(BenchModelsTest, RefusesNamesBeforeItMeasures) {
  EXPECT_THAT(Refused({"models", "--models=Qwen3-0.6B,Qwen3-1B"}), HasSubstr("'Qwen3-1B'"));
  EXPECT_THAT(Refused(Models({"--compute_dtypes=float32,float8"})), HasSubstr("float8"));
  EXPECT_THAT(Refused(Models({"--weight_formats=nf4,fp4"})), HasSubstr("found 'fp4'"));
  // What only a model can tell.
  const Outcome outcome = Run(Models({"--weight_formats=Q4_K"}));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("no whole blocks of Q4_K"));
}

TEST_F(BenchShapeTest, RefusesWhatIsNoShape) {
  EXPECT_THAT(Refused({"step", "--shape=Qwen3.5-1B"}), HasSubstr("found 'Qwen3.5-1B'"));
  EXPECT_THAT(Refused(Bench("step", nlohmann::json::array())), HasSubstr("config.json"));
  EXPECT_THAT(Refused(Bench("step", {{"model_type", "bert"}}, {"--num_hidden_layers=1"})),
              HasSubstr("bert"));
}

// FLOPs of a step of one token in a sequence of 16.
double FlopsOf(const nlohmann::json& json, Recompute recompute) {
  const DecoderConfig config = ParseDecoderConfig(json, "config.json");
  bench::ModelBenchOptions options;
  options.lora_r = 2;
  const LoraAdapter adapter = bench::RandomAdapter(options, config, HostMemory());
  return StepFlops(config, adapter, {}, 1, 1, 16,
                   std::vector<Recompute>(config.layers.size(), recompute))
      .sum();
}

TEST(BenchFlopsTest, AreThoseOfTheFormula) {
  const nlohmann::json llama = With({{"model_type", "llama"}});
  // Parameters of q, k, v, o and of gate, up, down, and of adapters of rank 2 on each.
  const double attention = 64 * (128 + 64 + 64 + 128);
  const double mlp = 3 * 64 * 96;
  const double lora = 2 * (2 * (64 + 128) + 2 * (64 + 64) + 3 * (64 + 96));
  const double none = 4 * (4 * (attention + mlp) + 6 * lora + 7 * 16 * 128) + 4 * 256 * 64;
  EXPECT_DOUBLE_EQ(FlopsOf(llama, Recompute::kNone), none);
  const double again = attention + mlp / 3 * 2 + lora - 2 * (64 + 96);
  EXPECT_DOUBLE_EQ(FlopsOf(llama, Recompute::kLayer), none + 4 * (2 * again + 2 * 16 * 128));
}

TEST(BenchFlopsTest, CountTheExpertsOfAToken) {
  nlohmann::json few = Experts("qwen3_moe");
  few.erase("num_local_experts");  // the same number under its other name
  nlohmann::json many = few;
  many["num_experts"] = 16;
  // As many experts for each token; only the router is larger.
  EXPECT_DOUBLE_EQ(FlopsOf(many, Recompute::kNone) - FlopsOf(few, Recompute::kNone),
                   4 * 4 * 8 * 64);
  many["num_experts_per_tok"] = 3;
  many["num_experts"] = 8;
  const double expert = 4 * 3 * 64 * 32 + 6 * 2 * 3 * (64 + 32);
  EXPECT_DOUBLE_EQ(FlopsOf(many, Recompute::kNone) - FlopsOf(few, Recompute::kNone), 4 * expert);
}

}  // namespace
}  // namespace qlora
