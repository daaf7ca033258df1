// Values of other trainers that mean something else than the default here: null, false, -1.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include "base/file.h"
#include "cli/test_util.h"
#include "migrate/migrate.h"

namespace qlora {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class MigrateValuesTest : public ScratchTest {
 protected:
  static std::string Yaml(const std::string& text, const std::string& from) {
    return Migrate(text, "their.yaml", from).yaml;
  }
  static Fate FateOf(const std::string& text, const std::string& from, const std::string& key) {
    for (const MigratedKey& known : Migrate(text, "their.yaml", from).keys) {
      if (known.key == key) return known.fate;
    }
    ADD_FAILURE() << key << " is not accounted for";
    return Fate::kUnsupported;
  }
};

TEST_F(MigrateValuesTest, NoneCutsNothingInTrl) {
  for (const char* none : {"null", "None", "~", ""}) {
    const std::string yaml = Yaml(fmt::format("use_peft: true\nmax_length: {}\n", none), "trl");
    EXPECT_THAT(yaml, HasSubstr("max_length: 0\n")) << none;
    EXPECT_THAT(yaml, HasSubstr("over_long: error\n")) << none;
  }
  // The default of the older name.
  EXPECT_THAT(Yaml("use_peft: true\nmax_seq_length: null\n", "trl"),
              HasSubstr("max_length: 1024  # the default of TRL"));
}

TEST_F(MigrateValuesTest, NoneAndNumbersBelowOne) {
  EXPECT_THAT(Yaml("use_peft: true\nmax_grad_norm: null\n", "trl"), HasSubstr("max_grad_norm: 0"));
  EXPECT_THAT(Yaml("use_peft: true\nmax_grad_norm: -1\n", "trl"), HasSubstr("max_grad_norm: 0"));
  EXPECT_THAT(Yaml("base_model: m\nmax_grad_norm:\n", "axolotl"),
              Not(HasSubstr("\nmax_grad_norm: 0")));
  EXPECT_THAT(Yaml("use_peft: true\nsave_total_limit: -1\n", "trl"),
              HasSubstr("save_total_limit: 0"));
  EXPECT_EQ(FateOf("use_peft: true\nlogging_steps: 0\n", "trl", "logging_steps"),
            Fate::kUnsupported);
  EXPECT_EQ(FateOf("use_peft: null\nlora_r: 4\n", "trl", "use_peft"), Fate::kUnsupported);
  EXPECT_EQ(FateOf("use_peft: true\neval_strategy: null\n", "trl", "eval_strategy"),
            Fate::kNotNeeded);
  EXPECT_THAT(Yaml("stage: sft\nquantization_bit: null\n", "llama-factory"),
              HasSubstr("load_in_4bit: false"));
  EXPECT_THAT(Yaml("stage: sft\ndouble_quantization: null\n", "llama-factory"),
              HasSubstr("bnb_4bit_use_double_quant: false"));
  EXPECT_THAT(Yaml("base_model: m\nshuffle_merged_datasets: false\n", "axolotl"),
              Not(HasSubstr("shuffle: false")));
  EXPECT_THAT(Yaml("base_model: m\nwarmup_steps: 0\n", "axolotl"), HasSubstr("warmup_ratio: 0\n"));
  EXPECT_THAT(Yaml("use_peft: true\nbf16: yes\n", "trl"), HasSubstr("compute_dtype: bfloat16"));
  EXPECT_THAT(Yaml("use_peft: true\ncompletion_only_loss: no\n", "trl"),
              HasSubstr("train_on_inputs: true"));
  EXPECT_THAT(Yaml("base_model: m\nval_set_size: 0.1\neval_strategy: steps\nevals_per_epoch: 4\n",
                   "axolotl"),
              AllOf(HasSubstr("evals_per_epoch: 4"), Not(HasSubstr("eval_steps:"))));
  EXPECT_EQ(FateOf("use_peft: true\nmetric_for_best_model: null\n", "trl", "metric_for_best_model"),
            Fate::kNotNeeded);
}

TEST_F(MigrateValuesTest, Thinking) {
  for (const char* flag : {"false", "true"}) {
    EXPECT_THAT(Yaml(fmt::format("stage: sft\nenable_thinking: {}\n", flag), "llama-factory"),
                HasSubstr(fmt::format(R"(\"enable_thinking\": {})", flag)));
  }
  EXPECT_EQ(FateOf("stage: sft\nenable_thinking: null\n", "llama-factory", "enable_thinking"),
            Fate::kUnsupported);
}

TEST_F(MigrateValuesTest, TrainingByRewardsIsRefused) {
  EXPECT_THROW(Yaml("stage: ppo\ntemplate: llama3\n", "llama-factory"), Error);
  EXPECT_THROW(Yaml("base_model: m\nrl: grpo\n", "axolotl"), Error);
  EXPECT_NO_THROW(Yaml("base_model: m\nrl: false\n", "axolotl"));
  EXPECT_THROW(Yaml("use_peft: true\nbeta: 0.04\nnum_generations: 8\n", "trl"), Error);
  EXPECT_THROW(Yaml("use_peft: true\nbeta: 0.04\nloss_type: dapo\n", "trl"), Error);
  EXPECT_THROW(Yaml("use_peft: true\nGRPOConfig:\n  beta: 0.04\n", "trl"), Error);
  EXPECT_NO_THROW(Yaml("use_peft: true\nbeta: 0.04\nuse_vllm: false\n", "trl"));
}

TEST_F(MigrateValuesTest, Preferences) {
  const auto has = [](const std::string& text, const std::string& from, const auto&... lines) {
    const std::string yaml = Yaml(text, from);
    const auto expect = [&](const char* line) { EXPECT_THAT(yaml, HasSubstr(line)); };
    (expect(lines), ...);
  };
  has("stage: dpo\npref_beta: 0.2\npref_loss: ipo\n", "llama-factory", "preference_loss: ipo\n",
      "beta: 0.2\n");
  has("stage: dpo\npref_ftx: 0.5\n", "llama-factory", "preference_loss: sigmoid\n",
      "rpo_alpha: 0.5\n", "nll_over: answers\n", "beta: 0.1  # the default");
  has("stage: kto\nkto_chosen_weight: 1.5\nadapter_name_or_path: a\n", "llama-factory",
      "preference_loss: kto\n", "desirable_weight: 1.5\n", "reference: base");
  has("base_model: m\nrl: dpo\nrl_beta: 0.3\ndpo_label_smoothing: 0.1\n", "axolotl",
      "preference_loss: sigmoid\n", "beta: 0.3\n", "label_smoothing_factor: 0.1\n");
  has("base_model: m\nrl: simpo\nlora_dropout: 0.05\n", "axolotl", "preference_loss: simpo\n",
      "simpo_gamma: 0.5");
  EXPECT_THAT(Yaml("base_model: m\nrl: dpo\nlora_dropout: 0.05\n", "axolotl"),
              Not(HasSubstr("\nlora_dropout: 0.05")));
  has("DPOConfig:\n  beta: 0.1\n  learning_rate: 1e-5\n", "trl", "preference_loss: sigmoid",
      "learning_rate: 1e-5\n");
  has("loss_type: [sigmoid, sft]\nloss_weights: [1.0, 0.5]\nuse_peft: true\n", "trl",
      "preference_loss:", "loss_weights:", "learning_rate: 1e-6  # the default of TRL");
  has("use_peft: true\nloss_type: nll\n", "trl", "learning_rate: 2e-5", "assistant_only_loss");
  has(R"({"model": "gpt-4.1-mini", "training_file": "pairs.jsonl", "seed": 7, "method": {"type": )"
      R"("dpo", "dpo": {"hyperparameters": {"beta": 0.2, "n_epochs": 2, "batch_size": "auto"}}}})",
      "auto", "preference_loss: sigmoid\n", "beta: 0.2\n", "num_train_epochs: 2\n", "seed: 7\n",
      "pairs.jsonl");
  // A step of an odd number of examples.
  has(R"({"training_file": "chats.jsonl", "hyperparameters": {"batch_size": 3}})", "auto",
      "global_batch_size: 3\n", "per_device_train_batch_size: 1\n");
  // Rates are multiples of the usual one of the method, as a job of serve has them.
  has(R"({"training_file": "c", "hyperparameters": {"learning_rate_multiplier": 0.5}})", "auto",
      "learning_rate: 0.0001\n");
  has(R"({"training_file": "c", "method": {"type": "dpo", "dpo": {"hyperparameters": )"
      R"({"learning_rate_multiplier": 2}}}})",
      "auto", "learning_rate: 1e-05\n");
  // Wherever hyperparameters stand, the method has its rate, and its values go first.
  has(R"({"training_file": "c", "hyperparameters": {"learning_rate_multiplier": 2}, )"
      R"("method": {"type": "dpo"}})",
      "auto", "learning_rate: 1e-05\n");
  has(R"({"training_file": "c", "hyperparameters": {"n_epochs": 9, "learning_rate_multiplier": 2}, )"
      R"("method": {"type": "dpo", "dpo": {"hyperparameters": {"n_epochs": 5, )"
      R"("learning_rate_multiplier": "auto"}}}})",
      "auto", "num_train_epochs: 5\n", "learning_rate: 1e-05\n");
  // The body of a job that there is.
  for (const char* key : {"id", "fine_tuned_model", "status", "result_files", "error"}) {
    EXPECT_EQ(FateOf(R"({"id": "ftjob-1", "fine_tuned_model": "ft:m", "status": "failed", )"
                     R"("error": {"code": "c"}, "result_files": ["f"], "training_file": "c"})",
                     "openai", key),
              Fate::kNotNeeded)
        << key;
  }
  EXPECT_THAT(Yaml(R"({"training_file": "c", "hyperparameters": {"batch_size": 4}})", "auto"),
              Not(HasSubstr("per_device_train_batch_size")));
  has("DPOConfig:\n  reference_free: true\n", "trl", "reference: none");
  EXPECT_THAT(Yaml("DPOConfig:\n  reference_free: false\n", "trl"), Not(HasSubstr("reference:")));
  EXPECT_EQ(FateOf("base_model: m\nrl: dpo\ndpo_loss_type: [aot]\n", "axolotl", "dpo_loss_type"),
            Fate::kUnsupported);
}

TEST_F(MigrateValuesTest, Decisions) {
  const std::string unsloth =
      "FastDecisionModel:\n  model_name: m\n  decision_head: clef\n  max_seq_length: 1024\n"
      "DecisionTrainer:\n  brier_weight: 0.5\n  ordinal_weight: 0.25\n  label_smoothing: 0.1\n"
      "  head_learning_rate: 1e-4\n  kl_weight: 0.1\n";
  EXPECT_THAT(Yaml(unsloth, "auto"),
              AllOf(HasSubstr("brier_weight: 0.5\n"), HasSubstr("ordinal_weight: 0.25\n"),
                    HasSubstr("label_smoothing_factor: 0.1\n"), HasSubstr("max_length: 1024\n"),
                    HasSubstr("model_name_or_path: m\n")));
  EXPECT_EQ(FateOf(unsloth, "auto", "decision_head"), Fate::kNotNeeded);
  EXPECT_EQ(FateOf(unsloth, "auto", "kl_weight"), Fate::kUnsupported);
  for (const MigratedKey& key : Migrate(unsloth, "their.yaml", "auto").keys) {
    if (key.key != "ordinal_weight") continue;
    EXPECT_THAT(key.text, HasSubstr("mean"));
  }

  const std::string sysone =
      "DecoderModel:\n  model: Qwen/Qwen3-0.6B\n  tuning: qlora\n  lora_rank: 16\n"
      "fit:\n  epochs: 2\n  lr: 1e-4\n  batch_size: 4\n  calibration_size: 0.1\n  rows: rows\n";
  const Migration migrated = Migrate(sysone, "their.yaml", "auto");
  EXPECT_EQ(migrated.tool, "sysone");
  EXPECT_THAT(migrated.yaml,
              AllOf(HasSubstr("model_name_or_path: Qwen/Qwen3-0.6B\n"), HasSubstr("lora_r: 16\n"),
                    HasSubstr("load_in_4bit: true\n"), HasSubstr("num_train_epochs: 2\n"),
                    HasSubstr("learning_rate: 1e-4\n"), HasSubstr("calibration_size: 0.1\n"),
                    HasSubstr("per_device_train_batch_size: 4\n")));
  EXPECT_EQ(FateOf(sysone, "auto", "rows"), Fate::kUnsupported);
  EXPECT_THAT(Yaml("tuning: lora\n", "auto"), HasSubstr("load_in_4bit: false\n"));
  EXPECT_EQ(FateOf("tuning: head\n", "auto", "tuning"), Fate::kUnsupported);
  EXPECT_EQ(FateOf("EncoderModel: {tuning: lora}\n", "auto", "EncoderModel"), Fate::kUnsupported);
}

// Settings of preferences stand in files that train on examples, where they do nothing.
TEST_F(MigrateValuesTest, PreferencesTakeTheirMethod) {
  const auto lacks = [](const std::string& text, const std::string& from) {
    const std::string yaml = Yaml(text, from);
    for (const char* key : {"\npreference_loss:", "\nbeta:", "\nlabel_smoothing_factor:"}) {
      EXPECT_THAT(yaml, Not(HasSubstr(key))) << text;
    }
  };
  for (const char* stage : {"", "stage: sft\n"}) {
    lacks(fmt::format("{}template: qwen\npref_loss: sigmoid\npref_beta: 0.1\npref_ftx: 0.5\n"
                      "dpo_label_smoothing: 0.1\n",
                      stage),
          "llama-factory");
  }
  lacks("base_model: m\ndpo_loss_type: [ipo]\nrl_beta: 0.1\ndpo_label_smoothing: 0.1\n", "axolotl");
  // The loss of stage kto is its own.
  EXPECT_THAT(Yaml("stage: kto\npref_loss: sigmoid\n", "llama-factory"),
              HasSubstr("preference_loss: kto\n"));
  EXPECT_THAT(Yaml("pref_loss: sigmoid\nstage: kto\n", "llama-factory"),
              HasSubstr("preference_loss: kto\n"));
}

TEST_F(MigrateValuesTest, TheFormatsOfPairsAreNamed) {
  EXPECT_EQ(FateOf("base_model: m\nrl: dpo\ndatasets:\n  - path: a.jsonl\n    type: "
                   "{field_prompt: q, prompt_format: 'Q: {prompt}'}\n",
                   "axolotl", "datasets[0].type"),
            Fate::kUnsupported);
  EXPECT_EQ(FateOf("base_model: m\nrl: dpo\ndatasets:\n  - path: a.jsonl\n    type: "
                   "chat_template.default\n",
                   "axolotl", "datasets[0].type"),
            Fate::kNotNeeded);
  // LLaMA-Factory's list of data sets.
  WriteTextFile(scratch_ / "dataset_info.json",
                R"({"pairs": {"file_name": "pairs.json", "ranking": true, "columns": )"
                R"({"prompt": "instruction", "query": "input", "chosen": "chosen", )"
                R"("rejected": "rejected"}}, "plain": {"file_name": "plain.json", )"
                R"("ranking": null}})");
  const auto of_list = [&](const char* stage, const char* name) {
    return Yaml(
        fmt::format("stage: {}\ndataset_dir: {}\ndataset: {}\n", stage, scratch_.string(), name),
        "llama-factory");
  };
  EXPECT_THAT(of_list("dpo", "pairs"), HasSubstr("pairs.json]"));
  EXPECT_THAT(of_list("sft", "plain"), HasSubstr("plain.json]"));
  EXPECT_THAT(of_list("sft", "pairs"), Not(HasSubstr("\ndataset:")));
}

TEST_F(MigrateValuesTest, FilesOfDataSets) {
  fs::create_directories(scratch_ / "folder");
  const std::string yaml = Yaml(fmt::format("base_model: m\n"
                                            "datasets:\n"
                                            "  - path: json\n"
                                            "    data_files: [a.jsonl, b.jsonl]\n"
                                            "    type: alpaca\n"
                                            "  - path: c.jsonl\n"
                                            "    type: alpaca\n"
                                            "    split: train[:10%]\n"
                                            "    weight: 0.5\n"
                                            "  - path: {}\n"
                                            "    data_files: d.jsonl\n"
                                            "    type: alpaca\n",
                                            (scratch_ / "folder").string()),
                                "axolotl");
  EXPECT_THAT(yaml, HasSubstr("a.jsonl, b.jsonl, "));
  EXPECT_THAT(yaml, HasSubstr("c.jsonl[:10%]:0.5"));
  EXPECT_THAT(yaml, HasSubstr("folder/d.jsonl"));
  EXPECT_EQ(FateOf("base_model: m\ndatasets:\n  - path: a.jsonl\n    split: test\n", "axolotl",
                   "datasets[0].split"),
            Fate::kUnsupported);
  EXPECT_THAT(Yaml("stage: sft\ndataset: a.jsonl\nmax_samples: 100\n", "llama-factory"),
              HasSubstr("a.jsonl[:100]"));
}

TEST_F(MigrateValuesTest, StrategiesAndSchedules) {
  const std::string epochs = Yaml(
      "use_peft: true\nsave_strategy: epoch\nsave_steps: 100\neval_strategy: epoch\n"
      "eval_steps: 7\n",
      "trl");
  EXPECT_THAT(epochs, HasSubstr("saves_per_epoch: 1\n"));
  EXPECT_THAT(epochs, Not(HasSubstr("\nsave_steps:")));
  EXPECT_THAT(epochs, Not(HasSubstr("\neval_steps:")));
  EXPECT_THAT(Yaml("use_peft: true\nsave_steps: 0.1\n", "trl"), HasSubstr("save_ratio: 0.1"));
  EXPECT_THAT(Yaml("base_model: m\nsaves_per_epoch: 2\n", "axolotl"),
              HasSubstr("saves_per_epoch: 2"));
  const std::string decays = Yaml(
      "use_peft: true\nlr_scheduler_type: warmup_stable_decay\n"
      "lr_scheduler_kwargs: {num_decay_steps: 10, min_lr_ratio: 0.1, decay_type: linear}\n",
      "trl");
  for (const char* line : {"lr_decay_steps: 10", "min_lr_rate: 0.1", "lr_decay_type: linear"}) {
    EXPECT_THAT(decays, HasSubstr(line));
  }
  // The schedule has another name in each trainer.
  const std::string cycles = "_with_restarts\nlr_scheduler_kwargs: {num_cycles: 3}\n";
  for (const auto& [from, begin] :
       {std::pair("axolotl", "base_model: m\nlr_scheduler: cosine"),
        std::pair("trl", "use_peft: true\nlr_scheduler_type: cosine"),
        std::pair("llama-factory", "stage: sft\nlr_scheduler_type: cosine")}) {
    EXPECT_THAT(Yaml(begin + cycles, from), HasSubstr("lr_scheduler_cycles: 3\n"));
    // Three waves, up and down, are no restarts.
    EXPECT_THAT(Yaml(begin + std::string("\nlr_scheduler_kwargs: {num_cycles: 3}\n"), from),
                HasSubstr("lr_scheduler_waves: 3\n"));
    for (const char* other : {"num_cycle: 3", "'num_cycles:3': null", "num_decay_steps: 0"}) {
      const std::string yaml = fmt::format("{}\nlr_scheduler_kwargs: {{{}}}\n", begin, other);
      const auto keys = Migrate(yaml, "their.yaml", from).keys;
      EXPECT_TRUE(std::ranges::any_of(keys, [](const MigratedKey& key) {
        return key.key.starts_with("lr_scheduler_kwargs") && key.fate == Fate::kUnsupported;
      })) << yaml;
    }
  }
  const std::string kwargs =
      "use_peft: true\nlr_scheduler_type: cosine_with_restarts\n"
      "lr_scheduler_kwargs: ";
  EXPECT_THAT(Yaml(kwargs + "{num_cycles: 2.0}\n", "trl"), HasSubstr("lr_scheduler_cycles: 2\n"));
  // A half falls to half of the rate there, and is what other cosines have.
  EXPECT_THAT(Yaml(kwargs + "{num_cycles: 0.5}\n", "trl"), HasSubstr("lr_scheduler_cycles: 0.5\n"));
  const std::string cosine =
      "use_peft: true\nlr_scheduler_type: cosine\nlr_scheduler_kwargs: {num_cycles: ";
  for (const auto& [value, fate] : {std::pair("0.5", Fate::kNotNeeded),
                                    {"-1", Fate::kUnsupported},
                                    {"0", Fate::kUnsupported},
                                    {"many", Fate::kUnsupported}}) {
    EXPECT_EQ(
        FateOf(fmt::format("{}{}}}\n", cosine, value), "trl", "lr_scheduler_kwargs.num_cycles"),
        fate)
        << value;
  }
  const std::string all = Yaml(
      "use_peft: true\nlr_scheduler_type: warmup_stable_decay\nlr_scheduler_kwargs: "
      "{num_stable_steps: 0, warmup_type: cosine, num_cycles: 1.5}\n",
      "trl");
  for (const char* line :
       {"lr_stable_steps: 0", "lr_warmup_type: cosine", "lr_scheduler_waves: 1.5"}) {
    EXPECT_THAT(all, HasSubstr(line));
  }
  EXPECT_THAT(Yaml("use_peft: true\nlr_scheduler_type: inverse_sqrt\n"
                   "lr_scheduler_kwargs: {timescale: 50}\n",
                   "trl"),
              HasSubstr("lr_scheduler_timescale: 50"));
  EXPECT_THAT(Yaml("use_peft: true\nlr_scheduler_type: cosine_warmup_with_min_lr\n"
                   "lr_scheduler_kwargs: {warmup_lr_rate: 0.0, min_lr: 0.0}\n",
                   "trl"),
              HasSubstr("lr_warmup_rate: 0"));
  for (const char* nothing : {"null", "{}", "[]", "\"\""}) {
    EXPECT_EQ(FateOf(kwargs + nothing + "\n", "trl", "lr_scheduler_kwargs"), Fate::kNotNeeded);
  }
  const std::string warmup =
      "model: m\niters: 9\nlr_schedule: {name: cosine_decay, warmup: 0, "
      "warmup_init: 1e-7, arguments: [1e-5, 9]}\n";
  for (const char* key : {"lr_schedule.warmup", "lr_schedule.warmup_init"}) {
    EXPECT_EQ(FateOf(warmup, "mlx-lm", key), Fate::kNotNeeded) << key;
  }
  EXPECT_EQ(FateOf("base_model: m\nlr_quadratic_warmup: true\n", "axolotl", "lr_quadratic_warmup"),
            Fate::kUnsupported);
  EXPECT_EQ(FateOf("base_model: m\nspecial_tokens: {pad_token: x, eos_token: y}\n", "axolotl",
                   "special_tokens.pad_token"),
            Fate::kNotNeeded);
  EXPECT_EQ(FateOf("base_model: m\nspecial_tokens: {pad_token: x, eos_token: y}\n", "axolotl",
                   "special_tokens.eos_token"),
            Fate::kUnsupported);
}

TEST_F(MigrateValuesTest, MlxLm) {
  const std::string yaml = Yaml(
      "model: m\ntrain: true\ndata: d.jsonl\niters: 600\nbatch_size: 2\nsteps_per_eval: 50\n"
      "num_layers: -1\nadapter_path: out\nlora_parameters: {rank: 4, alpha: 16, scale: 10.0, "
      "dropout: 0.1}\n"
      "lr_schedule: {name: cosine_decay, warmup: 5, arguments: [1e-4, 600, 1e-6]}\n",
      "auto");
  for (const char* line :
       {"max_steps: 600", "per_device_train_batch_size: 2", "output_dir: out", "lora_r: 4",
        "lora_alpha: 40", "lora_dropout: 0.1", "learning_rate: 1e-4", "min_lr: 1e-6",
        "warmup_steps: 5", "lr_scheduler_type: cosine", "train_on_inputs: true", "max_grad_norm: 0",
        "load_in_4bit: false"}) {
    EXPECT_THAT(yaml, HasSubstr(line));
  }
}

// All keys of its lora_config.yaml and of the arguments that it saves beside an adapter.
TEST_F(MigrateValuesTest, EachKeyOfMlxLmIsCarriedOrAnswered) {
  const std::string yaml =
      "model: m\ntrain: true\nfine_tune_type: lora\ntraining_mode: normal\noptimizer: adamw\n"
      "optimizer_config: {adamw: {betas: [0.9, 0.98], eps: 1e-6, weight_decay: 0.05, "
      "bias_correction: true}}\n"
      "data: folder\nseed: 0\nnum_layers: -1\nbatch_size: 4\niters: 1000\nval_batches: 25\n"
      "learning_rate: 1e-5\nsteps_per_report: 10\nsteps_per_eval: 200\n"
      "resume_adapter_file: null\nadapter_path: adapters\nsave_every: 100\ntest: false\n"
      "test_batches: 100\nmax_seq_length: 2048\ngrad_checkpoint: false\nconfig: null\n"
      "lora_parameters: {keys: [self_attn.q_proj], rank: 8, scale: 20.0, dropout: 0.0}\n"
      "lr_schedule: {name: cosine_decay, warmup: 100, arguments: [1e-5, 1000, 1e-7]}\n"
      "mask_prompt: false\ngrad_accumulation_steps: 1\nclear_cache_threshold: 0\n"
      "wandb: null\nreport_to: null\nproject_name: null\nprompt_feature: prompt\n"
      "completion_feature: completion\ntext_feature: text\nchat_feature: messages\n";
  for (const MigratedKey& key : Migrate(yaml, "their.yaml", "mlx-lm").keys) {
    EXPECT_NE(key.fate, Fate::kUnsupported) << key.key << ": " << key.text;
  }
  const auto fate = [](const std::string& line) {
    return FateOf("model: m\ndata: d\nnum_layers: -1\n" + line, "mlx-lm",
                  line.substr(0, line.find(':')));
  };
  for (const char* line :
       {"training_mode: dpo\n", "prompt_feature: question\n", "text_feature: body\n",
        "chat_feature: turns\n", "hf_dataset: {path: billsum}\n",
        "resume_adapter_file: a.safetensors\n", "test: true\n", "report_to: wandb\n"}) {
    EXPECT_EQ(fate(line), Fate::kUnsupported) << line;
  }
  EXPECT_EQ(FateOf("model: m\noptimizer_config: {adam: {bias_correction: false}}\n", "mlx-lm",
                   "optimizer_config.adam.bias_correction"),
            Fate::kUnsupported);
}

// mlx-lm trains on no folder without data for evaluation; here the folder may be elsewhere.
TEST_F(MigrateValuesTest, EvaluationsOfMlxLmAreKeptWhereItsFolderIsNotThere) {
  const std::string keys = "model: m\nnum_layers: -1\nsteps_per_eval: 200\ndata: ";
  const std::string here = keys + (scratch_ / "here").string() + "\n";
  EXPECT_THAT(Yaml(here, "mlx-lm"), HasSubstr("\neval_steps: 200\n"));
  Write("here/train.jsonl", "{\"text\": \"a\"}\n");
  EXPECT_THAT(Yaml(here, "mlx-lm"), Not(HasSubstr("\neval_steps:")));
  Write("here/valid.jsonl", "{\"text\": \"b\"}\n");
  EXPECT_THAT(Yaml(here, "mlx-lm"), HasSubstr("\neval_steps: 200\n"));
}

TEST_F(MigrateValuesTest, IterationsOfMlxLmAreMicroBatches) {
  const std::string yaml = Yaml(
      "model: m\ndata: d.jsonl\niters: 600\ngrad_accumulation_steps: 4\nsave_every: 100\n"
      "steps_per_report: 2\nmask_prompt: True\noptimizer: adamw\n"
      "optimizer_config: {adam: {betas: [0.5, 0.5]}, adamw: {eps: 1e-6}}\n"
      "lr_schedule: {name: cosine_decay, arguments: [1e-4, 150]}\n",
      "mlx-lm");
  for (const char* line :
       {"max_steps: 150", "save_steps: 25", "logging_steps: 1", "warmup_ratio: 0",
        "train_on_inputs: false", "weight_decay: 0.01", "adam_epsilon: 1e-6"}) {
    EXPECT_THAT(yaml, HasSubstr(line));
  }
  EXPECT_THAT(yaml, Not(HasSubstr("adam_beta1")));
  EXPECT_THAT(yaml, Not(HasSubstr("the rate falls until")));
  EXPECT_THAT(
      Yaml("model: m\ndata: d.jsonl\ngrad_accumulation_steps: 4\nnum_layers: -1\n", "mlx-lm"),
      HasSubstr("max_steps: 250"));
}

TEST_F(MigrateValuesTest, ASliceOfSeveralFilesIsNotOneOfEach) {
  const std::string of_two =
      "base_model: m\ndatasets:\n  - path: json\n    data_files: [a.jsonl, b.jsonl]\n"
      "    split: train[:1000]\n    weight: 0\n    type: alpaca\n";
  EXPECT_THAT(Yaml(of_two, "axolotl"), HasSubstr("dataset: [a.jsonl, b.jsonl]"));
  EXPECT_EQ(FateOf(of_two, "axolotl", "datasets[0].weight"), Fate::kUnsupported);
}

}  // namespace
}  // namespace qlora
