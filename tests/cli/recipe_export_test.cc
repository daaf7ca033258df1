// Adapters that not every format can hold, through export.
#include "qlora/convert.h"
#include "qlora/error.h"
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
  out.adapter = options.output_dir;
  out.output = root_ / "merged";
  out.format = "hf";
  out.outtype = "f32";
  out.verify = true;
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

}  // namespace
}  // namespace qlora
