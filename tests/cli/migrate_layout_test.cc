// A migrated run trains the texts of the original trainer, token for token. The expected tokens are
// those of tools/make_layout_goldens.py, which shares no code with the program.
#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "cli/test_util.h"
#include "command/config_file.h"
#include "data/data_test_util.h"
#include "data/training_data.h"
#include "migrate/migrate.h"
#include "prompt/chat_template.h"
#include "prompt/chat_template_load.h"
#include "test_build.h"
#include "training/train_settings.h"

namespace qlora {
namespace {

class MigrateLayoutTest : public ScratchTest {
 protected:
  // The data options of the run that `migrate` makes of a configuration.
  DataFields Migrated(const OrderedJson& golden) const {
    const Migration migration = Migrate(golden.at("config").get<std::string>(), "run.yaml",
                                        golden.at("from").get<std::string>());
    TrainSettings settings;
    OptionTable table;
    settings.Declare(table);
    std::vector<std::string> notes;
    ReadConfigFile(Write("migrated.yaml", migration.yaml), table, notes);
    DataFields fields = settings.options.data;
    fields.dataset = {Write("data.jsonl", golden.at("record").dump() + "\n").string()};
    return fields;
  }
};

// The template of the model, from the golden file: a name, or Jinja.
std::string TemplateOf(const OrderedJson& golden) {
  const std::string text = golden.value("template", "");
  return text == "chatml" ? ReadFixture("chat/chatml.jinja") : text;
}

// The same labels but for white space behind the token that ends a turn, which this program never
// trains on.
void ExpectLabels(const Tokenizer& tokenizer, const Sample& sample, const Ids& theirs) {
  ASSERT_EQ(sample.labels.size(), theirs.size());
  for (std::int64_t t = 0; t < std::ssize(theirs); ++t) {
    if (sample.labels[t] == theirs[t]) continue;
    const std::string text = tokenizer.Decode({&sample.ids[t], 1}, false);
    EXPECT_EQ(sample.labels[t], kIgnoreLabel) << t;
    EXPECT_EQ(text.find_first_not_of(" \n"), std::string::npos) << t << " '" << text << "'";
  }
}

TEST_F(MigrateLayoutTest, EveryLayoutKeepsItsTokens) {
  std::ifstream file(SourceDir() / "tests/fixtures/layouts.jsonl");
  int count = 0;
  for (std::string line; std::getline(file, line); ++count) {
    const OrderedJson golden = OrderedJson::parse(line);
    SCOPED_TRACE(golden.at("config").get<std::string>() + golden.at("record").dump());
    const Tokenizer tokenizer = MakeTestTokenizer(
        {.special = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<start_of_turn>",
                     "<end_of_turn>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>",
                     "<|eot|>", "<|end_of_text|>"},
         .chat_template = TemplateOf(golden)});
    const DataFields fields = Migrated(golden);
    const auto chat = LoadChatTemplate(fields.chat, tokenizer, ChatClock::kFixed);
    const TrainingData data = OpenTrainingData(fields, {}, 1, tokenizer, chat.get(), nullptr);
    ASSERT_EQ(data.train.size(), 1);
    const Sample sample = data.train.Get(0);
    EXPECT_EQ(tokenizer.Decode(sample.ids, /*skip_special_tokens=*/false), golden.at("text"));
    EXPECT_EQ(sample.ids, golden.at("ids").get<Ids>());
    ExpectLabels(tokenizer, sample, golden.at("labels").get<Ids>());
  }
  EXPECT_EQ(count, 94);
}

}  // namespace
}  // namespace qlora
