// Runs on several ranks: the files of one process, whatever the number of ranks.
#include <fmt/ranges.h>
#include <gmock/gmock.h>

#include <map>
#include <sstream>

#include "backend/guarded_backend.h"
#include "checkpoint/checkpoint_folders.h"
#include "dist/thread_ranks.h"
#include "train/tiny_run.h"

namespace qlora {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class RanksTest : public TinyRunTest {
 protected:
  // Runs on `ranks` threads. Returns the message that every rank threw; "" for none.
  std::string RunOn(int ranks, const TrainOptions& options, std::int64_t stop_after = -1,
                    const std::function<void(TrainOptions&, int rank)>& change = {}) {
    std::vector<std::string> messages(static_cast<std::size_t>(ranks));
    OnRanks(ranks, [&](Communicator& communicator) {
      TrainOptions mine = options;
      if (change) change(mine, communicator.rank());
      try {
        Context context(1, communicator);
        if (backends_) BackendFactory::GiveTo(context, backends_());
        // The last rank alone is told to stop.
        StopWhenAsked observer(communicator.rank() + 1 == ranks ? stop_after : -1);
        const RunSummary summary = PlanAndTrain(context, mine, observer);
        EXPECT_EQ(summary.interrupted, stop_after >= 0);
      } catch (const Error& error) {
        messages[communicator.rank()] = error.what();
      }
    });
    for (const std::string& message : messages) EXPECT_EQ(message, messages[0]);
    return messages[0];
  }

  // Of `steps` steps, each of so many micro-batches of one sample.
  TrainOptions OptionsOf(const std::string& name, std::int64_t micro_batches,
                         std::int64_t steps) const {
    TrainOptions options = Options(name);
    options.per_device_train_batch_size = 1;
    options.global_batch_size = micro_batches;
    options.max_steps = steps;
    return options;
  }

  // Every file of a run by its name, without times and memory.
  std::map<std::string, std::string> Files(const std::string& name) const {
    std::map<std::string, std::string> files;
    const fs::path dir = root_ / name;
    for (const auto& entry : fs::recursive_directory_iterator(dir)) {
      const std::string file = fs::relative(entry.path(), dir);
      if (!entry.is_regular_file() || file == "README.md" || file == "run_info.json") continue;
      std::string text = ReadTextFile(entry.path());
      if (file.ends_with(".jsonl")) text = WithoutClocks(text);
      // How ranks share the work is recorded for those who resume; nothing depends on it.
      if (file == "train_config.json") text = Without(text, "pipeline_stages");
      // The options of the run have the name of the folder.
      for (std::size_t at; (at = text.find(dir.string())) != std::string::npos;) {
        text.replace(at, dir.string().size(), "DIR");
      }
      files[file] = text;
    }
    return files;
  }

  void ExpectSameFiles(const std::string& a, const std::string& b) const {
    const auto one = Files(a);
    const auto two = Files(b);
    for (const auto& [name, text] : one) {
      const auto other = two.find(name);
      ASSERT_NE(other, two.end()) << name;
      EXPECT_TRUE(other->second == text) << name << " differs";
    }
    EXPECT_EQ(one.size(), two.size());
  }

  std::function<BackendFactory::Ptr()> backends_;  // of each rank; those of the CPU without it

 private:
  // Ranks other than 0 hear of no steps, so that questions are counted: one after each step.
  class StopWhenAsked : public TrainObserver {
   public:
    explicit StopWhenAsked(std::int64_t times) : times_(times) {}
    bool ShouldStop() override { return ++asked_ == times_; }

   private:
    std::int64_t times_;
    std::int64_t asked_ = 0;
  };

