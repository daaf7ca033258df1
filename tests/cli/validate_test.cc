// `qlora validate`, `train --dry-run` and `config-schema`.
#include <gmock/gmock.h>

#include <cstdlib>
#include <regex>

#include "backend/backend.h"
#include "cli/tiny_model.h"
#include "command/config_file.h"
#include "test_build.h"
#include "training/train_settings.h"

namespace qlora {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

class ValidateTest : public TinyModelTest {
 protected:
  // Runs a command that must not write anything.
  Outcome Harmless(const Words& words) const {
    const auto before = Everything();
    Outcome outcome = Run(words);
    EXPECT_TRUE(before == Everything()) << "files changed";
    return outcome;
  }
};

TEST_F(ValidateTest, AGoodRunIsDescribedAndNothingIsWritten) {
  const Outcome outcome = Harmless({"validate", "base.yaml"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out,
              AllOf(HasSubstr("data.jsonl: JSON Lines, format text, 8 of 8 records"),
                    HasSubstr("memory plan\n"), HasSubstr("disk: "),
                    HasSubstr("steps: 2 (warm-up 1), about "), HasSubstr("nothing was written\n")));
}

// A plan is asked for while a run trains, too.
TEST_F(ValidateTest, APlanAnswersWhereOutputDirHoldsARun) {
  ASSERT_EQ(Run(TrainWords({"--output_dir=taken"})).code, 0);
  const std::string reason = "output_dir taken already holds a run";
  const Outcome plan = Harmless({"plan", "base.yaml", "--output_dir=taken"});
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_THAT(plan.err, HasSubstr("warning: train would refuse this run: " + reason));
  EXPECT_THAT(plan.out, AllOf(HasSubstr("memory plan\n"), HasSubstr("nothing was written\n")));
  for (const Words& words : {Words{"validate", "base.yaml", "--output_dir=taken"},
                             Words{"train", "base.yaml", "--output_dir=taken", "--dry-run"}}) {
    const Outcome refused = Harmless(words);
    EXPECT_EQ(refused.code, 2) << words[0];
    EXPECT_THAT(refused.err, HasSubstr(reason));
  }
}

// What is wrong with the command comes before what was done before it.
TEST_F(ValidateTest, AMissingModelIsNamedBeforeTheRunInOutputDir) {
  ASSERT_EQ(Run(TrainWords({"--output_dir=taken"})).code, 0);
  const Outcome refused =
      Harmless({"train", "base.yaml", "--output_dir=taken", "--model_name_or_path=nowhere"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("nowhere: no such model directory"),
                                 Not(HasSubstr("already holds a run"))));
}

// The commands that make the check of base.yaml, each with `more` at the end.
std::vector<Words> Checks(const Words& more) {
  std::vector<Words> all = {
      {"validate", "base.yaml"}, {"plan", "base.yaml"}, {"train", "base.yaml", "--dry-run"}};
  for (Words& words : all) words.insert(words.end(), more.begin(), more.end());
  return all;
}

TEST_F(ValidateTest, PlanValidateAndDryRunAreOneCheckWithOneOutput) {
  // Free space, the memory of the process and the speed of the machine differ between two commands.
  const auto stable = [](nlohmann::json found) {
    for (const char* time :
         {"estimated_seconds", "estimated_seconds_int8", "estimated_seconds_int8_backward"}) {
      found.erase(time);
    }
    if (found.contains("disk")) found.at("disk").erase("free");
    if (found.contains("memory")) {
      nlohmann::json parts = found.at("memory").at("parts");
      parts.erase("program and data");
      found.at("memory") = parts;
    }
    if (found.contains("error")) {
      found.at("error") =
          std::regex_replace(found.at("error").get<std::string>(), std::regex("[0-9.]+"), "N");
    }
    return found;
  };
  const struct {
    Words more;
    int code;
  } cases[] = {{{"--output_dir=new"}, 0},
               {{"--output_dir=new", "--max_memory=1MB"}, 3},
               {{"--output_dir=new", "--lora_r=0"}, 2}};
  for (const auto& [more, code] : cases) {
    Words with_json = more;
    with_json.push_back("--json");
    const nlohmann::json expected =
        stable(nlohmann::json::parse(Harmless(Checks(with_json)[0]).out));
    EXPECT_EQ(expected.at("ok"), code == 0);
    for (const Words& words : Checks(with_json)) {
      const Outcome outcome = Harmless(words);
      EXPECT_EQ(outcome.code, code) << words[0] << outcome.err;
      EXPECT_EQ(stable(nlohmann::json::parse(outcome.out)), expected) << words[0];
    }
    for (const Words& words : Checks(more)) EXPECT_EQ(Harmless(words).code, code) << words[0];
  }
}

TEST_F(ValidateTest, JsonHasStepsMemoryAndDisk) {
  const Outcome outcome =
      Harmless({"validate", "base.yaml", "--json", "--save_steps=1", "--max_steps", "10"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  EXPECT_TRUE(json.at("ok").get<bool>());
  EXPECT_EQ(json.at("steps"), 10);
  EXPECT_GT(json.at("memory").at("peak").get<std::size_t>(), 0u);
  const nlohmann::json& disk = json.at("disk");
  EXPECT_EQ(disk.at("checkpoints"), 10);
  EXPECT_GE(disk.at("needed").get<std::size_t>(),
            10 * disk.at("checkpoint").get<std::size_t>() + disk.at("adapter").get<std::size_t>());
}

TEST_F(ValidateTest, OtherDevicesAreRefusedWithTheReason) {
  for (const char* device : {"cuda", "cuda:0", "mps"}) {
    const std::string refusal = Refused(TrainWords({std::string("--device=") + device}));
    EXPECT_THAT(refusal, AllOf(HasSubstr("--device: expects one of auto, cpu"),
                               HasSubstr("found '" + std::string(device) +
                                         "'; qlora computes on the CPU\n")));
  }
  EXPECT_THAT(
      Refused(TrainWords({"--ddp_backend=nccl"})),
      HasSubstr("found 'nccl'; qlora computes on the CPU, whose ranks meet over mpi or tcp"));
  EXPECT_EQ(Harmless({"validate", "base.yaml", "--device=cpu"}).code, 0);
}

TEST_F(ValidateTest, DiskPlanCoversWhatARunWrites) {
  const Words words = {"--max_steps=6", "--save_steps=1", "--save_total_limit=2"};
  Words validate = {"validate", "base.yaml", "--json"};
  validate.insert(validate.end(), words.begin(), words.end());
  const auto disk = nlohmann::json::parse(Run(validate).out).at("disk");
  EXPECT_EQ(disk.at("checkpoints"), 3);
  ASSERT_EQ(Run(TrainWords(words)).code, 0);
  std::size_t written = 0;
  for (const auto& entry : fs::recursive_directory_iterator(scratch_ / "out")) {
    if (entry.is_regular_file()) written += entry.file_size();
  }
  EXPECT_LE(written, disk.at("needed").get<std::size_t>());
  // And not much more, with a checkpoint that is removed later.
  EXPECT_GT(4 * written, disk.at("needed").get<std::size_t>());
  std::size_t checkpoint = 0;
  for (const auto& entry : fs::recursive_directory_iterator(scratch_ / "out/checkpoint-6")) {
    checkpoint += entry.file_size();
  }
  EXPECT_LE(checkpoint, disk.at("checkpoint").get<std::size_t>());
  EXPECT_GT(3 * checkpoint, disk.at("checkpoint").get<std::size_t>());
}

TEST_F(ValidateTest, WhatIsWrongHasItsExitCode) {
  EXPECT_THAT(Refused({"validate", "base.yaml", "--lora_r=0"}), HasSubstr("lora_r"));
  EXPECT_THAT(Refused({"validate", "base.yaml", "--lora_rnk=1"}), HasSubstr("'lora_rank'"));
  const Outcome memory = Harmless({"validate", "base.yaml", "--max_memory", "1MB"});
  EXPECT_EQ(memory.code, 3);
  EXPECT_THAT(memory.err, HasSubstr("the run needs"));
  EXPECT_THAT(memory.out, HasSubstr("memory plan"));
  // A checkpoint for each of 10^12 steps fits on no disk.
  const Outcome disk = Harmless({"validate", "base.yaml", "--max_steps=1e12", "--save_steps=1"});
  EXPECT_EQ(disk.code, 2);
  EXPECT_THAT(disk.err, AllOf(HasSubstr("output_dir"), HasSubstr("save_total_limit")));
  fs::remove(model() / "tokenizer.json");
  const Outcome broken = Harmless({"validate", "base.yaml", "--json"});
  EXPECT_EQ(broken.code, 2);
  const auto json = nlohmann::json::parse(broken.out);
  EXPECT_FALSE(json.at("ok").get<bool>());
  EXPECT_THAT(json.at("error").get<std::string>(), HasSubstr("tokenizer.json"));
}

TEST_F(ValidateTest, OptionsWithoutEffectAreRefused) {
  const std::vector<Words> cases = {
      {"--recompute=layer", "--gradient_checkpointing=false"},
      {"--sgd_momentum=0.9"},
      {"--int8_backward=true", "--compute_dtype=bfloat16"},
      {"--adam_beta1=0.8", "--optim=sgd"},
      {"--adam_beta2=0.9", "--optim=sgd"},
      {"--adam_epsilon=1e-6", "--optim=lion"},
      {"--lr_scheduler_cycles=2"},
      {"--warmup_ratio=0.03", "--lr_scheduler_type=constant"},
      {"--warmup_steps=3", "--lr_scheduler_type=constant"},
      {"--embedding_learning_rate=1e-5"},
      {"--eval_steps=1"},
      {"--eval_on_start"},
      {"--metric_for_best_model=token_accuracy"},
      {"--load_best_model_at_end"},
      {"--early_stopping_patience=2"},
      {"--sample_steps=1"},
      {"--sample_max_new_tokens=8"},
      {"--logging_dir=logs"},
      {"--save_total_limit=2"},
  };
  for (const Words& words : cases) {
    Words command = {"validate", "base.yaml"};
    command.insert(command.end(), words.begin(), words.end());
    const std::string name = words[0].substr(2, words[0].find('=') - 2);
    EXPECT_THAT(Refused(command), HasSubstr(name + " would have no effect"));
  }
  EXPECT_EQ(Harmless({"validate", "base.yaml", "--eval_steps=1", "--val_set_size=2"}).code, 0);
  EXPECT_EQ(Harmless({"validate", "base.yaml", "--preset=qlora-paper", "--optim=sgd"}).code, 0);
}

TEST_F(ValidateTest, EvaluationFilesOfAFolderCountForTheOptionsOfEvaluation) {
  fs::create_directory(scratch_ / "folder");
  for (const char* name : {"folder/train.jsonl", "folder/valid.jsonl"}) {
    Write(name, ReadAll(scratch_ / "data.jsonl"));
  }
  const Words words = {"validate", "base.yaml", "--dataset=folder", "--eval_steps=1"};
  EXPECT_EQ(Harmless(words).code, 0) << Harmless(words).err;
}

TEST_F(ValidateTest, CheckpointsOfTheBestAreCounted) {
  // That of the last step, of the best evaluation, and of the one before.
  const Outcome outcome =
      Harmless({"validate", "base.yaml", "--json", "--max_steps=30", "--val_set_size=2",
                "--load_best_model_at_end", "--gradient_accumulation_steps=1"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(nlohmann::json::parse(outcome.out).at("disk").at("checkpoints"), 3);
}

TEST_F(ValidateTest, OverwritingRemovesEventFiles) {
  fs::create_directories(scratch_ / "out/runs");
  Write("out/runs/events.out.tfevents.1.host.2", "old");
  Write("out/runs/mine.txt", "kept");
  Write("out/train_log.csv", "old");
  ASSERT_EQ(Run(TrainWords({"--overwrite_output_dir"})).code, 0);
  EXPECT_FALSE(fs::exists(scratch_ / "out/runs/events.out.tfevents.1.host.2"));
  EXPECT_FALSE(fs::exists(scratch_ / "out/train_log.csv"));
  EXPECT_TRUE(fs::exists(scratch_ / "out/runs/mine.txt"));
}

TEST_F(ValidateTest, InspectShowsTheSplitOfTheSeed) {
  const auto shown = [&](const char* seed) {
    const Outcome outcome = Harmless({"inspect", "--dataset=data.jsonl", "--model=model",
                                      "--max_length=64", "--val_set_size=4", "--samples=4", seed});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  EXPECT_NE(shown("--seed=1"), shown("--seed=2"));
}

TEST_F(ValidateTest, AFileWhoseNameHasACommaIsOneFile) {
  fs::rename(scratch_ / "data.jsonl", scratch_ / "a,b.jsonl");
  const Outcome one = Run({"inspect", "--dataset", "a,b.jsonl", "--model", "model"});
  EXPECT_EQ(one.code, 0) << one.err;
  EXPECT_THAT(one.out, HasSubstr("a,b.jsonl: JSON Lines, format text, 8 of 8 records"));
  fs::copy(scratch_ / "a,b.jsonl", scratch_ / "a");
  fs::copy(scratch_ / "a,b.jsonl", scratch_ / "c.jsonl");
  const Outcome two = Run({"inspect", "--dataset", "a,c.jsonl", "--model", "model"});
  EXPECT_THAT(two.out, HasSubstr("samples 16,")) << two.err;
}

TEST_F(ValidateTest, AnOptionOfSamplingSamples) {
  const auto said = [&](const Words& more) {
    Words words = {"generate", "model", "Once", "--max_new_tokens=12"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = Run(words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  };
  EXPECT_EQ(said({"--temperature=3"}), said({"--temperature=3", "--do_sample"}));
  EXPECT_NE(said({"--temperature=3"}), said({}));
  EXPECT_EQ(said({"--temperature=3", "--do_sample=false"}), said({}));
  EXPECT_EQ(said({"--temperature=0"}), said({}));
}

// The YAML blocks of a Markdown file that hold configurations of `train`.
std::vector<std::string> YamlBlocks(const fs::path& markdown) {
  std::vector<std::string> blocks;
  const std::string text = ReadAll(markdown);
  const std::string fence = "\n```yaml\n";
  for (std::size_t at = text.find(fence); at != std::string::npos; at = text.find(fence, at)) {
    at += fence.size();
    blocks.push_back(text.substr(at, text.find("\n```", at) - at + 1));
  }
  return blocks;
}

class SchemaTest : public ScratchTest {
 protected:
  // What Python's jsonschema says about a YAML file: 0 valid, 1 not valid, 77 not installed.
  int Check(const fs::path& schema, const fs::path& config) const {
    const fs::path script = Write("check.py", R"(
import json, sys
try:
    import jsonschema, yaml
except ImportError:
    sys.exit(77)
schema = json.load(open(sys.argv[1]))
jsonschema.Draft202012Validator.check_schema(schema)
errors = list(jsonschema.Draft202012Validator(schema).iter_errors(yaml.safe_load(open(sys.argv[2]))))
for error in errors:
    print(list(error.path), error.message)
sys.exit(1 if errors else 0)
)");
    const std::string command = "/usr/bin/python3 " + script.string() + " " + schema.string() +
                                " " + config.string() + " >" + (scratch_ / "said").string();
    const int status = std::system(command.c_str());
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  // What the parser of the program says.
  static bool Parses(const fs::path& config) {
    TrainSettings settings;
    OptionTable table;
    settings.Declare(table);
    try {
      std::vector<std::string> notes;
      ReadConfigFile(config, table, notes);
      return true;
    } catch (const Error&) {
      return false;
    }
  }
  fs::path Schema() const {
    const Outcome outcome = RunQlora(scratch_, {"config-schema"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Write("schema.json", outcome.out);
  }
};

TEST_F(SchemaTest, HasEveryOptionWithTypeAndDefault) {
  const auto schema = nlohmann::json::parse(ReadAll(Schema()));
  EXPECT_EQ(schema.at("$schema"), "https://json-schema.org/draft/2020-12/schema");
  TrainSettings settings;
  OptionTable table;
  settings.Declare(table);
  for (const Option& option : table.options()) {
    const auto& property = schema.at("properties").at(option.name);
    EXPECT_EQ(property.at("description"), option.help);
    EXPECT_TRUE(property.contains("default")) << option.name;
    for (const std::string& alias : option.aliases) {
      EXPECT_EQ(schema.at("properties").at(alias).at("$ref"), "#/properties/" + option.name);
    }
  }
  EXPECT_EQ(schema.at("properties").at("lora_r").at("default"), 16);
}

TEST_F(SchemaTest, AgreesWithTheParser) {
  const fs::path schema = Schema();
  const struct {
    const char* yaml;
    bool valid;
  } cases[] = {
      {"model: m\ndataset: a.jsonl\nlora_r: 8\nlearning_rate: 2e-4\n", true},
      {"dataset: [a.jsonl, b.jsonl]\nlr: 0.001\nload_in_4bit: false\n", true},
      {"dataset:\n  - path: a.jsonl\n    type: alpaca\n  - b.jsonl\n", true},
      {"dataset:\n  - file: a.jsonl\n", false},
      {"lora_r:\n", true},
      {"lora_r: 8\nrank: 8\n", true},
      {"lora_r: eight\n", false},
      {"lora_r: [8]\n", false},
      {"lora_r: 8.5\n", false},
      {"learning_rate: fast\n", false},
      {"lr_scheduler_type: cosine\n", true},
      {"lr_scheduler_type: cosinus\n", false},
      {"lora_rnk: 8\n", false},
      {"chat_template: {a: b}\n", false},
      {"resume_from_checkpoint: true\n", true},
      {"max_memory: 6GB\n", true},
      {"- lora_r\n", false},
  };
  for (const auto& [yaml, valid] : cases) {
    const fs::path config = Write("case.yaml", yaml);
    EXPECT_EQ(Parses(config), valid) << yaml;
    const int said = Check(schema, config);
    if (said == 77) GTEST_SKIP() << "python3-jsonschema or python3-yaml is not installed";
    EXPECT_EQ(said, valid ? 0 : 1) << yaml << ReadAll(scratch_ / "said");
  }
}

TEST_F(SchemaTest, EveryConfigurationOfTheDocumentsIsValid) {
  std::vector<fs::path> files = {SourceDir() / "README.md"};
  for (const char* folder : {"docs", "examples"}) {
    for (const auto& entry : fs::recursive_directory_iterator(SourceDir() / folder)) {
      files.push_back(entry.path());
    }
  }
  const fs::path schema = Schema();
  int found = 0;
  bool checked = true;
  for (const fs::path& file : files) {
    std::vector<std::string> configs;
    if (file.extension() == ".md") configs = YamlBlocks(file);
    if (file.extension() == ".yaml") configs = {ReadAll(file)};
    for (const std::string& text : configs) {
      if (text.starts_with("base_model:")) continue;  // of Axolotl, which `migrate` reads
      // Of tasks and of suites of them, which `eval` and the gate read.
      if (text.starts_with("task") || file.parent_path().filename() == "tasks") continue;
      const fs::path config = Write("case.yaml", text);
      EXPECT_TRUE(Parses(config)) << file << "\n" << text;
      const int said = Check(schema, config);
      checked = checked && said != 77;
      EXPECT_TRUE(said == 0 || said == 77) << file << "\n" << text << ReadAll(scratch_ / "said");
      ++found;
    }
  }
  EXPECT_GT(found, 0);
  if (!checked) GTEST_SKIP() << "python3-jsonschema or python3-yaml is not installed";
}

}  // namespace
}  // namespace qlora
