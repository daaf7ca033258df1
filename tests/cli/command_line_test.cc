#include "command/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/test_util.h"

namespace qlora {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

class CommandLineTest : public ScratchTest {
 protected:
  CommandLineTest() {
    table_.Add("model_name_or_path", &model_, "", {"base_model", "model"});
    table_.Add("dataset", &dataset_, "", {"datasets"});
    table_.Add("dataset_format", &format_, "", {"type"});
    table_.Add("max_steps", &steps_, "");
    table_.Add("learning_rate", &rate_, "", {"lr"});
    table_.Add("packing", &packing_, "");
    table_.Add("shuffle", &shuffle_, "");
    table_.Choice("scheduler", &scheduler_, {"linear", "cosine"}, "");
  }

  bool Parse(const Words& words, const Words& positionals = {}) {
    VerbText text;
    text.positionals = positionals;
    text.required = {"model_name_or_path"};
    notes_.clear();
    return ParseCommandLine(words, text, table_, notes_);
  }
  std::string ErrorOf(const Words& words, const Words& positionals = {}) {
    return InputError([&] { Parse(words, positionals); });
  }
  std::string ErrorOfYaml(std::string_view yaml) {
    return ErrorOf({"--config", Write("run.yaml", yaml)});
  }

  std::string model_;
  Words dataset_;
  std::string format_ = "auto";
  std::int64_t steps_ = 0;
  double rate_ = 0;
  bool packing_ = false;
  bool shuffle_ = true;
  std::string scheduler_ = "cosine";
  OptionTable table_;
  Words notes_;
};

// Commas part the items of a list, so an item with a comma is written as JSON.
TEST_F(CommandLineTest, ReadsAJsonListWhoseItemsHaveCommas) {
  Parse({"--model", "m", "--dataset", R"(["a, b", "c"])"});
  EXPECT_THAT(dataset_, ElementsAre("a, b", "c"));
  Parse({"--model", "m", R"(dataset= [ "say \"hi\", then é", 4, true ] )"});
  EXPECT_THAT(dataset_, ElementsAre("say \"hi\", then é", "4", "true"));
  Parse({"--model", "m", "--dataset", "[]"});
  EXPECT_THAT(dataset_, ElementsAre());
  // Words behind it are items, too, and a bare word may be the list.
  Parse({"--model", "m", "--dataset", R"(["a, b"])", "c"});
  EXPECT_THAT(dataset_, ElementsAre("a, b", "c"));
  Parse({"m", R"(["a, b"])", "c"}, {"model_name_or_path", "dataset"});
  EXPECT_THAT(dataset_, ElementsAre("a, b", "c"));
  Parse({"--model", "m", "--config", Write("run.yaml", R"(dataset: '["a, b", "c"]')")});
  EXPECT_THAT(dataset_, ElementsAre("a, b", "c"));
  // Texts in brackets that are no JSON are texts, and a text option takes JSON as it is.
  Parse({"--model", R"(["a, b"])", "--dataset", "[a-c]x,[d]"});
  EXPECT_THAT(dataset_, ElementsAre("[a-c]x", "[d]"));
  EXPECT_EQ(model_, R"(["a, b"])");
  EXPECT_THAT(ErrorOf({"--model", "m", "--dataset", R"(["a, b", c])"}),
              HasSubstr(R"(--dataset: expected a JSON list of texts, ["a, b", "c"], found ["a)"));
  EXPECT_THAT(ErrorOf({"--model", "m", "--dataset", R"(["a", ["b"]])"}),
              HasSubstr("expected a JSON list of texts"));
}

// Each word of a list is a JSON list or comma-separated by itself.
TEST_F(CommandLineTest, ReadsEachWordOfAListByItself) {
  Parse({"--model", "m", "--dataset", "a,b", R"(["c, d", "e"])", R"(["f"])", "g,h"});
  EXPECT_THAT(dataset_, ElementsAre("a", "b", "c, d", "e", "f", "g", "h"));
  Parse({"m", "a", R"(["b, c"])"}, {"model_name_or_path", "dataset"});
  EXPECT_THAT(dataset_, ElementsAre("a", "b, c"));
  // A file whose name has a comma is one item beside others, too.
  const std::string file = Write("x,y.jsonl", "");
  table_.Find("dataset")->is_path = true;
  Parse({"--model", "m", "--dataset", file, "z"});
  EXPECT_THAT(dataset_, ElementsAre(file, "z"));
  // Also with a weight, and where its name has a colon.
  const std::string colon = Write("x,y:1", "");
  Parse({"--model", "m", "--dataset", file + ":0.5", colon + ":0.5", "v,w:0.5"});
  EXPECT_THAT(dataset_, ElementsAre(file + ":0.5", colon + ":0.5", "v", "w:0.5"));
  Parse({"--model", "m", "--dataset", file + ":0.5,z"});
  EXPECT_EQ(dataset_.size(), 3u) << "several paths in one text are split at every comma";
}

TEST_F(CommandLineTest, NumbersInAJsonListKeepTheirSpelling) {
  Parse({"--model", "m", "--dataset", R"(["a, \"]", 1e5, 1.10 ,true])"});
  EXPECT_THAT(dataset_, ElementsAre("a, \"]", "1e5", "1.10", "true"));
  Parse({"--model", "m", "--dataset", "[0, 1]"});
  EXPECT_THAT(dataset_, ElementsAre("0", "1"));
  // A file of this name.
  table_.Find("dataset")->is_path = true;
  Parse({"--model", "m", "--dataset", "[1]"});
  EXPECT_THAT(dataset_, ElementsAre("[1]"));
}

TEST_F(CommandLineTest, TakesEveryForm) {
  EXPECT_FALSE(Parse({"--model", "a b", "--max-steps=-1", "lr=1e-3", "--packing", "--no-shuffle",
                      "--dataset", "x,y", "scheduler=linear"}));
  EXPECT_EQ(model_, "a b");
  EXPECT_EQ(steps_, -1);
  EXPECT_EQ(rate_, 1e-3);
  EXPECT_TRUE(packing_);
  EXPECT_FALSE(shuffle_);
  EXPECT_THAT(dataset_, ElementsAre("x", "y"));
  EXPECT_EQ(scheduler_, "linear");
}

TEST_F(CommandLineTest, TakesNegativeNumbersAndBooleanWords) {
  Parse({"--max_steps", "-3", "--packing", "true", "--shuffle", "false"});
  EXPECT_EQ(steps_, -3);
  EXPECT_TRUE(packing_);
  EXPECT_FALSE(shuffle_);
}

TEST_F(CommandLineTest, AFlagDoesNotSwallowABareArgument) {
  Parse({"--packing", "my-model"}, {"model_name_or_path"});
  EXPECT_TRUE(packing_);
  EXPECT_EQ(model_, "my-model");
}

TEST_F(CommandLineTest, TakesBareArgumentsInOrder) {
  Parse({"-", "--packing", "--", "--d"}, {"model_name_or_path", "dataset"});
  EXPECT_EQ(model_, "-");
  EXPECT_THAT(dataset_, ElementsAre("--d"));
}

TEST_F(CommandLineTest, BareArgumentsSetWhatNoOptionSets) {
  Parse({"--model", "m", "a", "b"}, {"model_name_or_path", "dataset"});
  EXPECT_EQ(model_, "m");
  EXPECT_THAT(dataset_, ElementsAre("a", "b"));
  Parse({"c", "-m", "n"}, {"model_name_or_path", "dataset"});
  EXPECT_EQ(model_, "n");
  EXPECT_THAT(dataset_, ElementsAre("c"));
  Parse({"--dataset", "x", "--packing", "o"}, {"model_name_or_path", "dataset"});
  EXPECT_EQ(model_, "o");
  EXPECT_THAT(dataset_, ElementsAre("x"));
}

TEST_F(CommandLineTest, APathOrTheTextOfAnOptionMayHaveAnEqualsSign) {
  const std::string path = Write("lr=1", "");
  Parse({path}, {"model_name_or_path"});
  EXPECT_EQ(model_, path);
  Parse({"-m", "lr=2"}, {"model_name_or_path"});
  EXPECT_EQ(model_, "lr=2");
  EXPECT_EQ(rate_, 0);
  Parse({"--", "lr=3"}, {"model_name_or_path"});
  EXPECT_EQ(model_, "lr=3");
  EXPECT_THAT(ErrorOf({"E=mc^2 means"}, {"model_name_or_path"}),
              HasSubstr("write -- or its option before a text with ="));
}

TEST_F(CommandLineTest, HelpWinsOverWrongArguments) {
  EXPECT_TRUE(Parse({"--nonsense", "--help"}));
  EXPECT_TRUE(Parse({"-h"}));
  EXPECT_FALSE(Parse({"--", "--help"}, {"model_name_or_path"}));
}

TEST_F(CommandLineTest, NamesWhatIsWrong) {
  EXPECT_THAT(ErrorOf({"--learning_rat", "1"}), HasSubstr("did you mean 'learning_rate'?"));
  EXPECT_THAT(ErrorOf({"learningrate=1"}), HasSubstr("did you mean 'learning_rate'?"));
  EXPECT_THAT(ErrorOf({"--max_steps", "many"}), HasSubstr("--max_steps: expects an"));
  EXPECT_THAT(ErrorOf({"--max_steps"}), HasSubstr("a value is missing"));
  EXPECT_THAT(ErrorOf({"--model", "--packing"}), HasSubstr("a value is missing"));
  EXPECT_THAT(ErrorOf({"-lr", "1"}), HasSubstr("write --lr"));
  EXPECT_THAT(ErrorOf({"stray"}), HasSubstr("unexpected 'stray': options"));
  EXPECT_THAT(ErrorOf({"a", "b"}, {"model_name_or_path"}), HasSubstr("unexpected 'b' after"));
  EXPECT_THAT(ErrorOf({"--no-model"}), HasSubstr("unknown option 'no-model'"));
  EXPECT_THAT(ErrorOf({"--packing=perhaps"}), HasSubstr("true or false"));
  EXPECT_THAT(ErrorOf({"--lr", "x"}), HasSubstr("--lr: learning_rate expects a number"));
  EXPECT_THAT(ErrorOf({"--scheduler", "linaer"}), HasSubstr("one of linear, cosine"));
  EXPECT_FALSE(table_.Find("packing")->set);
}

TEST_F(CommandLineTest, AWordBehindAFlagIsItsValueUnlessItCanBeAnother) {
  const std::string run = Write("run.yaml", "max_steps: 3\n");
  for (const Words& words : {Words{"--packing", "ture"},
                             {"--packing", "perhaps"},
                             {"--packing", "cosine"},
                             {run, "--packing", "fasle"},
                             {"--packing", "flase", run}}) {
    EXPECT_THAT(ErrorOf(words, {"config"}), HasSubstr("--packing: expects true or false, found"));
  }
  EXPECT_THAT(ErrorOf({"--packing", "cosine"}, {"config"}),
              HasSubstr("that is a choice of scheduler"));
  EXPECT_THAT(ErrorOf({"--packing", "ture", "m"}, {"model_name_or_path"}),
              HasSubstr("found 'ture'; did you mean 'true'?"));
  for (const Words& words : {Words{"--no-packing", "ture"}, {"--no-packing=true"}}) {
    EXPECT_THAT(ErrorOf(words, {"config"}), HasSubstr("--no-packing: takes no value, found"));
  }
  // Other programs have options that are called so.
  Parse({"--no_cuda=true", "--no-cnv", "--no_cnv=true"});
  EXPECT_EQ(notes_.size(), 3u);
  // A text, a file, and a word that is none of these.
  Parse({"--packing", "a tree"}, {"model_name_or_path"});
  EXPECT_EQ(model_, "a tree");
  Parse({"--packing", "no-model"}, {"model_name_or_path"});
  EXPECT_EQ(model_, "no-model");
  Parse({"--packing", run}, {"config"});
  EXPECT_EQ(steps_, 3);
  EXPECT_THAT(ErrorOf({"--packing", "./ture"}, {"config"}), HasSubstr("cannot be opened"));
}

TEST_F(CommandLineTest, NamesOptionsOfTrainingThatAVerbLacks) {
  EXPECT_EQ(ErrorOf({"--int8_backward"}),
            "--int8_backward: this verb has no such option; `qlora train` has it");
  EXPECT_THAT(ErrorOf({"--int8-backward=true"}), HasSubstr("`qlora train` has it"));
  EXPECT_THAT(ErrorOf({"--bnb_4bit_compute_dtype", "int8"}),
              HasSubstr("it is compute_dtype of `qlora train`"));
  EXPECT_THAT(ErrorOfYaml("int8_backward: true\n"),
              HasSubstr("run.yaml:1: int8_backward: this verb has no such option; `qlora train` "
                        "has it"));
}

TEST_F(CommandLineTest, AListThatRepeatsAddsItems) {
  table_.Find("dataset")->repeats = true;
  Parse({"--model", "m", "--dataset", "a,b", "--datasets=c", "--dataset", "d"});
  EXPECT_THAT(dataset_, ElementsAre("a", "b", "c", "d"));
  // Two names that say the same say it once, whichever comes first.
  Parse({"--model", "m", "--dataset", "a", "--data_files", "a", "--dataset", "b"});
  EXPECT_THAT(dataset_, ElementsAre("a", "b"));
  Parse({"--model", "m", "--data_files", "a", "--dataset", "a"});
  EXPECT_THAT(dataset_, ElementsAre("a"));
  // Over the configuration file, not in addition to it.
  const std::string yaml = Write("run.yaml", "model: m\ndataset: [x, y]\n");
  Parse({"--config", yaml, "--dataset", "a", "--dataset", "b"});
  EXPECT_THAT(dataset_, ElementsAre("a", "b"));
}

TEST_F(CommandLineTest, RefusesAKeyThatIsGivenTwice) {
  EXPECT_THAT(ErrorOf({"--lr", "1", "--learning_rate=2"}),
              HasSubstr("--learning_rate: learning_rate is given twice, the first time as --lr"));
  EXPECT_THAT(ErrorOf({"m", "--model", "n"}, {"model_name_or_path"}), HasSubstr("given twice"));
  EXPECT_THAT(ErrorOf({"--model", "n", "data.jsonl"}, {"model_name_or_path"}),
              HasSubstr("write the option that this word is for"));
  EXPECT_THAT(ErrorOf({"--config", "a", "--config", "b"}), HasSubstr("config is given twice"));
  EXPECT_EQ(rate_, 0);
}

TEST_F(CommandLineTest, TwoNamesOfAnOptionMaySayTheSame) {
  Parse({"--lr", "1e-3", "--learning-rate=0.001", "--model", "m", "base_model=m",
         "--dataset_format", "alpaca", "--type", "alpaca"});
  EXPECT_EQ(rate_, 1e-3);
  EXPECT_EQ(model_, "m");
  EXPECT_EQ(format_, "alpaca");
  // The same name twice is a mistake, and a word has no name.
  EXPECT_THAT(ErrorOf({"--lr", "1", "--lr", "1"}), HasSubstr("given twice"));
  EXPECT_THAT(ErrorOf({"--max-steps", "1", "max_steps=1"}), HasSubstr("given twice"));
  EXPECT_THAT(ErrorOf({"--type", "alpaca", "--type", "alpaca"}), HasSubstr("given twice"));
  EXPECT_THAT(ErrorOf({"--model", "m", "m"}, {"model_name_or_path"}), HasSubstr("given twice"));
  Parse({"--config", Write("run.yaml",
                           "lr: 1e-3\nlearning_rate: 0.001\nmodel: m\nbase_model: m\n"
                           "dataset_format: alpaca\n"
                           "datasets:\n  - {path: a.jsonl, type: alpaca}\n")});
  EXPECT_EQ(rate_, 1e-3);
  EXPECT_EQ(format_, "alpaca");
  // A key without a value says nothing.
  Parse({"--config", Write("empty.yaml", "lr: 1e-4\nlearning_rate:\n")});
  EXPECT_EQ(rate_, 1e-4);
  EXPECT_THAT(ErrorOfYaml("type: text\ndatasets:\n  - {path: a.jsonl, type: alpaca}\n"),
              HasSubstr("run.yaml:3: dataset_format is given twice, the first time at"));
}

TEST_F(CommandLineTest, ReadsYamlAndLetsTheCommandLineWin) {
  const fs::path yaml = Write("run.yaml",
                              "# a run\n"
                              "base_model: ./m\n"
                              "lr: 2e-4\n"
                              "max-steps: 7\n"
                              "packing: yes\n"
                              "dataset: [a.jsonl, 'b,c.jsonl']\n"
                              "scheduler:\n");
  Parse({"--max_steps", "9", "--config", yaml});
  EXPECT_EQ(model_, "./m");
  EXPECT_EQ(rate_, 2e-4);
  EXPECT_EQ(steps_, 9);
  EXPECT_TRUE(packing_);
  EXPECT_THAT(dataset_, ElementsAre("a.jsonl", "b,c.jsonl"));
  EXPECT_EQ(scheduler_, "cosine") << "null keeps the default";
}

TEST_F(CommandLineTest, TakesTheFileAsABareArgument) {
  Parse({Write("run.yaml", "max_steps: 3\n"), "--packing"}, {"config"});
  EXPECT_EQ(steps_, 3);
  EXPECT_TRUE(packing_);
}

TEST_F(CommandLineTest, TakesTheFileInEveryForm) {
  const std::string yaml = Write("run.yaml", "max_steps: 3\n");
  for (const Words& words : {Words{yaml},
                             {"--config", yaml},
                             {"--config=" + yaml},
                             {"config=" + yaml},
                             {"-config", yaml}}) {
    steps_ = 0;
    Parse(words, {"config"});
    EXPECT_EQ(steps_, 3) << words[0];
  }
}

TEST_F(CommandLineTest, ReadsAListOfDatasets) {
  Parse({"--config", Write("run.yaml",
                           "datasets:\n  - path: a.jsonl\n    type: alpaca\n  - path: b.jsonl\n"
                           "    type: alpaca\n  - c.jsonl\n")});
  EXPECT_THAT(dataset_, ElementsAre("a.jsonl", "b.jsonl", "c.jsonl"));
  EXPECT_EQ(format_, "alpaca");
}

TEST_F(CommandLineTest, NamesFileAndLineOfWhatIsWrongInYaml) {
  EXPECT_THAT(ErrorOfYaml("\nlora:\n  r: 8\n"),
              HasSubstr("run.yaml:2: lora: this verb has no such option; it is adapter"));
  EXPECT_THAT(ErrorOfYaml("output_dir: out\n"),
              HasSubstr("run.yaml:1: output_dir: this verb has no such option; "
                        "`qlora train` has it"));
  EXPECT_THAT(ErrorOfYaml("modules_to_save: [lm_head]\n"),
              HasSubstr("run.yaml:1: modules_to_save: this verb has no such option"));
  EXPECT_THAT(ErrorOfYaml("model:\n  name: 8\n"),
              HasSubstr("run.yaml:1: 'model' holds a map, expected a value or a list"));
  EXPECT_THAT(ErrorOfYaml("packing: true\nmax_step: 1\n"),
              HasSubstr("run.yaml:2: unknown option 'max_step'; did you mean 'max_steps'?"));
  EXPECT_THAT(ErrorOfYaml("max_steps: soon\n"), HasSubstr("run.yaml:1: max_steps expects"));
  EXPECT_THAT(ErrorOfYaml("max_steps: [1, 2]\n"), HasSubstr("run.yaml:1: max_steps takes one"));
  EXPECT_THAT(ErrorOfYaml("lr: 1\n\nlearning_rate: 2\n"),
              HasSubstr("run.yaml:3: learning_rate is given twice, the first time at"));
  EXPECT_THAT(ErrorOfYaml("max_steps: 1\nmax_steps: 2\n"), HasSubstr("given twice"));
  EXPECT_THAT(ErrorOfYaml("a: [1\nb: 2\n"), HasSubstr("not valid YAML"));
  EXPECT_THAT(ErrorOfYaml("\nmodel: \"it's\ndataset: d\n"),
              HasSubstr("run.yaml:2: not valid YAML: the quote \" is not closed"));
  EXPECT_THAT(ErrorOfYaml("dataset: [a, \"b\\\"\"]\nmodel: 'it''s\n"),
              HasSubstr("run.yaml:2: not valid YAML: the quote ' is not closed"));
  EXPECT_THAT(ErrorOfYaml("- a\n- b\n"), HasSubstr("expected lines of the form 'key: value'"));
  EXPECT_THAT(ErrorOfYaml("dataset: [[a]]\n"), HasSubstr("may hold plain values only"));
  EXPECT_THAT(ErrorOfYaml("datasets:\n  - path: a\n    split: train\n"),
              HasSubstr("run.yaml:3: expected 'path: FILE'"));
  EXPECT_THAT(ErrorOfYaml("datasets:\n  - type: alpaca\n"), HasSubstr("needs 'path: FILE'"));
  EXPECT_THAT(ErrorOfYaml("datasets:\n  - {path: a, type: text}\n  - {path: b, type: alpaca}\n"),
              HasSubstr("datasets of two formats (text and alpaca)"));
  EXPECT_THAT(ErrorOf({"--config", "absent.yaml"}), HasSubstr("absent.yaml: cannot be opened"));
  EXPECT_THAT(ErrorOf({"--config", scratch_.string()}), HasSubstr("is a directory"));
  EXPECT_THAT(ErrorOfYaml(std::string(100000, '[')), HasSubstr("not valid YAML"));
}

// Aliases make a short file stand for a value without end.
TEST_F(CommandLineTest, AliasesInYamlHaveAnEnd) {
  Parse({"--config", Write("run.yaml", "model: &m here\ndataset: [*m, *m]\n").string()});
  EXPECT_THAT(dataset_, ElementsAre("here", "here"));
  EXPECT_THAT(ErrorOfYaml("dataset: &a [x, *a]\n"), HasSubstr("aliases (*name) repeat too much"));
  EXPECT_THAT(ErrorOfYaml("a: " + std::string(70, '[') + std::string(70, ']')),
              HasSubstr("nested more than 64 levels deep"));
  std::string doubled = "a: &a [x, x, x, x, x, x, x, x, x]\n";
  for (char c = 'b'; c < 'k'; ++c) {
    doubled += std::string(1, c) + ": &" + c + " [";
    for (int i = 0; i < 9; ++i)
      doubled += std::string(i > 0 ? ", *" : "*") + static_cast<char>(c - 1);
    doubled += "]\n";
  }
  EXPECT_THAT(ErrorOfYaml(doubled), HasSubstr("aliases (*name) repeat too much"));
}

TEST_F(CommandLineTest, ListsTakeTheWordsThatFollow) {
  Parse({"--dataset", "a", "b, c", "--packing", "--model", "m"}, {"config"});
  EXPECT_THAT(dataset_, ElementsAre("a", "b", "c"));
  Parse({"m", "a", "b"}, {"model_name_or_path", "dataset"});
  EXPECT_THAT(dataset_, ElementsAre("a", "b"));
}

TEST_F(CommandLineTest, WordsThatARequiredOptionNeedsAreNotOfTheList) {
  Parse({"--dataset", "a", "b", "my-model"}, {"model_name_or_path"});
  EXPECT_THAT(dataset_, ElementsAre("a", "b"));
  EXPECT_EQ(model_, "my-model");
}

TEST_F(CommandLineTest, ATextBehindAListIsTheOpenArgument) {
  const Words positionals = {"model_name_or_path", "dataset_format"};
  Parse({"m", "--dataset", "a", "a text"}, positionals);
  EXPECT_THAT(dataset_, ElementsAre("a"));
  EXPECT_EQ(format_, "a text");
  Parse({"--dataset", "a", "m", "a text"}, positionals);
  EXPECT_THAT(dataset_, ElementsAre("a"));
  EXPECT_EQ(model_, "m");
  EXPECT_EQ(format_, "a text");
  const std::string file = Write("b", "");
  Parse({"m", "--dataset", "a", file}, positionals);
  EXPECT_THAT(dataset_, ElementsAre("a", file));
}

TEST_F(CommandLineTest, AConfigurationIsNotOfTheList) {
  const std::string yaml = Write("run.yaml", "max_steps: 3\n");
  Parse({"--dataset", "a", "b", yaml}, {"config"});
  EXPECT_THAT(dataset_, ElementsAre("a", "b"));
  EXPECT_EQ(steps_, 3);
  EXPECT_THAT(ErrorOf({"m/model", "data.jsonl"}, {"config"}),
              HasSubstr("'m/model' was taken as the configuration file"));
}

TEST_F(CommandLineTest, AnEmptyFileChangesNothing) {
  Parse({"--config", Write("run.yaml", "# nothing\n")});
  for (const Option& option : table_.options()) EXPECT_FALSE(option.set) << option.name;
}

}  // namespace
}  // namespace qlora
