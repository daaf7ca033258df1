// Families whose layers are of several kinds, in config.json and in the keys of GGUF files.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "config/config_fixture.h"
#include "config/gguf_config.h"
#include "config/gguf_config_rope.h"
#include "model/gguf_file.h"

namespace qlora {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr double kStays = std::numeric_limits<double>::infinity();

std::vector<std::int64_t> Windows(const DecoderConfig& config) {
  std::vector<std::int64_t> windows;
  for (const LayerConfig& layer : config.layers) windows.push_back(layer.window);
  return windows;
}

std::vector<int> Ropes(const DecoderConfig& config) {
  std::vector<int> ropes;
  for (const LayerConfig& layer : config.layers) ropes.push_back(layer.rope);
  return ropes;
}

Json WithLayers(Json json, const std::vector<std::string>& types) {
  json["num_hidden_layers"] = types.size();
  json["layer_types"] = types;
  return json;
}

constexpr const char* kFull = "full_attention";
constexpr const char* kSliding = "sliding_attention";

TEST_F(ConfigTest, KindsOfLayersOfLfm3) {
  Json json = WithLayers(Minimal("lfm3"), {"conv", kFull, kSliding, "conv"});
  json["vocab_size"] = 10;
  const DecoderConfig config = Load(json);
  EXPECT_THAT(Windows(config), ElementsAre(0, 0, 256, 0));
  EXPECT_THAT(Ropes(config), ElementsAre(-1, 0, 1, -1));
  EXPECT_EQ(config.layers[3].mixer, Mixer::kShortConv);
  EXPECT_EQ(config.output_gate, OutputGate::kHeads);
  EXPECT_EQ(config.conv_taps, 7);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(config.intermediate_size, 128);  // as it stands
  EXPECT_TRUE(config.post_norms && config.tie_word_embeddings);
  ASSERT_EQ(config.ropes.size(), 2u);
  EXPECT_EQ(config.ropes[0].rope_theta, 1e6);
  EXPECT_EQ(config.ropes[1].rope_theta, 1e4);
  ASSERT_EQ(config.ropes[0].divisors.size(), 64u);
  EXPECT_EQ(config.ropes[0].divisors[31], 1);
  EXPECT_EQ(config.ropes[0].divisors[32], kStays);
  EXPECT_THAT(config.ropes[1].divisors, IsEmpty());
  EXPECT_EQ(config.ropes[1].rotary_dim, 128);
  // Both names of the key, and of the type.
  json["rms_norm_eps"] = 0.25;
  EXPECT_EQ(Load(json).rms_norm_eps, 0.25f);
  json["norm_eps"] = 0.5;
  EXPECT_EQ(Load(json).rms_norm_eps, 0.5f);
  for (const char* type : {"default", "proportional"}) {
    json["rope_parameters"] = {
        {kFull, {{"rope_type", type}, {"rope_theta", 5e4}, {"partial_rotary_factor", 0.25}}},
        {kSliding, {{"rope_type", "default"}, {"rope_theta", 300.0}}}};
    const DecoderConfig stated = Load(json);
    EXPECT_EQ(stated.ropes[0].rope_theta, 5e4);
    EXPECT_EQ(stated.ropes[0].divisors[15], 1);
    EXPECT_EQ(stated.ropes[0].divisors[16], kStays);
    EXPECT_EQ(stated.ropes[1].rope_theta, 300);
  }
  json["rope_parameters"][kFull]["rope_type"] = "yarn";
  EXPECT_THAT(Refusal(json), HasSubstr("rope_type 'yarn'"));
  json.erase("rope_parameters");
  for (const char* key : {"conv_bias", "attention_bias"}) {
    Json biased = json;
    biased[key] = true;
    EXPECT_THAT(Refusal(biased), HasSubstr(std::string(key) + " true is not supported"));
  }
  json["layer_types"][0] = "linear_attention";
  EXPECT_THAT(Refusal(json), HasSubstr("supported: full_attention, sliding_attention, conv"));
  json.erase("layer_types");
  EXPECT_THAT(Refusal(json), HasSubstr("'layer_types' is missing"));
}

TEST_F(ConfigTest, KindsOfLayersOfSpark) {
  Json json = WithLayers(Minimal("spark2_5"), {kSliding, kSliding, kFull});
  json["headwise_attn_output_gate"] = true;
  json["rope_parameters"] = {{kFull, {{"rope_theta", 5e6}, {"partial_rotary_factor", 0.25}}},
                             {kSliding, {{"rope_theta", 1e4}, {"partial_rotary_factor", 1.0}}}};
  const DecoderConfig config = Load(json);
  EXPECT_THAT(Windows(config), ElementsAre(512, 512, 0));
  EXPECT_THAT(Ropes(config), ElementsAre(1, 1, 0));
  EXPECT_EQ(config.hidden_act, Activation::kGelu);
  EXPECT_EQ(config.output_gate, OutputGate::kHeads);
  EXPECT_EQ(config.names.embedding, "embedding");
  EXPECT_EQ(config.ropes[0].rotary_dim, 4);  // the first dims of a head
  EXPECT_EQ(config.ropes[1].rotary_dim, 16);
  EXPECT_THAT(config.ropes[0].divisors, IsEmpty());
  EXPECT_FALSE(config.qkv_bias || config.tie_word_embeddings);
  // No dim of a head rotates in a kind of layers whose part is none.
  for (const double part : {0.0, 0.05}) {
    json["rope_parameters"][kFull]["partial_rotary_factor"] = part;
    EXPECT_THAT(Ropes(Load(json)), ElementsAre(1, 1, -1));
  }
  json["rope_parameters"][kSliding]["partial_rotary_factor"] = 0;
  EXPECT_THAT(Ropes(Load(json)), ElementsAre(-1, -1, -1));
  json["rope_parameters"][kSliding]["partial_rotary_factor"] = -0.5;
  EXPECT_THAT(Refusal(json), HasSubstr("partial_rotary_factor is -0.5"));
  // Without parts, the settings are those of both kinds; a kind without one has the defaults.
  json["rope_parameters"] = {{"rope_theta", 500.0}, {"partial_rotary_factor", 0.5}};
  const DecoderConfig flat = Load(json);
  EXPECT_EQ(flat.ropes[0], flat.ropes[1]);
  EXPECT_EQ(flat.ropes[0].rotary_dim, 8);
  json["rope_parameters"] = {{kSliding, {{"rope_theta", 500.0}}}};
  EXPECT_EQ(Load(json).ropes[0].rope_theta, 1e4);
  EXPECT_EQ(Load(json).ropes[1].rope_theta, 500);
  json["attention_bias"] = json["mlp_bias"] = true;
  const DecoderConfig biased = Load(json);
  EXPECT_TRUE(biased.qkv_bias && biased.o_bias && biased.mlp_bias);
  json.erase("headwise_attn_output_gate");
  EXPECT_EQ(Load(json).output_gate, OutputGate::kNone);
  json.erase("layer_types");
  EXPECT_THAT(Windows(Load(json)), ElementsAre(0, 0, 0));
  for (const auto& [key, value] : {std::pair<const char*, Json>("hidden_act", "silu"),
                                   {"gate_attn_act_mode", "silu"},
                                   {"key_value_binding_sharpening", true}}) {
    Json other = json;
    other[key] = value;
    EXPECT_THAT(Refusal(other), HasSubstr(std::string(key) + " " + value.dump()));
  }
}

TEST_F(ConfigTest, LayersOfGraniteWithWindowsHaveBasesOfTheirOwn) {
  Json json = Minimal("granite_swa");
  const DecoderConfig usual = Load(json);
  EXPECT_THAT(Windows(usual), ElementsAre(0, 128, 128, 128, 0, 128));
  EXPECT_TRUE(usual.sinks && usual.tie_word_embeddings);
  EXPECT_EQ(usual.attention_scale, 1);
  EXPECT_EQ(usual.ropes.size(), 1u);
  json["layer_rope_theta"] = {0.0, 500.0, 1e4, 500.0, 0.0, 1e4};
  const DecoderConfig listed = Load(json);
  EXPECT_THAT(Ropes(listed), ElementsAre(-1, 0, 1, 0, -1, 1));
  ASSERT_EQ(listed.ropes.size(), 2u);
  EXPECT_EQ(listed.ropes[0].rope_theta, 500);
  json["layer_rope_theta"] = std::vector<double>(6, 0);
  EXPECT_THAT(Ropes(Load(json)), ElementsAre(-1, -1, -1, -1, -1, -1));
  json["layer_rope_theta"] = {1.0, 2.0};
  EXPECT_THAT(Refusal(json), HasSubstr("'layer_rope_theta' must have 6 numbers"));
  json["layer_rope_theta"] = {1.0, -2.0, 1.0, 1.0, 1.0, 1.0};
  EXPECT_THAT(Refusal(json), HasSubstr("layer_rope_theta has -2"));
}

TEST_F(ConfigTest, FullLayersOfExaoneStayWhereOthersHaveWindows) {
  Json json = Minimal("exaone4");
  json["sliding_window_pattern"] = "LLG";
  const DecoderConfig letters = Load(json);
  EXPECT_THAT(Windows(letters), ElementsAre(4096, 4096, 0, 4096, 4096, 0));
  EXPECT_THAT(Ropes(letters), ElementsAre(0, 0, -1, 0, 0, -1));
  EXPECT_TRUE(letters.post_norms && !letters.input_norms);
  EXPECT_EQ(letters.qk_norm, QkNorm::kHeads);
  json["sliding_window_pattern"] = 2;
  EXPECT_THAT(Ropes(Load(json)), ElementsAre(0, -1, 0, -1, 0, -1));
  json["sliding_window_pattern"] = "LLX";
  EXPECT_THAT(Refusal(json), HasSubstr("sliding_window_pattern is \"LLX\""));
  // Of the 1.2B.
  json["sliding_window"] = json["sliding_window_pattern"] = nullptr;
  json["layer_types"] = std::vector<std::string>(6, kFull);
  EXPECT_THAT(Ropes(Load(json)), ElementsAre(0, 0, 0, 0, 0, 0));
  EXPECT_THAT(Windows(Load(json)), ElementsAre(0, 0, 0, 0, 0, 0));
}

// Numbers that no JSON file can hold reach the parser from GGUF files.
TEST_F(ConfigTest, NumbersOfARotaryEmbeddingAreFinite) {
  const double nan = std::nan("");
  for (const char* key : {"factor", "beta_fast", "beta_slow", "attention_factor"}) {
    for (const double value : {nan, HUGE_VAL}) {
      Json json = Minimal("qwen3");
      json["rope_scaling"] = {
          {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}};
      json["rope_scaling"][key] = value;
      EXPECT_THROW(ParseDecoderConfig(json, "config.json"), Error) << key << " " << value;
    }
  }
  Json list = Minimal("phi3");
  list["rope_scaling"] = {{"type", "longrope"},
                          {"short_factor", std::vector<double>(8, nan)},
                          {"long_factor", std::vector<double>(8, 1)}};
  EXPECT_THROW(ParseDecoderConfig(list, "config.json"), Error);
  GgufModel model("mistral3");
  model.Key("rope.scaling.type", std::string("yarn"));
  model.Key("rope.scaling.factor", 4.0f);
  for (const char* key : {"rope.scaling.yarn_log_multiplier", "attention.temperature_scale"}) {
    model.Key(key, std::nanf(""));
    EXPECT_THROW(ParseGgufConfig(*OpenGguf(model.Write())), Error) << key;
    model.RemoveKey(key);
  }
}

// ---- GGUF files.

GgufArray Bools(std::vector<bool> values) { return values; }

TEST(GgufLayerKinds, OfLfm3) {
  GgufModel model("lfm3");
  model.Key("block_count", std::uint32_t{3});
  model.Key("attention.head_count_kv", GgufArray(std::vector<std::int32_t>{0, 2, 2}));
  model.Key("shortconv.l_cache", std::uint32_t{7});
  model.Key("attention.sliding_window", std::uint32_t{12});
  model.Key("attention.sliding_window_pattern", Bools({false, false, true}));
  const auto refusal = [&] {
    try {
      ParseGgufConfig(*OpenGguf(model.Write()));
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(refusal(), HasSubstr("'lfm3.rope.freq_base_swa' is missing"));
  model.Key("rope.freq_base_swa", 1e4f);
  EXPECT_THAT(refusal(), HasSubstr("'rope_freqs.weight' is missing"));
  model.Tensor("rope_freqs.weight", {2}, {1, 1e30f});
  const DecoderConfig config = ParseGgufConfig(*OpenGguf(model.Write()));
  EXPECT_EQ(config.layers[0].mixer, Mixer::kShortConv);
  EXPECT_THAT(Windows(config), ElementsAre(0, 0, 12));
  EXPECT_THAT(config.ropes[0].divisors, ElementsAre(1, kStays));
  EXPECT_THAT(config.ropes[1].divisors, IsEmpty());
  EXPECT_FALSE(config.post_norms);  // there is no tensor of one
  model.Tensor("blk.1.post_ffw_norm.weight", {16}, std::vector<float>(16, 1));
  EXPECT_TRUE(ParseGgufConfig(*OpenGguf(model.Write())).post_norms);
  model.Key("rope.dimension_count", std::uint32_t{2});
  EXPECT_THAT(refusal(), HasSubstr("rope.dimension_count 2 of heads of 4"));
}

TEST(GgufLayerKinds, OfSpark) {
  GgufModel model("spark2_5");
  model.Key("attention.sliding_window", std::uint32_t{12});
  model.Key("attention.sliding_window_pattern", Bools({true, false}));
  model.Key("rope.freq_base", 5e6f);
  model.Key("rope.dimension_count", std::uint32_t{2});
  const DecoderConfig config = ParseGgufConfig(*OpenGguf(model.Write()));
  EXPECT_THAT(Windows(config), ElementsAre(12, 0));
  EXPECT_EQ(config.output_gate, OutputGate::kHeads);
  EXPECT_EQ(config.hidden_act, Activation::kGelu);
  // Layers with a window have the base and the dims of the others, unless keys say otherwise.
  EXPECT_EQ(config.ropes[0], config.ropes[1]);
  EXPECT_EQ(config.ropes[1].rotary_dim, 2);
  model.Key("rope.freq_base_swa", 500.0f);
  model.Key("rope.dimension_count_swa", std::uint32_t{4});
  const DecoderConfig apart = ParseGgufConfig(*OpenGguf(model.Write()));
  EXPECT_EQ(apart.ropes[1].rope_theta, 500);
  EXPECT_EQ(apart.ropes[1].rotary_dim, 4);
  EXPECT_EQ(apart.ropes[0].rotary_dim, 2);
  // Layers none of whose dims rotate, as they are read and written.
  model.Key("rope.dimension_count", std::uint32_t{0});
  const DecoderConfig stays = ParseGgufConfig(*OpenGguf(model.Write()));
  EXPECT_THAT(Ropes(stays), ElementsAre(1, -1));
  GgufMetadata written;
  WriteGgufRope(stays, "spark2_5.", written);
  EXPECT_EQ(*written.Find("spark2_5.rope.dimension_count"), GgufValue(std::uint32_t{0}));
  EXPECT_EQ(*written.Find("spark2_5.rope.dimension_count_swa"), GgufValue(std::uint32_t{4}));
  EXPECT_EQ(*written.Find("spark2_5.rope.freq_base_swa"), GgufValue(500.0f));
}

TEST(GgufLayerKinds, OfGraniteWithWindows) {
  GgufModel model("granite_swa");
  model.Key("logit_scale", 2.0f);
  model.Key("attention.sliding_window", std::uint32_t{12});
  model.Key("attention.sliding_window_pattern", Bools({false, true}));
  // Neither is read.
  model.Key("rope.scaling.finetuned", false);
  model.Key("rope.freq_base_swa", 500.0f);
  const DecoderConfig config = ParseGgufConfig(*OpenGguf(model.Write()));
  EXPECT_THAT(Windows(config), ElementsAre(0, 12));
  EXPECT_THAT(Ropes(config), ElementsAre(0, 0));
  EXPECT_TRUE(config.sinks);
  model.Key("attention.rope_pattern", Bools({true, false}));
  const DecoderConfig stays = ParseGgufConfig(*OpenGguf(model.Write()));
  EXPECT_THAT(Ropes(stays), ElementsAre(0, -1));
  GgufMetadata written;
  WriteGgufRope(stays, "granite_swa.", written);
  EXPECT_EQ(*written.Find("granite_swa.attention.rope_pattern"), GgufValue(Bools({true, false})));
  model.RemoveKey("attention.sliding_window_pattern");
  EXPECT_THROW(ParseGgufConfig(*OpenGguf(model.Write())), Error);
}

// llama.cpp takes the number of layers for the size of the model.
TEST(GgufLayerKinds, OfExaoneByTheNumberOfLayers) {
  GgufModel model("exaone4");
  model.Key("attention.sliding_window", std::uint32_t{12});
  model.Key("attention.sliding_window_pattern", Bools({false, true}));
  const DecoderConfig small = ParseGgufConfig(*OpenGguf(model.Write()));
  EXPECT_THAT(Windows(small), ElementsAre(0, 0));
  EXPECT_THAT(Ropes(small), ElementsAre(0, 0));
  GgufModel large("exaone4");
  large.Key("block_count", std::uint32_t{64});
  const DecoderConfig config = ParseGgufConfig(*OpenGguf(large.Write()));
  for (std::int64_t l = 0; l < 64; ++l) {
    EXPECT_EQ(config.layers[l].window, l % 4 < 3 ? 4096 : 0) << l;
    EXPECT_EQ(config.layers[l].rope, l % 4 < 3 ? 0 : -1) << l;
  }
}

}  // namespace
}  // namespace qlora
