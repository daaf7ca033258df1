// Whole runs on a backend whose memory the host cannot touch: the same files as on the CPU backend.
// They are long because pages are opened and closed around every op.
#include <set>

#include "backend/guarded_backend.h"
#include "plan/run/prepared_run.h"
#include "train/tiny_run.h"

namespace qlora {
namespace {

class GuardedRunTest : public TinyRunTest {
 protected:
  static void RunOn(const BackendFactory::Ptr& backends, const TrainOptions& options,
                    std::int64_t stop_after = -1) {
    ContextOn context(backends, 2);
    StopAfter observer(stop_after);
    PlanAndTrain(context, options, observer);
  }

  // Everything that a run writes but times, sizes of memory and the options.
  static bool IsResult(const fs::path& file) {
    const std::string name = file.filename();
    return name.ends_with(".safetensors") || name.ends_with(".jsonl");
  }
  static std::string Content(const fs::path& file) {
    if (file.extension() != ".jsonl") return ReadTextFile(file);
    std::string content;
    std::ifstream lines(file);
    for (std::string line; std::getline(lines, line);) {
      Json json = Json::parse(line);
      for (const char* key :
           {"tokens_per_second", "limit_share", "memory", "elapsed", "eval_runtime"}) {
        json.erase(key);
      }
      content += json.dump() + "\n";
    }
    return content;
  }
  std::set<fs::path> Results(const std::string& name) const {
    std::set<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(root_ / name)) {
      if (IsResult(entry.path())) files.insert(fs::relative(entry.path(), root_ / name));
    }
    return files;
  }
  void ExpectSame(const std::string& a, const std::string& b) const {
    EXPECT_EQ(Results(a), Results(b));
    EXPECT_GE(Results(a).size(), 2u);
    for (const fs::path& file : Results(a)) {
      EXPECT_TRUE(Content(root_ / a / file) == Content(root_ / b / file)) << file;
    }
  }

