// Options and verbs under the names that other programs give them.
#include "foreign/foreign_option.h"

#include <gmock/gmock.h>

#include "cli/test_util.h"
#include "command/command_line.h"
#include "training/train_settings.h"
#include "verbs/verbs.h"

namespace qlora {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Words = std::vector<std::string>;

// Every field of TRL's SFTConfig, ModelConfig and ScriptArguments, of transformers'
// TrainingArguments, and of PEFT's LoraConfig, in the versions of the last years.
constexpr const char* kHuggingFaceKeys[] = {
    "model_init_kwargs", "chat_template_path", "dataset_text_field", "dataset_kwargs",
    "dataset_num_proc", "eos_token", "pad_token", "max_length", "max_seq_length", "truncation_mode",
    "shuffle_dataset", "packing", "packing_strategy", "padding_free", "pad_to_multiple_of",
    "eval_packing", "completion_only_loss", "assistant_only_loss", "loss_type",
    "activation_offloading", "dataset_batch_size", "num_of_sequences", "chars_per_token",
    // ModelConfig
    "model_name_or_path", "model_revision", "base_model_revision", "model_code_revision", "dtype",
    "torch_dtype", "trust_remote_code", "attn_implementation", "use_flash_attention_2", "use_peft",
    "lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "lora_target_parameters",
    "lora_modules_to_save", "lora_task_type", "use_rslora", "use_dora", "load_in_8bit",
    "load_in_4bit", "bnb_4bit_quant_type", "use_bnb_nested_quant", "bnb_4bit_quant_storage",
    // ScriptArguments
    "dataset_name", "dataset_config", "dataset_train_split", "dataset_test_split",
    "dataset_streaming", "gradient_checkpointing_use_reentrant", "ignore_bias_buffers", "datasets",
    "streaming", "test_split_size",
    // TrainingArguments
    "output_dir", "overwrite_output_dir", "do_train", "do_eval", "do_predict", "eval_strategy",
    "evaluation_strategy", "prediction_loss_only", "per_device_train_batch_size",
    "per_device_eval_batch_size", "per_gpu_train_batch_size", "per_gpu_eval_batch_size",
    "gradient_accumulation_steps", "eval_accumulation_steps", "eval_delay",
    "torch_empty_cache_steps", "learning_rate", "weight_decay", "adam_beta1", "adam_beta2",
    "adam_epsilon", "max_grad_norm", "num_train_epochs", "max_steps", "lr_scheduler_type",
    "lr_scheduler_kwargs", "warmup_ratio", "warmup_steps", "log_level", "log_level_replica",
    "log_on_each_node", "logging_dir", "logging_strategy", "logging_first_step", "logging_steps",
    "logging_nan_inf_filter", "save_strategy", "save_steps", "save_total_limit", "save_safetensors",
    "save_on_each_node", "save_only_model", "restore_callback_states_from_checkpoint", "no_cuda",
    "use_cpu", "use_mps_device", "seed", "data_seed", "jit_mode_eval", "use_ipex", "bf16", "fp16",
    "fp16_opt_level", "half_precision_backend", "fp16_backend", "bf16_full_eval", "fp16_full_eval",
    "tf32", "local_rank", "ddp_backend", "tpu_num_cores", "tpu_metrics_debug", "debug",
    "dataloader_drop_last", "eval_steps", "dataloader_num_workers", "dataloader_prefetch_factor",
    "past_index", "run_name", "disable_tqdm", "remove_unused_columns", "label_names",
    "load_best_model_at_end", "metric_for_best_model", "greater_is_better", "ignore_data_skip",
    "fsdp", "fsdp_min_num_params", "fsdp_config", "fsdp_transformer_layer_cls_to_wrap",
    "accelerator_config", "parallelism_config", "deepspeed", "label_smoothing_factor", "optim",
    "optim_args", "optim_target_modules", "adafactor", "group_by_length", "length_column_name",
    "train_sampling_strategy", "report_to", "project", "trackio_space_id",
    "ddp_find_unused_parameters", "ddp_bucket_cap_mb", "ddp_broadcast_buffers", "ddp_timeout",
    "dataloader_pin_memory", "dataloader_persistent_workers", "skip_memory_metrics",
    "use_legacy_prediction_loop", "push_to_hub", "resume_from_checkpoint", "hub_model_id",
    "hub_strategy", "hub_token", "hub_private_repo", "hub_always_push", "hub_revision",
    "push_to_hub_model_id", "push_to_hub_organization", "push_to_hub_token",
    "gradient_checkpointing", "gradient_checkpointing_kwargs", "include_inputs_for_metrics",
    "include_for_metrics", "eval_do_concat_batches", "mp_parameters", "auto_find_batch_size",
    "full_determinism", "torchdynamo", "ray_scope", "torch_compile", "torch_compile_backend",
    "torch_compile_mode", "dispatch_batches", "split_batches", "include_tokens_per_second",
    "include_num_input_tokens_seen", "neftune_noise_alpha", "batch_eval_metrics", "eval_on_start",
    "use_liger_kernel", "liger_kernel_config", "eval_use_gather_object",
    "average_tokens_across_devices", "enable_jit_checkpoint", "use_cache",
    // LoraConfig
    "task_type", "peft_type", "auto_mapping", "peft_version", "base_model_name_or_path", "revision",
    "inference_mode", "r", "target_modules", "exclude_modules", "fan_in_fan_out", "bias",
    "modules_to_save", "init_lora_weights", "layers_to_transform", "layers_pattern", "rank_pattern",
    "alpha_pattern", "megatron_config", "megatron_core", "trainable_token_indices", "loftq_config",
    "eva_config", "corda_config", "lora_ga_config", "alora_invocation_tokens", "use_qalora",
    "qalora_group_size", "layer_replication", "use_liger", "tp_size", "xpu_backend", "sharded_ddp",
    "runtime_config", "lora_bias", "target_parameters", "arrow_config", "ensure_weight_tying",
    "use_bdlora"};

class ForeignOptionTest : public ScratchTest {
 protected:
  ForeignOptionTest() { settings_.Declare(table_); }

