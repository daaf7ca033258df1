// Every adapter recipe: trained, saved, read again, continued.
#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>

#include "io/peft.h"
#include "model/lora.h"
#include "qlora/error.h"
#include "qlora/model.h"
#include "train/tiny_run.h"

namespace qlora {
namespace {

using Change = std::function<void(TrainOptions&)>;

class RecipesTest : public TinyRunTest {
 protected:
  static double Evaluate(const fs::path& model, const fs::path& adapter, const fs::path& data,
                         const std::string& load_in_4bit = "auto") {
    ModelOptions options;
    options.model_name_or_path = model;
    options.adapter = adapter;
    options.load_in_4bit = load_in_4bit;
    options.compute_dtype = "float32";
    Context context(2);
    Model loaded = Model::Load(context, options);
    EvalOptions eval;
    eval.dataset = {data};
    eval.max_length = 64;
    return loaded.Evaluate(eval).loss;
  }
  double EvaluateAdapter(const std::string& name) const {
    return Evaluate(kGolden / "llama-tiny", root_ / name, kGolden / "train-20" / "data.jsonl");
  }
  double EvaluateBase() const {
    return Evaluate(kGolden / "llama-tiny", "", kGolden / "train-20" / "data.jsonl", "true");
  }

  struct Losses : TrainObserver {
    void OnStep(const StepReport& report) override { steps.push_back(report.loss); }
    void OnEval(std::int64_t step, const EvalReport& report) override { evals[step] = report.loss; }
    std::vector<double> steps;
    std::map<std::int64_t, double> evals;
  };

