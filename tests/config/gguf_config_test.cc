#include "config/gguf_config.h"

#include <cmath>

#include "model/gguf_file.h"
#include "pass/rope.h"

namespace qlora {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Uints = std::vector<std::uint32_t>;

DecoderConfig Parsed(const GgufModel& model) { return ParseGgufConfig(*OpenGguf(model.Write())); }

void ExpectConfigRefused(const GgufModel& model, const std::string& message) {
  ExpectRefused([&] { Parsed(model); }, message);
  ExpectRefused([&] { Parsed(model); }, "model.gguf");
}

// The layers with a window.
std::vector<std::int64_t> LocalLayers(const DecoderConfig& config) {
  std::vector<std::int64_t> layers;
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    if (config.layers[l].window > 0) layers.push_back(l);
  }
  return layers;
}

TEST(GgufConfig, DefaultsAreThoseOfLlamaCpp) {
  const DecoderConfig config = Parsed(GgufModel("llama"));
  EXPECT_EQ(config.model_type, "llama");
  EXPECT_EQ(config.architecture, "LlamaForCausalLM");
  EXPECT_EQ(config.vocab_size, 10);
  EXPECT_EQ(config.num_key_value_heads, 4);
  EXPECT_EQ(config.head_dim, 4);
  EXPECT_EQ(config.max_position_embeddings, 128);
  EXPECT_EQ(config.rms_norm_eps, 1e-5f);
  EXPECT_EQ(config.attention_scale, 0.5f);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_FALSE(config.qkv_bias || config.o_bias || config.mlp_bias || config.one_plus_norm);
  ASSERT_EQ(config.ropes.size(), 1u);
  EXPECT_EQ(config.ropes[0].type, RopeType::kDefault);
  EXPECT_EQ(config.ropes[0].rope_theta, 10000);
  EXPECT_EQ(config.ropes[0].rotary_dim, 4);
  EXPECT_EQ(config.moe.num_experts, 0);
  EXPECT_THAT(LocalLayers(config), IsEmpty());
  EXPECT_THAT(config.notes, IsEmpty());
}

TEST(GgufConfig, NamesTheKeyThatIsMissing) {
  for (const char* key :
       {"block_count", "context_length", "embedding_length", "feed_forward_length",
        "attention.head_count", "attention.layer_norm_rms_epsilon"}) {
    GgufModel model("llama");
    model.RemoveKey(key);
    ExpectConfigRefused(model, std::string("key 'llama.") + key + "' is missing");
  }
  GgufModel model("llama");
  model.Remove("general.architecture");
  ExpectConfigRefused(model, "key 'general.architecture' is missing");
  GgufModel bare("llama");
  bare.Remove("token_embd.weight");
  ExpectConfigRefused(bare, "tensor 'token_embd.weight' is missing");
  GgufModel experts("qwen3moe");
  ExpectConfigRefused(experts, "key 'qwen3moe.expert_count' is missing");
}

TEST(GgufConfig, TypesAreChecked) {
  GgufModel model("llama");
  model.Key("attention.head_count", std::int32_t{4});
  ExpectConfigRefused(model, "key 'llama.attention.head_count': expected type u32, found i32");
  model.Key("attention.head_count", std::uint32_t{4});
  model.Key("rope.freq_base", std::uint32_t{10000});
  ExpectConfigRefused(model, "key 'llama.rope.freq_base': expected type f32, found u32");
}

TEST(GgufConfig, RefusesWhatIsNoSupportedModel) {
  ExpectConfigRefused(GgufModel("rwkv7"),
                      "general.architecture 'rwkv7' is not supported; supported: llama, qwen2, "
                      "qwen3, gemma2, gemma3, phi3, smollm3, qwen3moe");
  ExpectConfigRefused(GgufModel("clip"), "holds an image encoder");
  for (const char* type : {"adapter", "imatrix", "mmproj", "vocab"}) {
    GgufModel model("llama");
    model.Set("general.type", std::string(type));
    ExpectConfigRefused(model, std::string("no model by itself (general.type '") + type);
  }
}

