// What clients ask of jobs and files, and are told.
#include "model/base_record.h"
#include "serve/jobs/fine_tuning_fixture.h"

namespace qlora {
namespace {

using testing::HasSubstr;

TEST_F(FineTuningTest, AJobBecomesAModelWithCheckpointsAndAResult) {
  const std::string id = Create();
  const OrderedJson job = WaitFor(id, "succeeded");
  EXPECT_EQ(job["trained_tokens"], 40);
  EXPECT_TRUE(job["error"].is_null());
  EXPECT_GE(job["finished_at"], job["created_at"]);
  const auto model = job["fine_tuned_model"].get<std::string>();
  EXPECT_THAT(model, HasSubstr("ft:base:local:s:"));
  EXPECT_TRUE(models_->Has(model));
  EXPECT_EQ(MetricSteps(id), (std::vector<std::int64_t>{1, 2, 3, 4}));
  const OrderedJson checkpoints = jobs_->Checkpoints(id, {});
  ASSERT_EQ(checkpoints["data"].size(), 2);
  EXPECT_EQ(checkpoints["data"][0]["step_number"], 4);
  EXPECT_EQ(checkpoints["data"][0]["metrics"]["train_loss"], 0.25);
  EXPECT_TRUE(models_->Has(checkpoints["data"][1]["fine_tuned_model_checkpoint"]));
  const StoredFile result = jobs_->files().Get(job["result_files"][0]);
  EXPECT_EQ(result.purpose, kResultPurpose);
  EXPECT_THAT(ReadTextFile(jobs_->files().PathOf(result)), HasSubstr("\n2,0.5,"));
}

TEST_F(FineTuningTest, PreferencesHaveALossAndARateOfTheirOwn) {
  const std::string pair =
      R"({"input": {"messages": [{"role": "user", "content": "q"}]}, "preferred_output": )"
      R"([{"role": "assistant", "content": "a"}], "non_preferred_output": )"
      R"([{"role": "assistant", "content": "b"}]})";
  const OrderedJson hyperparameters = {{"batch_size", 4}, {"learning_rate_multiplier", 2}};
  const std::string id =
      Create({{"training_file", Upload(pair)},
              {"method", {{"type", "dpo"}, {"dpo", {{"hyperparameters", hyperparameters}}}}}});
  WaitFor(id, "succeeded");
  const Json config = ConfigOf(0);
  EXPECT_EQ(config["preference_loss"], "sigmoid");
  EXPECT_EQ(config["beta"], 0.1);
  EXPECT_EQ(config["learning_rate"], 1e-5);
  EXPECT_EQ(config["per_device_train_batch_size"], 2);
}

TEST_F(FineTuningTest, TheTrainingIsTheProgramItself) {
  const std::string id = Create({{"seed", 5}, {"hyperparameters", {{"batch_size", 3}}}});
  WaitFor(id, "succeeded");
  ASSERT_EQ(tasks_.size(), 1);
  const std::vector<std::string>& arguments = tasks_[0].arguments;
  EXPECT_EQ(arguments[0], "train");
  EXPECT_EQ(arguments[2], "--json");
  EXPECT_EQ(arguments[3], "--max_memory");
  EXPECT_EQ(arguments[4], "12345B");
  const Json config = ConfigOf(0);
  EXPECT_EQ(config["seed"], 5);
  EXPECT_EQ(config["global_batch_size"], 3);
  EXPECT_EQ(config["per_device_train_batch_size"], 1);
  EXPECT_EQ(config["learning_rate"], 2e-4);
  EXPECT_EQ(config["output_dir"], id);
}

TEST_F(FineTuningTest, AnAdapterThatIsGoneIsNamed) {
  const std::string first = Create();
  WaitFor(first, "succeeded");
  StopBefore(1);
  const std::string running = Create();
  const std::string id = Create({{"model", ModelOf(first)}});
  std::filesystem::remove_all(runs_ / first);
  jobs_->Cancel(running);
  const OrderedJson error = WaitFor(id, "failed")["error"];
  EXPECT_EQ(error["code"], "model_not_found");
  EXPECT_EQ(error["param"], "model");
}

// Such an adapter is asked in the form of its texts, which `train` does not take by itself.
TEST_F(FineTuningTest, ConversationsForAnAdapterOfTextsHaveTheirForm) {
  const std::string first = Create();
  WaitFor(first, "succeeded");
  BaseRecord record;
  record.chat_template = "{{ messages }}";
  record.prompts.layout = PromptLayout{.kind = PromptLayout::Kind::kText,
                                       .format = RecordFormat::kPromptCompletion,
                                       .prompt_template = "{prompt}",
                                       .completion_template = "{completion}"};
  SaveBaseRecord(runs_ / first, record);
  const std::string chat = Create({{"model", ModelOf(first)}});
  WaitFor(chat, "succeeded");
  EXPECT_EQ(ConfigOf(1)["chat_template"], first + "/chat_template.jinja");
  const std::string texts = Upload(R"({"prompt": "q", "completion": "a"})");
  WaitFor(Create({{"model", ModelOf(first)}, {"training_file", texts}}), "succeeded");
  EXPECT_FALSE(ConfigOf(2).contains("chat_template"));
}

TEST_F(FineTuningTest, AFileThatIsGoneIsNamed) {
  StopBefore(1);
  const std::string file = Upload();
  const std::string id = Create({{"training_file", file}});
  const auto path = jobs_->files().PathOf({.id = file});
  jobs_.reset();
  std::filesystem::remove(path);
  Start();
  const OrderedJson error = WaitFor(id, "failed")["error"];
  EXPECT_EQ(error["param"], "training_file");
  EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(file + " is no longer there"));
}

TEST_F(FineTuningTest, AFailureHasTheNamesOfTheClient) {
  training_.exit_code = 2;
  StopBefore(1);
  const std::string file = Upload();
  training_.output =
      FormatJson(Json{{"ok", false}, {"error", "files/" + file + ".jsonl:1: bad\nmore"}});
  const std::string id = Create({{"training_file", file}});
  gate_ = 1000;
  const OrderedJson job = WaitFor(id, "failed");
  EXPECT_EQ(job["error"]["message"], "words.jsonl:1: bad");
  EXPECT_EQ(job["error"]["code"], "invalid_training_file");
  EXPECT_TRUE(job["fine_tuned_model"].is_null());
}

TEST_F(FineTuningTest, ABadFileIsRefusedWithItsLine) {
  try {
    Create({{"training_file", Upload(std::string(kRow) + "\n{}\n")}});
    ADD_FAILURE() << "taken";
  } catch (const ApiError& error) {
    EXPECT_EQ(error.status, 400);
    EXPECT_THAT(error.message, HasSubstr("words.jsonl: line 2: "));
  }
  EXPECT_EQ(StatusOf([&] { Create({{"training_file", "file-none"}}); }), 404);
  EXPECT_EQ(StatusOf([&] { Create({{"validation_file", "../../etc/passwd"}}); }), 404);
  EXPECT_EQ(StatusOf([&] { Create({{"model", "other"}}); }), 404);
}

TEST_F(FineTuningTest, AFileInUseStays) {
  StopBefore(2);
  const std::string file = Upload();
  const std::string id = Create({{"training_file", file}});
  EXPECT_EQ(StatusOf([&] { jobs_->RemoveFile(file); }), 400);
  gate_ = 1000;
  WaitFor(id, "succeeded");
  jobs_->RemoveFile(file);
}

TEST_F(FineTuningTest, ListsTheNewestFirstAndByMetadata) {
  const std::string first = Create({{"metadata", {{"mark", "x"}}}});
  const std::string second = Create();
  WaitFor(second, "succeeded");
  const OrderedJson all = jobs_->List({}, {});
  ASSERT_EQ(all["data"].size(), 2);
  EXPECT_EQ(all["data"][0]["id"], second);
  const OrderedJson marked = jobs_->List({}, {{"mark", "x"}});
  ASSERT_EQ(marked["data"].size(), 1);
  EXPECT_EQ(marked["data"][0]["id"], first);
  EXPECT_TRUE(jobs_->List({}, {{"mark", "y"}})["data"].empty());
  const OrderedJson others = jobs_->List({}, {}, true);
  ASSERT_EQ(others["data"].size(), 1);
  EXPECT_EQ(others["data"][0]["id"], second);
}

TEST_F(FineTuningTest, LeavesOutDamagedJobsAndSaysSo) {
  const std::string id = Create();
  WaitFor(id, "succeeded");
  for (const char* text : {"{", "", "{}", "[]", "null"}) {
    jobs_.reset();
    WriteTextFile(RecordOf(id), text);
    log_.clear();
    Start();
    EXPECT_TRUE(jobs_->List({}, {})["data"].empty());
    EXPECT_EQ(StatusOf([&] { jobs_->Get(id); }), 404);
    EXPECT_THAT(log_, HasSubstr(RecordOf(id).string() + ": ")) << text;
    EXPECT_THAT(log_, HasSubstr(id + " is left out: mend the file, or remove it")) << text;
    EXPECT_EQ(std::ranges::count(log_, '\n'), 1) << log_;
    EXPECT_EQ(ReadTextFile(RecordOf(id)), text);
  }
}

TEST_F(FineTuningTest, OnlyUploadsGoToFiles) {
  const auto body_of = [&](const char* method, const char* path) {
    HttpRequest request;
    request.method = method;
    request.path = path;
    return jobs_->BodyOf(request);
  };
  const auto body = body_of("POST", "/v1/files");
  ASSERT_TRUE(body.has_value());
  EXPECT_EQ(std::filesystem::path(body->file).parent_path(), folder_.path() / "files");
  EXPECT_GE(body->limit, 1000);
  EXPECT_FALSE(body_of("GET", "/v1/files"));
  EXPECT_FALSE(body_of("POST", "/v1/chat/completions"));
}

}  // namespace
}  // namespace qlora
