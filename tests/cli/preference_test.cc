// Preferences on the command line: the figures of `qlora eval`.
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
  for (const char* name :
       {"loss", "rewards/chosen", "rewards/rejected", "rewards/margins", "rewards/accuracies",
        "logps/chosen", "logps/rejected", "logits/chosen", "logits/rejected"}) {
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

}  // namespace
}  // namespace qlora