TEST(GgufConfig, RefusesSizesThatNoDecoderHas) {
  const auto refused = [](const char* key, std::uint32_t value, const std::string& message) {
    GgufModel model("llama");
    model.Key(key, value);
    ExpectConfigRefused(model, message);
  };
  refused("block_count", 0, "num_hidden_layers is 0");
  refused("block_count", 4000000000, "num_hidden_layers is 4000000000");
  refused("context_length", 0, "context_length must be positive");
  refused("embedding_length", 4294967295, "hidden_size is 4294967295");
  refused("feed_forward_length", 0, "intermediate_size is 0");
  refused("attention.head_count", 0, "attention.head_count must be positive");
  refused("attention.head_count_kv", 3, "num_attention_heads 4 is not a multiple");
  refused("attention.key_length", 8, "key_length 8 and attention.value_length 4 differ");
  refused("rope.dimension_count", 2, "rope.dimension_count 2 of heads of 4 is not possible");
  GgufModel model("llama");
  model.Set("tokenizer.ggml.tokens", GgufArray(std::vector<std::string>{"a", "b"}));
  ExpectConfigRefused(model, "tokenizer.ggml.tokens has 2 tokens, and token_embd.weight 10 rows");
  GgufModel qwen("qwen2");
  qwen.Key("attention.key_length", std::uint32_t{4294967295});
  qwen.Key("attention.value_length", std::uint32_t{4294967295});
  ExpectConfigRefused(qwen, "head_dim is 4294967295");
  qwen.Key("attention.key_length", std::uint32_t{8});
  qwen.Key("attention.value_length", std::uint32_t{8});
  ExpectConfigRefused(qwen, "4 heads of 8 are not the embedding_length 16");
}

TEST(GgufConfig, KeysMayHaveANumberForEachLayer) {
  GgufModel model("llama");
  model.Key("attention.head_count_kv", GgufArray(Uints{2, 2}));
  EXPECT_EQ(Parsed(model).num_key_value_heads, 2);
  model.Key("attention.head_count_kv", GgufArray(Uints{2, 4}));
  ExpectConfigRefused(model, "key 'llama.attention.head_count_kv' differs between layers");
  model.Key("attention.head_count_kv", GgufArray(Uints{2}));
  ExpectConfigRefused(model, "a list of 2 numbers (one for each block)");
  model.Key("attention.head_count_kv", GgufArray(std::vector<float>{2, 2}));
  ExpectConfigRefused(model, "found array of f32");
}

TEST(GgufConfig, TensorsTellBiasesAndTheHead) {
  GgufModel model("llama");
  model.Tensor("output.weight", {10, 16}, std::vector<float>(160));
  model.Tensor("blk.0.attn_qkv.bias", {48}, std::vector<float>(48));
  model.Tensor("blk.0.attn_output.bias", {16}, std::vector<float>(16));
  model.Tensor("blk.0.ffn_up.bias", {24}, std::vector<float>(24));
  const DecoderConfig config = Parsed(model);
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_TRUE(config.qkv_bias && config.o_bias && config.mlp_bias);
}

TEST(GgufConfig, ExpertsMakeAMixtral) {
  GgufModel model("llama");
  model.Key("expert_count", std::uint32_t{4});
  ExpectConfigRefused(model, "key 'llama.expert_used_count' is missing");
  model.Key("expert_used_count", std::uint32_t{2});
  model.Key("expert_feed_forward_length", std::uint32_t{7});  // not read here
  const DecoderConfig config = Parsed(model);
  EXPECT_EQ(config.model_type, "mixtral");
  EXPECT_EQ(config.intermediate_size, 24);
  EXPECT_EQ(config.moe.num_experts, 4);
  EXPECT_TRUE(config.moe.norm_topk_prob);
  model.Key("expert_used_count", std::uint32_t{5});
  ExpectConfigRefused(model, "num_experts_per_tok is 5");

  GgufModel qwen("qwen3moe");
  qwen.Key("expert_count", std::uint32_t{4});
  qwen.Key("expert_used_count", std::uint32_t{2});
  EXPECT_EQ(Parsed(qwen).intermediate_size, 12);
  qwen.Key("expert_feed_forward_length", std::uint32_t{7});
  EXPECT_EQ(Parsed(qwen).intermediate_size, 7);
  EXPECT_EQ(Parsed(qwen).qk_norm, QkNorm::kHeads);
  qwen.RemoveKey("expert_feed_forward_length");
  qwen.Key("expert_used_count", std::uint32_t{0});
  ExpectConfigRefused(qwen, "expert_used_count must be positive");
}