  void Train(const Words& words) {
    VerbText text;
    text.positionals = {"config"};
    Parse(text, words);
  }
  std::string TrainError(const Words& words) {
    return InputError([&] { Train(words); });
  }
  void Parse(const VerbText& text, const Words& words) {
    notes_.clear();
    settings_ = TrainSettings();
    table_ = OptionTable();
    settings_.Declare(table_);
    ASSERT_FALSE(ParseCommandLine(words, text, table_, notes_));
  }
  const TrainOptions& options() const { return settings_.options; }

  TrainSettings settings_;
  OptionTable table_;
  Words notes_;
};

TEST_F(ForeignOptionTest, EveryKeyOfHuggingFaceIsKnown) {
  for (const char* key : kHuggingFaceKeys) {
    EXPECT_TRUE(table_.Find(key) != nullptr || IsForeignOption(key)) << key;
  }
}

TEST_F(ForeignOptionTest, WorkAsOptionsOfOurs) {
  Train({"--base",
         "model",
         "--out",
         "adapter",
         "--dataset_name",
         "a.jsonl",
         "--use_bnb_nested_quant",
         "false",
         "--bf16",
         "--torch_dtype",
         "bfloat16",
         "--bits",
         "4",
         "--seq-len",
         "512",
         "--iters",
         "60",
         "--save-every=10",
         "--grad_accum",
         "2",
         "--assistant_only_loss",
         "false",
         "--resume"});
  EXPECT_EQ(options().model_name_or_path, "model");
  EXPECT_EQ(options().output_dir, "adapter");
  EXPECT_THAT(options().data.dataset, ElementsAre("a.jsonl"));
  EXPECT_FALSE(options().quantization.bnb_4bit_use_double_quant);
  EXPECT_EQ(options().compute_dtype, "bfloat16");
  EXPECT_TRUE(options().load_in_4bit);
  EXPECT_EQ(options().data.reading.max_length, 512);
  EXPECT_EQ(options().max_steps, 60);
  EXPECT_EQ(options().save_steps, 10);
  EXPECT_EQ(options().gradient_accumulation_steps, 2);
  EXPECT_FALSE(options().data.reading.assistant_only_loss);
  EXPECT_EQ(options().resume_from_checkpoint, "auto");
  EXPECT_THAT(notes_, IsEmpty());
}

TEST_F(ForeignOptionTest, ListsAsInTrl) {
  Train({"--target-modules", "q_proj", "v_proj", "--train_files", "a.jsonl", "b.jsonl"});
  EXPECT_THAT(options().lora_target_modules, ElementsAre("q_proj", "v_proj"));
  EXPECT_THAT(options().data.dataset, ElementsAre("a.jsonl", "b.jsonl"));
}

TEST_F(ForeignOptionTest, WhatIsNotNeededIsNoted) {
  Train({"--use_peft", "--eval_strategy", "epoch", "--no_push_to_hub", "--do_train", "True"});
  EXPECT_THAT(notes_, Contains("--use_peft is not needed: an adapter is always trained"));
  EXPECT_THAT(
      notes_,
      Contains("--eval_strategy is not needed: evaluation after each epoch is the default"));
  EXPECT_EQ(notes_.size(), 4u);
  Train({"--group_by_length", "true", "--data_seed", "3"});
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("grouping would save nothing"),
                                  HasSubstr("seed alone decides the order")));
}