  static std::string Without(const std::string& object, const char* key) {
    Json json = Json::parse(object);
    json.erase(key);
    return json.dump();
  }
  static std::string WithoutClocks(const std::string& lines) {
    std::string text;
    std::istringstream file(lines);
    for (std::string line; std::getline(file, line);) {
      Json json = Json::parse(line);
      for (const char* key :
           {"tokens_per_second", "limit_share", "memory", "elapsed", "eval_runtime", "ranks"}) {
        json.erase(key);
      }
      text += json.dump() + '\n';
    }
    return text;
  }
};

// Training on preferences over the golden pairs, as texts.
void UsePreferences(TrainOptions& options, const char* file, const char* loss) {
  options.data.dataset = {kGolden / "preference" / file};
  options.data.reading.ignore_fields = {"prompt_ids", "chosen_ids", "rejected_ids",
                                        "completion_ids"};
  options.data.reading.max_length = 192;
  options.lora_dropout = 0;
  options.preference.preference_loss = {loss};
}

// Recipes and optimizers, each with steps of seven micro-batches, which no number of ranks divides,
// and a short step at the end of each epoch.
const std::map<std::string, Change>& Recipes() {
  static const std::map<std::string, Change> recipes = {
      {"plain", [](TrainOptions&) {}},
      {"packing", [](TrainOptions& o) { o.data.packing = true; }},
      {"neftune", [](TrainOptions& o) { o.neftune_noise_alpha = 5; }},
      {"dora", [](TrainOptions& o) { o.use_dora = true; }},
      {"modules",
       [](TrainOptions& o) {
         o.modules_to_save = {"embed_tokens", "lm_head"};
       }},
      {"adamw_8bit", [](TrainOptions& o) { o.optim = "adamw_8bit"; }},
      {"paged", [](TrainOptions& o) { o.optim = "paged_adamw"; }},
      {"lion", [](TrainOptions& o) { o.optim = "lion"; }},
      {"sgd", [](TrainOptions& o) { o.optim = "sgd"; }},
      {"pissa", [](TrainOptions& o) { o.init_lora_weights = "pissa"; }},
      {"loraplus", [](TrainOptions& o) { o.loraplus_lr_ratio = 16; }},
      {"clipped", [](TrainOptions& o) { o.max_grad_norm = 0.01; }},
      {"bfloat16", [](TrainOptions& o) { o.compute_dtype = "bfloat16"; }},
      {"int8",
       [](TrainOptions& o) {
         o.compute_dtype = "int8";
         o.int8_backward = true;
       }},
      {"anchor",
       [](TrainOptions& o) {
         o.anchor = o.data.dataset;
         o.anchor_tokens = 100;
         o.data.val_set_size = 5;
       }},
      {"anchored_kto",
       [](TrainOptions& o) {
         o.anchor = o.data.dataset;
         UsePreferences(o, "unpaired.jsonl", "kto");
       }},
      {"sigmoid",
       [](TrainOptions& o) {
         UsePreferences(o, "pairs.jsonl", "sigmoid");
         o.preference.rpo_alpha = 0.5;
         o.data.val_set_size = 5;
         o.eval_on_start = true;
       }},
      {"kto",
       [](TrainOptions& o) {
         UsePreferences(o, "unpaired.jsonl", "kto");
         o.data.val_set_size = 5;
       }},
      {"orpo", [](TrainOptions& o) { UsePreferences(o, "pairs.jsonl", "orpo"); }},
      {"evaluated",
       [](TrainOptions& o) {
         o.data.val_set_size = 5;
         o.eval_steps = 2;
         o.eval_on_start = true;
         o.load_best_model_at_end = true;
         o.save_steps = 2;
         o.early_stopping_patience = 2;
       }},
  };
  return recipes;
}

class RecipeOnRanks : public RanksTest,
                      public testing::WithParamInterface<std::pair<const std::string, Change>> {};

TEST_P(RecipeOnRanks, HasTheFilesOfOneProcess) {
  TrainOptions options = OptionsOf("one", 7, 4);
  GetParam().second(options);
  RunOn(1, options);
  ASSERT_FALSE(Adapter("one").empty());
  struct Ranks {
    int ranks;
    int stages;
  };
  for (const auto& [ranks, stages] :
       {Ranks{2, 1}, Ranks{3, 1}, Ranks{4, 1}, Ranks{2, 2}, Ranks{6, 2}}) {
    SCOPED_TRACE(fmt::format("{} ranks, {} stages", ranks, stages));
    options.output_dir = root_ / "several";
    options.pipeline_stages = stages;
    fs::remove_all(options.output_dir);
    if (stages > 1 && !options.modules_to_save.empty()) {
      EXPECT_THAT(RunOn(ranks, options), HasSubstr("modules_to_save"));
      continue;
    }
    EXPECT_EQ(RunOn(ranks, options), "");
    ExpectSameFiles("one", "several");
  }
}

INSTANTIATE_TEST_SUITE_P(All, RecipeOnRanks, testing::ValuesIn(Recipes()),
                         [](const auto& recipe) { return recipe.param.first; });

TEST_F(RanksTest, EightRanksHaveTheFilesOfOne) {
  TrainOptions options = OptionsOf("one", 12, 3);
  Run(options);
  options.output_dir = root_ / "several";
  EXPECT_EQ(RunOn(8, options), "");
  ExpectSameFiles("one", "several");
}

// gradient_accumulation_steps counts the micro-batches of a rank, as elsewhere.
TEST_F(RanksTest, AccumulationIsThatOfARank) {
  TrainOptions options = Options("one");
  options.gradient_accumulation_steps = 4;
  options.max_steps = 3;
  Run(options);
  options.output_dir = root_ / "several";
  options.gradient_accumulation_steps = 2;
  EXPECT_EQ(RunOn(2, options), "");
  EXPECT_TRUE(Adapter("one") == Adapter("several"));
}

// Stopped by a signal to one rank, in the middle of an epoch, and resumed with other numbers.
TEST_F(RanksTest, ResumesWithOtherNumbersOfRanks) {
  TrainOptions options = OptionsOf("whole", 6, 8);
  Run(options);
  options.output_dir = root_ / "parts";
  options.resume_from_checkpoint = "auto";
  for (const int ranks : {4, 1, 3, 2}) {
    options.pipeline_stages = ranks == 4 ? 2 : 1;
    EXPECT_EQ(RunOn(ranks, options, 1), "") << ranks;
  }
  EXPECT_EQ(RunOn(2, options), "");
  EXPECT_EQ(Steps("whole").size(), 8u);
  EXPECT_TRUE(Adapter("whole") == Adapter("parts"));
}

TEST_F(RanksTest, AnotherGlobalBatchIsRefusedOnResume) {
  TrainOptions options = Options("run");
  options.gradient_accumulation_steps = 2;
  options.max_steps = 3;
  EXPECT_EQ(RunOn(2, options), "");
  options.resume_from_checkpoint = "auto";
  options.max_steps = 4;
  EXPECT_THAT(RunOn(4, options), HasSubstr("gradient_accumulation_steps"));
}

TEST_F(RanksTest, EveryRankNeedsWork) {
  TrainOptions options = Options("run");
  options.global_batch_size = 4;
  EXPECT_THAT(RunOn(3, options), HasSubstr("start fewer ranks"));
  options.global_batch_size = 5;
  EXPECT_THAT(RunOn(2, options), HasSubstr("global_batch_size 5"));
  options.global_batch_size = 32;
  options.reduction_groups = 2;
  EXPECT_THAT(RunOn(3, options), HasSubstr("reduction_groups 2"));
  EXPECT_FALSE(fs::exists(root_ / "run"));
}

// Short windows give a replica more micro-batches than full ones.
TEST_F(RanksTest, FiveReplicasOfTwoStages) {
  TrainOptions options = OptionsOf("one", 8, 4);
  Run(options);
  options.output_dir = root_ / "several";
  options.pipeline_stages = 2;
  EXPECT_EQ(RunOn(10, options), "");
  ExpectSameFiles("one", "several");
}

// A step whose loss is no number is skipped on all ranks, with the same log but for the place where
// the NaN appeared; then the run ends, as one process does.
TEST_F(RanksTest, ANanIsAnErrorOfAll) {
  TrainOptions options = Options("one");
  options.learning_rate = 1e30;
  options.max_grad_norm = 0;
  options.max_skipped_steps = 2;
  std::string expected;
  for (const int stages : {1, 2}) {
    options.pipeline_stages = stages;
    options.output_dir = root_ / fmt::format("stages{}", stages);
    EXPECT_THAT(RunOn(2 * stages, options), HasSubstr("a NaN or Inf in 2 consecutive steps"));
    if (stages == 1) expected = fmt::format("{}", fmt::join(Steps("stages1"), "\n"));
    EXPECT_EQ(fmt::format("{}", fmt::join(Steps(fmt::format("stages{}", stages)), "\n")), expected);
  }
}

// Through copies.
TEST_F(RanksTest, MemoryThatTheHostDoesNotReach) {
  TrainOptions options = OptionsOf("one", 7, 3);
  Run(options);
  backends_ = [] { return GuardedBackends(); };
  for (const int stages : {1, 2}) {
    SCOPED_TRACE(stages);
    options.output_dir = root_ / fmt::format("stages{}", stages);
    options.pipeline_stages = stages;
    EXPECT_EQ(RunOn(stages == 1 ? 3 : 4, options), "");
    EXPECT_TRUE(Adapter("one") == Adapter(fs::path(options.output_dir).filename()));
  }
}

TEST_F(RanksTest, RanksOfAnotherEngineAreRefused) {
  TrainOptions options = Options("run");
  options.ddp_backend = "mpi";
  EXPECT_THAT(RunOn(2, options), HasSubstr("ddp_backend mpi: the ranks met over threads"));
  Run(options);  // one process
}

// Threads are a matter of each rank.
TEST_F(RanksTest, RanksMayHaveOtherNumbersOfThreads) {
  OnRanks(2, [](Communicator& communicator) {
    const Context context(communicator.is_root() ? 2 : 0, communicator);
    EXPECT_GE(context.threads(), 1);
  });
}

TEST_F(RanksTest, StagesAreWithinTheModel) {
  TrainOptions options = Options("run");
  options.pipeline_stages = 3;
  EXPECT_THAT(RunOn(3, options), HasSubstr("the model has 2 layers"));
  options.pipeline_stages = 2;
  EXPECT_THAT(RunOn(3, options), HasSubstr("a multiple of 2 ranks"));
  options.sample_prompts = {"Once"};
  EXPECT_THAT(RunOn(2, options), HasSubstr("sample_prompts"));
}

TEST_F(RanksTest, DifferencesAreNamedBeforeTheStart) {
  TrainOptions options = Options("run");
  const auto refused = [&](const std::function<void(TrainOptions&)>& change) {
    return RunOn(2, options, -1, [&](TrainOptions& mine, int rank) {
      if (rank == 1) change(mine);
    });
  };
  EXPECT_THAT(refused([](TrainOptions& o) { o.seed = 7; }),
              AllOf(HasSubstr("seed: "), HasSubstr("rank 0 of 2"), HasSubstr("rank 1 of 2")));
  EXPECT_THAT(refused([&](TrainOptions& o) {
                std::ofstream(root_ / "other.jsonl") << R"({"text": "Another text."})"
                                                     << "\n";
                o.data.dataset = {(root_ / "other.jsonl").string()};
              }),
              HasSubstr("dataset_fingerprint"));
  EXPECT_THAT(refused([&](TrainOptions& o) { o.data.dataset = {"missing.jsonl"}; }),
              AllOf(HasSubstr("rank 1 of 2 (host): "), HasSubstr("missing.jsonl")));
  EXPECT_THAT(refused([](TrainOptions& o) { o.max_steps = 11; }), HasSubstr("max_steps"));
  EXPECT_FALSE(fs::exists(root_ / "run"));
}

TrainOptions DecisionsOf(TrainOptions options) {
  const fs::path golden = kGolden / "decision";
  options.model_name_or_path = golden / "tiny-qwen3";
  options.data.dataset = {golden / "qwen3" / "train.jsonl"};
  options.data.eval_dataset = {golden / "qwen3" / "eval.jsonl"};
  options.data.calibration_dataset = {golden / "qwen3" / "calibration.jsonl"};
  options.data.reading.decision.decision_template = "plain";
  options.data.reading.max_length = 512;
  options.lora_dropout = 0;
  return options;
}

TEST_F(RanksTest, TemperaturesAreThoseOfOneProcess) {
  Run(DecisionsOf(OptionsOf("one", 3, 3)));
  const std::string decision = ReadTextFile(root_ / "one" / "decision.json");
  EXPECT_THAT(decision, HasSubstr("calibration.jsonl"));
  EXPECT_EQ(RunOn(2, DecisionsOf(OptionsOf("two", 3, 3))), "");
  ExpectSameFiles("one", "two");
  TrainOptions stages = DecisionsOf(OptionsOf("stages", 3, 3));
  stages.pipeline_stages = 2;
  EXPECT_THAT(RunOn(2, stages), HasSubstr("a run with pipeline_stages fits no temperatures"));
}

}  // namespace
}  // namespace qlora
