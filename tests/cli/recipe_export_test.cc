// Adapters that not every format can hold, through export.
#include "qlora/context.h"
#include "qlora/error.h"
#include "qlora/export.h"
#include "qlora/train_options.h"
#include "train/tiny_run.h"

namespace qlora {
namespace {

using RecipeExportTest = TinyRunTest;

TEST_F(RecipeExportTest, DoraExportsMergedAndNotAsGgufAdapter) {
  TrainOptions options = Options("run");
  options.compute_dtype = "float32";
  options.use_dora = true;
  options.max_steps = 5;
  Run(options);
  ExportOptions out;
  out.model_name_or_path = options.model_name_or_path;
  out.adapter = {options.output_dir};
  out.output = root_ / "merged";
  out.format = "hf";
  out.outtype = "f32";
  out.verify = "true";
  Context context(2);
  EXPECT_LT(Export(context, out).max_logprob_difference, 1e-4);
  out.format = "gguf-adapter";
  out.output = root_ / "adapter.gguf";
  try {
    Export(context, out);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
    EXPECT_NE(std::string(error.what()).find("--format gguf"), std::string::npos);
  }
}

TEST_F(RecipeExportTest, WholeModulesAreMergedAndUntied) {
  for (const char* model : {"llama-tiny", "llama3-tiny"}) {  // the second is tied
    SCOPED_TRACE(model);
    TrainOptions options = Options(std::string("run-") + model);
    options.model_name_or_path = kGolden / model;
    options.compute_dtype = "float32";
    options.modules_to_save = {"embed_tokens", "lm_head"};
    options.max_steps = 5;
    Run(options);
    ExportOptions out;
    out.model_name_or_path = options.model_name_or_path;
    out.adapter = {options.output_dir};
    out.outtype = "f32";
    out.verify = "true";
    Context context(2);
    out.format = "hf";
    out.output = root_ / (std::string("merged-") + model);
    EXPECT_LT(Export(context, out).max_logprob_difference, 1e-4);
    EXPECT_FALSE(
        ReadJsonFile(fs::path(out.output) / "config.json").at("tie_word_embeddings").get<bool>());
    out.format = "gguf";
    out.output = root_ / (std::string(model) + ".gguf");
    EXPECT_LT(Export(context, out).max_logprob_difference, 1e-4);
    out.format = "gguf-adapter";
    out.output = root_ / "adapter.gguf";
    EXPECT_THROW(Export(context, out), Error);
    EXPECT_FALSE(fs::exists(out.output));
  }
}

}  // namespace
}  // namespace qlora
