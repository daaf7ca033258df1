// Configurations of other trainers: every key accounted for, and a result that our parser takes.
#include "migrate/migrate.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <map>

#include "cli/tiny_model.h"
#include "command/config_file.h"
#include "test_build.h"
#include "training/train_settings.h"

namespace qlora {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

fs::path Example(const std::string& name) { return SourceDir() / "tests/cli/migrate" / name; }

class MigrateTest : public TinyModelTest {
 protected:
  Migration FromFile(const std::string& name) {
    const Migration migration = Migrate(ReadAll(Example(name)), name, "auto");
    for (const MigratedKey& key : migration.keys) {
      EXPECT_FALSE(key.text.empty()) << key.key;
      keys_[key.key] = key;
    }
    ReadBack(migration.yaml);
    return migration;
  }
  void ReadBack(const std::string& yaml) {
    settings_ = TrainSettings();
    OptionTable table;
    settings_.Declare(table);
    std::vector<std::string> notes;
    ReadConfigFile(Write("migrated.yaml", yaml), table, notes);
    EXPECT_TRUE(notes.empty()) << "a key of another trainer is left";
  }
  Fate FateOf(const std::string& key) const { return keys_.at(key).fate; }
  const TrainOptions& options() const { return settings_.options; }

  std::map<std::string, MigratedKey> keys_;
  TrainSettings settings_;
};

TEST_F(MigrateTest, Axolotl) {
  const Migration migration = FromFile("axolotl.yaml");
  EXPECT_EQ(migration.tool, "Axolotl");
  EXPECT_EQ(options().model_name_or_path, "model");
  EXPECT_TRUE(options().load_in_4bit);
  EXPECT_EQ(options().lora_r, 32);
  EXPECT_EQ(options().lora_alpha, 16);
  EXPECT_EQ(options().lora_target_modules, std::vector<std::string>{"all-linear"});
  EXPECT_TRUE(options().use_rslora);
  EXPECT_EQ(options().data.dataset, (std::vector<std::string>{"data.jsonl", "org/other-data"}));
  EXPECT_EQ(options().data.reading.dataset_format, "auto");
  EXPECT_EQ(options().data.reading.max_length, 64);
  EXPECT_EQ(options().per_device_train_batch_size, 2);
  EXPECT_EQ(options().num_train_epochs, 3);
  EXPECT_EQ(options().max_grad_norm, 0.5);
  EXPECT_TRUE(options().gradient_checkpointing);
  for (const char* key :
       {"deepspeed", "wandb_project", "made_up_key", "datasets[1].type", "datasets[1].field"}) {
    EXPECT_EQ(FateOf(key), Fate::kUnsupported) << key;
  }
  EXPECT_EQ(options().saves_per_epoch, 1);
  EXPECT_EQ(options().evals_per_epoch, 4);
  EXPECT_EQ(FateOf("special_tokens.pad_token"), Fate::kNotNeeded);
  EXPECT_EQ(FateOf("datasets[0].type"), Fate::kNotNeeded);
  for (const char* key : {"lora_model_dir", "flash_attention", "fp16", "group_by_length"}) {
    EXPECT_EQ(FateOf(key), Fate::kNotNeeded) << key;
  }
  EXPECT_THAT(migration.yaml,
              AllOf(HasSubstr("#   deepspeed: ds.json"), HasSubstr("#   flash_attention: true")));
}

TEST_F(MigrateTest, TheFormatOfDataSetsOfDifferentTypesIsDetected) {
  const auto migrate = [&](const std::string& second, const std::string& test) {
    const Migration migration = Migrate(
        "base_model: m\ndatasets:\n  - path: a.jsonl\n    type: alpaca\n  - path: b.jsonl\n    "
        "type: " +
            second + "\ntest_datasets:\n  - path: c.jsonl\n    type: " + test + "\n",
        "a.yaml", "axolotl");
    for (const MigratedKey& key : migration.keys) keys_[key.key] = key;
    ReadBack(migration.yaml);
  };
  migrate("alpaca", "alpaca");
  EXPECT_EQ(options().data.reading.dataset_format, "alpaca");
  EXPECT_EQ(FateOf("datasets[1].type"), Fate::kCarried);
  for (const auto& [second, test] :
       {std::pair("chat_template", "alpaca"), {"alpaca", "completion"}}) {
    migrate(second, test);
    EXPECT_EQ(options().data.reading.dataset_format, "auto");
    EXPECT_EQ(options().data.reading.prompt_layout, "text");
    EXPECT_EQ(options().data.dataset, (std::vector<std::string>{"a.jsonl", "b.jsonl"}));
    for (const char* key : {"datasets[0].type", "test_datasets[0].type"}) {
      EXPECT_THAT(keys_.at(key).text, HasSubstr("the format of each file is detected")) << key;
    }
  }
}

TEST_F(MigrateTest, AFieldWithoutATypeIsAFieldOfTexts) {
  const Migration migration = Migrate(
      "base_model: model\nadapter: qlora\ndatasets:\n  - path: data.jsonl\n    field: text\n",
      "x.yaml", "axolotl");
  EXPECT_THAT(migration.yaml, HasSubstr("dataset: [data.jsonl]"));
  ReadBack(migration.yaml);
}

TEST_F(MigrateTest, TheTestSplitOfTrlIsToBeGiven) {
  const auto fate = [&](const std::string& lines) {
    keys_.clear();
    const std::string text = "model_name_or_path: m\nuse_peft: true\ndataset_name: d.jsonl\n";
    for (const MigratedKey& key : Migrate(text + lines, "x.yaml", "trl").keys) keys_[key.key] = key;
    return keys_.contains("eval_strategy") && keys_["eval_strategy"].fate == Fate::kUnsupported
               ? keys_["eval_strategy"].text
               : "";
  };
  EXPECT_THAT(fate("eval_strategy: steps\n"), HasSubstr("give its file as eval_dataset"));
  EXPECT_THAT(fate("eval_strategy: epoch\n"), HasSubstr("give its file as eval_dataset"));
  // A split that is named is answered by itself.
  EXPECT_EQ(fate("eval_strategy: steps\ndataset_test_split: validation\n"), "");
  EXPECT_EQ(fate("eval_strategy: \"no\"\n"), "");
  EXPECT_EQ(fate(""), "");
}

TEST_F(MigrateTest, AKeyOfTwoLinesIsOneComment) {
  const Migration migration =
      Migrate("base_model: model\nadapter: qlora\n\"a\\nlora_r\": 4\n", "x.yaml", "axolotl");
  EXPECT_THAT(migration.yaml, HasSubstr("#   a lora_r: 4  (not a key"));
  ReadBack(migration.yaml);
}

TEST_F(MigrateTest, WhatWouldHaveNoEffectIsLeftOut) {
  const Migration migration = Migrate(
      "base_model: m\nmicro_batch_size: 1\nsequence_len: 64\noptimizer: adamw_torch\n"
      "lr_scheduler: constant\nwarmup_steps: 5\neval_steps: 10\n",
      "a.yaml", "axolotl");
  ReadBack(migration.yaml);
  TrainOptions without_default = options();
  without_default.warmup_ratio = 0;  // which Complete sets for a constant schedule
  EXPECT_TRUE(without_default.Idle().empty());
  EXPECT_EQ(options().warmup_steps, 0);
  EXPECT_EQ(options().eval_steps, 0);
  for (const MigratedKey& key : migration.keys) {
    if (key.key != "warmup_steps" && key.key != "eval_steps") continue;
    EXPECT_EQ(key.fate, Fate::kNotNeeded) << key.key;
    EXPECT_THAT(key.text, HasSubstr("would have no effect"));
  }
}

TEST_F(MigrateTest, LlamaFactory) {
  const Migration migration = FromFile("llama_factory.yaml");
  EXPECT_EQ(migration.tool, "LLaMA-Factory");
  EXPECT_TRUE(options().load_in_4bit);
  EXPECT_EQ(options().lora_r, 4);
  EXPECT_EQ(options().lora_alpha, 8);  // twice the rank, as there
  EXPECT_EQ(options().data.dataset, std::vector<std::string>{"data.jsonl[:1000]"});
  EXPECT_EQ(options().data.reading.over_long, "truncate");
  EXPECT_EQ(options().compute_dtype, "bfloat16");
  EXPECT_EQ(options().save_steps, 500);
  EXPECT_THAT(keys_.at("dataset[1]").text, HasSubstr("'identity' is a name of dataset_info.json"));
  EXPECT_EQ(FateOf("template"), Fate::kCarried);
  EXPECT_EQ(options().data.chat.chat_template, "llama3_untrimmed");
  EXPECT_EQ(options().data.reading.prompt_layout, "chat");
  EXPECT_EQ(FateOf("max_samples"), Fate::kCarried);
  EXPECT_EQ(FateOf("stage"), Fate::kNotNeeded);
}

TEST_F(MigrateTest, NamesOfDatasetInfo) {
  fs::create_directory(scratch_ / "data");
  Write("data/dataset_info.json", R"({
    "plain": {"file_name": "a.json"},
    "turns": {"file_name": "b.json", "formatting": "sharegpt",
              "columns": {"messages": "conversations", "system": "system", "tools": "tools"}},
    "messages": {"file_name": "c.json", "formatting": "sharegpt", "columns": {"messages": "messages"},
                 "tags": {"role_tag": "role", "content_tag": "content", "user_tag": "user",
                          "assistant_tag": "assistant", "system_tag": "system"}},
    "tales": {"hf_hub_url": "org/tales"},
    "odd": [], "empty": {"hf_hub_url": null, "columns": 3, "tags": null},
    "faq": {"file_name": "d.json",
            "columns": {"prompt": "question", "query": "context", "response": "answer"}},
    "faq2": {"file_name": "e.json",
             "columns": {"prompt": "question", "query": "context", "response": "answer"}},
    "faq3": {"file_name": "j.json",
             "columns": {"prompt": "question", "query": "context", "response": "reply"}},
    "pairs": {"file_name": "f.json", "ranking": true},
    "images": {"file_name": "g.json", "columns": {"images": "images"}},
    "part": {"hf_hub_url": "org/tales", "subset": "old"},
    "chat": {"file_name": "h.json", "formatting": "sharegpt", "columns": {"messages": "chat"}},
    "bots": {"file_name": "i.json", "formatting": "sharegpt", "tags": {"role_tag": "from",
             "content_tag": "value", "user_tag": "human", "assistant_tag": "robot"}}})");
  nlohmann::json result;
  const auto migrate = [&](const std::string& lines) {
    Write("lf.yaml", "stage: sft\nfinetuning_type: lora\n" + lines);
    result = nlohmann::json::parse(Run({"migrate", "lf.yaml", "--json"}).out);
    ReadBack(result.at("configuration").get<std::string>());
  };
  const auto remark = [&](const std::string& key) {
    for (const nlohmann::json& entry : result.at("keys")) {
      if (entry.at("key") == key) {
        return entry.at("fate").get<std::string>() + ": " + entry.at("text").get<std::string>();
      }
    }
    return "no key " + key;
  };
  using Files = std::vector<std::string>;
  migrate("dataset: plain,turns,messages,tales\n");
  EXPECT_EQ(result.at("not_supported"), 0) << result;
  EXPECT_EQ(options().data.dataset,
            (Files{"data/a.json", "data/b.json", "data/c.json", "org/tales"}));
  EXPECT_EQ(options().data.reading.prompt_template, "");
  EXPECT_EQ(options().data.reading.dataset_format, "auto");

