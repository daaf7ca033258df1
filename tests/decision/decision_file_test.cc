#include "decision/decision_file.h"

#include <fstream>

#include "base/file.h"
#include "data/data_test_util.h"
#include "io/json.h"

namespace qlora {
namespace {

TEST(DecisionFileTest, IsReadAsItIsWritten) {
  const TemporaryFolder folder;
  EXPECT_FALSE(ReadDecisionFile(folder.path()).has_value());
  DecisionFile file = {.decision_template = "{{ state }}\n", .labels = {"A", "C"}};
  file.temperatures.Set("noul", 2.33, "test");
  file.temperatures.Set("choice.3", 0.5, "test");
  file.fitted_on = "calibration.jsonl";
  WriteDecisionFile(folder.path(), file);
  EXPECT_EQ(OrderedJson::parse(ReadTextFile(folder / kDecisionFile)),
            OrderedJson::parse(R"({"type": "nimble", "template": "{{ state }}\n",
                "temperature": {"choice.3": 0.5, "noul": 2.33}, "labels": ["A", "C"],
                "fitted_on": "calibration.jsonl"})"));
  const DecisionFile read = *ReadDecisionFile(folder.path());
  EXPECT_EQ(read.decision_template, file.decision_template);
  EXPECT_EQ(read.temperatures.values(), file.temperatures.values());
  EXPECT_EQ(read.labels, file.labels);
  EXPECT_EQ(read.fitted_on, file.fitted_on);
  file.fitted_on = "";
  WriteDecisionFile(folder.path(), file);
  EXPECT_EQ(ReadDecisionFile(folder.path())->fitted_on, "");
}

TEST(DecisionFileTest, RefusesWhatItCannotUse) {
  const TemporaryFolder folder;
  const auto refuse = [&](const std::string& key, const std::string& value,
                          const std::string& part) {
    OrderedJson json = OrderedJson::parse(
        R"({"type": "nimble", "template": "t", "temperature": {}, "labels": ["A"]})");
    json[key] = OrderedJson::parse(value);
    std::ofstream(folder / kDecisionFile) << json;
    ExpectRefused([&] { ReadDecisionFile(folder.path()); }, part);
  };
  refuse("type", "\"lev\"", "decision.json: key 'type': expected nimble, found 'lev'");
  refuse("template", "5", "key 'template'");
  refuse("labels", "\"A\"", "key 'labels'");
  refuse("temperature", "[]", "key 'temperature': expected an object");
  refuse("temperature", R"({"noul": 0})", "the temperature of noul must be above 0, found 0");
  refuse("temperature", R"({"noul": "1"})", "expected a number");
  refuse("temperature", R"({"guess": 1})", "found 'guess'");
}

TEST(DecisionFileTest, RefusesTheLabelsOfAnotherModel) {
  const Tokenizer tokenizer = MakeTestTokenizer();
  const DecisionTokenizer decisions(tokenizer);
  CheckDecisionFile({.labels = decisions.LabelTexts()}, decisions, "adapter/decision.json");
  ExpectRefused(
      [&] {
        CheckDecisionFile({.labels = {"A", "C"}}, decisions, "adapter/decision.json");
      },
      "adapter/decision.json: key 'labels': found A C, but");
}

}  // namespace
}  // namespace qlora