// Where llama.cpp has none, it takes each block for a layer.
TEST(GgufConfig, DraftsAreOfFamiliesThatHaveThem) {
  GgufModel model("llama");
  model.Key("nextn_predict_layers", std::uint32_t{0});
  EXPECT_EQ(Parsed(model).num_hidden_layers, 2);
  model.Key("nextn_predict_layers", std::uint32_t{1});
  ExpectConfigRefused(model, "a llama has no blocks that draft tokens");
}

TEST(GgufConfig, PositionsAreScaledByOneFactor) {
  GgufModel model("qwen2");
  model.Key("rope.scale_linear", 4.0f);  // the old name
  EXPECT_EQ(Parsed(model).ropes[0].type, RopeType::kLinear);
  EXPECT_EQ(Parsed(model).ropes[0].factor, 4);
  model.Key("rope.scaling.factor", 2.0f);  // the type is linear where none is given
  EXPECT_EQ(Parsed(model).ropes[0].factor, 2);
  model.Key("rope.scaling.factor", 0.0f);
  EXPECT_EQ(Parsed(model).ropes[0].type, RopeType::kDefault);
  model.Key("rope.scaling.factor", 2.0f);
  model.Key("rope.scaling.type", std::string("none"));
  EXPECT_EQ(Parsed(model).ropes[0].type, RopeType::kDefault);
  model.Key("rope.scaling.attn_factor", 1.5f);  // of every type
  EXPECT_EQ(Parsed(model).ropes[0].attention_factor, 1.5);
  model.Key("rope.scaling.type", std::string("llama3"));
  ExpectConfigRefused(model, "rope.scaling.type 'llama3' is not supported; supported: none");
  model.Key("rope.scaling.type", std::string("linear"));
  model.Key("rope.scaling.factor", std::nanf(""));
  ExpectConfigRefused(model, "rope.scaling.factor is nan");
}

TEST(GgufConfig, YarnHasTheParametersOfLlamaCpp) {
  GgufModel model("qwen2");
  model.Key("rope.scaling.type", std::string("yarn"));
  model.Key("rope.scaling.factor", 4.0f);
  const DecoderConfig plain = Parsed(model);
  EXPECT_EQ(plain.ropes[0].type, RopeType::kYarn);
  EXPECT_EQ(plain.ropes[0].original_max_position_embeddings, 128);
  EXPECT_DOUBLE_EQ(plain.ropes[0].attention_factor, 1 + 0.1 * std::log(4.0));
  EXPECT_THAT(plain.notes, IsEmpty());
  model.Key("rope.scaling.original_context_length", std::uint32_t{32});
  model.Key("rope.scaling.attn_factor", 0.5f);
  model.Key("rope.scaling.yarn_beta_fast", 64.0f);
  const DecoderConfig config = Parsed(model);
  EXPECT_EQ(config.ropes[0].original_max_position_embeddings, 32);
  EXPECT_DOUBLE_EQ(config.ropes[0].attention_factor, 0.5 * (1 + 0.1 * std::log(4.0)));
  EXPECT_EQ(config.ropes[0].beta_fast, 32);
  model.Key("rope.scaling.yarn_beta_slow", std::uint32_t{2});  // not read, whatever its type
  EXPECT_EQ(Parsed(model).ropes, config.ropes);
  EXPECT_THAT(config.notes, ElementsAre(HasSubstr("yarn_beta_fast is 64 and is taken for 32")));
}

