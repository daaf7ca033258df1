// Runs with adapter recipes: refused before anything is written, or continued. Part of the recipe
// tests.
#ifndef QLORA_TESTS_TRAIN_RECIPE_RUN_H_
#define QLORA_TESTS_TRAIN_RECIPE_RUN_H_

#include <string>

#include "qlora/error.h"
#include "train/tiny_run.h"

namespace qlora {

class RecipeRunTest : public TinyRunTest {
 protected:
  // Training with `options` is refused before anything is written, and the message says `why`.
  void ExpectRefused(const TrainOptions& options, const std::string& why,
                     ErrorCode code = ErrorCode::kInvalidInput) const {
    TinyRunTest::ExpectRefused(options, why, code);
    EXPECT_FALSE(fs::exists(options.output_dir));
  }

  // A run that goes on from the adapter of another: rank and all that are the adapter's.
  TrainOptions Continuation(const std::string& name) const {
    TrainOptions next = Options(name + "-next");
    next.compute_dtype = "float32";
    next.adapter = root_ / name;
    next.lora_r = TrainOptions().lora_r;
    next.lora_dropout = TrainOptions().lora_dropout;
    return next;
  }
};

}  // namespace qlora

#endif  // QLORA_TESTS_TRAIN_RECIPE_RUN_H_
