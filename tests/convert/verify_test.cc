// What the verification of an export finds, and what it reports.
#include "convert/verify.h"

#include <gmock/gmock.h>
#include <sys/resource.h>

#include <csignal>

#include "base/file.h"
#include "convert/convert_fixture.h"
#include "convert/gguf_rewrite.h"
#include "io/json.h"
#include "qlora/error.h"

namespace qlora {
namespace {

using testing::HasSubstr;

class VerifyTest : public ConvertTest {
 protected:
  // Verifies a file of llama3-tiny that was changed after it was written.
  std::string Fault(const std::function<void(const fs::path&)>& change,
                    const fs::path& model = kGolden / "llama3-tiny",
                    const std::string& outtype = "f16") {
    ExportOptions options = ExportTo("model.gguf");
    options.overwrite = true;
    options.model_name_or_path = model;
    options.outtype = outtype;
    options.on_written = [&] { change(options.output); };
    try {
      Export(context_, options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kRuntime);
      return error.what();
    }
    return "";
  }
  static constexpr const char* kReport = "model.gguf.export_report.json";
  Json Report() const { return ReadJsonFile(root_ / kReport); }
};

TEST_F(VerifyTest, KeysThatAreMissingOrMeanSomethingElseAreFound) {
  EXPECT_EQ(Fault([](const fs::path&) {}), "");
  EXPECT_TRUE(Report().at("verified").get<bool>());
  const auto set = [](const char* key, const std::optional<GgufValue>& value) {
    return [=](const fs::path& path) {
      RewriteGguf(
          path, [&](GgufMetadata& keys) { keys = WithKey(keys, key, value ? &*value : nullptr); });
    };
  };
  // llama.cpp computes with 10000 then.
  EXPECT_THAT(Fault(set("llama.rope.freq_base", {})), HasSubstr("do not use the output"));
  EXPECT_FALSE(Report().at("verified").get<bool>());
  EXPECT_THAT(Fault(set("llama.attention.layer_norm_rms_epsilon", 0.1F)),
              HasSubstr("its log-probabilities differ"));
  EXPECT_THAT(Fault(set("tokenizer.ggml.add_bos_token", false)),
              HasSubstr("its tokenizer makes other tokens of the text"));
  EXPECT_FALSE(Report().at("same_tokens").get<bool>());
  EXPECT_THAT(Fault(set("llama.context_length", {})), HasSubstr("could not be verified"));
}

// The limits of few bits are above what rounding does to a trained model, and below what a wrong
// key does.
TEST_F(VerifyTest, WrongKeysAreFoundAtFewBits) {
  const fs::path model = SourceDir() / "examples" / "base-1m";
  const GgufValue period = 100.0F;
  const auto set = [&](const fs::path& path) {
    RewriteGguf(path,
                [&](GgufMetadata& keys) { keys = WithKey(keys, "llama.rope.freq_base", &period); });
  };
  for (const char* outtype : {"q8_0", "q4_k_m", "q2_k"}) {
    EXPECT_EQ(Fault([](const fs::path&) {}, model, outtype), "") << outtype;
    EXPECT_THAT(Fault(set, model, outtype), HasSubstr("do not use the output")) << outtype;
  }
}

TEST_F(VerifyTest, TheReportHasTheFiguresOfTheText) {
  WriteTextFile(root_ / "text.txt", "A short text of a few words, to compare the models on.");
  ExportOptions options = ExportTo("model.gguf");
  options.outtype = "q8_0";
  options.verify = "auto";
  options.verify_text = root_ / "text.txt";
  const VerifyReport report = Export(context_, options).verification;
  EXPECT_GT(report.text_tokens, 10);
  EXPECT_GT(report.mean_kl_divergence, 0);
  EXPECT_GE(report.max_kl_divergence, report.mean_kl_divergence);
  EXPECT_LT(report.mean_kl_divergence, report.max_mean_kl);
  EXPECT_GT(report.top1_agreement, 0.9);
  EXPECT_NEAR(report.perplexity, report.source_perplexity, 0.05 * report.source_perplexity);
  const Json json = Report();
  EXPECT_EQ(json.at("perplexity").get<double>(), report.perplexity);
  EXPECT_EQ(json.at("text").get<std::string>(), options.verify_text);
}

// The output is complete, and was compared.
TEST_F(VerifyTest, AReportThatCannotBeWrittenIsANote) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ExportOptions options = ExportTo("model.gguf");
  // As on a full disk: files of no byte can be written.
  options.on_written = [&] {
    const rlimit none{0, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  };
  const ExportReport report = Export(context_, options);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(report.verified);
  ASSERT_FALSE(report.notes.empty());
  EXPECT_THAT(report.notes.back(), HasSubstr("the report of the verification was not written"));
  EXPECT_FALSE(fs::exists(root_ / kReport));
}

TEST_F(VerifyTest, EachFileHasAReportOfItsOwn) {
  for (const char* outtype : {"f32", "q8_0"}) {
    ExportOptions options = ExportTo(std::string(outtype) + ".gguf");
    options.outtype = outtype;
    EXPECT_EQ(Export(context_, options).outtype, outtype);
  }
  const auto type = [&](const char* name) {
    return ReadJsonFile(root_ / name).at("outtype").get<std::string>();
  };
  EXPECT_EQ(type("f32.gguf.export_report.json"), "f32");
  EXPECT_EQ(type("q8_0.gguf.export_report.json"), "q8_0");
  // The report of what is replaced goes with it.
  ExportOptions options = ExportTo("f32.gguf");
  options.outtype = "auto";
  options.overwrite = true;
  options.verify = "false";
  EXPECT_NE(Export(context_, options).outtype, "auto");
  EXPECT_FALSE(fs::exists(root_ / "f32.gguf.export_report.json"));
  EXPECT_TRUE(fs::exists(root_ / "q8_0.gguf.export_report.json"));
}

TEST_F(VerifyTest, AFileOfTheUserIsNotReplacedByTheReport) {
  WriteTextFile(root_ / kReport, "{\"mine\": 1}");
  ExportOptions options = ExportTo("model.gguf");
  const ExportReport report = Export(context_, options);
  EXPECT_EQ(ReadTextFile(root_ / kReport), "{\"mine\": 1}");
  ASSERT_FALSE(report.notes.empty());
  EXPECT_THAT(report.notes.back(), HasSubstr("is another file and stays"));
}

// A rounded router sends some tokens to other experts.
TEST_F(VerifyTest, ExpertsMayDifferFourTimesAsMuch) {
  const double limit = LimitsOfType(BlockFormat::kQ8_0).mean_kl;
  for (const auto& [model, factor] : {std::pair("llama-tiny", 1), std::pair("mixtral-tiny", 4)}) {
    ExportOptions options = ExportTo(std::string(model) + ".gguf");
    options.model_name_or_path = kGolden / model;
    options.outtype = "q8_0";
    EXPECT_DOUBLE_EQ(Export(context_, options).verification.max_mean_kl, factor * limit) << model;
  }
}

TEST(VerifyLimits, FewerBitsMayDifferMore) {
  double mean_kl = 0;
  for (const TensorType& type : {TensorType(DType::kF32), TensorType(DType::kF16),
                                 TensorType(DType::kBF16), TensorType(BlockFormat::kQ8_0),
                                 TensorType(BlockFormat::kQ6_K), TensorType(BlockFormat::kQ4_K)}) {
    EXPECT_GT(LimitsOfType(type).mean_kl, mean_kl);
    mean_kl = LimitsOfType(type).mean_kl;
  }
}

}  // namespace
}  // namespace qlora
