// Exports from a base that is a GGUF file.

#include "base/file.h"
#include "convert/convert_fixture.h"
#include "convert/gguf_rewrite.h"
#include "io/json.h"
#include "model/base_record.h"
#include "qlora/error.h"

namespace qlora {
namespace {

class GgufBaseTest : public ConvertTest {
 protected:
  // llama-tiny, whose q and k change their order, in blocks.
  std::string Base(const std::string& outtype = "q8_0") {
    ExportOptions options = ExportTo("base-" + outtype + ".gguf");
    options.outtype = outtype;
    Export(context_, options);
    return options.output;
  }
  ExportOptions Adapted(const std::string& base, const std::string& output) {
    ExportOptions options = ExportTo(output);
    options.model_name_or_path = base;
    options.adapter = {kGolden / "llama-tiny" / "adapter"};
    return options;
  }
};

std::string Bytes(const GgufReader& file, const std::string& tensor) {
  const std::span<const std::byte> bytes = file.Bytes(*file.Find(tensor));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TEST_F(GgufBaseTest, AnAdapterFitsTheFileThatItWasTrainedOn) {
  const std::string base = Base();
  const ExportReport report = Export(context_, Adapted(base, "adapter.gguf"));
  EXPECT_EQ(report.format, "gguf-adapter");
  EXPECT_TRUE(report.verified);
  ExportOptions folder = Adapted(kGolden / "llama-tiny", "of-folder.gguf");
  folder.format = "gguf-adapter";
  Export(context_, folder);
  const auto file = OpenGguf(base);
  const auto adapter = OpenGguf(report.files[0]);
  const auto expected = OpenGguf(folder.output);
  EXPECT_EQ(adapter->Require<std::string>("general.type"), "adapter");
  EXPECT_EQ(adapter->Require<std::string>("adapter.type"), "lora");
  EXPECT_EQ(adapter->Require<float>("adapter.lora.alpha"),
            expected->Require<float>("adapter.lora.alpha"));
  EXPECT_EQ(adapter->Require<std::string>("general.architecture"),
            file->Require<std::string>("general.architecture"));
  EXPECT_EQ(adapter->Require<std::string>("general.base_model.0.name"),
            file->Require<std::string>("general.name"));
  ASSERT_EQ(adapter->tensors().size(), expected->tensors().size());
  // The rows of q and k in the order of llama.cpp, and names that the file has.
  for (const TensorInfo& tensor : adapter->tensors()) {
    EXPECT_EQ(Bytes(*adapter, tensor.name), Bytes(*expected, tensor.name)) << tensor.name;
    EXPECT_NE(file->Find(tensor.name.substr(0, tensor.name.rfind('.'))), nullptr) << tensor.name;
  }
}

TEST_F(GgufBaseTest, AnAdapterNamesTheRepositoryOfTheFile) {
  const std::string base = Base();
  RewriteGguf(base, [](GgufMetadata& keys) {
    keys.Add("general.source.repo_url", std::string("https://huggingface.co/org/tiny"));
  });
  const ExportReport report = Export(context_, Adapted(base, "adapter.gguf"));
  EXPECT_EQ(OpenGguf(report.files[0])->Require<std::string>("general.base_model.0.repo_url"),
            "https://huggingface.co/org/tiny");
}

TEST_F(GgufBaseTest, MergedModelsComputeWhatTheFileAndItsAdapterDo) {
  for (const char* form : {"q8_0", "f16"}) {
    const std::string base = Base(form);
    for (const char* outtype : {"f32", "f16", "q8_0"}) {
      SCOPED_TRACE(outtype);
      ExportOptions options = Adapted(base, std::string(form) + "-" + outtype + ".gguf");
      options.format = "gguf";
      options.outtype = outtype;
      const ExportReport report = Export(context_, options);
      EXPECT_TRUE(report.verified);
      EXPECT_EQ(report.merge_base, form == std::string("q8_0") ? "blocks" : "original");
      EXPECT_TRUE(fs::exists(options.output + ".export_report.json"));
    }
  }
}

TEST_F(GgufBaseTest, BlocksHaveNoOtherWeightsToMergeInto) {
  const std::string base = Base();
  ExportOptions options = Adapted(base, "merged.gguf");
  options.format = "gguf";
  options.merge_base = "original";
  EXPECT_NE(Refusal(options).find("blocks of Q8_0"), std::string::npos);
}

// q, k and v as one tensor, as some files have them.
TEST_F(GgufBaseTest, AFileOfAnotherCutTakesNoAdapterOfItsOwn) {
  const std::string base = Base("f16");
  RewriteGguf(base, {}, JoinQkv);
  EXPECT_NE(Refusal(Adapted(base, "adapter.gguf")).find("blk.0.attn_q.weight"), std::string::npos);
  ExportOptions merged = Adapted(base, "merged.gguf");
  merged.format = "gguf";
  EXPECT_TRUE(Export(context_, merged).verified);
}

}  // namespace
}  // namespace qlora