  // Four steps with evaluations and samples.
  TrainOptions Short(const std::string& name, const Change& change) const {
    TrainOptions options = Options(name);
    options.compute_dtype = "float32";
    options.max_steps = 4;
    options.eval_steps = 2;
    options.data.eval_dataset = options.data.dataset;
    options.eval_on_start = true;
    options.sample_prompts = {"Once"};
    options.sample_max_new_tokens = 8;
    change(options);
    return options;
  }
  void Check(const std::string& name, const Change& change) const {
    SCOPED_TRACE(name);
    RunOn(BackendFactory::Of("cpu"), Short(name, change));
    RunOn(GuardedBackends(), Short(name + "-guarded", change));
    ExpectSame(name, name + "-guarded");
  }
};

TEST_F(GuardedRunTest, EveryFamily) {
  int families = 0;
  for (const auto& entry : fs::directory_iterator(kGolden)) {
    const std::string family = entry.path().filename();
    if (!family.ends_with("-tiny")) continue;
    ++families;
    Check(family, [&](TrainOptions& o) {
      o.model_name_or_path = entry.path();
      o.max_steps = 2;
    });
  }
  EXPECT_GE(families, 12);
}

TEST_F(GuardedRunTest, InBfloat16) {
  for (const char* family : {"phi3-tiny", "gemma3-tiny", "qwen3moe-tiny"}) {
    Check(family, [&](TrainOptions& o) {
      o.model_name_or_path = kGolden / family;
      o.compute_dtype = "bfloat16";
      o.max_steps = 2;
    });
  }
}

TEST_F(GuardedRunTest, Recipes) {
  Check("dense", [](TrainOptions& o) { o.load_in_4bit = false; });
  Check("rslora", [](TrainOptions& o) { o.use_rslora = true; });
  Check("dora", [](TrainOptions& o) { o.use_dora = true; });
  Check("neftune", [](TrainOptions& o) { o.neftune_noise_alpha = 5; });
  Check("smoothed", [](TrainOptions& o) { o.label_smoothing_factor = 0.1; });
  Check("clipped", [](TrainOptions& o) { o.max_grad_norm = 0.1; });
  Check("packed", [](TrainOptions& o) { o.data.packing = true; });
  Check("anchored", [](TrainOptions& o) { o.anchor = o.data.dataset; });
  Check("modules", [](TrainOptions& o) {
    o.modules_to_save = {"lm_head", "embed_tokens"};
    o.embedding_learning_rate = 1e-3;
  });
  Check("tied", [](TrainOptions& o) {
    o.model_name_or_path = kGolden / "llama3-tiny";
    o.modules_to_save = {"lm_head", "embed_tokens"};
  });
}

// How adapters and optimizers may be set up, and the forms of the base, in two steps each.
TEST_F(GuardedRunTest, AdaptersAndFormsOfTheBase) {
  const std::pair<const char*, Change> recipes[] = {
      {"loraplus", [](TrainOptions& o) { o.loraplus_lr_ratio = 4; }},
      {"decay", [](TrainOptions& o) { o.weight_decay = 0.1; }},
      {"fp4", [](TrainOptions& o) { o.quantization.bnb_4bit_quant_type = "fp4"; }},
      {"single", [](TrainOptions& o) { o.quantization.bnb_4bit_use_double_quant = false; }},
      {"search", [](TrainOptions& o) { o.quantization.scale_search = true; }},
      {"blocks", [](TrainOptions& o) { o.quantization.bnb_4bit_blocksize = 32; }},
      {"patterns",
       [](TrainOptions& o) {
         o.rank_pattern = {"down_proj=2", R"(layers\.0\..*q_proj=6)"};
         o.alpha_pattern = {"up_proj=1"};
       }},
      {"layers", [](TrainOptions& o) { o.layers_to_transform = {"1"}; }},
      {"dora-dense",
       [](TrainOptions& o) {
         o.use_dora = true;
         o.load_in_4bit = false;
       }},
      {"dora-patterns",
       [](TrainOptions& o) {
         o.use_dora = true;
         o.lora_target_modules = {"q_proj", "down_proj"};
         o.rank_pattern = {"down_proj=2"};
         o.compute_dtype = "bfloat16";
       }},
      {"experts",
       [](TrainOptions& o) {
         o.model_name_or_path = kGolden / "qwen3moe-tiny";
         o.loraplus_lr_ratio = 4;
         o.weight_decay = 0.1;
         o.neftune_noise_alpha = 5;
         o.quantization.bnb_4bit_use_double_quant = false;
         o.optim = "adamw_8bit";
         o.data.packing = true;
       }},
      {"experts-dense",
       [](TrainOptions& o) {
         o.model_name_or_path = kGolden / "mixtral-tiny";
         o.load_in_4bit = false;
         o.use_rslora = true;
         o.rank_pattern = {"w2=2"};
       }},
  };
  for (const auto& [name, change] : recipes) {
    // Named: clang 14 captures no structured binding.
    Check(name, [&apply = change](TrainOptions& o) {
      o.max_steps = 2;
      o.sample_prompts = {};
      o.sample_max_new_tokens = TrainOptions().sample_max_new_tokens;
      apply(o);
    });
  }
}

TEST_F(GuardedRunTest, PaperPreset) { Check("paper", UsePaperPreset); }

TEST_F(GuardedRunTest, Starts) {
  for (const char* init : {"pissa", "olora", "loftq"}) {
    Check(init, [&](TrainOptions& o) { o.init_lora_weights = init; });
  }
}

TEST_F(GuardedRunTest, Optimizers) {
  for (const char* optim :
       {"adamw_8bit", "paged_adamw", "paged_adamw_8bit", "lion", "lion_8bit", "sgd"}) {
    Check(optim, [&](TrainOptions& o) {
      o.optim = optim;
      o.save_steps = 3;
    });
  }
}

TEST_F(GuardedRunTest, Recomputation) {
  for (const char* level : {"none", "attention", "mlp", "layer"}) {
    for (const char* model : {"llama-tiny", "mixtral-tiny"}) {
      Check(std::string(level) + model, [&](TrainOptions& o) {
        o.recompute = level;
        o.model_name_or_path = kGolden / model;
        o.max_steps = 2;
      });
    }
  }
}

TEST_F(GuardedRunTest, ResumesAndContinues) {
  for (const char* optim : {"adamw", "adamw_8bit", "paged_adamw_8bit"}) {
    const Change change = [&](TrainOptions& o) { o.optim = optim; };
    const std::string name = optim;
    RunOn(BackendFactory::Of("cpu"), Short(name, change));
    TrainOptions parts = Short(name + "-guarded", change);
    RunOn(GuardedBackends(), parts, 3);
    parts.resume_from_checkpoint = "auto";
    RunOn(GuardedBackends(), parts);
    EXPECT_TRUE(Adapter(name) == Adapter(name + "-guarded"));

    const Change go_on = [&](TrainOptions& o) {
      o.adapter = root_ / name;
      o.lora_r = TrainOptions().lora_r;
      o.lora_dropout = TrainOptions().lora_dropout;
    };
    Check(name + "-continued", go_on);
  }
}

// The best adapter is read again at the end.
TEST_F(GuardedRunTest, KeepsTheBest) {
  Check("best", [](TrainOptions& o) {
    o.load_best_model_at_end = true;
    o.eval_steps = 1;
    o.learning_rate = 0.3;
  });
}

// A gradient that is not finite is found by ops, and the steps are skipped.
TEST_F(GuardedRunTest, NonFiniteSteps) {
  const auto run = [&](const BackendFactory::Ptr& backends, const std::string& name) {
    TrainOptions options = Short(name, [](TrainOptions& o) {
      o.learning_rate = 1e25;  // the first update throws the activations out of range
      o.lr_scheduler_type = "constant";
      o.max_grad_norm = 0;
      o.max_skipped_steps = 4;
      o.max_steps = 8;
      o.eval_on_start = false;
      o.data.eval_dataset = {};
      o.eval_steps = 0;
      o.sample_prompts = {};
      o.sample_max_new_tokens = TrainOptions().sample_max_new_tokens;
    });
    try {
      RunOn(backends, options);
      ADD_FAILURE() << "expected an error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kRuntime) << error.what();
    }
  };
  run(BackendFactory::Of("cpu"), "run");
  run(GuardedBackends(), "run-guarded");
  ExpectSame("run", "run-guarded");
}

}  // namespace
}  // namespace qlora
