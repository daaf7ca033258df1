// GGUF files of families without golden values in the tree: they are read as the models that they
// were made from. Values of real classes are in inference/family_golden_test.cc.
#include <cmath>

#include "convert/family_models.h"
#include "convert/gguf_metadata.h"
#include "gguf/gguf.h"
#include "qlora/model.h"

namespace qlora {
namespace {

class GgufFamiliesTest : public ConvertTest {
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
