// Exports to all types of GGUF files, with importance matrices and adapters.
#include <gmock/gmock.h>

#include <cstring>

#include "convert/convert_fixture.h"
#include "convert/wide_model.h"
#include "export/gguf/gguf_mix.h"
#include "export/gguf/imatrix.h"
#include "gguf/gguf.h"
#include "qlora/error.h"

namespace qlora {
namespace {

using testing::HasSubstr;

class GgufTypesTest : public ConvertTest {
 protected:
  GgufTypesTest() {
    WriteWideModel(root_ / "model");
    WriteTextFile(root_ / "text.txt",
                  "Once upon a time there was a little bear. He lived in a wood with his mother, "
                  "and every day they went out to look for honey.\n");
  }

  ExportOptions To(const std::string& name, const std::string& outtype) const {
    ExportOptions options;
    options.model_name_or_path = root_ / "model";
    options.output = root_ / name;
    options.outtype = outtype;
    options.overwrite = true;
    return options;
  }
};

std::vector<float> ValuesOf(const TensorReader& reader, const std::string& name) {
  const TensorInfo* info = reader.Find(name);
  EXPECT_NE(info, nullptr) << name;
  std::vector<float> values(info->elements());
  DecodeFloats(info->dtype, reader.Bytes(*info), values);
  return values;
}

// The root of the mean square error beside that of the values; weights: of columns, or empty.
double RelativeRms(const std::vector<float>& found, const std::vector<float>& expected,
                   const std::vector<float>& weights = {}) {
  double error = 0;
  double size = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    const double weight = weights.empty() ? 1 : double{weights[i % weights.size()]};
    error += weight * (double{found[i]} - expected[i]) * (double{found[i]} - expected[i]);
    size += weight * double{expected[i]} * expected[i];
  }
  return std::sqrt(error / size);
}

TEST_F(GgufTypesTest, EveryTypeIsWrittenAsItsNameSays) {
  Export(context_, To("f32.gguf", "f32"));
  const auto exact = OpenGguf(root_ / "f32.gguf");
  // Of normal weights, what ggml leaves at most, by the type of the tensor.
  const std::map<std::string, double> errors = {
      {"F32", 0},       {"F16", 1e-3},   {"BF16", 4e-3},  {"Q8_0", 0.006}, {"Q6_K", 0.019},
      {"Q5_K", 0.038},  {"Q5_1", 0.040}, {"Q5_0", 0.045}, {"Q4_K", 0.075}, {"IQ4_NL", 0.08},
      {"IQ4_XS", 0.08}, {"Q4_1", 0.081}, {"Q4_0", 0.089}, {"Q3_K", 0.157}, {"Q2_K", 0.31}};
  GgufMixModel mix{.architecture = "llama", .layers = 2, .heads = 4, .kv_heads = 2};
  for (const GgufFileType& file : GgufFileTypes()) {
    SCOPED_TRACE(file.name);
    ExportOptions options = To("model.gguf", std::string(file.name));
    if (file.needs_importance) options.imatrix = root_ / "text.txt";
    mix.has_importance = file.needs_importance;
    Export(context_, options);
    const auto reader = OpenGguf(options.output);
    EXPECT_EQ(reader->Require<std::uint32_t>("general.file_type"), file.number);
    for (const TensorInfo& tensor : reader->tensors()) {
      if (tensor.shape.size() < 2) {
        EXPECT_EQ(tensor.dtype, DType::kF32) << tensor.name;
        continue;
      }
      const TensorType expected = GgufTensorType(file, mix, tensor.name, kWide);
      EXPECT_STREQ(NameOf(tensor.dtype), NameOf(expected)) << tensor.name;
      if (file.needs_importance) continue;
      EXPECT_LE(RelativeRms(ValuesOf(*reader, tensor.name), ValuesOf(*exact, tensor.name)),
                errors.at(NameOf(expected)))
          << tensor.name;
    }
  }
}

TEST_F(GgufTypesTest, ThreadsDoNotChangeTheFile) {
  WriteWideAdapter(root_ / "adapter", 0.02);
  std::vector<std::string> files;
  std::vector<double> kept;
  for (const int threads : {1, 4}) {
    Context context(threads);
    ExportOptions options = To("model.gguf", "q3_k_m");
    options.adapter = {root_ / "adapter"};
    options.imatrix = root_ / "text.txt";
    kept.push_back(*Export(context, options).kept_change);
    files.push_back(ReadTextFile(options.output));
  }
  EXPECT_TRUE(files[0] == files[1]);
  EXPECT_EQ(kept[0], kept[1]);
}

TEST_F(GgufTypesTest, AutoFollowsTheModel) {
  const auto file_type = [&](const fs::path& model) {
    ExportOptions options = To("auto.gguf", "auto");
    options.model_name_or_path = model;
    Export(context_, options);
    return OpenGguf(options.output)->Require<std::uint32_t>("general.file_type");
  };
  EXPECT_EQ(file_type(root_ / "model"), 1U);
  WriteWideModel(root_ / "bfloat16", DType::kBF16);
  EXPECT_EQ(file_type(root_ / "bfloat16"), 32U);
  Export(context_, To("q4.gguf", "Q4_K_S"));
  EXPECT_EQ(file_type(root_ / "q4.gguf"), 14U);
}

TEST_F(GgufTypesTest, RefusesTypesThatTheFormatCannotHold) {
  ExportOptions options = To("folder", "q4_k_m");
  options.format = "hf";
  EXPECT_THAT(Refusal(options), HasSubstr("choose f32, f16 or bf16"));
  EXPECT_THAT(Refusal(To("a.gguf", "iq2_xs")), HasSubstr("outtype expects one of f32, f16"));
}

TEST_F(GgufTypesTest, AnImportanceMatrixServesItsColumns) {
  Export(context_, To("f32.gguf", "f32"));
  Export(context_, To("plain.gguf", "q3_k_s"));
  ExportOptions options = To("weighted.gguf", "q3_k_s");
  options.imatrix = root_ / "text.txt";
  options.write_imatrix = root_ / "importance.gguf";
  Export(context_, options);
  const ImportanceMatrix matrix = ReadImatrix(options.write_imatrix);
  EXPECT_EQ(matrix.dataset, "text.txt");
  EXPECT_EQ(matrix.entries.size(), 14U);
  const std::string name = "blk.1.ffn_down.weight";
  const std::vector<float>& weights = matrix.entries.at(name).mean_squares;
  const auto exact = ValuesOf(*OpenGguf(root_ / "f32.gguf"), name);
  const auto error = [&](const char* file) {
    return RelativeRms(ValuesOf(*OpenGguf(root_ / file), name), exact, weights);
  };
  EXPECT_LT(error("weighted.gguf"), 0.95 * error("plain.gguf"));

  // The written matrix gives the same file.
  ExportOptions again = To("again.gguf", "q3_k_s");
  again.imatrix = options.write_imatrix;
  Export(context_, again);
  const auto first = ValuesOf(*OpenGguf(options.output), name);
  EXPECT_LT(RelativeRms(ValuesOf(*OpenGguf(again.output), name), first), 0.02);
}

TEST_F(GgufTypesTest, RefusesAMissingOrForeignImportanceMatrix) {
  EXPECT_THAT(Refusal(To("a.gguf", "q2_k_s")), HasSubstr("give --imatrix a text"));
  ExportOptions options = To("a.gguf", "q2_k_s");
  options.imatrix = root_ / "foreign.gguf";
  ImportanceMatrix matrix;
  WriteImatrix(matrix, options.imatrix, OpenMode::kReplace);
  EXPECT_THAT(Refusal(options), HasSubstr("the importance matrix has no 'blk.0.attn_q.weight'"));
  matrix.entries["blk.0.attn_q.weight"] = {std::vector<float>(64, 1.0f), {1}};
  WriteImatrix(matrix, options.imatrix, OpenMode::kReplace);
  EXPECT_THAT(Refusal(options), HasSubstr("64 values for 'blk.0.attn_q.weight'"));
  options.outtype = "f16";
  EXPECT_THAT(Refusal(options), HasSubstr("imatrix has no effect on F16"));
  options.imatrix_tokens = 0;
  EXPECT_THAT(Refusal(options), HasSubstr("imatrix_tokens must be positive, found 0"));
  options.imatrix_tokens = 1;
  options.format = "hf";
  options.output = root_ / "folder";
  EXPECT_THAT(Refusal(options), HasSubstr("has no use for imatrix"));
}

// What is read is not replaced, nor is anything but an importance matrix by one.
TEST_F(GgufTypesTest, FilesThatAreReadAreNotReplaced) {
  ExportOptions options = To("a.gguf", "q4_0");
  options.imatrix = root_ / "text.txt";
  const auto refuse = [&](const fs::path& matrix, const char* reason) {
    options.write_imatrix = matrix;
    const std::string before = Exists(matrix) ? ReadTextFile(matrix) : "";
    EXPECT_THAT(Refusal(options), HasSubstr(reason)) << matrix;
    EXPECT_EQ(Exists(matrix) ? ReadTextFile(matrix) : "", before) << matrix;
  };
  refuse(root_ / "text.txt", "is no importance matrix");
  refuse(root_ / "a.gguf", "is the output");
  refuse(root_ / "none" / "b.gguf", "cannot be created");
  Export(context_, To("model.gguf", "q8_0"));
  refuse(root_ / "model.gguf", "is no importance matrix");

  options.write_imatrix = root_ / "importance.gguf";
  EXPECT_THAT(Export(context_, options).notes,
              testing::Contains(HasSubstr("importance matrix is of")));
  // Its own kind is replaced.
  Export(context_, options);
  ExportOptions over = To("importance.gguf", "q4_0");
  over.imatrix = over.output;
  const std::string matrix = ReadTextFile(over.output);
  EXPECT_THROW(Export(context_, over), Error);
  EXPECT_EQ(ReadTextFile(over.output), matrix);
}

TEST_F(GgufTypesTest, AModelIsNotReplacedByItsModelfile) {
  ExportOptions options = To("Modelfile", "q8_0");
  options.modelfile = true;
  EXPECT_THAT(Refusal(options), HasSubstr("is the name of the Modelfile"));
}

TEST_F(GgufTypesTest, RefusesOptionsWithoutEffect) {
  ExportOptions options = To("a.gguf", "q4_0");
  options.imatrix_tokens = 5;
  EXPECT_THAT(Refusal(options), HasSubstr("imatrix_tokens has no effect"));
  options.imatrix_tokens = ExportOptions().imatrix_tokens;
  options.verify = "false";
  options.verify_text = root_ / "text.txt";
  EXPECT_THAT(Refusal(options), HasSubstr("verify_text has no effect"));
}

// Of blocks of few bits, verification expects what they can give.
TEST_F(GgufTypesTest, FilesOfFewBitsAreVerified) {
  for (const char* outtype : {"q4_k_m", "q2_k"}) {
    ExportOptions options = To("a.gguf", outtype);
    options.verify = "true";
    EXPECT_TRUE(Export(context_, options).verified) << outtype;
  }
}

// Rounding of a 16-bit model knows nothing of the adapter, and cannot undo it.
TEST_F(GgufTypesTest, AnAdapterSurvivesTheRoundingOf16BitWeights) {
  WriteWideAdapter(root_ / "adapter", 0.02);
  ExportOptions options = To("a.gguf", "q4_k_m");
  options.adapter = {root_ / "adapter"};
  const ExportReport report = Export(context_, options);
  ASSERT_TRUE(report.kept_change.has_value());
  EXPECT_NEAR(*report.kept_change, 1, 0.1);
  EXPECT_EQ(report.kept_by_tensor.size(), 14U);
  EXPECT_TRUE(report.notes.empty()) << report.notes[0];
  options.outtype = "f16";
  EXPECT_FALSE(Export(context_, options).kept_change.has_value());
}

// Weights on the grid of their blocks go back to it, unless the change is a good part of a step.
TEST_F(GgufTypesTest, RefusesToRoundAnAdapterAway) {
  Export(context_, To("base.gguf", "q4_0"));
  WriteWideAdapter(root_ / "adapter", 0.001);
  ExportOptions options = To("a.gguf", "q4_0");
  options.model_name_or_path = root_ / "base.gguf";
  options.adapter = {root_ / "adapter"};
  options.format = "gguf";
  options.imatrix = root_ / "text.txt";
  options.write_imatrix = root_ / "importance.gguf";
  EXPECT_THAT(Refusal(options), AllOf(HasSubstr("--force writes it all the same"),
                                      HasSubstr("checkpoint that the file was made from")));
  EXPECT_FALSE(fs::exists(options.write_imatrix)) << "a refusal changes no file";
  options.imatrix = options.write_imatrix = "";
  options.force = true;
  const ExportReport report = Export(context_, options);
  EXPECT_LT(*report.kept_change, 0.7);
  EXPECT_THAT(report.notes, testing::Contains(HasSubstr("keeps")));
  EXPECT_TRUE(fs::exists(options.output));
  // A type of more bits keeps it.
  options.force = false;
  options.outtype = "q8_0";
  EXPECT_GT(*Export(context_, options).kept_change, 0.9);
}

// So do dequantized 4-bit weights; the 16-bit weights that they were made from do not.
TEST_F(GgufTypesTest, NamesTheBaseWhoseRoundingKeepsTheAdapter) {
  WriteWideAdapter(root_ / "adapter", 0.0005);
  ExportOptions options = To("a.gguf", "q4_0");
  options.adapter = {root_ / "adapter"};
  options.merge_base = "nf4";
  EXPECT_THAT(Refusal(options), HasSubstr("--merge-base original"));
  options.merge_base = "original";
  EXPECT_GT(*Export(context_, options).kept_change, 0.9);
}

// bfloat16 weights go back to their own grid as well.
TEST_F(GgufTypesTest, ASmallChangeOfBfloat16IsLost) {
  fs::remove_all(root_ / "model");
  WriteWideModel(root_ / "model", DType::kBF16);
  ExportOptions options = To("a.gguf", "bf16");
  options.adapter = {root_ / "adapter"};
  WriteWideAdapter(options.adapter[0], 0.01);
  EXPECT_GT(*Export(context_, options).kept_change, 0.95);
  fs::remove_all(options.adapter[0]);
  WriteWideAdapter(options.adapter[0], 1e-5);
  options.output = root_ / "b.gguf";
  EXPECT_THAT(Refusal(options), HasSubstr("rounding to BF16 keeps"));
}

}  // namespace
}  // namespace qlora