  // Columns with other names: the text of Alpaca records, of those fields.
  migrate("dataset: faq, faq2, plain\neval_dataset: faq\ndataset_dir: data\n");
  EXPECT_EQ(options().data.dataset, (Files{"data/d.json", "data/e.json"}));
  EXPECT_EQ(options().data.eval_dataset, Files{"data/d.json"});
  EXPECT_EQ(options().data.reading.prompt_layout, "chat");
  EXPECT_EQ(options().data.reading.prompt_template,
            "[[{question}]][[{?question}{?context}\n]][[{context}]]");
  EXPECT_EQ(options().data.reading.completion_template, "{answer}");
  const auto has_other_columns = [](const std::string& name) {
    return HasSubstr("not_supported: '" + name + "' has other columns than the data set before");
  };
  EXPECT_THAT(remark("dataset[2]"), has_other_columns("plain"));
  EXPECT_THAT(remark("dataset_dir"), HasSubstr("not_needed: its dataset_info.json is read"));
  // Files by themselves, and columns of yet other names.
  for (const char* other : {"other.json", "faq3"}) {
    for (const bool first : {false, true}) {
      migrate(fmt::format("dataset: {}\ndataset_dir: data\n",
                          first ? fmt::format("{}, faq", other) : fmt::format("faq, {}", other)));
      EXPECT_EQ(options().data.dataset.size(), 1U);
      EXPECT_THAT(remark("dataset[1]"), has_other_columns(first ? "faq" : other));
    }
  }

