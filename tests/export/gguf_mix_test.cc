// Types of tensors beside those that llama-quantize chose.
#include "export/gguf/gguf_mix.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "gguf/gguf.h"
#include "test_build.h"

namespace qlora {
namespace {

// A model of 32 layers with groups of 4 heads and rows that all blocks divide.
GgufMixModel Grouped32() {
  return {.architecture = "llama", .layers = 32, .heads = 32, .kv_heads = 8};
}

std::string TypeOf(std::string_view file, const GgufMixModel& model, const std::string& name,
                   std::int64_t cols = 4096) {
  const GgufFileType* type = FindGgufFileType(file);
  EXPECT_NE(type, nullptr) << file;
  return type == nullptr ? "" : NameOf(GgufTensorType(*type, model, name, cols));
}

TEST(GgufMix, FindsNamesInAnyCase) {
  for (const char* name : {"q4_k_m", "Q4_K_M", "q4_K_m"}) {
    ASSERT_NE(FindGgufFileType(name), nullptr) << name;
    EXPECT_EQ(FindGgufFileType(name)->number, 15U);
  }
  EXPECT_EQ(FindGgufFileType("mxfp4"), FindGgufFileType("MXFP4_MOE"));
  EXPECT_EQ(FindGgufFileType("q9_k"), nullptr);
  EXPECT_EQ(BitsOf(*FindGgufFileType("bf16")), 16);
  EXPECT_EQ(BitsOf(*FindGgufFileType("q6_k")), 6.5625);
}

// The layers of 32 in which a tensor has the type.
std::vector<std::int64_t> LayersOf(std::string_view file, const GgufMixModel& model,
                                   const std::string& tensor, const std::string& type) {
  std::vector<std::int64_t> layers;
  for (std::int64_t i = 0; i < model.layers; ++i) {
    if (TypeOf(file, model, "blk." + std::to_string(i) + "." + tensor + ".weight") == type) {
      layers.push_back(i);
    }
  }
  return layers;
}

TEST(GgufMix, GivesChosenLayersMoreBits) {
  using Layers = std::vector<std::int64_t>;
  const GgufMixModel model = Grouped32();
  const Layers more = {0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31};
  EXPECT_EQ(LayersOf("Q4_K_M", model, "attn_v", "Q6_K"), more);
  EXPECT_EQ(LayersOf("Q5_K_M", model, "ffn_down", "Q6_K"), more);
  EXPECT_EQ(LayersOf("Q4_K_S", model, "attn_v", "Q5_K"), Layers({0, 1, 2, 3}));
  EXPECT_EQ(LayersOf("Q4_K_S", model, "ffn_down", "Q5_K"), Layers({0, 1, 2, 3}));
  EXPECT_EQ(LayersOf("Q3_K_M", model, "ffn_down", "Q5_K"), Layers({0, 1}));
  EXPECT_EQ(LayersOf("Q3_K_M", model, "attn_v", "Q5_K"), Layers({0, 1}));
  EXPECT_EQ(LayersOf("Q2_K_S", model, "ffn_down", "Q4_K"), Layers({0, 1, 2, 3}));
  EXPECT_EQ(LayersOf("IQ4_XS", model, "ffn_down", "Q5_K"), Layers({0, 1, 2, 3}));
  EXPECT_EQ(LayersOf("Q4_0", model, "ffn_down", "Q4_1"), Layers());
  GgufMixModel weighted = model;
  weighted.has_importance = true;
  EXPECT_EQ(LayersOf("IQ4_XS", weighted, "ffn_down", "Q5_K"), Layers());
  EXPECT_EQ(LayersOf("Q4_0", weighted, "ffn_down", "Q4_1"), Layers({0, 1, 2, 3}));
  EXPECT_EQ(LayersOf("Q5_0", weighted, "ffn_down", "Q5_1"), Layers({0, 1, 2, 3}));
}

// Columns: output.weight, token_embd, and of layer 20 attn_q, attn_v, attn_output, ffn_down.
TEST(GgufMix, GivesEachTensorItsType) {
  const std::vector<std::vector<std::string>> table = {
      {"F16", "F16", "F16", "F16", "F16", "F16", "F16"},
      {"BF16", "BF16", "BF16", "BF16", "BF16", "BF16", "BF16"},
      {"Q8_0", "Q8_0", "Q8_0", "Q8_0", "Q8_0", "Q8_0", "Q8_0"},
      {"Q6_K", "Q6_K", "Q6_K", "Q6_K", "Q6_K", "Q6_K", "Q6_K"},
      {"Q5_K_M", "Q6_K", "Q5_K", "Q5_K", "Q5_K", "Q5_K", "Q5_K"},
      {"Q5_K_S", "Q6_K", "Q5_K", "Q5_K", "Q5_K", "Q5_K", "Q5_K"},
      {"Q5_1", "Q6_K", "Q5_1", "Q5_1", "Q5_1", "Q5_1", "Q5_1"},
      {"Q5_0", "Q6_K", "Q5_0", "Q5_0", "Q5_0", "Q5_0", "Q5_0"},
      {"Q4_K_M", "Q6_K", "Q4_K", "Q4_K", "Q4_K", "Q4_K", "Q4_K"},
      {"Q4_K_S", "Q6_K", "Q4_K", "Q4_K", "Q4_K", "Q4_K", "Q4_K"},
      {"Q4_1", "Q6_K", "Q4_1", "Q4_1", "Q4_1", "Q4_1", "Q4_1"},
      {"Q4_0", "Q6_K", "Q4_0", "Q4_0", "Q4_0", "Q4_0", "Q4_0"},
      {"IQ4_NL", "Q6_K", "IQ4_NL", "IQ4_NL", "Q5_K", "IQ4_NL", "IQ4_NL"},
      {"IQ4_XS", "Q6_K", "IQ4_XS", "IQ4_XS", "Q5_K", "IQ4_XS", "IQ4_XS"},
      {"MXFP4_MOE", "Q8_0", "Q8_0", "Q8_0", "Q8_0", "Q8_0", "Q8_0"},
      {"Q3_K_L", "Q6_K", "Q3_K", "Q3_K", "Q5_K", "Q5_K", "Q5_K"},
      {"Q3_K_M", "Q6_K", "Q3_K", "Q3_K", "Q4_K", "Q4_K", "Q4_K"},
      {"Q3_K_S", "Q6_K", "Q3_K", "Q3_K", "Q3_K", "Q3_K", "Q3_K"},
      {"Q2_K", "Q6_K", "Q2_K", "Q2_K", "Q4_K", "Q3_K", "Q3_K"},
      {"Q2_K_S", "Q6_K", "Q2_K", "Q2_K", "Q4_K", "Q2_K", "Q2_K"},
  };
  const std::vector<std::string> names = {
      "output.weight",        "token_embd.weight",         "blk.20.attn_q.weight",
      "blk.20.attn_v.weight", "blk.20.attn_output.weight", "blk.20.ffn_down.weight"};
  for (const std::vector<std::string>& row : table) {
    for (std::size_t i = 0; i < names.size(); ++i) {
      EXPECT_EQ(TypeOf(row[0], Grouped32(), names[i]), row[i + 1]) << row[0] << " " << names[i];
    }
  }
}

TEST(GgufMix, FollowsTheModel) {
  GgufMixModel model = Grouped32();
  model.kv_heads = 16;  // groups of 2
  EXPECT_EQ(TypeOf("Q2_K", model, "blk.9.attn_v.weight"), "Q3_K");
  EXPECT_EQ(TypeOf("IQ4_XS", model, "blk.9.attn_v.weight"), "IQ4_XS");
  model.tied = true;
  EXPECT_EQ(TypeOf("Q3_K_M", model, "token_embd.weight"), "Q6_K");
  // phi3 holds q, k and v in one tensor.
  EXPECT_EQ(TypeOf("Q4_K_M", model, "blk.0.attn_qkv.weight"), "Q6_K");

  model = {.architecture = "llama", .layers = 80, .heads = 64, .kv_heads = 8};
  EXPECT_EQ(TypeOf("Q4_K_M", model, "blk.11.attn_v.weight"), "Q5_K");
  EXPECT_EQ(TypeOf("Q4_K_M", model, "blk.11.ffn_down.weight"), "Q4_K");
  model.architecture = "qwen3";
  EXPECT_EQ(TypeOf("Q4_K_M", model, "blk.11.attn_v.weight"), "Q4_K");

  model = {.architecture = "llama", .layers = 32, .heads = 32, .kv_heads = 8, .experts = 8};
  EXPECT_EQ(TypeOf("Q4_K_M", model, "blk.9.attn_k.weight"), "Q8_0");
  EXPECT_EQ(TypeOf("Q4_K_M", model, "blk.9.attn_v.weight"), "Q8_0");
  EXPECT_EQ(TypeOf("Q4_K_M", model, "blk.9.attn_output.weight"), "Q5_K");
  EXPECT_EQ(TypeOf("Q3_K_L", model, "blk.9.attn_output.weight"), "Q3_K");
  EXPECT_EQ(TypeOf("MXFP4", model, "blk.9.ffn_up_exps.weight"), "MXFP4");
  EXPECT_EQ(TypeOf("MXFP4", model, "blk.9.attn_q.weight"), "Q8_0");
  model.experts = 128;
  EXPECT_EQ(TypeOf("Q4_K_M", model, "blk.10.attn_k.weight"), "Q4_K");
}

TEST(GgufMix, HasTypesForRowsOfAnyLength) {
  const std::string q = "blk.1.attn_q.weight";
  for (const auto& [file, of_32, of_other] : {std::tuple("Q2_K", "Q4_0", "F16"),
                                              {"Q3_K_S", "Q4_0", "F16"},
                                              {"Q4_K_S", "Q5_0", "F16"},
                                              {"Q5_K_S", "Q5_1", "F16"},
                                              {"Q6_K", "Q8_0", "F16"},
                                              {"IQ4_XS", "IQ4_NL", "F16"},
                                              {"Q4_0", "Q4_0", "F16"},
                                              {"Q8_0", "Q8_0", "F16"},
                                              {"BF16", "BF16", "BF16"}}) {
    EXPECT_EQ(TypeOf(file, Grouped32(), q, 96), of_32);
    EXPECT_EQ(TypeOf(file, Grouped32(), q, 100), of_other);
  }
  EXPECT_EQ(TypeOf("Q4_K_M", Grouped32(), "output.weight", 96), "Q8_0");
}

// Files of llama-quantize, with the types that it gave their tensors.
TEST(GgufMix, GivesTheTypesOfLlamaQuantize) {
  const std::filesystem::path models = SharedFolder() / "golden" / "gguf" / "models";
  if (!std::filesystem::exists(models)) GTEST_SKIP() << "there are no shared golden files";
  int tensors = 0;
  for (const auto& entry : std::filesystem::directory_iterator(models)) {
    if (entry.path().extension() != ".gguf") continue;
    const std::unique_ptr<GgufReader> reader = OpenGguf(entry.path());
    const std::string architecture = reader->Require<std::string>("general.architecture");
    if (!reader->values().Find("general.file_type")) continue;  // not of llama-quantize
    const auto number = [&](const std::string& key) -> std::int64_t {
      const auto* value = reader->Get<std::uint32_t>(architecture + key);
      return value == nullptr ? 0 : *value;
    };
    GgufMixModel model{.architecture = architecture,
                       .layers = number(".block_count"),
                       .heads = number(".attention.head_count"),
                       .kv_heads = number(".attention.head_count_kv"),
                       .experts = number(".expert_count"),
                       .tied = reader->Find("output.weight") == nullptr};
    model.has_importance = reader->values().Find("quantize.imatrix.entries_count") != nullptr ||
                           entry.path().stem() == "qwen3-iq4_xs";
    const std::string name = entry.path().stem().string();
    std::ifstream file(std::filesystem::path(entry.path()).replace_extension(".json"));
    const nlohmann::json types = nlohmann::json::parse(file).at("types");
    for (const auto& [tensor, type] : types.items()) {
      const TensorInfo* info = reader->Find(tensor);
      ASSERT_NE(info, nullptr) << tensor;
      EXPECT_EQ(TypeOf(name.substr(name.find('-') + 1), model, tensor, info->shape.back()),
                type.get<std::string>())
          << name << " " << tensor;
      ++tensors;
    }
    EXPECT_EQ(FindGgufFileType(name.substr(name.find('-') + 1))->number,
              reader->Require<std::uint32_t>("general.file_type"));
  }
  EXPECT_GT(tensors, 50);
}

}  // namespace
}  // namespace qlora
