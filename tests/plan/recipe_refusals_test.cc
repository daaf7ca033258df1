// Adapter recipes that cannot be, and options that contradict an adapter: refused before anything
// is written.
#include <string>
#include <vector>

#include "train/recipe_run.h"

namespace qlora {
namespace {

class RecipeRefusalsTest : public RecipeRunTest {};

TEST_F(RecipeRefusalsTest, RefusesStartsThatTheWeightsCannotGiveBeforeTheyAreLoaded) {
  const auto refused = [&](const std::string& why, const Change& change) {
    TrainOptions options = Options("refused");
    change(options);
    Context context(1);
    try {
      PlanTraining(context, options);
      ADD_FAILURE() << "not refused: " << why;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
      EXPECT_NE(std::string(error.what()).find(why), std::string::npos) << error.what();
    }
  };
  refused("quantizes nothing", [](TrainOptions& o) {
    o.init_lora_weights = "loftq";
    o.load_in_4bit = false;
  });
  for (const char* init : {"pissa", "olora", "loftq"}) {
    refused("exceeds its", [&](TrainOptions& o) {
      o.init_lora_weights = init;
      o.lora_r = 1024;
    });
  }
}

TEST_F(RecipeRefusalsTest, RefusesWhatCannotBe) {
  const auto refused = [&](const std::string& why, const Change& change) {
    TrainOptions options = Options("refused");
    change(options);
    ExpectRefused(options, why);
  };
  refused("0 to 1", [](TrainOptions& o) { o.layers_to_transform = {"99"}; });
  refused("1-x", [](TrainOptions& o) { o.layers_to_transform = {"1-x"}; });
  refused("module=value", [](TrainOptions& o) { o.rank_pattern = {"q_proj"}; });
  refused("whole number", [](TrainOptions& o) { o.rank_pattern = {"q_proj=2.5"}; });
  refused("positive", [](TrainOptions& o) { o.alpha_pattern = {"q_proj=-1"}; });
  refused("weight_decay 0", [](TrainOptions& o) {
    o.init_lora_weights = "pissa";
    o.weight_decay = 0.1;
  });
  refused("use_dora", [](TrainOptions& o) {
    o.init_lora_weights = "olora";
    o.use_dora = true;
  });
  refused("embed_tokens or lm_head", [](TrainOptions& o) { o.modules_to_save = {"q_proj"}; });
  refused("twice", [](TrainOptions& o) { o.modules_to_save = {"lm_head", "lm_head"}; });
  refused("names no module", [](TrainOptions& o) { o.embedding_learning_rate = 1e-5; });
  refused("no warm-up", [](TrainOptions& o) {
    o.lr_scheduler_type = "constant";
    o.warmup_steps = 3;
  });
  refused("at most", [](TrainOptions& o) { o.lora_r = std::int64_t{1} << 40; });
}

TEST_F(RecipeRefusalsTest, RefusesNamesThatMeanNothing) {
  const std::string known = "down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj";
  const auto refused = [&](const std::string& why, const Change& change) {
    TrainOptions options = Options("refused");
    change(options);
    ExpectRefused(options, why);
  };
  refused("'qproj' matches none of " + known, [](TrainOptions& o) {
    o.lora_target_modules = {"v_proj", "qproj"};
  });
  refused("'.*\\.query' matches none of " + known,
          [](TrainOptions& o) { o.lora_target_modules = {R"(.*\.query)"}; });
  refused("exclude_modules: 'dwn_proj' matches none of " + known,
          [](TrainOptions& o) { o.exclude_modules = {"dwn_proj"}; });
  refused("rank_pattern: 'q_prj' matches none of " + known,
          [](TrainOptions& o) { o.rank_pattern = {"q_prj=2"}; });
  refused("alpha_pattern: 'q_proj' matches none of v_proj", [](TrainOptions& o) {
    o.lora_target_modules = {"v_proj"};
    o.alpha_pattern = {"q_proj=2"};
  });
  refused("no linear is left", [](TrainOptions& o) {
    o.lora_target_modules = {"v_proj"};
    o.exclude_modules = {"v_proj"};
  });
  refused("sorted order", [](TrainOptions& o) {
    o.rank_pattern = {"v_proj=2", R"(layers\.0\..*_proj=6)"};
  });
  TrainOptions options = Options("fine");
  options.exclude_modules = {"lm_head"};
  options.max_steps = 1;
  Run(options);
}

TEST_F(RecipeRefusalsTest, AHugeRankIsAPlanThatDoesNotFit) {
  TrainOptions options = Options("huge");
  options.lora_r = std::int64_t{1} << 24;
  ExpectRefused(options, "smaller lora_r", ErrorCode::kOutOfMemory);
}

TEST_F(RecipeRefusalsTest, OptionsMustNotContradictTheAdapter) {
  TrainOptions first = Options("first");
  first.max_steps = 1;
  first.lora_target_modules = {"q_proj", "v_proj"};
  first.layers_to_transform = {"0-1"};
  Run(first);
  const auto refused = [&](const std::string& why, const Change& change) {
    TrainOptions options = Continuation("first");
    change(options);
    ExpectRefused(options, why);
  };
  refused("lora_r is '8'", [](TrainOptions& o) { o.lora_r = 8; });
  refused("was made with '0.1'", [](TrainOptions& o) { o.lora_dropout = 0.2; });
  refused("use_dora", [](TrainOptions& o) { o.use_dora = true; });
  refused("lora_target_modules", [](TrainOptions& o) { o.lora_target_modules = {"o_proj"}; });
  refused("modules_to_save", [](TrainOptions& o) { o.modules_to_save = {"lm_head"}; });
  refused("names no module in the adapter",
          [](TrainOptions& o) { o.embedding_learning_rate = 1e-5; });
  TrainOptions same = Continuation("first");
  same.lora_r = first.lora_r;
  same.lora_target_modules = {"v_proj", "q_proj"};
  same.max_steps = 1;
  Run(same);

  // With a table, a value that is set counts even where it is the default.
  const auto complete = [&](const std::string& key, const std::string& value) {
    TrainOptions options = Continuation("first");
    OptionTable table;
    options.Declare(table);
    table.Set(key, value, "test");
    options.Complete(table);
    return options;
  };
  EXPECT_THROW(complete("lora_r", "16"), Error);
  EXPECT_THROW(complete("lora_target_modules", "all-linear"), Error);
  EXPECT_THROW(complete("use_dora", "true"), Error);
  const TrainOptions completed = complete("layers_to_transform", "0,1");
  EXPECT_EQ(completed.lora_r, 4);
  EXPECT_EQ(completed.lora_dropout, 0.1);
  EXPECT_EQ(completed.lora_target_modules, (std::vector<std::string>{"q_proj", "v_proj"}));
}

}  // namespace
}  // namespace qlora
