// What `inspect` shows of models and adapters that other programs made or that are damaged in part.
#include "qlora/inspect.h"

#include <gmock/gmock.h>

#include "base/file.h"
#include "convert/convert_fixture.h"
#include "io/json.h"

namespace qlora {
namespace {

using ::testing::HasSubstr;

class InspectTest : public ConvertTest {
 protected:
  static Json JsonOf(const fs::path& path) {
    return ParseJson(Inspect(path.string()).json, path.string());
  }
};

TEST_F(InspectTest, CheckpointsOfOtherTrainers) {
  const fs::path adapter = root_ / "adapter";
  fs::copy(kGolden / "llama-tiny" / "adapter", adapter);
  for (const auto& [state, line] :
       {std::pair(R"({"global_step": 7})", "  checkpoint of step 7\n"),
        {R"({"global_step": 7, "loss_mean": 1.5})",
         "  checkpoint of step 7, mean of the recent losses 1.5000\n"}}) {
    WriteTextFile(adapter / "trainer_state.json", state);
    EXPECT_THAT(Inspect(adapter.string()).text, HasSubstr(line));
    EXPECT_EQ(JsonOf(adapter).at("global_step"), 7);
  }
  WriteTextFile(adapter / "trainer_state.json", R"({"global_step": 7, "loss_mean": null})");
  EXPECT_FALSE(JsonOf(adapter).contains("loss_mean"));
  WriteTextFile(adapter / "trainer_state.json", "{}");
  EXPECT_EQ(Inspect(adapter.string()).text.find("checkpoint of"), std::string::npos);
}

TEST_F(InspectTest, ModelsWhoseTokenizerCannotBeUsed) {
  const fs::path model = root_ / "model";
  fs::copy(kGolden / "llama-tiny", model);
  EXPECT_FALSE(JsonOf(model).at("tokenizer").is_null());
  WriteTextFile(model / "chat_template.jinja", "{% if %}");
  EXPECT_THAT(Inspect(model.string()).text, HasSubstr("  tokenizer of 288 tokens, "));
  WriteTextFile(model / "tokenizer.json", R"({"model": {"type": "Unheard"}})");
  const Inspection inspection = Inspect(model.string());
  EXPECT_THAT(inspection.text, HasSubstr("  tokenizer: "));
  EXPECT_THAT(inspection.text, HasSubstr(" tensors "));
  const Json json = JsonOf(model);
  EXPECT_TRUE(json.at("tokenizer").is_null());
  EXPECT_THAT(json.at("tokenizer_error").get<std::string>(), HasSubstr("tokenizer.json"));
}

// Without a model: what the file says by itself.
TEST_F(InspectTest, DataAreDescribedWithoutAModel) {
  const fs::path file = root_ / "chats.json";
  WriteTextFile(file, R"([{"id": 1, "messages": [{"role": "user", "content": "Größe?"},
                                     {"role": "assistant", "content": "Four."}]},
      {"id": 2, "messages": [{"role": "user"}]}, {"id": 3, "messages": null}])");
  const Json found = JsonOf(file).at("files").at(0);
  EXPECT_EQ(found.at("container"), "JSON array");
  EXPECT_EQ(found.at("format"), "messages");
  EXPECT_EQ(found.at("records"), 3);
  EXPECT_EQ(found.at("bad_records"), 2);
  EXPECT_THAT(found.at("first_bad").get<std::string>(), HasSubstr("chats.json:3: messages[0]"));
  EXPECT_EQ(found.at("roles"), (Json{{"user", 2}, {"assistant", 1}}));
  EXPECT_EQ(found.at("characters").at("longest"), 25) << "characters, not bytes, with roles";
  EXPECT_TRUE(found.at("needs_chat_template").get<bool>());
  const std::string text = Inspect(file.string()).text;
  EXPECT_THAT(text, HasSubstr("field messages: list in 2 of 3\n"));
  EXPECT_THAT(text, HasSubstr("conversations need a chat template"));
  // A folder, and data whose format is not told.
  fs::create_directories(root_ / "data");
  WriteTextFile(root_ / "data" / "a.csv", "Frage,Antwort\na,b\n");
  const Json folder = JsonOf(root_ / "data").at("files").at(0);
  EXPECT_TRUE(folder.at("format").is_null());
  EXPECT_THAT(folder.at("problem").get<std::string>(), HasSubstr("prompt_template"));
  EXPECT_THAT(folder.at("first").get<std::string>(), HasSubstr("Antwort"));
}