TEST_F(ForeignOptionTest, IntervalsByEpochAndShare) {
  Train({"--save_strategy", "epoch", "--eval_steps", "0.1"});
  EXPECT_EQ(options().saves_per_epoch, 1);
  EXPECT_EQ(options().eval_ratio, 0.1);
  Train({Write("share.yaml", "seed: 1\nsave_steps: 0.25\n")});
  EXPECT_EQ(options().save_ratio, 0.25);
}

TEST_F(ForeignOptionTest, WhatCannotBeDoneSaysWhatToWrite) {
  EXPECT_THAT(TrainError({"--push_to_hub"}), HasSubstr("nothing leaves this machine"));
  EXPECT_THAT(TrainError({"--fp16"}), HasSubstr("compute_dtype takes"));
  EXPECT_THAT(TrainError({"--fp32"}), HasSubstr("write --compute_dtype float32"));
  EXPECT_THAT(TrainError({"--quant", "nf4"}), HasSubstr("write --bnb_4bit_quant_type"));
  EXPECT_THAT(TrainError({"--load_in_8bit"}), HasSubstr("4 or in 16 bits"));
  EXPECT_THAT(TrainError({"--adapter-path", "a"}), HasSubstr("write --output_dir"));
  EXPECT_THAT(TrainError({"--bits=8"}), HasSubstr("write --load_in_4bit true or false"));
  EXPECT_THAT(TrainError({"--max-tokens", "9"}), HasSubstr("it is max_new_tokens"));
  EXPECT_THAT(TrainError({"-x"}), HasSubstr("-x: unknown option"));
}

TEST_F(ForeignOptionTest, AgreeWithOursOrAreRefused) {
  Train({"--compute_dtype", "bfloat16", "--bf16"});
  EXPECT_EQ(options().compute_dtype, "bfloat16");
  EXPECT_THAT(
      TrainError({"--max_steps", "5", "--iters", "6"}),
      HasSubstr("--iters: max_steps is given twice, the first time as --max_steps 5, now 6; "));
}