  migrate("dataset: [pairs, images, part, chat, bots, unknown]\n");
  EXPECT_EQ(result.at("not_supported"), 6);
  EXPECT_THAT(remark("dataset[0]"), HasSubstr("preference pairs are not trained on"));
  EXPECT_THAT(remark("dataset[1]"), HasSubstr("the column images is not read"));
  EXPECT_THAT(remark("dataset[2]"), HasSubstr("name the files of the part"));
  EXPECT_THAT(remark("dataset[3]"), HasSubstr("rename the fields"));
  EXPECT_THAT(remark("dataset[4]"), HasSubstr("assistant_tag 'robot' is not known"));
  EXPECT_THAT(remark("dataset[5]"), HasSubstr("give its file as dataset"));
  migrate("dataset: odd, empty\n");
  EXPECT_THAT(remark("dataset[0]"), HasSubstr("expected an object"));
  EXPECT_THAT(remark("dataset[1]"), HasSubstr("file_name is missing"));
  migrate("dataset: plain\ndataset_dir: elsewhere\n");
  EXPECT_EQ(result.at("not_supported"), 2);

  Write("data/dataset_info.json", "{");
  migrate("dataset: plain\n");
  EXPECT_THAT(remark("dataset"), HasSubstr("data/dataset_info.json"));
  const Outcome strict = Run({"migrate", "lf.yaml", "--json", "--strict"});
  EXPECT_EQ(strict.code, 2);
  EXPECT_EQ(nlohmann::json::parse(strict.out).at("ok"), false);
}