// What training would refuse gets no command to train, and its reason once.
TEST_F(InspectTest, DataOfNoFormatAreNotForTraining) {
  const fs::path file = root_ / "d.json";
  for (const char* text :
       {R"([[{"role": "user", "content": "a"}]])", "{\"chats\": [1]}", "[{\"text\": \"\xff\"}]"}) {
    WriteTextFile(file, text);
    const std::string shown = Inspect(file.string()).text;
    EXPECT_EQ(shown.find("to train:"), std::string::npos) << shown;
    const std::size_t place = shown.find("d.json:1");
    ASSERT_NE(place, std::string::npos) << shown;
    EXPECT_EQ(shown.find("d.json:1", place + 1), std::string::npos) << shown;
  }
  WriteTextFile(file, R"([{"text": "a"}])");
  EXPECT_THAT(Inspect(file.string()).text, HasSubstr("to train: "));
}

TEST_F(InspectTest, NamesThatCannotBeLookedUpAreRefused) {
  // Longer than any file system takes.
  for (const char* end : {"", ".jsonl", ".gguf", "/config.json"}) {
    const std::string name = (root_ / std::string(5000, 'a')).string() + end;
    try {
      Inspect(name);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidInput) << error.what();
    }
  }
}

// Of each format, a record that training would refuse is counted.
TEST_F(InspectTest, RecordsThatTrainingRefusesAreCounted) {
  const auto survey = [&](const std::string& lines, const std::string& prompt_template = "",
                          const std::string& completion_template = "") {
    const fs::path file = root_ / "data.jsonl";
    WriteTextFile(file, lines);
    DataFields fields;
    fields.dataset = {file.string()};
    fields.reading.prompt_template = prompt_template;
    fields.reading.completion_template = completion_template;
    const Inspection found = InspectRecords(fields);
    const Json json = Json::parse(found.json).at("files").at(0);
    EXPECT_THAT(found.text, HasSubstr("format " + json.at("format").get<std::string>() + "\n"));
    return json;
  };
  Json found = survey(R"({"input_ids": [1, 2], "labels": [1, 2]}
{"input_ids": [1, 2], "labels": [1]}
{"input_ids": "1 2"}
)");
  EXPECT_EQ(found.at("format"), "input_ids");
  EXPECT_EQ(found.at("bad_records"), 2);
  EXPECT_THAT(found.at("first_bad").get<std::string>(), HasSubstr("2 input_ids but 1 labels"));

  found = survey(R"({"q": "a", "a": "b"}
{"q": "a"}
{"q": "a", "a": ["b"]}
)",
                 "{q}", "{a}");
  EXPECT_EQ(found.at("format"), "template");
  EXPECT_EQ(found.at("bad_records"), 2);

  found = survey(R"({"prompt": "a", "chosen": "b", "rejected": "c"}
{"prompt": "a", "chosen": "b", "rejected": null}
{"prompt": "a", "completion": "b", "label": true}
)");
  EXPECT_EQ(found.at("preferences"), "pairs of answers");
  EXPECT_EQ(found.at("format"), "prompt_completion");
  EXPECT_EQ(found.at("bad_records"), 2);

  found = survey(R"({"prompt": "a", "completion": "b", "label": true}
{"prompt": "a", "completion": "b", "label": "perhaps"}
)");
  EXPECT_EQ(found.at("preferences"), "answers with a label");
  EXPECT_EQ(found.at("bad_records"), 1);

  found = survey(R"({"prompt": "a", "completion": "b", "label": true}
{"prompt": "a", "chosen": "b", "rejected": "c"}
)");
  EXPECT_EQ(found.at("preferences"), "answers with a label");
  EXPECT_EQ(found.at("bad_records"), 0) << "a pair is two answers with labels";

  found = survey(R"({"prompt": "a", "completion": "b"}
)");
  EXPECT_EQ(found.at("preferences"), "");
  EXPECT_EQ(found.at("bad_records"), 0);
}