TEST(GgufConfig, DivisorsOfFrequenciesAreTensors) {
  GgufModel llama("llama");
  llama.Key("rope.scaling.factor", 2.0f);
  llama.Tensor("rope_freqs.weight", {2}, {1, 8});
  const RopeConfig rope = Parsed(llama).ropes[0];
  EXPECT_THAT(rope.divisors, ElementsAre(1, 8));
  const std::vector<double> frequencies = RopeFrequencies(rope, false);
  EXPECT_DOUBLE_EQ(frequencies[0], 0.5);
  EXPECT_DOUBLE_EQ(frequencies[1], 0.01 / 16);
  llama.Tensor("rope_freqs.weight", {3}, {1, 8, 8});
  ExpectConfigRefused(llama, "'rope_freqs.weight' must have 2 values of F32, found 3 of F32");
  llama.Tensor("rope_freqs.weight", {2}, {1, 0});
  ExpectConfigRefused(llama, "'rope_freqs.weight' holds 0");

  for (const char* architecture : {"phi3", "llama"}) {
    GgufModel model(architecture);
    model.Key("rope.scaling.original_context_length", std::uint32_t{64});
    model.Key("rope.scaling.attn_factor", 1.25f);
    model.Key("rope.scaling.type", std::string("longrope"));
    ExpectConfigRefused(model, "tensor 'rope_factors_long.weight' is missing");
    model.Tensor("rope_factors_long.weight", {2}, {2, 3});
    model.Tensor("rope_factors_short.weight", {2}, {1, 1.5});
    const RopeConfig factors = Parsed(model).ropes[0];
    EXPECT_EQ(factors.type, RopeType::kLongrope);
    EXPECT_EQ(factors.original_max_position_embeddings, 64);
    EXPECT_EQ(factors.attention_factor, 1.25);
    EXPECT_THAT(factors.short_factor, ElementsAre(1, 1.5));
    EXPECT_THAT(factors.long_factor, ElementsAre(2, 3));
    // A linear factor comes on top.
    model.Key("rope.scaling.factor", 2.0f);
    EXPECT_THAT(Parsed(model).ropes[0].long_factor, ElementsAre(4, 6));
  }
}

TEST(GgufConfig, WindowsAreThoseThatLlamaCppApplies) {
  GgufModel gemma2("gemma2");
  const DecoderConfig by_default = Parsed(gemma2);
  EXPECT_EQ(by_default.layers[0].window, 4096);
  EXPECT_THAT(LocalLayers(by_default), ElementsAre(0));
  EXPECT_EQ(by_default.ropes.size(), 1u);
  gemma2.Key("block_count", std::uint32_t{6});
  gemma2.Key("attention.sliding_window", std::uint32_t{16});
  gemma2.Key("attention.sliding_window_pattern", std::uint32_t{3});
  EXPECT_THAT(LocalLayers(Parsed(gemma2)), ElementsAre(0, 1, 3, 4));
  gemma2.Key("attention.sliding_window_pattern", std::uint32_t{0});
  EXPECT_THAT(LocalLayers(Parsed(gemma2)), ElementsAre(0, 1, 2, 3, 4, 5));
  gemma2.Key("attention.sliding_window_pattern",
             GgufArray(std::vector<bool>{false, true, false, false, true, false}));
  EXPECT_THAT(LocalLayers(Parsed(gemma2)), ElementsAre(1, 4));

  GgufModel gemma3("gemma3");
  gemma3.Key("block_count", std::uint32_t{7});
  gemma3.Key("rope.freq_base", 1e6f);
  gemma3.Key("rope.scaling.factor", 8.0f);
  EXPECT_THAT(LocalLayers(Parsed(gemma3)), IsEmpty());
  EXPECT_EQ(Parsed(gemma3).ropes.size(), 1u);
  gemma3.Key("attention.sliding_window", std::uint32_t{16});
  const DecoderConfig config = Parsed(gemma3);
  EXPECT_THAT(LocalLayers(config), ElementsAre(0, 1, 2, 3, 4, 6));
  ASSERT_EQ(config.ropes.size(), 2u);
  EXPECT_EQ(config.ropes[0].factor, 8);
  EXPECT_EQ(config.ropes[1].type, RopeType::kDefault);
  EXPECT_EQ(config.ropes[1].rope_theta, 10000);
  EXPECT_EQ(config.layers[5].rope, 0);
  EXPECT_EQ(config.layers[6].rope, 1);

  for (const char* architecture : {"llama", "qwen2", "qwen3", "phi3"}) {
    GgufModel model(architecture);
    model.Key("attention.sliding_window", std::uint32_t{16});
    const DecoderConfig whole = Parsed(model);
    EXPECT_THAT(LocalLayers(whole), IsEmpty());
    EXPECT_THAT(whole.notes, ElementsAre(HasSubstr("sliding_window 16 is not applied")));
  }
}

