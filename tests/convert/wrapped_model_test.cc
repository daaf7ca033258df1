// Models that also see, made of the tiny models of tests/golden: their text part is loaded, and the
// rest goes through every conversion as it is.
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

struct WrapperCase {
  const char* wrapper;  // model_type
  const char* text;     // model_type of text_config
  const char* golden;   // the model of tests/golden
  bool has_gguf;
};

const WrapperCase kCases[] = {{"mistral3", "mistral", "mistral-tiny", true},
                              {"mistral3", "ministral3", "mistral-tiny", false},
                              {"gemma3", "gemma3_text", "gemma3-tiny", true},
                              {"qwen2_5_vl", "qwen2_5_vl_text", "qwen2-tiny", false},
                              {"qwen3_vl", "qwen3_vl_text", "qwen3-tiny", false}};

// How files name the decoder, the head and the image encoder.
struct Spelling {
  const char* decoder;
  const char* head;
  const char* encoder;
};

const Spelling kSpellings[] = {
    {"model.language_model.", "lm_head.", "model.vision_tower."},
    {"language_model.model.", "language_model.lm_head.", "vision_tower."},
    {"model.", "lm_head.", "visual."}};

std::string Renamed(const std::string& name, const std::string& from, const std::string& to) {
  return name.starts_with(from) ? to + name.substr(from.size()) : name;
}

std::string BytesIn(const TensorReader& reader, const std::string& name) {
  const auto bytes = reader.Bytes(*reader.Find(name));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class WrappedModelTest : public ConvertTest {
 protected:
  // Tensors of an image encoder. Its layers have linears of the same names as the decoder's, and
  // not all of its tensors have dimensions.
  static std::vector<TensorInfo> EncoderTensors(const std::string& prefix) {
    return {{prefix + "layers.0.self_attn.q_proj.weight", DType::kBF16, {64, 64}},
            {prefix + "layers.0.norm.weight", DType::kF32, {3}},
            {prefix + "input_min", DType::kF32, {}},
            {prefix + "position_ids", DType::kI64, {1, 2}}};
  }

  fs::path Wrap(const WrapperCase& of, const Spelling& spelling) const {
    const fs::path source = kGolden / of.golden;
    const fs::path folder = root_ / "model";
    fs::remove_all(folder);
    fs::create_directories(folder);
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
      fs::copy_file(source / name, folder / name);
    }
    Json text = ReadJsonFile(source / "config.json");
    text.erase("architectures");
    text["model_type"] = of.text;
    text["head_dim"] = text.value("head_dim", 8);
    if (std::string(of.text) == "ministral3") {
      text["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", text["rope_theta"]}};
    }
    Json config = {{"model_type", of.wrapper},
                   {"dtype", "bfloat16"},
                   {"text_config", text},
                   {"vision_config", {{"hidden_size", 64}}}};
    WriteTextFile(folder / "config.json", config.dump());

    const auto reader = OpenSafetensors(source);
    std::vector<TensorInfo> infos;
    for (TensorInfo info : reader->tensors()) {
      info.name =
          Renamed(Renamed(info.name, "model.", spelling.decoder), "lm_head.", spelling.head);
      infos.push_back(info);
    }
    for (const TensorInfo& info : EncoderTensors(spelling.encoder)) infos.push_back(info);
    const auto writer = CreateSafetensors(folder / "model.safetensors", infos, {});
    for (const TensorInfo& info : reader->tensors()) writer->Write(reader->Bytes(info));
    for (const TensorInfo& info : EncoderTensors("")) {
      std::vector<std::byte> bytes(info.bytes());
      for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i % 50);
      writer->Write(bytes);
    }
    writer->Finish();
    return folder;
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
  for (const WrapperCase& of : kCases) {
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
  for (const WrapperCase& of : kCases) {
    for (const Spelling& spelling : kSpellings) {
      SCOPED_TRACE(std::string(of.text) + " " + spelling.decoder);
      const fs::path model = Wrap(of, spelling);
      ExportOptions options = ExportTo("merged");
      options.overwrite = true;
      options.model_name_or_path = model;
      options.adapter = kGolden / of.golden / "adapter";
      options.format = "hf";
      EXPECT_TRUE(Export(context_, options).verified);
      ExpectKept(options.output, model, spelling);
      const double expected = LossOf(model, options.adapter, "false");
      EXPECT_NEAR(LossOf(options.output, "", "false"), expected, 1e-5 * expected);
      // The names of the source.
      const auto found = OpenSafetensors(options.output);
      EXPECT_NE(found->Find(std::string(spelling.decoder) + "norm.weight"), nullptr);
    }
  }
}

TEST_F(WrappedModelTest, QuantizedModelsKeepEverythingElse) {
  for (const WrapperCase& of : kCases) {
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

TEST_F(WrappedModelTest, GgufIsWrittenOfTextPartsThatLlamaCppHas) {
  for (const WrapperCase& of : kCases) {
    SCOPED_TRACE(of.text);
    ExportOptions options = ExportTo(std::string(of.text) + ".gguf");
    options.model_name_or_path = Wrap(of, kSpellings[0]);
    if (of.has_gguf) {
      EXPECT_TRUE(Export(context_, options).verified);
    } else {
      EXPECT_THAT(Refusal(options), HasSubstr(of.text));
    }
  }
}

}  // namespace
}  // namespace qlora