// The type in which weights are read is that of products where nothing else names theirs.
TEST_F(ForeignOptionTest, ALoadTypeYieldsToTheTypeOfProducts) {
  for (const char* name : {"--torch_dtype", "--dtype"}) {
    for (const Words& other : {Words{"--bf16", "true"}, {"--bnb_4bit_compute_dtype", "bfloat16"}}) {
      Words words = {name, "auto"};
      words.insert(words.end(), other.begin(), other.end());
      Train(words);
      EXPECT_EQ(options().compute_dtype, "bfloat16");
      EXPECT_THAT(notes_, ElementsAre(HasSubstr("is not needed: compute_dtype says")));
    }
  }
  Train({"--bf16", "auto", "--compute_dtype", "float32"});
  EXPECT_EQ(options().compute_dtype, "float32");
  Train({"--torch_dtype", "float32"});
  EXPECT_EQ(options().compute_dtype, "float32");
  for (const Words& words :
       {Words{"--torch_dtype", "torch.bfloat16", "--bnb_4bit_compute_dtype", "int8"},
        {"--bnb_4bit_compute_dtype", "int8", "--torch_dtype", "bfloat16"}}) {
    Train(words);
    EXPECT_EQ(options().compute_dtype, "int8");
    EXPECT_THAT(notes_, ElementsAre("--torch_dtype has no effect: --bnb_4bit_compute_dtype sets "
                                    "compute_dtype"));
  }
  for (const char* yaml : {"torch_dtype: bfloat16\nbnb_4bit_compute_dtype: int8\n",
                           "bnb_4bit_compute_dtype: int8\ntorch_dtype: bfloat16\n"}) {
    Train({Write("types.yaml", yaml)});
    EXPECT_EQ(options().compute_dtype, "int8");
    EXPECT_THAT(notes_, ElementsAre(HasSubstr("torch_dtype has no effect: ")));
  }
  EXPECT_THAT(TrainError({"--torch_dtype", "bfloat16", "--dtype", "float32"}),
              HasSubstr("compute_dtype is given twice"));
  // Whom one that yields agrees with does not yield.
  EXPECT_THAT(TrainError({"--torch_dtype", "bfloat16", "--bnb_4bit_compute_dtype", "bfloat16",
                          "--compute_dtype", "float32"}),
              HasSubstr("compute_dtype is given twice"));
  EXPECT_THAT(TrainError({Write("three.yaml",
                                "torch_dtype: bfloat16\nbnb_4bit_compute_dtype: bfloat16\n"
                                "compute_dtype: float32\n")}),
              HasSubstr("compute_dtype is given twice"));
}

TEST_F(ForeignOptionTest, WorkInYaml) {
  Train({Write("run.yaml",
               "model: m\ndata_files: [a.jsonl, b.jsonl]\nbf16: true\ntorch_dtype: bfloat16\n"
               "iters: 5\ngradient_checkpointing_kwargs: {use_reentrant: false}\n")});
  EXPECT_THAT(options().data.dataset, ElementsAre("a.jsonl", "b.jsonl"));
  EXPECT_EQ(options().compute_dtype, "bfloat16");
  EXPECT_EQ(options().max_steps, 5);
  EXPECT_THAT(notes_, ElementsAre(HasSubstr("run.yaml:6: gradient_checkpointing_kwargs")));
  EXPECT_THAT(TrainError({Write("twice.yaml", "max_steps: 4\niters: 5\n")}),
              HasSubstr("twice.yaml:2: iters: max_steps is given twice"));
  EXPECT_THAT(TrainError({Write("hub.yaml", "push_to_hub: true\n")}),
              AllOf(HasSubstr("hub.yaml:1"), HasSubstr("nothing leaves this machine")));
}

// A key that is ours as well may have a value that is not: `migrate` knows these, and so do the
// command line and YAML.
TEST_F(ForeignOptionTest, ValuesOfOtherTrainers) {
  Train({"--metric_for_best_model", "eval_loss", "--bnb_4bit_compute_dtype", "torch.bfloat16",
         "--optim", "adamw_hf", "--gradient_checkpointing", "unsloth", "--init_lora_weights",
         "True", "--warmup_steps", "0.05"});
  const auto expect = [&] {
    EXPECT_EQ(options().metric_for_best_model, "loss");
    EXPECT_EQ(options().compute_dtype, "bfloat16");
    EXPECT_EQ(options().optim, "adamw");
    EXPECT_TRUE(options().gradient_checkpointing);
    EXPECT_EQ(options().init_lora_weights, "default");
    EXPECT_EQ(options().warmup_ratio, 0.05);
    EXPECT_THAT(notes_, IsEmpty());
  };
  expect();
  Train({Write("values.yaml",
               "metric_for_best_model: eval_loss\nbnb_4bit_compute_dtype: bf16\noptim: adamw_hf\n"
               "gradient_checkpointing: unsloth\ninit_lora_weights: true\nwarmup_steps: 0.05\n")});
  expect();
  // The command line wins, as with values of ours.
  Train({Write("sgd.yaml", "optim: sgd\n"), "--optim", "adamw_apex_fused"});
  EXPECT_EQ(options().optim, "adamw");
  Train({"--gradient-checkpointing", "offload_disk"});
  EXPECT_TRUE(options().gradient_checkpointing);
  // The word behind a flag is a value only where a trainer has such a value.
  EXPECT_THAT(TrainError({"--packing", "unsloth"}), HasSubstr("unsloth"));
  Train({"--gradient_checkpointing", Write("empty.yaml", "")});
  EXPECT_TRUE(options().gradient_checkpointing);
}

