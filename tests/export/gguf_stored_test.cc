// A GGUF file that is made from another one keeps what nothing changes, byte by byte.
#include "export/gguf/gguf_stored.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "convert/gguf_rewrite.h"
#include "export/adapter_fixture.h"
#include "export/gguf/imatrix.h"
#include "io/peft/peft.h"
#include "model/checkpoint.h"
#include "model/gguf_rows.h"
#include "model/tensor_list.h"

namespace qlora {
namespace {

class GgufStoredTest : public AdapterFormatsTest {
 protected:
  std::string Base(const std::string& outtype) {
    ExportOptions options = ExportTo("base.gguf");
    options.outtype = outtype;
    options.verify = "false";
    Export(context_, options);
    return options.output;
  }
  ExportOptions Auto(const std::string& base, bool adapted) {
    ExportOptions options = ExportTo("auto.gguf");
    options.model_name_or_path = base;
    options.format = "gguf";
    options.outtype = "auto";
    options.force = true;
    if (adapted) options.adapter = {kGolden / "llama-tiny" / "adapter"};
    return options;
  }
};

std::string Bytes(const GgufReader& file, const std::string& tensor) {
  const std::span<const std::byte> bytes = file.Bytes(*file.Find(tensor));
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// The tensors of a file that the adapter of llama-tiny changes.
std::set<std::string> AdaptedTensors() {
  const DecoderConfig config = LoadDecoderConfig(kGolden / "llama-tiny");
  const Adapter adapter = OpenAdapter(kGolden / "llama-tiny" / "adapter");
  std::set<std::string> names;
  for (std::int64_t l = 0; l < config.num_hidden_layers; ++l) {
    ForEachGgufLinear(config, l, [&](const LayerTensor& row, const std::string& tensor) {
      const std::string path = row.ModuleIn("model.", l, 0);
      const auto is_it = [&](const AdapterModule& module) { return module.path == path; };
      if (std::ranges::any_of(adapter.modules, is_it)) names.insert(tensor);
    });
  }
  return names;
}

// general.file_type says something else, and there is a key that nobody knows.
TEST_F(GgufStoredTest, AFileThatNothingChangesIsUnchanged) {
  for (const char* type : {"q8_0", "q4_0", "bf16"}) {
    const std::string base = Base(type);
    RewriteGguf(base, [](GgufMetadata& keys) {
      const GgufValue f16 = std::uint32_t{1};
      keys = WithKey(keys, "general.file_type", &f16);
      keys.Add("somebody.else", std::string("knows it"));
    });
    const ExportReport report = Export(context_, Auto(base, false));
    EXPECT_TRUE(report.verified);
    EXPECT_EQ(report.max_logprob_difference, 0);
    EXPECT_EQ(ReadTextFile(report.files[0]), ReadTextFile(base)) << type;
    fs::remove(report.files[0]);
    fs::remove(base);
  }
}

TEST_F(GgufStoredTest, AnAdapterChangesItsTensorsAndKeepsTheirTypes) {
  const std::string base = Base("q8_0");
  const ExportReport report = Export(context_, Auto(base, true));
  EXPECT_TRUE(report.verified);
  const auto before = OpenGguf(base);
  const auto after = OpenGguf(report.files[0]);
  const std::set<std::string> adapted = AdaptedTensors();
  ASSERT_FALSE(adapted.empty());
  ASSERT_EQ(before->tensors().size(), after->tensors().size());
  for (std::size_t i = 0; i < before->tensors().size(); ++i) {
    const TensorInfo& tensor = before->tensors()[i];
    EXPECT_EQ(after->tensors()[i].name, tensor.name);
    EXPECT_TRUE(after->tensors()[i].dtype == tensor.dtype);
    const bool is_same = Bytes(*before, tensor.name) == Bytes(*after, tensor.name);
    EXPECT_EQ(is_same, !adapted.contains(tensor.name)) << tensor.name;
  }
  EXPECT_TRUE(after->Require<bool>("qlora.merged_weights"));
  for (const GgufEntry& entry : before->values().entries()) {
    const GgufValue* value = after->values().Find(entry.key);
    ASSERT_NE(value, nullptr) << entry.key;
    EXPECT_TRUE(*value == entry.value) << entry.key;
  }
}

// Also where a type is given: what is rounded once is not rounded again.
TEST_F(GgufStoredTest, TensorsOfTheWantedTypeAreNotRoundedAgain) {
  const std::string base = Base("q4_0");
  ExportOptions options = Auto(base, true);
  options.outtype = "q4_0";
  const ExportReport report = Export(context_, options);
  const auto before = OpenGguf(base);
  const auto after = OpenGguf(report.files[0]);
  const std::set<std::string> adapted = AdaptedTensors();
  for (const TensorInfo& tensor : before->tensors()) {
    if (adapted.contains(tensor.name)) continue;
    EXPECT_EQ(Bytes(*before, tensor.name), Bytes(*after, tensor.name)) << tensor.name;
  }
}

// A table, too; and the keys name the matrix of what is rounded, not the one of before.
TEST_F(GgufStoredTest, ChangedTensorsAreRoundedWithTheirImportance) {
  const std::string base = Base("q4_0");
  RewriteGguf(base, [](GgufMetadata& keys) {
    keys.Add("quantize.imatrix.file", std::string("earlier.gguf"));
    keys.Add("quantize.imatrix.chunks_count", std::uint32_t{9});
  });
  ExportOptions options = Auto(base, false);
  options.adapter = {WriteRandom("llama-tiny", Targeting({"embed_tokens"}, 4, 8), "table", 1)};
  options.verify = "false";  // columns without importance are rounded badly
  const ExportReport plain = Export(context_, options);
  const auto before = OpenGguf(plain.files[0]);
  EXPECT_EQ(before->values().Find("quantize.imatrix.file"), nullptr);
  EXPECT_EQ(before->values().Find("quantize.imatrix.chunks_count"), nullptr);

  std::vector<float> importance(64, 0.01f);
  for (std::size_t i = 0; i < importance.size(); i += 3) importance[i] = 100;
  ImportanceMatrix matrix;
  matrix.entries["token_embd.weight"] = {importance, {1}};
  matrix.entries["blk.0.attn_q.weight"] = {importance, {1}};
  WriteImatrix(matrix, root_ / "importance.gguf", OpenMode::kCreate);
  options.imatrix = root_ / "importance.gguf";
  options.output = root_ / "weighed.gguf";
  const ExportReport weighed = Export(context_, options);
  const auto after = OpenGguf(weighed.files[0]);
  EXPECT_NE(Bytes(*before, "token_embd.weight"), Bytes(*after, "token_embd.weight"));
  EXPECT_EQ(after->Require<std::string>("quantize.imatrix.file"), "importance.gguf");
  EXPECT_EQ(after->values().Find("quantize.imatrix.chunks_count"), nullptr);
  EXPECT_THAT(weighed.notes,
              testing::Contains(testing::HasSubstr("copied as the file has them, where they are "
                                                   "not used: 'blk.0.attn_q.weight'")));
}

// q, k and v in one tensor of the file: rows of those that do not change keep their bytes.
TEST_F(GgufStoredTest, RowsOfAJoinedTensorAreKept) {
  const std::string base = Base("q8_0");
  const auto apart = OpenGguf(base);
  const std::string joined = root_ / "joined.gguf";
  fs::copy_file(base, joined);
  RewriteGguf(joined, {}, JoinQkv);
  const ExportReport same = Export(context_, Auto(joined, false));
  EXPECT_EQ(ReadTextFile(same.files[0]), ReadTextFile(joined));
  fs::remove(same.files[0]);
  const ExportReport report = Export(context_, Auto(joined, true));
  EXPECT_TRUE(report.verified);
  const auto after = OpenGguf(report.files[0]);
  const std::set<std::string> adapted = AdaptedTensors();
  for (const TensorInfo& tensor : apart->tensors()) {
    if (adapted.contains(tensor.name)) continue;
    ASSERT_NE(after->Find(tensor.name), nullptr) << tensor.name;
    EXPECT_EQ(Bytes(*apart, tensor.name), Bytes(*after, tensor.name)) << tensor.name;
  }
}

TEST(WritableTypeTest, IsTheSameOrTheNextThatIsEncoded) {
  EXPECT_TRUE(WritableType(DType::kF16) == DType::kF16);
  EXPECT_TRUE(WritableType(BlockFormat::kQ4_K) == BlockFormat::kQ4_K);
  EXPECT_TRUE(WritableType(BlockFormat::kIQ3_S) == BlockFormat::kQ3_K);
  EXPECT_TRUE(WritableType(BlockFormat::kIQ2_XXS) == BlockFormat::kQ2_K);
  for (const BlockFormatInfo& info : BlockFormats()) {
    const TensorType type = WritableType(info.format);
    EXPECT_TRUE(InfoOf(type.format).encodable);
    EXPECT_EQ(info.values % InfoOf(type.format).values, 0);
  }
}

}  // namespace
}  // namespace qlora