TEST(GgufConfig, GemmaHasScalesWithoutKeys) {
  GgufModel gemma2("gemma2");
  gemma2.Key("attention.key_length", std::uint32_t{16});
  gemma2.Key("attention.value_length", std::uint32_t{16});
  DecoderConfig config = Parsed(gemma2);
  EXPECT_EQ(config.embed_scale, 4);
  EXPECT_EQ(config.attention_scale, 0.25f);
  EXPECT_EQ(config.attention_softcap, 50);
  EXPECT_EQ(config.final_softcap, 30);
  EXPECT_EQ(config.hidden_act, Activation::kGeluTanh);
  EXPECT_TRUE(config.post_norms && config.tie_word_embeddings);
  // The 27B, by its layers: 1 / sqrt(16 / 4).
  gemma2.Key("block_count", std::uint32_t{46});
  EXPECT_EQ(Parsed(gemma2).attention_scale, 0.5f);
  gemma2.Key("attn_logit_softcapping", 0.0f);
  ExpectConfigRefused(gemma2, "must be positive");

  GgufModel gemma3("gemma3");
  gemma3.Key("attention.key_length", std::uint32_t{16});
  gemma3.Key("attention.value_length", std::uint32_t{16});
  gemma3.Key("block_count", std::uint32_t{46});
  gemma3.Key("attn_logit_softcapping", 20.0f);  // not read
  config = Parsed(gemma3);
  EXPECT_EQ(config.attention_scale, 0.25f);
  EXPECT_EQ(config.attention_softcap, 0);
  EXPECT_EQ(config.final_softcap, 0);
  gemma3.Key("block_count", std::uint32_t{62});
  EXPECT_EQ(Parsed(gemma3).attention_scale, 0.5f);
}

TEST(GgufConfig, EveryFourthLayerOfSmolLm3DoesNotRotate) {
  GgufModel model("smollm3");
  model.Key("block_count", std::uint32_t{5});
  std::vector<int> ropes;
  for (const LayerConfig& layer : Parsed(model).layers) ropes.push_back(layer.rope);
  EXPECT_THAT(ropes, ElementsAre(0, 0, 0, -1, 0));
}

// Of GLM-4 that sees, q and k have their rows in another order.
TEST(GgufConfig, SectionsOfPositions) {
  GgufModel glm("glm4");
  glm.Key("rope.dimension_sections", std::vector<std::int32_t>{2, 1, 1, 0});
  ExpectRefused([&] { Parsed(glm); }, "rope.dimension_sections is set");
  GgufModel qwen("qwen3vl");
  qwen.Key("rope.dimension_sections", std::vector<std::int32_t>{1, 1, 0, 0});
  EXPECT_EQ(Parsed(qwen).ropes[0].mrope_section, (std::vector<std::int64_t>{1, 1, 0, 0}));
}

// Layers of Olmo 3 with a window turn with the base of the others, whatever a key says.
TEST(GgufConfig, OlmoScalesItsFullLayersAlone) {
  GgufModel olmo("olmo2");
  olmo.Key("attention.sliding_window", std::uint32_t{8});
  olmo.Key("rope.freq_base", 5e5f);
  olmo.Key("rope.freq_base_swa", 100.0f);
  olmo.Key("rope.scaling.type", std::string("yarn"));
  olmo.Key("rope.scaling.factor", 4.0f);
  olmo.Key("rope.scaling.attn_factor", 2.0f);
  const DecoderConfig config = Parsed(olmo);
  EXPECT_EQ(config.model_type, "olmo3");
  ASSERT_EQ(config.ropes.size(), 2u);
  EXPECT_EQ(config.ropes[1].rope_theta, 5e5);
  EXPECT_EQ(config.ropes[1].attention_factor, 1);
  EXPECT_EQ(config.layers[0].rope, 1);
}

// Its graph alone reads the betas of YaRN.
TEST(GgufConfig, MinistralHasItsBetas) {
  GgufModel model("mistral3");
  model.Key("rope.scaling.type", std::string("yarn"));
  model.Key("rope.scaling.factor", 4.0f);
  model.Key("rope.scaling.yarn_beta_fast", 4.0f);
  EXPECT_EQ(Parsed(model).ropes[0].beta_fast, 4);
  EXPECT_TRUE(Parsed(model).notes.empty());
}

}  // namespace
}  // namespace qlora