TEST_F(ForeignOptionTest, ValuesThatCannotBeHadSayWhatToWrite) {
  EXPECT_THAT(TrainError({"--init_lora_weights", "gaussian"}), HasSubstr("true, pissa, olora"));
  EXPECT_THAT(TrainError({"--compute_dtype", "fp16"}),
              HasSubstr("--compute_dtype: fp16 is not supported: nothing is computed in float16"));
  for (const char* flag : {"--bf16=ture", "--fp16=fasle", "--bf16=2"}) {
    EXPECT_THAT(TrainError({flag}), HasSubstr("expected true, false or auto, found")) << flag;
  }
  EXPECT_THAT(TrainError({"--bf16", "ture"}), HasSubstr("expected true, false or auto, found"));
  EXPECT_THAT(
      TrainError({"--completion_only_loss", "ture"}),
      HasSubstr("train_on_inputs expects true or false, found 'ture'; did you mean 'true'?"));
  // A value that no trainer has is answered with the choices.
  EXPECT_THAT(TrainError({"--optim", "shampoo"}), HasSubstr("--optim: expects one of adamw"));
  EXPECT_THAT(TrainError({"--metric_for_best_model", "eval_rouge"}),
              HasSubstr("expects one of loss, token_accuracy, accuracy, brier, rewards/accuracies, "
                        "rewards/margins, found 'rouge'"));
  EXPECT_THAT(TrainError({"--max_steps", "many"}), HasSubstr("expects an integer, found 'many'"));
}

