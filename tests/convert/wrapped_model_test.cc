// Models that also see: their text part is loaded, and the rest goes through every conversion as it
// is.
#include "model/wrapped_model.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>

#include "base/file.h"
#include "convert/convert_fixture.h"
#include "io/bnb.h"
#include "io/json.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "qlora/inspect.h"

namespace qlora {
namespace {

using testing::HasSubstr;

std::string BytesIn(const TensorReader& reader, const std::string& name) {
  const auto bytes = reader.Bytes(*reader.Find(name));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class WrappedModelTest : public ConvertTest {
 protected:
  fs::path Wrap(const WrapperCase& of, const Spelling& spelling) const {
    return WriteWrapped(of, spelling, root_ / "model");
  }

  // The adapter of a model of tests/golden with its modules named as another class has them.
  fs::path Adapter(const WrapperCase& of, const std::string& prefix) const {
    const fs::path source = kGolden / of.golden / "adapter";
    const fs::path folder = root_ / "adapter";
    fs::remove_all(folder);
    fs::copy(source, folder);
    const auto reader = OpenSafetensors(source / "adapter_model.safetensors");
    std::vector<TensorInfo> infos;
    for (TensorInfo info : reader->tensors()) {
      info.name = Renamed(info.name, "base_model.model.model.", "base_model.model." + prefix);
      infos.push_back(info);
    }
    const auto writer = CreateSafetensors(folder / "adapter_model.safetensors", infos, {});
    for (const TensorInfo& info : reader->tensors()) writer->Write(reader->Bytes(info));
    writer->Finish();
    return folder;
  }

  // The encoder, bit for bit, and the rest of the configuration.
  void ExpectKept(const fs::path& folder, const fs::path& source, const Spelling& spelling) const {
    const auto found = OpenSafetensors(folder);
    const auto expected = OpenSafetensors(source);
    for (const TensorInfo& info : EncoderTensors(spelling.encoder)) {
      const TensorInfo* tensor = found->Find(info.name);
      ASSERT_NE(tensor, nullptr) << info.name;
      EXPECT_EQ(tensor->dtype, info.dtype) << info.name;
      EXPECT_EQ(tensor->shape, info.shape) << info.name;
      EXPECT_EQ(BytesIn(*found, info.name), BytesIn(*expected, info.name)) << info.name;
    }
    Json config = ReadJsonFile(folder / "config.json");
    Json before = ReadJsonFile(source / "config.json");
    EXPECT_EQ(config["vision_config"], before["vision_config"]);
    EXPECT_EQ(config["model_type"], before["model_type"]);
    EXPECT_EQ(config["text_config"]["model_type"], before["text_config"]["model_type"]);
  }
};

TEST_F(WrappedModelTest, TextPartsAreLoadedUnderEverySpelling) {
  for (const WrapperCase& of : kWrapperCases) {
    const double plain = LossOf(kGolden / of.golden, "", "false");
    const double adapted = LossOf(kGolden / of.golden, kGolden / of.golden / "adapter", "false");
    for (const Spelling& spelling : kSpellings) {
      SCOPED_TRACE(std::string(of.text) + " " + spelling.decoder);
      const fs::path model = Wrap(of, spelling);
      EXPECT_EQ(LossOf(model, "", "false"), plain);
      for (const char* prefix : {"model.", "model.language_model.", "language_model.model."}) {
        EXPECT_EQ(LossOf(model, Adapter(of, prefix), "false"), adapted) << prefix;
      }
      EXPECT_THAT(Inspect(model.string()).text, HasSubstr(of.text));
    }
  }
}

TEST_F(WrappedModelTest, MergedModelsKeepEverythingElse) {
  for (const WrapperCase& of : kWrapperCases) {
    for (const Spelling& spelling : kSpellings) {
      SCOPED_TRACE(std::string(of.text) + " " + spelling.decoder);
      const fs::path model = Wrap(of, spelling);
      ExportOptions options = ExportTo("merged");
      options.overwrite = true;
      options.model_name_or_path = model;
      options.adapter = {kGolden / of.golden / "adapter"};
      options.format = "hf";
      EXPECT_TRUE(Export(context_, options).verified);
      ExpectKept(options.output, model, spelling);
      const double expected = LossOf(model, options.adapter[0], "false");
      EXPECT_NEAR(LossOf(options.output, "", "false"), expected, 1e-5 * expected);
      // The names of the source.
      const auto found = OpenSafetensors(options.output);
      EXPECT_NE(found->Find(std::string(spelling.decoder) + "norm.weight"), nullptr);
    }
  }
}

TEST_F(WrappedModelTest, QuantizedModelsKeepEverythingElse) {
  for (const WrapperCase& of : kWrapperCases) {
    for (const Spelling& spelling : kSpellings) {
      SCOPED_TRACE(std::string(of.text) + " " + spelling.decoder);
      const fs::path model = Wrap(of, spelling);
      fs::remove_all(root_ / "nf4");
      Quantize(model, "nf4");
      ExpectKept(root_ / "nf4", model, spelling);
      const auto found = OpenSafetensors(root_ / "nf4");
      EXPECT_TRUE(HasQuantState(
          *found, std::string(spelling.decoder) + "layers.0.self_attn.q_proj.weight"));
      // transformers quantizes all linears that are not named.
      const Json skipped = ReadJsonFile(
          root_ / "nf4" / "config.json")["quantization_config"]["llm_int8_skip_modules"];
      std::string module = Renamed(spelling.encoder, "model.", "");
      module.pop_back();
      for (const std::string& name : {module, "model." + module, std::string("lm_head")}) {
        EXPECT_NE(std::find(skipped.begin(), skipped.end(), name), skipped.end()) << name;
      }
      EXPECT_EQ(LossOf(root_ / "nf4", "", "auto"), LossOf(kGolden / of.golden, "", "true"));
    }
  }
}

TEST_F(WrappedModelTest, GgufFilesHaveTheTextPart) {
  for (const WrapperCase& of : kWrapperCases) {
    SCOPED_TRACE(of.text);
    ExportOptions options = ExportTo(std::string(of.text) + ".gguf");
    options.model_name_or_path = Wrap(of, kSpellings[0]);
    EXPECT_TRUE(Export(context_, options).verified);
  }
}

}  // namespace
}  // namespace qlora
