// The modules that config.json says are not in 4 bits, against the tensors beside it; and
// --quantize-experts.
#include <gmock/gmock.h>

#include <algorithm>

#include "convert/convert_fixture.h"
#include "convert/family_models.h"
#include "io/bnb.h"
#include "io/json.h"
#include "io/safetensors.h"

namespace qlora {
namespace {

using ::testing::HasSubstr;

class SkippedModulesTest : public ConvertTest {
 protected:
  QuantizeReport QuantizeExperts(const fs::path& from, const std::string& to,
                                 bool dequantize = false) {
    QuantizeCheckpointOptions options;
    options.model_name_or_path = from;
    options.output_dir = root_ / to;
    options.quantize_experts = true;
    options.dequantize = dequantize;
    return QuantizeCheckpoint(context_, options);
  }

  Json ListOf(const std::string& name) const {
    return ReadJsonFile(root_ / name /
                        "config.json")["quantization_config"]["llm_int8_skip_modules"];
  }

  // Every matrix of a layer is in 4 bits or in a module of the list, which names nothing twice.
  void ExpectAgrees(const std::string& name) const {
    SCOPED_TRACE(name);
    const auto modules = ListOf(name).get<std::vector<std::string>>();
    const auto reader = OpenSafetensors(root_ / name);
    for (const std::string& module : modules) {
      EXPECT_EQ(std::ranges::count(modules, module), 1) << module;
    }
    for (const TensorInfo& tensor : reader->tensors()) {
      const bool in_4_bits = HasQuantState(*reader, tensor.name);
      const bool is_matrix = tensor.shape.size() == 2 && tensor.name.ends_with(".weight") &&
                             tensor.name.find("embed") == std::string::npos;
      if (!is_matrix && !in_4_bits) continue;
      const bool is_listed = std::ranges::any_of(modules, [&](const std::string& module) {
        return tensor.name.starts_with(module + ".");
      });
      EXPECT_EQ(is_listed, !in_4_bits) << tensor.name;
    }
  }

  void ExpectNoEffect(const fs::path& model, const std::string& reason, bool dequantize = false) {
    try {
      QuantizeExperts(model, "refused", dequantize);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
      EXPECT_THAT(error.what(), HasSubstr("quantize_experts would have no effect: " + reason));
    }
    EXPECT_FALSE(fs::exists(root_ / "refused"));
  }
};

TEST_F(SkippedModulesTest, NamesWhatIsNotInFourBits) {
  for (const char* model : {"llama-tiny", "mixtral-tiny", "qwen3moe-tiny"}) {
    Quantize(kGolden / model, model);
    ExpectAgrees(model);
    // A copy of it, too.
    Quantize(root_ / model, std::string(model) + "-copy");
    ExpectAgrees(std::string(model) + "-copy");
    EXPECT_EQ(ListOf(std::string(model) + "-copy"), ListOf(model));
  }
  QuantizeExperts(kGolden / "mixtral-tiny", "experts");
  ExpectAgrees("experts");
}

TEST_F(SkippedModulesTest, ListsOfCopiesAreCorrected) {
  Quantize(kGolden / "mixtral-tiny", "dense-experts");
  // Experts are added to what is in 4 bits.
  QuantizeExperts(root_ / "dense-experts", "added");
  ExpectAgrees("added");
  // The list says the contrary of the tensors, and one name twice.
  const fs::path file = root_ / "added" / "config.json";
  Json config = ReadJsonFile(file);
  config["quantization_config"]["llm_int8_skip_modules"] = {
      "lm_head", "lm_head", "model.layers.0.block_sparse_moe.experts",
      "model.layers.0.self_attn.q_proj"};
  WriteTextFile(file, config.dump());
  Quantize(root_ / "added", "corrected");
  ExpectAgrees("corrected");
}

TEST_F(SkippedModulesTest, ExpertsThatCannotBeQuantizedAreAnError) {
  ExpectNoEffect(kGolden / "llama-tiny", "the model has no experts");
  QuantizeExperts(kGolden / "mixtral-tiny", "nf4");
  ExpectNoEffect(root_ / "nf4", "with dequantize all weights become 16-bit ones", true);
  ExpectNoEffect(root_ / "nf4", "the experts are in 4 bits already");
  for (const Json& json : FamilyConfigs()) {
    if (!json.contains("enable_moe_block")) continue;
    WriteFamilyModel(root_ / "gemma4", json);
    ExpectNoEffect(root_ / "gemma4", "a gemma4");
  }
}

}  // namespace
}  // namespace qlora
