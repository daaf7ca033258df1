#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "config/config_fixture.h"
#include "io/json.h"
#include "qlora/error.h"

namespace qlora {
namespace {

using testing::HasSubstr;

TEST_F(ConfigTest, OmittedKeysTakeTheDefaultsOfTheFamily) {
  const DecoderConfig llama = Load(Minimal("llama"));
  EXPECT_EQ(llama.head_dim, 16);
  EXPECT_EQ(llama.vocab_size, 32000);
  EXPECT_FALSE(llama.tie_word_embeddings);
  EXPECT_FLOAT_EQ(llama.rms_norm_eps, 1e-6f);
  const DecoderConfig qwen3 = Load(Minimal("qwen3"));
  EXPECT_EQ(qwen3.head_dim, 128);
  EXPECT_EQ(qwen3.qk_norm, QkNorm::kHeads);
  EXPECT_TRUE(Load(Minimal("qwen2")).qkv_bias);
  const DecoderConfig gemma2 = Load(Minimal("gemma2"));
  EXPECT_TRUE(gemma2.tie_word_embeddings);
  EXPECT_FLOAT_EQ(gemma2.attention_softcap, 50);
  EXPECT_EQ(gemma2.layers[0].window, 4096);
  EXPECT_EQ(gemma2.layers[1].window, 0);
  EXPECT_FLOAT_EQ(gemma2.attention_scale, 1 / 16.0f);
  EXPECT_EQ(Load(Minimal("smollm3")).layers[3].rope, -1);
}

TEST_F(ConfigTest, GemmaThreeInsideAMultimodalModel) {
  Json text = Minimal("gemma3_text");
  text.erase("model_type");
  text["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  const DecoderConfig c = Load({{"model_type", "gemma3"}, {"text_config", text}});
  EXPECT_EQ(c.model_type, "gemma3_text");
  EXPECT_EQ(c.vocab_size, 262208);
  EXPECT_EQ(c.max_position_embeddings, 131072);
  ASSERT_EQ(c.ropes.size(), 2u);
  EXPECT_EQ(c.ropes[0].type, RopeType::kLinear);
  EXPECT_EQ(c.ropes[1].type, RopeType::kDefault);
  EXPECT_EQ(c.layers[4].rope, 1);
  EXPECT_EQ(c.layers[5].rope, 0);
  EXPECT_EQ(c.layers[5].window, 0);
}

TEST_F(ConfigTest, DecodersOfModelsThatSee) {
  Json text = Minimal("mistral");
  text.erase("model_type");
  EXPECT_EQ(Load({{"model_type", "mistral3"}, {"text_config", text}}).model_type, "mistral");
  text["model_type"] = "ministral3";
  const DecoderConfig ministral = Load({{"model_type", "mistral3"}, {"text_config", text}});
  EXPECT_EQ(ministral.model_type, "ministral3");
  EXPECT_EQ(ministral.module_prefix, "model.language_model.");
  EXPECT_TRUE(ministral.tie_word_embeddings);
  ASSERT_EQ(ministral.ropes.size(), 2u);
  EXPECT_EQ(ministral.ropes[0].attention_factor, 1);
  EXPECT_EQ(ministral.layers[0].rope_of_queries(), 1);
  text["model_type"] = "mistral4";
  EXPECT_THAT(Refusal({{"model_type", "mistral3"}, {"text_config", text}}),
              HasSubstr("model_type 'mistral4' is not supported"));

  // Older files have the keys of the decoder beside the others.
  Json flat = Minimal("qwen2_5_vl");
  flat["rope_scaling"] = {{"type", "mrope"}, {"mrope_section", {16, 24, 24}}};
  Json nested = Minimal("qwen2_5_vl_text");
  nested["rope_parameters"] = {
      {"rope_type", "default"}, {"rope_theta", 1e6}, {"mrope_section", {16, 24, 24}}};
  for (const Json& json : {flat, Json{{"model_type", "qwen2_5_vl"}, {"text_config", nested}}}) {
    const DecoderConfig qwen = Load(json);
    EXPECT_EQ(qwen.model_type, "qwen2_5_vl_text");
    EXPECT_EQ(qwen.ropes[0].type, RopeType::kDefault);
    EXPECT_EQ(qwen.ropes[0].rope_theta, 1e6);
    EXPECT_TRUE(qwen.qkv_bias);
  }
  const DecoderConfig qwen3 =
      Load({{"model_type", "qwen3_vl"}, {"text_config", Minimal("qwen3_vl_text")}});
  EXPECT_EQ(qwen3.qk_norm, QkNorm::kHeads);
}

TEST_F(ConfigTest, GraniteHybridsOfAttentionAlone) {
  Json json = Minimal("granitemoehybrid");
  json["shared_intermediate_size"] = 24;
  EXPECT_THAT(Refusal(json), HasSubstr("num_local_experts"));
  json["num_local_experts"] = 0;
  EXPECT_THAT(Refusal(json), HasSubstr("all layers are of type 'mamba'"));
  json["layers_block_type"] = std::vector<std::string>{"attention"};
  EXPECT_THAT(Refusal(json), HasSubstr("layers_block_type has 1 entries"));
  json["layers_block_type"] =
      std::vector<std::string>(json["num_hidden_layers"].get<std::size_t>(), "mamba");
  EXPECT_THAT(Refusal(json), HasSubstr("layers of type 'mamba' (layers_block_type)"));
  json.erase("layers_block_type");
  json["layer_types"] =
      std::vector<std::string>(json["num_hidden_layers"].get<std::size_t>(), "attention");
  json["residual_multiplier"] = 0.5;
  json["logits_scaling"] = 4;
  const DecoderConfig c = Load(json);
  EXPECT_EQ(c.intermediate_size, 24);
  EXPECT_EQ(c.layers[0].rope, -1);
  EXPECT_EQ(c.attention_scale, 1);
  EXPECT_EQ(c.stream_eps(), 4 * c.rms_norm_eps);
  EXPECT_EQ(c.logit_scale, 0.25f);
  json["position_embedding_type"] = "rope";
  EXPECT_EQ(Load(json).layers[0].rope, 0);
  json["residual_multiplier"] = 0;
  EXPECT_THAT(Refusal(json), HasSubstr("residual_multiplier is 0, expected a positive number"));
  json["residual_multiplier"] = nullptr;
  EXPECT_THAT(Refusal(json), HasSubstr("residual_multiplier is null"));
}

TEST_F(ConfigTest, OlmoScalesTheFrequenciesOfFullLayers) {
  Json json = Minimal("olmo3");
  json["num_hidden_layers"] = 8;
  json["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 8.0}};
  const DecoderConfig c = Load(json);
  ASSERT_EQ(c.ropes.size(), 2u);
  EXPECT_EQ(c.ropes[0].type, RopeType::kYarn);
  EXPECT_EQ(c.ropes[1].type, RopeType::kDefault);
  EXPECT_EQ(c.ropes[1].rope_theta, 5e5);
  EXPECT_EQ(c.layers[2].rope, 1);
  EXPECT_EQ(c.layers[2].window, 4096);
  EXPECT_EQ(c.layers[3].rope, 0);
  EXPECT_EQ(c.layers[3].window, 0);
}

TEST_F(ConfigTest, HunyuanScalesTheBase) {
  Json json = Minimal("hunyuan_v1_dense");
  json["head_dim"] = 16;
  json["rope_scaling"] = {{"type", "dynamic"}, {"alpha", 1000.0}, {"factor", 1.0}};
  EXPECT_DOUBLE_EQ(Load(json).ropes[0].rope_theta, 1e4 * std::pow(1000.0, 16.0 / 14.0));
  json["rope_scaling"] = {{"type", "linear"}, {"alpha", 1000.0}, {"factor", 2.0}};
  EXPECT_THAT(Refusal(json), HasSubstr("alpha is 1000 and rope_type 'linear'"));
  json["rope_scaling"] = {{"type", "dynamic"}, {"factor", 4.0}};
  EXPECT_THAT(Refusal(json), HasSubstr("alpha is 0 and rope_type 'dynamic'"));
}

TEST_F(ConfigTest, QueriesGrowInMinistralAlone) {
  Json ministral = Minimal("ministral3");
  ministral["rope_parameters"] = {{"rope_type", "default"},
                                  {"original_max_position_embeddings", 32},
                                  {"llama_4_scaling_beta", 0.1}};
  const DecoderConfig c = Load(ministral);
  ASSERT_EQ(c.ropes.size(), 2u);
  EXPECT_EQ(c.ropes[1].query_scale_beta, 0.1);
  EXPECT_EQ(c.ropes[1].original_max_position_embeddings, 32);
  Json olmo = Minimal("olmo3");
  olmo["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 8.0}, {"llama_4_scaling_beta", 0.1}};
  EXPECT_EQ(Load(olmo).ropes[1].type, RopeType::kDefault);
  EXPECT_EQ(Load(olmo).ropes[1].query_scale_beta, 0);
}

TEST_F(ConfigTest, TheFirstGemmaHasTwoKeysOfItsActivation) {
  Json json = Minimal("gemma");
  json["hidden_act"] = "gelu";
  EXPECT_EQ(Load(json).hidden_act, Activation::kGeluTanh);
  json["hidden_act"] = "silu";
  EXPECT_EQ(Load(json).hidden_act, Activation::kSilu);
  json["hidden_activation"] = "gelu_pytorch_tanh";
  EXPECT_EQ(Load(json).hidden_act, Activation::kGeluTanh);
}

TEST_F(ConfigTest, BothSpellingsOfRopeAgree) {
  Json old_style = Minimal("llama");
  old_style["rope_theta"] = 5e5;
  old_style["rope_scaling"] = {{"rope_type", "llama3"},
                               {"factor", 8.0},
                               {"low_freq_factor", 1.0},
                               {"high_freq_factor", 4.0},
                               {"original_max_position_embeddings", 8192}};
  Json new_style = Minimal("llama");
  new_style["rope_parameters"] = old_style["rope_scaling"];
  new_style["rope_parameters"]["rope_theta"] = 5e5;
  EXPECT_EQ(Load(old_style).ropes, Load(new_style).ropes);
  EXPECT_EQ(Load(old_style).ropes[0].type, RopeType::kLlama3);
}

TEST_F(ConfigTest, TwoRopeSettingsMustAgree) {
  const Json yarn = {
      {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}};
  Json both = Minimal("llama");
  both["rope_scaling"] = yarn;
  both["rope_parameters"] = yarn;
  both["rope_parameters"]["rope_theta"] = 1e4;
  EXPECT_EQ(Load(both).ropes[0].type, RopeType::kYarn);
  both["rope_parameters"]["factor"] = 2.0;
  EXPECT_THAT(Refusal(both), HasSubstr("rope_parameters and rope_scaling contradict"));
  both["rope_parameters"] = {{"rope_type", "default"}};
  EXPECT_THAT(Refusal(both), HasSubstr("rope_parameters and rope_scaling contradict"));

  Json types = Minimal("llama");
  types["rope_scaling"] = {{"rope_type", "linear"}, {"type", "yarn"}, {"factor", 4.0}};
  EXPECT_THAT(Refusal(types), HasSubstr("rope_type is 'linear' and type is 'yarn'"));

  Json theta = Minimal("llama");
  theta["rope_theta"] = 1e4;
  theta["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e5}};
  EXPECT_THAT(Refusal(theta), HasSubstr("rope_theta"));
}

// What a checkpoint of transformers 4 writes, and the same model as transformers 5 writes it.
Json WithoutRope(Json json) {
  for (const char* key : {"rope_theta", "rope_scaling", "rope_local_base_freq", "torch_dtype"}) {
    json.erase(key);
  }
  json["dtype"] = "bfloat16";
  return json;
}

TEST_F(ConfigTest, EveryFamilyReadsTheSameInBothSpellings) {
  const std::map<std::string, Json> keys = {
      {"llama",
       {{"rope_theta", 5e5},
        {"rope_scaling",
         {{"rope_type", "llama3"},
          {"factor", 32.0},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 8192}}}}},
      {"mistral", {{"rope_theta", 1e6}, {"head_dim", 128}, {"sliding_window", nullptr}}},
      {"qwen2",
       {{"rope_theta", 1e6},
        {"rope_scaling",
         {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}}}}},
      {"qwen3", {{"rope_theta", 1e6}, {"head_dim", 128}, {"rope_scaling", nullptr}}},
      {"gemma2", {{"rope_theta", 1e4}, {"query_pre_attn_scalar", 144}}},
      {"gemma3_text",
       {{"rope_theta", 1e6},
        {"rope_local_base_freq", 1e4},
        {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}}},
      {"phi3",
       {{"rope_theta", 1e4},
        {"partial_rotary_factor", 0.75},
        {"original_max_position_embeddings", 4096},
        {"max_position_embeddings", 131072},
        {"rope_scaling",
         {{"type", "su"},
          {"short_factor", std::vector<double>(6, 1.5)},
          {"long_factor", std::vector<double>(6, 2.5)}}}}},
      {"smollm3", {{"rope_theta", 5e6}, {"no_rope_layers", {1, 1, 1, 0, 1, 1}}}},
      {"qwen3_moe", {{"rope_theta", 1e6}, {"head_dim", 128}}},
      {"mixtral", {{"rope_theta", 1e6}}},
  };
  for (const auto& [model_type, own] : keys) {
    SCOPED_TRACE(model_type);
    Json four = Minimal(model_type.c_str());
    four.update(own);
    four["torch_dtype"] = "bfloat16";
    Json five = WithoutRope(four);
    Json rope = own.contains("rope_scaling") && !own["rope_scaling"].is_null()
                    ? own["rope_scaling"]
                    : Json{{"rope_type", "default"}};
    rope["rope_theta"] = own["rope_theta"];
    if (model_type == "gemma3_text") {
      rope = {{"full_attention", rope},
              {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}};
    }
    five["rope_parameters"] = rope;
    const DecoderConfig a = Load(four);
    const DecoderConfig b = Load(five);
    EXPECT_EQ(a.ropes, b.ropes);
    EXPECT_EQ(a.ropes.front().rope_theta, own["rope_theta"].get<double>());
    ASSERT_EQ(a.layers.size(), b.layers.size());
    for (std::size_t l = 0; l < a.layers.size(); ++l) {
      EXPECT_EQ(a.layers[l].rope, b.layers[l].rope);
      EXPECT_EQ(a.layers[l].window, b.layers[l].window);
    }
  }
}

TEST_F(ConfigTest, NeighbouringDimsTurnTogetherInSomeFamilies) {
  for (const char* type : {"llama", "qwen3", "granite", "ernie4_5", "glm4"}) {
    const bool expected = type == std::string_view("ernie4_5") || type == std::string_view("glm4");
    EXPECT_EQ(Load(Minimal(type)).ropes[0].interleaved, expected) << type;
  }
}

TEST_F(ConfigTest, SlidingWindowsThatAreOnlyThereWhenUsed) {
  Json json = Minimal("qwen2");
  json["sliding_window"] = 8;
  json["max_window_layers"] = 4;
  EXPECT_EQ(Load(json).layers[5].window, 0);
  json["use_sliding_window"] = true;
  EXPECT_EQ(Load(json).layers[3].window, 0);
  EXPECT_EQ(Load(json).layers[4].window, 8);
  json.erase("max_window_layers");
  EXPECT_EQ(Load(json).layers[5].window, 0) << "the first 28 layers see everything";
  json["model_type"] = "qwen3_moe";
  EXPECT_EQ(Load(json).layers[0].window, 8);
  json["model_type"] = "smollm3";
  EXPECT_EQ(Load(json).layers[2].window, 0);
  EXPECT_EQ(Load(json).layers[3].window, 8) << "the layers without RoPE";
}

TEST_F(ConfigTest, RefusesModelsThatDoNotPredictTheNextToken) {
  Json json = Minimal("llama");
  json["architectures"] = {"LlamaForSequenceClassification"};
  EXPECT_THAT(Refusal(json),
              AllOf(HasSubstr("architectures"), HasSubstr("LlamaForSequenceClassification")));
  json["architectures"] = {"LlamaBidirectionalModel"};
  EXPECT_THAT(Refusal(json), HasSubstr("LlamaBidirectionalModel"));
  json["architectures"] = {"Qwen3Model"};
  EXPECT_THAT(Refusal(json), HasSubstr("Qwen3Model")) << "of another family";
  json = Minimal("gemma3_text");
  json["use_bidirectional_attention"] = true;
  EXPECT_THAT(Refusal(json), HasSubstr("use_bidirectional_attention"));
  json = Minimal("llama");
  json["rope_parameters"] = {{"full_attention", {{"rope_theta", 1e6}}}};
  EXPECT_THAT(Refusal(json), AllOf(HasSubstr("rope_parameters"), HasSubstr("full_attention")));
}

TEST_F(ConfigTest, ReadsDecodersThatWereSavedWithoutTheirHead) {
  Json json = Minimal("llama");
  json["architectures"] = {"LlamaModel"};
  json["tie_word_embeddings"] = true;
  EXPECT_TRUE(Load(json).tie_word_embeddings);
  json = Minimal("gemma3_text");
  json["architectures"] = {"Gemma3TextModel"};
  EXPECT_TRUE(Load(json).tie_word_embeddings);
}

TEST_F(ConfigTest, RefusalsNameTheKeyAndWhatIsSupported) {
  EXPECT_THAT(Refusal(Minimal("gemma3n_text")),
              AllOf(HasSubstr("model_type 'gemma3n_text' is not supported (missing here: several "
                              "residual streams at once (AltUp))"),
                    HasSubstr("; the nearest name is 'gemma3_text'; supported: llama, ")));
  EXPECT_THAT(Refusal(Minimal("mistral33")),
              HasSubstr("'mistral33' is not supported; the nearest name is 'mistral3'; supported"));
  EXPECT_THAT(Refusal(Minimal("zzz")), HasSubstr("'zzz' is not supported; supported"));
  Json json = Minimal("mamba");
  EXPECT_THAT(Refusal(json),
              AllOf(HasSubstr("mamba"), HasSubstr("qwen3"), HasSubstr("config.json")));
  json = Minimal("llama");
  json["rope_scaling"] = {{"type", "dynamic"}, {"factor", 2.0}};
  EXPECT_THAT(Refusal(json), AllOf(HasSubstr("rope_scaling"), HasSubstr("rope_type"),
                                   HasSubstr("dynamic"), HasSubstr("yarn")));
  json = Minimal("llama");
  json["hidden_act"] = "relu";
  EXPECT_THAT(Refusal(json), AllOf(HasSubstr("hidden_act"), HasSubstr("relu"), HasSubstr("silu")));
  json = Minimal("llama");
  for (const char* method : {"gptq", "awq", "hqq", "compressed-tensors"}) {
    json["quantization_config"] = {{"quant_method", method}, {"bits", 4}};
    EXPECT_THAT(Refusal(json), AllOf(HasSubstr("quantization_config"), HasSubstr(method),
                                     HasSubstr("bitsandbytes")));
  }
  json["quantization_config"] = {{"quant_method", "fp8"}, {"activation_scheme", "static"}};
  EXPECT_EQ(Load(json).model_type, "llama");
  json = Minimal("llama");
  json.erase("hidden_size");
  EXPECT_THAT(Refusal(json), HasSubstr("hidden_size"));
  json = Minimal("llama");
  json["hidden_size"] = "64";
  EXPECT_THAT(Refusal(json), HasSubstr("hidden_size"));
  json = Minimal("llama");
  json["num_hidden_layers"] = -1;
  EXPECT_THAT(Refusal(json), HasSubstr("num_hidden_layers"));
  json = Minimal("llama");
  json["num_key_value_heads"] = 3;
  EXPECT_THAT(Refusal(json), HasSubstr("num_key_value_heads"));
}

TEST_F(ConfigTest, RefusesNumbersThatNoModelHas) {
  for (const auto& [key, value] : {std::pair<const char*, double>{"rms_norm_eps", 2147483648.0},
                                   {"rms_norm_eps", -1e-6},
                                   {"attn_logit_softcapping", -50},
                                   {"final_logit_softcapping", -30}}) {
    Json json = Minimal("gemma2");
    json[key] = value;
    EXPECT_THAT(Refusal(json), HasSubstr("or more")) << key;
  }
  for (const double partial : {0.0, -1.0, 1.5, 1e300}) {
    Json json = Minimal("phi3");
    json["partial_rotary_factor"] = partial;
    EXPECT_THAT(Refusal(json), HasSubstr("partial_rotary_factor is ")) << partial;
  }
}

// As in transformers, whose attention of Gemma 3 has no cap.
TEST_F(ConfigTest, SoftcapsOfGemmaThreeAndOfOthers) {
  Json json = Minimal("gemma3_text");
  EXPECT_EQ(Load(json).final_softcap, 0);
  json["attn_logit_softcapping"] = 50;
  json["final_logit_softcapping"] = 30;
  EXPECT_EQ(Load(json).attention_softcap, 0);
  EXPECT_EQ(Load(json).final_softcap, 30);
  json["model_type"] = "llama";
  EXPECT_EQ(Load(json).final_softcap, 0);
}

TEST_F(ConfigTest, LayerTypesThatDenyTheWindowAreRefused) {
  Json json = Minimal("qwen2");
  json["layer_types"] = Json::array();
  for (int l = 0; l < json.at("num_hidden_layers"); ++l) {
    json["layer_types"].push_back("full_attention");
  }
  json["use_sliding_window"] = false;
  EXPECT_EQ(Load(json).layers[1].window, 0);
  json["layer_types"][1] = "sliding_attention";
  EXPECT_THAT(Refusal(json), HasSubstr("layer_types names sliding_attention for layer 1"));
  json["use_sliding_window"] = true;
  EXPECT_GT(Load(json).layers[1].window, 0);
}

TEST_F(ConfigTest, LayerTypesOverrideThePattern) {
  Json json = Minimal("mistral");
  json["sliding_window"] = 8;
  EXPECT_EQ(Load(json).layers[0].window, 8);
  json["sliding_window"] = nullptr;
  EXPECT_EQ(Load(json).layers[0].window, 0);
  json = Minimal("gemma2");
  json["layer_types"] = Json::array({"full_attention", "full_attention", "full_attention",
                                     "full_attention", "full_attention", "sliding_attention"});
  const DecoderConfig c = Load(json);
  EXPECT_EQ(c.layers[0].window, 0);
  EXPECT_EQ(c.layers[5].window, 4096);
}

}  // namespace
}  // namespace qlora