TEST_F(MigrateTest, TrlAndItsDefaults) {
  const Migration migration = FromFile("trl.yaml");
  EXPECT_EQ(migration.tool, "TRL");
  EXPECT_EQ(options().data.dataset, std::vector<std::string>{"data.jsonl"});
  EXPECT_EQ(options().learning_rate, 2e-4);
  EXPECT_FALSE(options().data.reading.train_on_inputs);
  EXPECT_EQ(options().save_steps, 0);
  EXPECT_EQ(options().lora_target_modules, (std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_EQ(options().lr_scheduler_type, "linear");
  EXPECT_EQ(options().num_train_epochs, 3);
  EXPECT_EQ(options().per_device_train_batch_size, 8);
  EXPECT_EQ(options().lora_dropout, 0.05);
  EXPECT_THAT(migration.yaml, HasSubstr("lr_scheduler_type: linear  # the default of TRL\n"));
}

TEST_F(MigrateTest, RunsAreDeterministicAnyway) {
  const Migration migration = Migrate("full_determinism: true\n", "t.yaml", "trl");
  ReadBack(migration.yaml);
  EXPECT_EQ(migration.keys.front().fate, Fate::kNotNeeded) << migration.keys.front().key;
}

TEST_F(MigrateTest, ClassesSpelledAsJson) {
  const Migration migration = FromFile("trl_classes.json");
  EXPECT_EQ(migration.tool, "TRL");
  EXPECT_EQ(options().max_steps, 2);
  EXPECT_EQ(options().lora_r, 4);
  EXPECT_EQ(options().lora_target_modules, std::vector<std::string>{"all-linear"});
  EXPECT_EQ(options().compute_dtype, "bfloat16");
  EXPECT_EQ(FateOf("fp16"), Fate::kUnsupported);
  EXPECT_EQ(FateOf("bias"), Fate::kNotNeeded);
}

TEST_F(MigrateTest, ClassesHaveTheDefaultsOfTheirLibraries) {
  const Migration migration = Migrate(
      "LoraConfig: {r: 4, target_modules: [q_proj], task_type: CAUSAL_LM}\n"
      "BitsAndBytesConfig: {load_in_4bit: true}\n",
      "t.yaml", "auto");
  ReadBack(migration.yaml);
  EXPECT_EQ(options().lora_r, 4);
  EXPECT_EQ(options().lora_alpha, 8);
  EXPECT_EQ(options().lora_dropout, 0);
  EXPECT_EQ(options().quantization.bnb_4bit_quant_type, "fp4");
  EXPECT_FALSE(options().quantization.bnb_4bit_use_double_quant);
  EXPECT_THAT(migration.yaml,
              AllOf(HasSubstr("lora_alpha: 8  # the default of PEFT\n"),
                    HasSubstr("lora_dropout: 0  # the default of PEFT\n"),
                    HasSubstr("bnb_4bit_quant_type: fp4  # the default of transformers\n"),
                    HasSubstr("bnb_4bit_use_double_quant: false  # the default of transformers\n"),
                    HasSubstr("learning_rate: 2e-5  # the default of TRL\n")));
}

TEST_F(MigrateTest, DoubleQuantizationIsThatOfTheTrainer) {
  const auto migrate = [&](const std::string& yaml) {
    const Migration migration = Migrate(yaml, "x.yaml", "auto");
    ReadBack(migration.yaml);
    return migration.yaml;
  };
  EXPECT_THAT(migrate("use_peft: true\nload_in_4bit: true\n"),
              HasSubstr("bnb_4bit_use_double_quant: false  # the default of TRL\n"));
  EXPECT_EQ(options().quantization.bnb_4bit_quant_type, "nf4");
  migrate("use_peft: true\nload_in_4bit: true\nuse_bnb_nested_quant: true\n");
  EXPECT_TRUE(options().quantization.bnb_4bit_use_double_quant);
  // Without a quantized base it would have no effect, which `train` refuses.
  EXPECT_THAT(migrate("use_peft: true\n"), Not(HasSubstr("double_quant")));
  // The defaults of these two are ours.
  for (const char* yaml : {"base_model: m\nadapter: qlora\nload_in_4bit: true\n",
                           "stage: sft\nquantization_bit: 4\n"}) {
    migrate(yaml);
    EXPECT_TRUE(options().quantization.bnb_4bit_use_double_quant) << yaml;
    EXPECT_EQ(options().quantization.bnb_4bit_quant_type, "nf4") << yaml;
  }
}

TEST_F(MigrateTest, ValuesOfOtherTrainers) {
  ReadBack(Migrate("use_peft: true\ninit_lora_weights: true\nrank_pattern: {q_proj: 8}\n"
                   "alpha_pattern: {}\noptim: adamw_hf\nwarmup_steps: 0.1\nmax_steps: 0\n",
                   "t.yaml", "trl")
               .yaml);
  EXPECT_EQ(options().init_lora_weights, "default");
  EXPECT_EQ(options().rank_pattern, std::vector<std::string>{"q_proj=8"});
  EXPECT_TRUE(options().alpha_pattern.empty());
  EXPECT_EQ(options().optim, "adamw");
  EXPECT_EQ(options().warmup_ratio, 0.1);
  EXPECT_EQ(options().max_steps, -1);
}

// Where the text that is trained on may be another one, the list says so and --strict fails.
TEST_F(MigrateTest, TextsThatMayDifferAreNotSupported) {
  const std::string factory = "stage: sft\nfinetuning_type: lora\ndataset: d.jsonl\n";
  const std::string axolotl = "base_model: m\nmicro_batch_size: 1\n";
  const auto data = [&](const std::string& keys) {
    return axolotl + "datasets:\n  - path: d.jsonl\n" + keys;
  };
  for (const auto& [yaml, key, said] :
       {std::tuple(factory + "template: qwen3\n", "template", "TEXT MAY DIFFER"),
        {axolotl + "chat_template: gemma\n", "chat_template", "TEXT MAY DIFFER"},
        {data("    type: sharegpt\n"), "datasets[0].type", "text may differ"},
        {data("    type: context_qa.load_v2\n"), "datasets[0].type", "text may differ"},
        {data("    type: input_output\n"), "datasets[0].type", "input_ids"},
        {data("    type: completion\n    field: body\n"), "datasets[0].field", "rename the field"},
        {data("    type: chat_template\n    train_on_eos: last\n"), "datasets[0].train_on_eos",
         "other tokens are trained on"},
        // A part that also goes when the instruction is empty, and brackets that are marks here.
        {data("    type: {field_instruction: a, field_input: b, field_output: c, format: 'x "
              "{instruction} {input}', no_input_format: 'y {instruction}'}\n"),
         "datasets[0].type", "text may differ"},
        {data("    type: {field_instruction: a, field_output: c, format: '[[{instruction}]]'}\n"),
         "datasets[0].type", "text may differ"},
        {data("    type: {field_instruction: a, field_output: c, format: '{instruction}', "
              "system_format: '{system}', system_prompt: 'x]]y'}\n"),
         "datasets[0].type", "text may differ"},
        {data("    type: {field_instruction: a, field_output: c, format: '{instruction}', "
              "system_format: '{system}]', system_prompt: 'x]'}\n"),
         "datasets[0].type", "text may differ"}}) {
    const Migration migration = Migrate(yaml, "x.yaml", "auto");
    const auto found = std::find_if(migration.keys.begin(), migration.keys.end(),
                                    [&key = key](const MigratedKey& k) { return k.key == key; });
    ASSERT_NE(found, migration.keys.end()) << yaml;
    EXPECT_EQ(found->fate, Fate::kUnsupported) << yaml << found->text;
    EXPECT_THAT(found->text, HasSubstr(said));
    ReadBack(migration.yaml);
  }
}

// A prompt_template lays out all files, so the first data set decides whether there is one.
TEST_F(MigrateTest, TypesWithAndWithoutTemplatesAreNotMixed) {
  const auto migrate = [&](std::initializer_list<const char*> types) {
    std::string yaml = "base_model: m\ndatasets:\n";
    for (const char* type : types) yaml += fmt::format("  - path: d.jsonl\n    type: {}\n", type);
    const Migration migration = Migrate(yaml, "x.yaml", "axolotl");
    for (const MigratedKey& key : migration.keys) keys_[key.key] = key;
    ReadBack(migration.yaml);
  };
  const auto expect_refused = [&](const std::string& key) {
    EXPECT_EQ(FateOf(key), Fate::kUnsupported) << key;
    EXPECT_THAT(keys_.at(key).text, HasSubstr("cannot be in one run here"));
  };
  const char* const map =
      "{field_instruction: a, field_output: c, format: 'Ask {instruction} Answer'}";
  for (const char* with_template : {"alpaca_chat.load_qa", map}) {
    for (const char* other : {"alpaca", "completion", "context_qa.load_v2", "input_output"}) {
      migrate({with_template, other});
      EXPECT_EQ(options().data.reading.dataset_format, "template") << other;
      expect_refused("datasets[1].type");
      migrate({other, with_template});
      EXPECT_EQ(options().data.reading.prompt_template, "") << other;
      expect_refused("datasets[1].type");
    }
    // Formats that are detected stay so.
    migrate({"alpaca", "completion", with_template});
    EXPECT_EQ(options().data.reading.dataset_format, "auto");
    EXPECT_EQ(options().data.reading.prompt_template, "");
    EXPECT_EQ(options().data.reading.completion_template, "");
    expect_refused("datasets[2].type");
  }
}

TEST_F(MigrateTest, AKeyThatNamesAnotherMethodIsNotCarriedOver) {
  for (const auto& [yaml, key] : std::map<std::string, std::string>{
           {"use_peft: true\nloss_type: dft\n", "loss_type"},
           {"finetuning_type: full\nstage: sft\n", "finetuning_type"},
           {"quantization_bit: 8\nstage: sft\n", "quantization_bit"},
           {"base_model: m\nadapter: llama-adapter\n", "adapter"},
           {"base_model: m\nload_in_8bit: true\n", "load_in_8bit"},
           {"use_peft: false\ndataset_name: a\n", "use_peft"},
           {"use_peft: true\nlr_scheduler_type: odd\n", "lr_scheduler_type"},
           {"use_peft: true\nlora_r: many\n", "lora_r"},
           {"use_peft: true\nreport_to: wandb\n", "report_to"}}) {
    const Migration migration = Migrate(yaml, "x.yaml", "auto");
    const auto found = std::find_if(migration.keys.begin(), migration.keys.end(),
                                    [&key = key](const MigratedKey& k) { return k.key == key; });
    ASSERT_NE(found, migration.keys.end()) << yaml;
    EXPECT_EQ(found->fate, Fate::kUnsupported) << yaml << found->text;
    ReadBack(migration.yaml);
  }
}

TEST_F(MigrateTest, TellsOrAsksWhichTrainerItIs) {
  EXPECT_THAT(InputError([] { Migrate("seed: 1\n", "x.yaml", "auto"); }), HasSubstr("--from"));
  EXPECT_THAT(InputError([] { Migrate("- a\n", "x.yaml", "auto"); }), HasSubstr("x.yaml"));
  EXPECT_THAT(InputError([] { Migrate("a: [\n", "x.yaml", "auto"); }), HasSubstr("x.yaml:"));
  EXPECT_EQ(Migrate("seed: 1\n", "x.yaml", "trl").tool, "TRL");
}

TEST_F(MigrateTest, TrainNamesTheVerbForTheFile) {
  const auto refused = [&](const std::string& name, const std::string& text) {
    return Refused({"train", Write(name, text)});
  };
  const std::string advice = "(a configuration of another trainer: qlora migrate ";
  EXPECT_THAT(refused("lf.yaml", "stage: sft\nfinetuning_type: lora\nbogus: 1\n"),
              AllOf(HasSubstr("unknown option 'bogus'"), HasSubstr(advice)));
  EXPECT_THAT(refused("nested.yaml", "SFTConfig:\n  max_length: 64\n"), HasSubstr(advice));
  EXPECT_THAT(refused("run.yaml", "task_type: CAUSAL_LM\nbogus: 1\n"), Not(HasSubstr(advice)));
  // Two lines of JSON are two documents of YAML, which is not what is wrong.
  for (const char* data : {R"({"prompt": "a"})", "{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n"}) {
    EXPECT_THAT(refused("d.jsonl", data),
                AllOf(HasSubstr("d.jsonl: expected a configuration, found data; data are given as "
                                "--dataset "),
                      Not(HasSubstr("document"))));
  }
  EXPECT_THAT(refused("method.yaml", "quantization_method: bnb\nbogus: 1\n"),
              AllOf(HasSubstr("unknown option 'bogus'"), Not(HasSubstr("outtype"))));
  EXPECT_THAT(refused("method.yaml", "quantization_method: hqq\n"), HasSubstr("--load_in_4bit"));
}

TEST_F(MigrateTest, TheProgramWritesWhatValidateAccepts) {
  for (const char* name : {"trl.yaml", "trl_classes.json"}) {
    const Outcome outcome =
        Run({"migrate", Example(name).string(), "--out", "run.yaml", "--overwrite"});
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.out, "");
    EXPECT_THAT(outcome.err, HasSubstr("to check it: qlora validate run.yaml\n"));
    const Outcome valid = Run({"validate", "run.yaml", "--max_memory", "100GB"});
    EXPECT_EQ(valid.code, 0) << name << valid.err << ReadAll(scratch_ / "run.yaml");
  }
  const std::string mine = Write("mine.yaml", "precious\n");
  EXPECT_THAT(Refused({"migrate", Example("trl.yaml").string(), "--out", "mine.yaml"}),
              HasSubstr("give --overwrite to replace it"));
  EXPECT_EQ(
      Run({"migrate", Example("trl.yaml").string(), "--out", "mine.yaml", "--overwrite"}).code, 0);
  const std::string axolotl = Example("axolotl.yaml").string();
  EXPECT_THAT(Run({"migrate", axolotl, "--out", "part.yaml"}).err,
              HasSubstr("written: part.yaml, without what is not supported\nto check it: "));
  const Outcome strict = Run({"migrate", axolotl, "--strict"});
  EXPECT_EQ(strict.code, 2);
  EXPECT_EQ(strict.out, "");
  EXPECT_THAT(Run({"migrate", axolotl}).out, HasSubstr("lora_r: 32\n"));
}

}  // namespace
}  // namespace qlora