// As PEFT writes it into adapter_config.json, and as people write it by hand.
TEST_F(ForeignOptionTest, AWholeLoraConfig) {
  Train({Write("lora.yaml", R"({"task_type": "CAUSAL_LM", "peft_type": "LORA", "auto_mapping": null,
      "base_model_name_or_path": "m", "revision": null, "inference_mode": false, "r": 16,
      "target_modules": ["q_proj", "v_proj"], "exclude_modules": null, "lora_alpha": 32,
      "lora_dropout": 0.05, "fan_in_fan_out": false, "bias": "none", "use_rslora": false,
      "modules_to_save": null, "init_lora_weights": true, "layers_to_transform": null,
      "layers_pattern": null, "rank_pattern": {}, "alpha_pattern": {}, "megatron_config": null,
      "megatron_core": "megatron.core", "trainable_token_indices": null, "loftq_config": {},
      "eva_config": null, "corda_config": null, "use_dora": false, "use_qalora": false,
      "qalora_group_size": 16, "layer_replication": null, "lora_bias": false,
      "target_parameters": null, "runtime_config": {"ephemeral_gpu_offload": false}})")});
  EXPECT_EQ(options().lora_r, 16);
  EXPECT_EQ(options().init_lora_weights, "default");
  EXPECT_THAT(options().rank_pattern, IsEmpty());
  Train({Write("ranks.yaml",
               "rank_pattern: {q_proj: 8, 'layers.0.*v_proj': 4}\n"
               "alpha_pattern:\n  q_proj: 2.5\n")});
  EXPECT_THAT(options().rank_pattern, ElementsAre("q_proj=8", "layers.0.*v_proj=4"));
  EXPECT_THAT(options().alpha_pattern, ElementsAre("q_proj=2.5"));
  EXPECT_THAT(TrainError({Write("nested.yaml", "rank_pattern: {q_proj: [8]}\n")}),
              HasSubstr("nested.yaml:1: rank_pattern maps names to plain values"));
  EXPECT_THAT(TrainError({Write("map.yaml", "lora_r: {q_proj: 8}\n")}),
              HasSubstr("'lora_r' holds a map"));
}

TEST_F(ForeignOptionTest, VerbsHaveTheirOwnMeanings) {
  const std::unique_ptr<Verb> generate = MakeGenerateVerb();
  OptionTable table;
  generate->Declare(table);
  std::vector<std::string> notes;
  ParseCommandLine({"-m", "model", "-p", "a prompt", "-n", "50", "-t", "4", "-c", "512", "--temp",
                    "0.5", "--lora", "adapter"},
                   generate->text(), table, notes);
  EXPECT_EQ(table.Find("prompt")->ToString(), "a prompt");
  EXPECT_EQ(table.Find("max_new_tokens")->ToString(), "50");
  EXPECT_EQ(table.Find("threads")->ToString(), "4");
  EXPECT_EQ(table.Find("temperature")->ToString(), "0.5");
  EXPECT_EQ(table.Find("adapter")->ToString(), "adapter");
  EXPECT_THAT(notes, ElementsAre("-c is not needed: the context is that of the model"));
}

// Of llama-server and vLLM.
TEST_F(ForeignOptionTest, OptionsOfServers) {
  const auto read = [](const Words& words, const char* ours) {
    const std::unique_ptr<Verb> serve = MakeServeVerb();
    OptionTable table;
    serve->Declare(table);
    Words notes;
    ParseCommandLine(words, serve->text(), table, notes);
    return table.Find(ours)->ToString();
  };
  for (const char* name : {"-c", "--ctx-size", "--max-model-len"}) {
    EXPECT_EQ(read({"model", name, "64"}, "context_length"), "64") << name;
  }
  for (const char* name : {"-np", "--parallel", "--max-num-seqs"}) {
    EXPECT_EQ(read({"model", name, "64"}, "max_sequences"), "64") << name;
  }
  EXPECT_EQ(read({"model", "--alias", "x", "--metrics"}, "served_model_name"), "x");
}

// The rest of what people type who know llama.cpp, mlx-lm or Unsloth.
TEST_F(ForeignOptionTest, OtherPrograms) {
  const auto generate = [](const Words& words) {
    const std::unique_ptr<Verb> verb = MakeGenerateVerb();
    OptionTable table;
    verb->Declare(table);
    Words notes;
    ParseCommandLine(words, verb->text(), table, notes);
    notes.push_back(table.Find("model_name_or_path")->ToString() + ": " +
                    table.Find("prompt")->ToString());
    return notes;
  };
  for (const Words& flag :
       {Words{"-no-cnv"}, Words{"--no-conversation"}, Words{"-st"}, Words{"--single-turn"},
        Words{"-ub", "512"}, Words{"--ubatch-size", "512"}, Words{"--batch-size", "512"},
        Words{"--jinja"}, Words{"--no-mmap"}, Words{"--mlock"}, Words{"--color"},
        Words{"--presence-penalty", "0"}}) {
    Words words = {"-hf", "org/model", "-p", "Hi"};
    words.insert(words.end(), flag.begin(), flag.end());
    EXPECT_THAT(generate(words),
                ElementsAre(HasSubstr(flag[0] + " is not needed: "), "org/model: Hi"));
  }
  for (const auto& [flag, answer] :
       {std::pair("--output_dir=o",
                  "--output_dir: this verb has no such option; `qlora train` has it"),
        {"--lora-rank=4",
         "--lora-rank: this verb has no such option; it is lora_r of `qlora train`"},
        {"--max-length=5",
         "--max-length: counts the prompt and the answer together, and is no option here; write "
         "--max_new_tokens, the length of the answer"},
        {"-o", "-o: this verb has no such option; it is output where a verb has it"}}) {
    EXPECT_EQ(InputError([&, flag = flag] { generate({flag}); }), answer);
  }
  for (const auto& [flag, advice] : {std::pair("--hf-file", "qlora pull"),
                                     {"--model-url", "qlora pull"},
                                     {"-e", "--prompt_file"},
                                     {"--repeat-last-n=64", "--repetition_penalty"},
                                     {"--presence-penalty=0.5", "--repetition_penalty"},
                                     {"--frequency-penalty=1", "--repetition_penalty"},
                                     {"--ignore-eos", "--max_new_tokens"},
                                     {"--lora-scaled=a", "--adapter"}}) {
    EXPECT_THAT(InputError([&, flag = flag] { generate({flag}); }), HasSubstr(advice)) << flag;
  }
  Train({"--use_gradient_checkpointing", "unsloth", "--random_state", "3407", "--dropout", "0.05",
         "--chat-template-file", "t.jinja", "--clear_cache_threshold", "1", "--test_batches", "2",
         "--tp_size", "0", "--use_liger", "true", "--xpu_backend", "ccl"});
  EXPECT_TRUE(options().gradient_checkpointing);
  EXPECT_EQ(options().seed, 3407);
  EXPECT_EQ(options().lora_dropout, 0.05);
  EXPECT_EQ(options().data.chat.chat_template, "t.jinja");
  EXPECT_EQ(notes_.size(), 5u);
  EXPECT_THAT(TrainError({"--scale", "20"}), HasSubstr("write --lora_alpha"));
  EXPECT_THAT(TrainError({"--sharded_ddp", "simple"}), HasSubstr("mpirun or torchrun"));
}

TEST_F(ForeignOptionTest, AShortFlagLeavesTheWordsBehindItsValue) {
  const std::unique_ptr<Verb> generate = MakeGenerateVerb();
  OptionTable table;
  generate->Declare(table);
  std::vector<std::string> notes;
  ParseCommandLine({"-n", "50", "model", "a prompt"}, generate->text(), table, notes);
  EXPECT_EQ(table.Find("model_name_or_path")->ToString(), "model");
  EXPECT_EQ(table.Find("prompt")->ToString(), "a prompt");
}

TEST_F(ForeignOptionTest, AFlagLeavesTheWordsBehindIt) {
  const std::unique_ptr<Verb> generate = MakeGenerateVerb();
  OptionTable table;
  generate->Declare(table);
  std::vector<std::string> notes;
  ParseCommandLine({"--flash_attn", "model", "--verbose", "a prompt"}, generate->text(), table,
                   notes);
  EXPECT_EQ(table.Find("model_name_or_path")->ToString(), "model");
  Train({"--run_name", "my-run", "--fp16", "false", "--use_peft", "--model", "m"});
  EXPECT_EQ(options().model_name_or_path, "m");
}

TEST_F(ForeignOptionTest, HomeFoldersAreExpanded) {
  const char* home = std::getenv("HOME");
  const std::string before = home == nullptr ? "" : home;
  setenv("HOME", "/home/me", 1);
  Train({"--model=~/m", "--dataset", "~/a.jsonl,b~.jsonl",
         Write("run.yaml", "output_dir: ~/out\nsample_prompts: [~/not a path]\n")});
  setenv("HOME", before.c_str(), 1);
  EXPECT_EQ(options().model_name_or_path, "/home/me/m");
  EXPECT_THAT(options().data.dataset, ElementsAre("/home/me/a.jsonl", "b~.jsonl"));
  EXPECT_EQ(options().output_dir, "/home/me/out");
  EXPECT_THAT(options().sample_prompts, ElementsAre("~/not a path"));
}

TEST(ForeignVerb, NamesTheRightOne) {
  for (const auto& [verb, advice] : {std::pair("merge", "--format hf"),
                                     {"finetune", "qlora train"},
                                     {"sft", "qlora train"},
                                     {"lora", "qlora train"},
                                     {"perplexity", "qlora eval"},
                                     {"server", "qlora serve"},
                                     {"download", "qlora pull"},
                                     {"preprocess", "qlora inspect"},
                                     {"continue", "qlora resume OUTPUT_DIR"}}) {
    EXPECT_THAT(VerbAdvice(verb), HasSubstr(advice)) << verb;
  }
  EXPECT_EQ(VerbAdvice("trian"), "");
  for (const std::unique_ptr<Verb>& verb : AllVerbs()) {
    EXPECT_EQ(VerbAdvice(verb->text().name), "") << verb->text().name;
  }
}

}  // namespace
}  // namespace qlora
