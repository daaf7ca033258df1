// A folder for what is converted from tests/golden, and the commonest conversions.
#ifndef QLORA_TESTS_CONVERT_CONVERT_FIXTURE_H_
#define QLORA_TESTS_CONVERT_CONVERT_FIXTURE_H_

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "qlora/context.h"
#include "qlora/error.h"
#include "qlora/export.h"
#include "qlora/model.h"
#include "qlora/model_options.h"
#include "qlora/quantize.h"
#include "temporary_folder.h"
#include "test_build.h"

namespace qlora {

namespace fs = std::filesystem;

inline const fs::path kGolden = SourceDir() / "tests" / "golden";

class ConvertTest : public testing::Test {
 protected:
  QuantizeReport Quantize(const fs::path& from, const std::string& to, bool inverse = false) {
    QuantizeCheckpointOptions options;
    options.model_name_or_path = from;
    options.output_dir = root_ / to;
    options.dequantize = inverse;
    return QuantizeCheckpoint(context_, options);
  }

  ExportOptions ExportTo(const std::string& name) const {
    ExportOptions options;
    options.model_name_or_path = kGolden / "llama-tiny";
    options.output = root_ / name;
    options.outtype = "f32";
    options.verify = "true";
    return options;
  }

  // Returns the message of an export that is refused before anything is written.
  std::string Refusal(const ExportOptions& options) {
    try {
      Export(context_, options);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
      EXPECT_FALSE(fs::exists(options.output));
      return error.what();
    }
    ADD_FAILURE() << "nothing was thrown";
    return "";
  }

  double LossOf(const fs::path& model, const std::string& adapter, const std::string& four_bit) {
    ModelOptions options;
    options.model_name_or_path = model;
    options.adapter = {adapter};
    options.load_in_4bit = four_bit;
    options.compute_dtype = "float32";
    EvalOptions eval;
    eval.dataset = {kGolden / "train-20" / "data.jsonl"};
    return Model::Load(context_, options).Evaluate(eval).loss;
  }

  TemporaryFolder folder_;
  fs::path root_ = folder_.path();
  Context context_{2};
};

}  // namespace qlora

#endif  // QLORA_TESTS_CONVERT_CONVERT_FIXTURE_H_
