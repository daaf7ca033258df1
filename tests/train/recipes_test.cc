// Every adapter recipe: trained, saved, read again, continued.
#include <cmath>
#include <map>
#include <span>

#include "adapter/lora.h"
#include "io/peft/peft.h"
#include "model/checkpoint.h"
#include "qlora/model.h"
#include "test_build.h"
#include "train/recipe_run.h"

namespace qlora {
namespace {

class RecipesTest : public RecipeRunTest {
 protected:
  static double Evaluate(const fs::path& model, const fs::path& adapter, const fs::path& data,
                         const std::string& load_in_4bit = "auto") {
    ModelOptions options;
    options.model_name_or_path = model;
    options.adapter = {adapter};
    options.load_in_4bit = load_in_4bit;
    options.compute_dtype = "float32";
    Context context(2);
    Model loaded = Model::Load(context, options);
    EvalOptions eval;
    eval.dataset = {data};
    eval.reading.max_length = 64;
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

  // `change` gives an untrained model another loss in training, and the same in evaluation.
  void ExpectTrainingAlone(const Change& change) {
    const auto losses_of = [&](const std::string& name, bool changed) {
      TrainOptions options = Options(name);
      options.compute_dtype = "float32";
      options.lora_dropout = 0;
      options.learning_rate = 0;
      options.max_steps = 1;
      options.data.eval_dataset = options.data.dataset;
      options.eval_on_start = true;
      if (changed) change(options);
      Losses losses;
      Context context(2);
      PlanAndTrain(context, options, losses);
      return losses;
    };
    const Losses with = losses_of("with", true);
    const Losses without = losses_of("without", false);
    EXPECT_GT(std::abs(with.steps.front() - without.steps.front()), 1e-3);
    EXPECT_FALSE(with.evals.empty());
    EXPECT_EQ(with.evals, without.evals);
  }

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
      PlanAndTrain(context, options, losses);
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

    TrainOptions next = Continuation(name);
    next.load_in_4bit = options.load_in_4bit;
    next.data.eval_dataset = options.data.dataset;
    next.eval_on_start = true;
    next.max_steps = 2;
    Losses continued;
    Context context(2);
    PlanAndTrain(context, next, continued);
    EXPECT_NEAR(continued.evals.at(0), losses.evals.at(15), 1e-4);
  }
  AdapterConfig ConfigOf(const std::string& name) const { return OpenAdapter(root_ / name).config; }
};

// The last window of an epoch has as many micro-batches as are left: its loss is the mean over its
// own tokens.
TEST_F(RecipesTest, TheLossOfAShortWindowIsOfItsTokens) {
  const auto steps_of = [&](const std::string& name, std::int64_t accumulation) {
    TrainOptions options = Options(name);
    options.per_device_train_batch_size = 1;
    options.gradient_accumulation_steps = accumulation;
    options.max_steps = -1;
    options.num_train_epochs = 1;
    options.learning_rate = 0;
    options.lora_dropout = 0;
    Run(options);
    std::vector<Json> steps;
    for (const std::string& line : Steps(name)) steps.push_back(Json::parse(line));
    return steps;
  };
  const std::vector<Json> single = steps_of("single", 1);
  const std::vector<Json> windows = steps_of("windows", 7);
  const std::size_t left = single.size() % 7;
  ASSERT_GT(left, 1u);
  ASSERT_EQ(windows.size(), single.size() / 7 + 1);
  double loss = 0;
  double tokens = 0;
  for (const Json& step : std::span(single).last(left)) {
    loss += step["loss"].get<double>() * step["tokens"].get<double>();
    tokens += step["tokens"].get<double>();
  }
  EXPECT_EQ(windows.back()["tokens"], tokens);
  EXPECT_NEAR(windows.back()["loss"].get<double>(), loss / tokens, 1e-6);
}

TEST_F(RecipesTest, RsloraAndDropout) {
  Check("rslora", [](TrainOptions& o) { o.use_rslora = true; });
  EXPECT_TRUE(ConfigOf("rslora").use_rslora);
}

TEST_F(RecipesTest, Plain) {
  Check("qlora", [](TrainOptions&) {});
  Check("lora-on-16-bits", [](TrainOptions& o) { o.load_in_4bit = false; });
  Check("loraplus", [](TrainOptions& o) {
    o.loraplus_lr_ratio = 4;
    o.learning_rate = 3e-3;
  });
  Check("loftq", [](TrainOptions& o) { o.init_lora_weights = "loftq"; });
}

TEST_F(RecipesTest, PaperPreset) {
  Check("paper", [](TrainOptions& o) {
    UsePaperPreset(o);
    EXPECT_EQ(o.gradient_accumulation_steps, 16);
    EXPECT_EQ(o.warmup_ratio, 0);
  });
}

TEST_F(RecipesTest, WholeModules) {
  Check("modules", [](TrainOptions& o) {
    o.modules_to_save = {"lm_head", "embed_tokens"};
    o.learning_rate = 5e-3;
    o.embedding_learning_rate = 1e-3;
    o.optim = "adamw_8bit";
  });
  Check("head", [](TrainOptions& o) {
    o.modules_to_save = {"lm_head"};
    o.gradient_checkpointing = true;
    o.recompute = "layer";
    o.learning_rate = 5e-3;
  });
  EXPECT_EQ(ConfigOf("modules").modules_to_save,
            (std::vector<std::string>{"lm_head", "embed_tokens"}));
  const DecoderConfig decoder = LoadDecoderConfig(kGolden / "llama-tiny");
  const qlora::Adapter saved = OpenAdapter(root_ / "modules");
  ASSERT_EQ(saved.replaced.size(), 2u);
  for (const char* name :
       {"base_model.model.lm_head.weight", "base_model.model.model.embed_tokens.weight"}) {
    ASSERT_NE(saved.tensors->Find(name), nullptr);
    EXPECT_EQ(saved.tensors->Find(name)->shape,
              (std::vector<std::int64_t>{decoder.vocab_size, decoder.hidden_size}));
  }
}

TEST_F(RecipesTest, WholeModulesAndDoraAreInThePlan) {
  const auto parts_of = [&](const Change& change) {
    TrainOptions options = Options("planned");
    change(options);
    Context context(1);
    const TrainPlan plan = PlanTraining(context, options);
    std::map<std::string, std::size_t> bytes;
    for (const MemoryPart& part : plan.memory.parts) bytes[part.name] = part.bytes;
    return bytes;
  };
  const DecoderConfig decoder = LoadDecoderConfig(kGolden / "llama-tiny");
  const auto values = static_cast<std::size_t>(2 * decoder.vocab_size * decoder.hidden_size);
  std::map<std::string, std::size_t> without = parts_of([](TrainOptions&) {});
  std::map<std::string, std::size_t> with = parts_of([](TrainOptions& o) {
    o.modules_to_save = {"embed_tokens", "lm_head"};
  });
  EXPECT_EQ(with["adapter"] - without["adapter"], 4 * values);
  EXPECT_EQ(with["gradients"] - without["gradients"], 4 * values);
  EXPECT_EQ(with["optimizer"] - without["optimizer"], 8 * values);

  // Magnitudes are parameters; the lengths of rows are not.
  std::map<std::string, std::size_t> dora = parts_of([](TrainOptions& o) { o.use_dora = true; });
  std::size_t lengths = 0;
  ShapeLinears(decoder, 0).ForEach([&](const LinearShape& shape) {
    lengths += 4 * static_cast<std::size_t>(shape.out * decoder.num_hidden_layers);
  });
  EXPECT_GT(dora["gradients"], without["gradients"]);
  EXPECT_EQ(dora["adapter"] - dora["gradients"], lengths);
}

TEST_F(RecipesTest, TiedModulesAreTrainedApartOrNotAtAll) {
  TrainOptions options = Options("tied");
  options.model_name_or_path = kGolden / "llama3-tiny";
  options.compute_dtype = "float32";
  options.modules_to_save = {"embed_tokens"};
  ExpectRefused(options, "Name both");
  options.modules_to_save = {"embed_tokens", "lm_head"};
  Run(options);
  const LoraAdapter trained =
      LoraAdapter::Load(root_ / "tied", LoadDecoderConfig(kGolden / "llama3-tiny"), HostMemory());
  const MatrixView embed = trained.embedding()->weight;
  const MatrixView head = trained.head()->weight;
  int differing = 0;
  for (std::int64_t i = 0; i < embed.cols; ++i) {
    differing += embed.Row<float>(1)[i] != head.Row<float>(1)[i] ? 1 : 0;
  }
  EXPECT_GT(differing, 0);

  const fs::path config = root_ / "tied" / "adapter_config.json";
  Json json = ReadJsonFile(config);
  json["ensure_weight_tying"] = true;
  WriteTextFile(config, json.dump());
  EXPECT_THROW(
      LoraAdapter::Load(root_ / "tied", LoadDecoderConfig(kGolden / "llama3-tiny"), HostMemory()),
      Error);
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
  ExpectTrainingAlone([](TrainOptions& o) { o.neftune_noise_alpha = 50; });
}

// Of an untrained model, training sees the smoothed loss and evaluation the plain one.
TEST_F(RecipesTest, LabelSmoothing) {
  Check("smoothed", [](TrainOptions& o) { o.label_smoothing_factor = 0.1; });
  ExpectTrainingAlone([](TrainOptions& o) { o.label_smoothing_factor = 0.5; });
}

TEST_F(RecipesTest, LoftqLowersTheGapOfTheStart) {
  const fs::path model = SharedFolder() / "models" / "stories260K-hf";
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
    PlanAndTrain(context, options, losses);
    return losses.steps.front();
  };
  const double dense = Evaluate(model, "", text, "false");
  const double plain = std::abs(start("default") - dense);
  const double loftq = std::abs(start("loftq") - dense);
  RecordProperty("gap_plain", std::to_string(plain));
  RecordProperty("gap_loftq", std::to_string(loftq));
  EXPECT_LT(loftq, 0.7 * plain) << "dense " << dense;
}

}  // namespace
}  // namespace qlora
