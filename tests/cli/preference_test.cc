// Preferences on the command line: the figures of `qlora eval`.
#include <gmock/gmock.h>

#include <sstream>

#include "cli/tiny_model.h"

namespace qlora {
namespace {

class PreferenceCommandTest : public TinyModelTest {};

TEST_F(PreferenceCommandTest, EvalPrintsTheFiguresOfTheLoss) {
  const fs::path golden = Golden("preference");
  const std::vector<std::string> words = {
      "eval",      golden / "stories260K-hf", golden / "eval_pairs.jsonl",
      "--adapter", golden / "adapter_sft",    "--preference-loss",
      "sigmoid",   "--label-smoothing",       "0.1"};
  const nlohmann::json found = RunJson(words);
  for (const char* name : {"loss", "rewards/chosen", "rewards/rejected", "rewards/margins",
                           "rewards/accuracies", "logps/chosen", "logps/rejected", "logits/chosen",
                           "logits/rejected", "mean_token_accuracy", "entropy"}) {
    EXPECT_TRUE(found[name].is_number()) << name;
  }
  EXPECT_EQ(found["sequences"], 8);
  EXPECT_FALSE(found.contains("perplexity"));
  const std::string table = Run(words).out;
  EXPECT_NE(table.find("rewards/accuracies  "), std::string::npos) << table;
  EXPECT_EQ(table.find("perplexity"), std::string::npos) << table;
  // The base is its own reference.
  std::vector<std::string> compared = words;
  compared.push_back("--compare");
  EXPECT_EQ(RunJson(compared)["base"]["rewards/chosen"], 0);
}

// What one of the labels would have is left out, and said once.
TEST_F(PreferenceCommandTest, EvalLeavesOutWhatNoAnswerHas) {
  const fs::path golden = Golden("preference");
  std::istringstream lines(ReadAll(golden / "unpaired.jsonl"));
  std::string bad;
  for (std::string line; std::getline(lines, line);) {
    if (!nlohmann::json::parse(line)["label"].get<bool>()) bad += line + "\n";
  }
  Write("bad.jsonl", bad);
  const std::vector<std::string> words = {
      "eval",      golden / "stories260K-hf", "bad.jsonl",
      "--adapter", golden / "adapter_sft",    "--preference-loss",
      "kto"};
  const nlohmann::json found = RunJson(words);
  EXPECT_TRUE(found["rewards/rejected"].is_number());
  for (const char* name : {"rewards/chosen", "rewards/margins", "logps/chosen", "logits/chosen"}) {
    EXPECT_FALSE(found.contains(name)) << name;
  }
  const Outcome table = Run(words);
  EXPECT_EQ(table.out.find("nan"), std::string::npos) << table.out;
  const std::string said =
      "no answer of the data has the label true, so that there is no "
      "rewards/chosen, rewards/margins, logps/chosen, logits/chosen";
  const std::size_t at = table.err.find(said);
  ASSERT_NE(at, std::string::npos) << table.err;
  EXPECT_EQ(table.err.find(said, at + 1), std::string::npos);
}

// A model that is not there would be named, were it looked for first.
TEST_F(PreferenceCommandTest, EvalRefusesPredictionsBeforeAnythingIsMeasured) {
  const std::string pairs = Golden("preference") / "eval_pairs.jsonl";
  EXPECT_THAT(Refused({"eval", "missing", pairs, "--preference-loss", "sigmoid", "--predictions",
                       "p.jsonl"}),
              ::testing::HasSubstr("predictions would have no effect: preferences ask no"));
  Write("plain.jsonl", "{\"text\": \"There was a bear.\"}\n");
  const std::string model = Golden("preference") / "stories260K-hf";
  for (const std::vector<std::string>& option :
       {std::vector<std::string>{"--predictions", "p.jsonl"},
        {"--ece-bins", "7"},
        {"--permutations", "all"},
        {"--decision-temperature", "noul=2"}}) {
    std::vector<std::string> words = {"eval", model, "plain.jsonl"};
    words.insert(words.end(), option.begin(), option.end());
    EXPECT_THAT(Refused(words), ::testing::HasSubstr("the records of plain.jsonl ask no questions"))
        << option.front();
  }
  EXPECT_FALSE(fs::exists(scratch_ / "p.jsonl"));
}

// A beta of 0 trains nothing, and is no word for the default.
TEST_F(PreferenceCommandTest, ABetaOf0IsRefused) {
  const std::string pairs = Golden("preference") / "eval_pairs.jsonl";
  const std::string model = Golden("preference") / "stories260K-hf";
  const std::vector<std::string> train = {
      "train", "--model",      model, "--dataset", pairs, "--preference-loss",
      "simpo", "--output-dir", "out", "--beta"};
  const std::vector<std::string> eval = {"eval", model,   pairs, "--preference-loss",
                                         "cpo",  "--beta"};
  for (std::vector<std::string> words : {train, eval}) {
    for (const char* beta : {"0", "-1"}) {
      words.push_back(beta);
      EXPECT_THAT(Refused(words), testing::HasSubstr("beta: expected a positive number"));
      words.pop_back();
    }
  }
  // What the run had is recorded, so that it can be resumed.
  std::vector<std::string> usual(train.begin(), train.end() - 1);
  usual.insert(usual.end(), {"--max-steps", "1"});
  RunJson(usual);
  EXPECT_EQ(nlohmann::json::parse(ReadAll(scratch_ / "out/train_config.json"))["beta"], "2");
}

TEST_F(PreferenceCommandTest, InspectShowsWhatALossTrainsOf) {
  const std::string pairs = Golden("preference") / "eval_pairs.jsonl";
  const std::string model = Golden("preference") / "stories260K-hf";
  const std::string shown =
      Run({"inspect", pairs, "--model", model, "--preference-loss", "sigmoid"}).out;
  EXPECT_THAT(shown, testing::HasSubstr("\n| "));
  EXPECT_THAT(shown, testing::HasSubstr("shared prompts save "));
  const nlohmann::json of_orpo =
      RunJson({"inspect", pairs, "--model", model, "--preference-loss", "orpo"});
  EXPECT_EQ(of_orpo["pairs"]["saved_rows"], 0) << "the prompt of the chosen answer is trained";
  // Without a model, how to go on.
  EXPECT_THAT(Run({"inspect", pairs}).out, testing::HasSubstr("--preference-loss sigmoid"));
  EXPECT_THAT(Run({"inspect", Golden("preference") / "unpaired.jsonl"}).out,
              testing::HasSubstr("--preference-loss kto"));
  EXPECT_THAT(Refused({"inspect", pairs, "--preference-loss", "sigmoid"}),
              testing::HasSubstr("preference_loss"));
}

}  // namespace
}  // namespace qlora
