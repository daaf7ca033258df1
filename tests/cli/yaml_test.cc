// YAML as people write it: merge keys, documents, variables, maps, quotes.
#include <gmock/gmock.h>

#include "cli/tiny_model.h"
#include "command/config_file.h"
#include "records/yaml_text.h"
#include "training/train_settings.h"

namespace qlora {
namespace {

using ::testing::HasSubstr;

class YamlTest : public TinyModelTest {
 protected:
  TrainOptions Read(const std::string& yaml) {
    TrainSettings settings;
    OptionTable table;
    settings.Declare(table);
    notes_.clear();
    ReadConfigFile(Write("run.yaml", yaml), table, notes_);
    return settings.options;
  }
  std::string ErrorOf(const std::string& yaml) {
    try {
      Read(yaml);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
      return error.what();
    }
    return "no error";
  }
  std::vector<std::string> notes_;
};

TEST_F(YamlTest, MergesMaps) {
  EXPECT_EQ(Read("<<: {lora_r: 4, lora_alpha: 8}\nlora_alpha: 9\n").lora_r, 4);
  EXPECT_EQ(Read("<<: {lora_r: 4, lora_alpha: 8}\nlora_alpha: 9\n").lora_alpha, 9);
  EXPECT_EQ(Read("<<: [{lora_r: 4}, {lora_r: 5, lora_alpha: 7}]\n").lora_r, 4) << "the first wins";
  EXPECT_EQ(Read("<<: {<<: {lora_r: 6}, lora_alpha: 8}\n").lora_r, 6);
  EXPECT_THAT(ErrorOf("<<: 4\n"), HasSubstr("merges a map"));
  EXPECT_THAT(ErrorOf("shared: &b {lora_r: 4}\n<<: *b\n"), HasSubstr("<<: {...}"));
}

TEST_F(YamlTest, OneDocumentWithoutDuplicates) {
  EXPECT_EQ(Read("---\nlora_r: 4\n").lora_r, 4);
  EXPECT_EQ(Read("lora_r: 4\n---\n").lora_r, 4);
  EXPECT_THAT(ErrorOf("lora_r: 4\n---\nlora_r: 8\n"), HasSubstr("run.yaml:3: a second document"));
  EXPECT_THAT(ErrorOf("rank_pattern: {q_proj: 4, q_proj: 8}\n"),
              HasSubstr("q_proj is given twice"));
  EXPECT_THAT(ErrorOf(", lora_r: 4\n"), HasSubstr("run.yaml:1: not valid YAML: a value cannot"));
  EXPECT_THAT(ErrorOf("lora_r: 4\n---\n,\n"), HasSubstr("run.yaml:3: not valid YAML"));
}

TEST_F(YamlTest, CharactersAreWhole) {
  EXPECT_EQ(Read("output_dir: \"a\\_b\\Nc\"\n").output_dir,
            "a\xC2\xA0"
            "b\xC2\x85"
            "c");
  EXPECT_EQ(Read("output_dir: 'a\\_b'\n").output_dir, "a\\_b");
  EXPECT_THAT(ErrorOf("lora_r: 4\noutput_dir: sch\xF6n\n"),
              HasSubstr("run.yaml:2: the text is not UTF-8 (byte 25); it reads like WINDOWS-1252"));
}

TEST_F(YamlTest, VariablesAreNotFilledIn) {
  EXPECT_THAT(ErrorOf("output_dir: ${HOME}/out\n"), HasSubstr("variables are not filled in"));
  EXPECT_THAT(ErrorOf("dataset: [a.jsonl, \"${DATA}/b.jsonl\"]\n"), HasSubstr("run.yaml:1"));
  EXPECT_EQ(Read("output_dir: '\\${x}'\n").output_dir, "${x}");
  EXPECT_EQ(Read("prompt_template: '${price}'\n").data.reading.prompt_template, "${price}");
}

TEST_F(YamlTest, AMapIsTheSameAsItsJson) {
  const auto kwargs = [&](const std::string& yaml) {
    return Read("chat_template_kwargs: " + yaml + "\n").data.chat.chat_template_kwargs;
  };
  EXPECT_EQ(kwargs("{enable_thinking: false, words: 'false', n: 3, x: 0.5, l: [a, 1]}"),
            R"({"enable_thinking":false,"words":"false","n":3,"x":0.5,"l":["a",1]})");
  EXPECT_EQ(kwargs("'{\"enable_thinking\": false}'"), "{\"enable_thinking\": false}");
  EXPECT_EQ(Read("enable_thinking: off\n").data.chat.chat_template_kwargs,
            "{\"enable_thinking\": false}");
}

TEST_F(YamlTest, ScalarsOfAllKinds) {
  const TrainOptions options = Read(
      "learning_rate: 1e-4\nlora_r: \"4\"\npacking: off\ndata: x.jsonl\n"
      "max_length: None\nsave_total_limit:\n");
  EXPECT_EQ(options.learning_rate, 1e-4);
  EXPECT_EQ(options.lora_r, 4);
  EXPECT_EQ(options.data.reading.max_length, 0);
  EXPECT_THAT(ErrorOf("lora_r: 4\n  lora_alpha: 8\n"), HasSubstr("run.yaml:2"));
}

// A configuration has some hundred values; megabytes of them would take hundreds of bytes each.
TEST_F(YamlTest, ValuesAreCounted) {
  const auto list = [](const std::string& begin, const std::string& item, const std::string& end,
                       int count) {
    std::string text = begin;
    for (int i = 0; i < count; ++i) text += item;
    return text + end;
  };
  const int many = 200'000;
  for (const std::string& yaml :
       {list("dataset: [", "a,", "]\n", many), list("", "- a\n", "", many),
        list("dataset: [", "[],", "]\n", many), list("x: &a 1\ny: [", "*a,", "]\n", many),
        list("dataset:\n", "- ~\n", "", many), list("dataset: {", "? a, ", "}\n", many)}) {
    EXPECT_THAT(ErrorOf(yaml), HasSubstr("more than 131072 values")) << yaml.substr(0, 20);
  }
  EXPECT_EQ(Read(list("exclude_modules: [", "q_proj,", "]\n", 10'000)).exclude_modules.size(),
            10'000U);
}

}  // namespace
}  // namespace qlora