  // Trains with `change`: the loss falls, the saved adapter gives the loss that training saw at the
  // end, an interrupted run ends in the same bits, and a new run starts from where this one ended.
  void Check(const std::string& name, const Change& change) {
    SCOPED_TRACE(name);
    TrainOptions options = Options(name);
    options.compute_dtype = "float32";
    options.max_steps = 15;
    options.eval_on_start = true;
    options.data.eval_dataset = options.data.dataset;
    change(options);
    Losses losses;
    {
      Context context(2);
      Train(context, options, losses);
    }
    EXPECT_LT(losses.evals.at(15), losses.evals.at(0));
    EXPECT_NEAR(EvaluateAdapter(name), losses.evals.at(15), 1e-4);

    TrainOptions parts = options;
    parts.output_dir = root_ / (name + "-parts");
    Run(parts, 7);
    parts.resume_from_checkpoint = "auto";
    Run(parts, -1, 1);
    EXPECT_EQ(Steps(name), Steps(name + "-parts"));
    EXPECT_TRUE(Adapter(name) == Adapter(name + "-parts"));

    TrainOptions next = Options(name + "-next");
    next.compute_dtype = "float32";
    next.adapter = options.output_dir;
    next.load_in_4bit = options.load_in_4bit;
    next.data.eval_dataset = options.data.dataset;
    next.eval_on_start = true;
    next.max_steps = 2;
    Losses continued;
    Context context(2);
    Train(context, next, continued);
    EXPECT_NEAR(continued.evals.at(0), losses.evals.at(15), 1e-4);
  }
  AdapterConfig ConfigOf(const std::string& name) const { return OpenAdapter(root_ / name).config; }
};

TEST_F(RecipesTest, RsloraAndDropout) {
  Check("rslora", [](TrainOptions& o) { o.use_rslora = true; });
  EXPECT_TRUE(ConfigOf("rslora").use_rslora);
}

TEST_F(RecipesTest, Dora) {
  Check("dora", [](TrainOptions& o) { o.use_dora = true; });
  Check("dora-dense", [](TrainOptions& o) {
    o.use_dora = true;
    o.load_in_4bit = false;
    o.lora_dropout = 0;
    o.lora_target_modules = {"q_proj", "down_proj"};
  });
  EXPECT_TRUE(ConfigOf("dora").use_dora);
  const qlora::Adapter saved = OpenAdapter(root_ / "dora");
  for (const AdapterModule& module : saved.modules) {
    ASSERT_NE(module.magnitude, nullptr);
    EXPECT_EQ(module.magnitude->shape, (std::vector<std::int64_t>{module.b->shape[0]}));
  }
}

TEST_F(RecipesTest, DoraStartsAsTheBase) {
  TrainOptions options = Options("run");
  options.compute_dtype = "float32";
  options.use_dora = true;
  options.max_steps = 1;
  options.learning_rate = 0;
  Run(options);
  EXPECT_NEAR(EvaluateAdapter("run"), EvaluateBase(), 1e-5);
}

TEST_F(RecipesTest, PissaAndOloraStartAsTheBaseAndAreSavedAsPlainLora) {
  for (const char* init : {"pissa", "olora"}) {
    for (const bool rslora : {false, true}) {
      const std::string name = std::string(init) + (rslora ? "-rs" : "");
      Check(name, [&](TrainOptions& o) {
        o.init_lora_weights = init;
        o.use_rslora = rslora;
        o.lora_dropout = 0;
        o.learning_rate = 2e-3;
      });
      const AdapterConfig config = ConfigOf(name);
      EXPECT_EQ(config.r, 8);  // twice lora_r
      const double alpha = Options("x").lora_alpha;
      EXPECT_NEAR(ScaleOf(config, "model.layers.0.self_attn.q_proj"), alpha / (rslora ? 2 : 4),
                  1e-9);

      TrainOptions options = Options(name + "-start");
      options.compute_dtype = "float32";
      options.init_lora_weights = init;
      options.max_steps = 1;
      options.learning_rate = 0;
      Run(options);
      EXPECT_NEAR(EvaluateAdapter(name + "-start"), EvaluateBase(), 1e-4);
    }
  }
}

TEST_F(RecipesTest, PatternsAndLayers) {
  Check("patterns", [](TrainOptions& o) {
    o.lora_target_modules = {"q_proj", "down_proj", "up_proj"};
    o.rank_pattern = {"down_proj=2", R"(layers\.0\..*q_proj=6)"};
    o.alpha_pattern = {"up_proj=1"};
    o.layers_to_transform = {"0"};
  });
  const qlora::Adapter saved = OpenAdapter(root_ / "patterns");
  ASSERT_EQ(saved.modules.size(), 3u);
  std::map<std::string, std::int64_t> ranks;
  for (const AdapterModule& module : saved.modules) ranks[module.path] = module.a->shape[0];
  EXPECT_EQ(ranks.at("model.layers.0.mlp.down_proj"), 2);
  EXPECT_EQ(ranks.at("model.layers.0.mlp.up_proj"), 4);
  EXPECT_EQ(ranks.at("model.layers.0.self_attn.q_proj"), 6);
  EXPECT_EQ(ScaleOf(saved.config, "model.layers.0.mlp.up_proj"), 0.25);
}

TEST_F(RecipesTest, TargetsByRegexAndExclusion) {
  Check("regex", [](TrainOptions& o) {
    o.lora_target_modules = {R"(model\.layers\.\d+\.self_attn\.[qv]_proj)"};
  });
  EXPECT_EQ(OpenAdapter(root_ / "regex").modules.size() % 2, 0u);
  Check("excluded", [](TrainOptions& o) { o.exclude_modules = {"down_proj", "up_proj"}; });
  for (const AdapterModule& module : OpenAdapter(root_ / "excluded").modules) {
    EXPECT_FALSE(module.path.ends_with("down_proj") || module.path.ends_with("up_proj"));
  }
}

TEST_F(RecipesTest, Neftune) {
  Check("neftune", [](TrainOptions& o) { o.neftune_noise_alpha = 5; });
}

TEST_F(RecipesTest, RefusesWhatCannotBe) {
  const auto refused = [&](const Change& change) {
    TrainOptions options = Options("refused");
    change(options);
    EXPECT_THROW(Run(options), Error);
    EXPECT_FALSE(fs::exists(root_ / "refused"));
  };
  refused([](TrainOptions& o) { o.layers_to_transform = {"99"}; });
  refused([](TrainOptions& o) { o.layers_to_transform = {"1-x"}; });
  refused([](TrainOptions& o) { o.rank_pattern = {"q_proj"}; });
  refused([](TrainOptions& o) { o.rank_pattern = {"q_proj=2.5"}; });
  refused([](TrainOptions& o) { o.alpha_pattern = {"q_proj=-1"}; });
  refused([](TrainOptions& o) {
    o.init_lora_weights = "pissa";
    o.weight_decay = 0.1;
  });
  refused([](TrainOptions& o) {
    o.init_lora_weights = "olora";
    o.use_dora = true;
  });
}

TEST_F(RecipesTest, LoftqLowersTheGapOfTheStart) {
  const char* shared = std::getenv("QLORA_SHARED");
  const fs::path root =
      shared != nullptr ? fs::path(shared) : fs::path(QLORA_SOURCE_DIR).parent_path() / "shared";
  const fs::path model = root / "models" / "stories260K-hf";
  if (!fs::exists(model)) GTEST_SKIP() << model << " is absent";
  const fs::path text = root_ / "text.jsonl";
  std::ofstream(text) << R"({"text": "Once upon a time, there was a little girl named Lily. She )"
                         R"(liked to play with her toys in the park. One day, she saw a big dog."})"
                      << "\n";
  const auto start = [&](const char* init) {
    TrainOptions options = Options(init);
    options.model_name_or_path = model;
    options.data.dataset = {text};
    options.compute_dtype = "float32";
    options.init_lora_weights = init;
    options.lora_r = 8;
    options.lora_dropout = 0;
    options.learning_rate = 0;
    options.max_steps = 1;
    Losses losses;
    Context context(2);
    Train(context, options, losses);
    return losses.steps.front();
  };
  const double dense = Evaluate(model, "", text, "false");
  const double plain = std::abs(start("default") - dense);
  const double loftq = std::abs(start("loftq") - dense);
  RecordProperty("gap_plain", std::to_string(plain));
  RecordProperty("gap_loftq", std::to_string(loftq));
  EXPECT_LT(loftq, 0.7 * plain) << "dense " << dense;
}

TEST(Preset, GivesWhatTheUserLeftOpen) {
  TrainOptions options;
  OptionTable table;
  options.Declare(table);
  table.Set("preset", "qlora-paper", "test");
  table.Set("lora_r", "8", "test");
  options.ApplyPreset(table);
  EXPECT_EQ(options.lora_r, 8);
  EXPECT_EQ(options.lora_alpha, 16);
  EXPECT_EQ(options.max_grad_norm, 0.3);
  EXPECT_EQ(options.lr_scheduler_type, "constant");
  EXPECT_EQ(options.optim, "paged_adamw_32bit");
}

}  // namespace
}  // namespace qlora