TEST_F(InspectTest, RecordsAreReadWithTheOptionsOfTraining) {
  const fs::path file = root_ / "rain.jsonl";
  WriteTextFile(file, R"({"body": "rain", "label": 1, "prompt": "?"}
{"body": "sun", "label": 2, "prompt": "?"}
)");
  DataFields fields;
  fields.dataset = {file.string()};
  const auto survey = [&] { return Json::parse(InspectRecords(fields).json).at("files").at(0); };
  fields.reading.ignore_fields = {"prompt"};
  fields.reading.decision.instructions = "Is it wet?";
  fields.reading.decision.text_column = "body";
  fields.reading.decision.label_names = {"no", "yes"};
  Json found = survey();
  EXPECT_EQ(found.at("format"), "decision");
  EXPECT_EQ(found.at("bad_records"), 1) << "there is no label 2";
  EXPECT_EQ(found.at("fields").size(), 2u) << "without prompt";

  // The names of the labels are those of the data set.
  fields.reading.decision.label_names.clear();
  EXPECT_EQ(survey().at("bad_records"), 2);
  WriteTextFile(root_ / "dataset_info.json",
                R"({"features": {"label": {"names": ["no", "yes", "perhaps"]}}})");
  EXPECT_EQ(survey().at("bad_records"), 0);
}

TEST_F(InspectTest, OptionsOfQuestionsNeedQuestions) {
  const fs::path file = root_ / "d.jsonl";
  DataFields fields;
  fields.dataset = {file.string()};
  const auto error = [&](const std::string& record) {
    WriteTextFile(file, record + "\n");
    try {
      InspectRecords(fields);
    } catch (const Error& found) {
      EXPECT_EQ(found.code(), ErrorCode::kInvalidInput);
      return std::string(found.what());
    }
    return std::string();
  };
  const char* plain = R"({"prompt": "a", "completion": "b"})";
  const char* question = R"({"state": "s", "type": "noul", "instructions": "?", "answer": true})";
  EXPECT_EQ(error(plain), "");
  fields.reading.decision.question_types = {"noul"};
  EXPECT_THAT(error(plain), HasSubstr("question_types would have no effect"));
  EXPECT_EQ(error(question), "");
  fields.reading.decision.label_names = {"a", "b"};
  EXPECT_THAT(error(question), HasSubstr("label_names would have no effect"));
  // Of what no format fits, the survey tells.
  EXPECT_EQ(error(R"({"who": "knows"})"), "");
}

TEST_F(InspectTest, AGgufFileTellsWhetherItIsAModelToTrain) {
  ExportOptions options = ExportTo("m.gguf");
  options.verify = "false";
  Export(context_, options);
  EXPECT_THAT(Inspect(options.output).text,
              HasSubstr("  a model to train, llama: 2 layers, hidden_size 64"));
  // Of a folder, its only file.
  const Json json = JsonOf(root_);
  EXPECT_EQ(json.at("kind"), "gguf");
  EXPECT_EQ(json.at("model").at("vocab_size"), 288);
  EXPECT_FALSE(json.contains("model_error"));
  options.adapter = {kGolden / "llama-tiny" / "adapter"};
  options.format = "gguf-adapter";
  options.output = root_ / "a.gguf";
  Export(context_, options);
  EXPECT_THAT(Inspect(options.output).text,
              HasSubstr("  an adapter: r 4, lora_alpha 8, on 14 linears (attn_k, "));
  const Json adapter = JsonOf(options.output);
  EXPECT_FALSE(adapter.contains("model_error"));
  EXPECT_EQ(adapter.at("adapter").at("modules"), 14);
  EXPECT_EQ(adapter.at("adapter").at("r"), Json::array({4}));
  EXPECT_EQ(adapter.at("adapter").at("base_model_name_or_path"), "llama-tiny");
}

TEST_F(InspectTest, ExpertsAreCounted) {
  EXPECT_THAT(Inspect((kGolden / "mixtral-tiny").string()).text,
              HasSubstr(", 4 experts of size 32 (2 for each token)\n"));
  const Json json = JsonOf(kGolden / "mixtral-tiny");
  EXPECT_EQ(json.at("num_experts_per_tok"), 2);
  EXPECT_EQ(json.at("moe_layers"), json.at("num_hidden_layers"));
  EXPECT_FALSE(JsonOf(kGolden / "llama-tiny").contains("num_experts"));
  // Beside the MLP, behind leading dense layers, and a shared one.
  const fs::path families = SharedFolder() / "golden/families";
  if (!fs::exists(families)) GTEST_SKIP() << "no " << families;
  for (const auto& [model, part] :
       {std::pair("gemma4/26b-a4b", " for each token) beside each MLP"),
        {"lfm2_moe", " for each token) in "},
        {"qwen3_5_moe", " for each token) and a shared one of size "}}) {
    EXPECT_THAT(Inspect((families / model).string()).text, HasSubstr(part)) << model;
  }
}

}  // namespace
}  // namespace qlora
