// GGUF files of families without golden values in the tree: they are read as the models that they
// were made from. Values of real classes are in inference/family_golden_test.cc.
#include <cmath>

#include "convert/adapter_fixture.h"
#include "convert/family_models.h"
#include "convert/gguf_metadata.h"
#include "gguf/gguf.h"
#include "io/float_encoding.h"
#include "model/checkpoint.h"
#include "model/lora.h"
#include "qlora/model.h"

namespace qlora {
namespace {

class GgufFamiliesTest : public AdapterFormatsTest {
 protected:
  fs::path WriteModel(const Json& json) {
    const fs::path dir = root_ / json.at("model_type").get<std::string>();
    WriteFamilyModel(dir, json);
    return dir;
  }
  fs::path WriteGguf(const fs::path& dir) {
    ExportOptions options = ExportTo(dir.filename().string() + ".gguf");
    options.model_name_or_path = dir;
    options.verify = "false";
    Export(context_, options);
    return options.output;
  }
};

TEST_F(GgufFamiliesTest, TheLossIsThatOfTheCheckpoint) {
  for (const Json& json : FamilyConfigs()) {
    SCOPED_TRACE(FormatJson(json.at("model_type")));
    const fs::path dir = WriteModel(json);
    const double loss = LossOf(dir, "", "false");
    EXPECT_GT(loss, 4);
    EXPECT_NEAR(LossOf(WriteGguf(dir), "", "false"), loss, 1e-5 * loss);
  }
}

// Parts of one linear that a mixture of types stores in two: Q4_K for rows of 32 is Q5_0, Q6_K
// Q8_0.
TEST_F(GgufFamiliesTest, PartsOfOneLinearMayHaveTwoTypes) {
  const std::string linear = "model.layers.2.linear_attn.in_proj_qkvz.weight";
  const auto values_of = [&](const fs::path& path) {
    const std::unique_ptr<TensorReader> reader = OpenCheckpoint(path, LoadDecoderConfig(path));
    const TensorInfo& tensor = *reader->Find(linear);
    EXPECT_EQ(tensor.dtype, DType::kF32);
    std::vector<float> values(tensor.elements());
    DecodeFloats(tensor.dtype, reader->Bytes(tensor), values);
    return values;
  };
  for (const Json& json : FamilyConfigs()) {
    if (json.at("model_type") != "qwen3_next") continue;
    const fs::path dir = WriteModel(json);
    ExportOptions options = ExportTo("mixed.gguf");
    options.model_name_or_path = dir;
    options.outtype = "q4_k_m";
    options.verify = "false";
    Export(context_, options);
    const std::unique_ptr<GgufReader> file = OpenGguf(options.output);
    EXPECT_NE(file->Find("blk.2.attn_qkv.weight")->dtype,
              file->Find("blk.2.attn_gate.weight")->dtype);
    const std::vector<float> expected = values_of(dir);
    const std::vector<float> found = values_of(options.output);
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      // Half a step of Q5_0: a 32nd of the largest value of a block.
      ASSERT_NEAR(found[i], expected[i], 0.04) << i;
    }
    EXPECT_LT(LossOf(options.output, "", "false"), 20);
  }
}

// Also where the rows and columns of the file's weights have another order: adapters keep that of
// the checkpoint.
TEST_F(GgufFamiliesTest, AdaptersOfTheCheckpointFitTheFile) {
  for (const Json& json : FamilyConfigs()) {
    // Its file is that of a granite, whose modules have other names.
    if (json.at("model_type") == "granitemoehybrid") continue;
    SCOPED_TRACE(FormatJson(json.at("model_type")));
    const fs::path dir = WriteModel(json);
    const fs::path file = WriteGguf(dir);
    AdapterConfig all;
    all.r = 3;
    all.lora_alpha = 6;
    all.target_modules = std::string("all-linear");
    if (LoadDecoderConfig(dir).moe.is_joined) {
      all.target_parameters = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj"};
    }
    const fs::path adapter = WriteRandom(dir.string(), all, dir.filename().string() + "-lora", 7);
    const std::vector<double> expected = TokensOf(dir, {adapter});
    const auto expect_same = [&](const std::vector<double>& found) {
      ASSERT_EQ(found.size(), expected.size());
      for (std::size_t i = 0; i < found.size(); ++i) {
        ASSERT_NEAR(found[i], expected[i], 5e-5) << "token " << i;
      }
    };
    expect_same(TokensOf(file, {adapter}));
    const fs::path llama =
        Convert(dir.string(), {adapter}, dir.filename().string() + "-lora.gguf", "gguf");
    expect_same(TokensOf(file, {llama}));

    const LoraAdapter loaded = LoraAdapter::Load(adapter, LoadDecoderConfig(file), HostMemory());
    loaded.Save(root_ / "saved", DType::kF32);
    ExpectSame(ReadAll(root_ / "saved" / "adapter_model.safetensors"),
               ReadAll(adapter / "adapter_model.safetensors"));
  }
}

// What is read from a file can be written to the next one.
TEST_F(GgufFamiliesTest, KeysAreWrittenAsTheyWereRead) {
  for (const Json& json : FamilyConfigs()) {
    SCOPED_TRACE(FormatJson(json.at("model_type")));
    const fs::path path = WriteGguf(WriteModel(json));
    const DecoderConfig config = LoadDecoderConfig(path);
    const std::unique_ptr<GgufReader> file = OpenGguf(path);
    GgufMetadata again;
    AddModelMetadata(config, "model", 0, again);
    for (const auto& [key, value] : again.entries()) {
      if (key == "general.name") continue;
      ASSERT_NE(file->values().Find(key), nullptr) << key;
      EXPECT_TRUE(*file->values().Find(key) == value) << key;
    }
    // And nothing is lost.
    const std::string prefix = GgufArchitectureOf(config) + ".";
    for (const auto& [key, value] : file->values().entries()) {
      if (!key.starts_with(prefix)) continue;
      EXPECT_NE(again.Find(key), nullptr) << key;
    }
  }
}

}  // namespace
}  // namespace qlora
