// Files and jobs as clients ask for them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>

#include "base/file.h"
#include "io/json.h"
#include "serve/jobs/fine_tuning.h"
#include "serve/jobs/job_stubs.h"
#include "serve/routes/serve_fixture.h"
#include "temporary_folder.h"

namespace qlora {
namespace {

constexpr const char* kRow =
    R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})";

class JobRoutesTest : public ServeTest<NamedModels> {
 protected:
  JobRoutesTest() {
    jobs_ = std::make_unique<FineTuning>(
        FineTuningOptions{.folder = folder_.path() / "runs", .file_bytes = 1000}, models_,
        [this](const TrainingTask& task, const std::function<StopRequest()>& watch) {
          return training_.Run(task, watch);
        },
        [](const std::string&) {});
    server_.fine_tuning = jobs_.get();
  }

  // As the server takes an upload: its body is in a file.
  std::shared_ptr<FakeReply> Upload(const std::string& form,
                                    const std::string& type = "multipart/form-data; boundary=q") {
    HttpRequest request;
    request.method = "POST";
    request.path = "/v1/files";
    request.headers = {{"content-type", type}};
    request.body_file = jobs_->BodyOf(request)->file;
    WriteTextFile(request.body_file, form);
    const std::string body_file = request.body_file;
    auto reply = Begin(std::move(request));
    EXPECT_FALSE(Exists(body_file));
    return reply;
  }
  static std::string Form(const std::string& content, const std::string& name = "a.jsonl",
                          const std::string& purpose = "fine-tune") {
    return "--q\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\n" + purpose +
           "\r\n--q\r\nContent-Disposition: form-data; name=\"file\"; filename=\"" + name +
           "\"\r\n\r\n" + content + "\r\n--q--\r\n";
  }
  std::string UploadedId() { return Upload(Form(kRow))->json()["id"].get<std::string>(); }

  TemporaryFolder folder_;
  StubTraining training_;
  std::unique_ptr<FineTuning> jobs_;
};

TEST_F(JobRoutesTest, AFileIsKeptByteForByte) {
  const auto reply = Upload(Form("a\r\nb\n", "../../möre.jsonl"));
  ASSERT_EQ(reply->response.status, 200) << reply->body;
  const OrderedJson file = reply->json();
  EXPECT_EQ(file["filename"], "möre.jsonl");
  EXPECT_EQ(file["bytes"], 5);
  EXPECT_EQ(file["purpose"], "fine-tune");
  const std::string path = "/v1/files/" + file["id"].get<std::string>();
  EXPECT_EQ(Ask("GET", path)->json(), file);
  EXPECT_EQ(ReadTextFile(Ask("GET", path + "/content")->response.file), "a\r\nb\n");
  EXPECT_EQ(Ask("GET", "/v1/files")->json()["data"][0], file);
  EXPECT_EQ(Ask("DELETE", path)->json()["deleted"], true);
  EXPECT_EQ(Ask("GET", path)->response.status, 404);
  EXPECT_EQ(Ask("GET", path + "/content")->response.status, 404);
}

TEST_F(JobRoutesTest, WhatIsNoUploadIsRefusedAndLeavesNothing) {
  EXPECT_EQ(Upload("{}", "application/json")->response.status, 415);
  EXPECT_EQ(Upload("x", "multipart/form-data")->response.status, 400);
  EXPECT_EQ(Upload("x")->response.status, 400);
  EXPECT_EQ(Upload(Form("x", "a", "nonsense"))->response.status, 400);
  EXPECT_EQ(Upload(Form(std::string(1001, 'x')))->response.status, 413);
  EXPECT_EQ(Upload("--q\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nfine-tune\r\n"
                   "--q--\r\n")
                ->response.status,
            400);
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path() / "runs" / "files"));
}

TEST_F(JobRoutesTest, NamesOfTypesAreInAnyCase) {
  EXPECT_EQ(Upload(Form(kRow), "Multipart/Form-Data; boundary=q")->response.status, 200);
}

TEST_F(JobRoutesTest, FilesDoNotExpire) {
  const auto reply = Upload(
      "--q\r\nContent-Disposition: form-data; name=\"expires_after[anchor]\"\r\n\r\n"
      "created_at\r\n" +
      Form(kRow));
  EXPECT_EQ(reply->response.status, 400);
  EXPECT_EQ(ErrorOf(*reply)["param"], "expires_after[anchor]");
}

// No path is told, and no client is blamed.
TEST_F(JobRoutesTest, ADiskIsNoFaultOfTheClient) {
  HttpRequest request;
  request.method = "POST";
  request.path = "/v1/files";
  request.headers = {{"content-type", "multipart/form-data; boundary=q"}};
  request.body_file = folder_.Write("body", Form(kRow)).string();
  const std::string file = UploadedId();
  std::filesystem::remove_all(folder_.path() / "runs");
  for (const auto& reply :
       {Begin(request), Ask("POST", "/v1/fine_tuning/jobs",
                            R"({"model": "base", "training_file": ")" + file + "\"}")}) {
    EXPECT_EQ(reply->response.status, 507) << reply->body;
    EXPECT_EQ(reply->body.find(folder_.path().string()), std::string::npos) << reply->body;
  }
  EXPECT_NE(log_.find((folder_.path() / "runs").string()), std::string::npos) << log_;
}

TEST_F(JobRoutesTest, AFileWhoseBytesAreGoneIsNotThere) {
  const std::string file = UploadedId();
  std::filesystem::remove_all(folder_.path() / "runs");
  log_.clear();
  const auto reply = Ask("GET", "/v1/files/" + file + "/content");
  EXPECT_EQ(reply->response.status, 404);
  EXPECT_EQ(ErrorOf(*reply)["code"], "file_gone");
  EXPECT_EQ(log_.find(": error: "), std::string::npos) << log_;
  EXPECT_EQ(Ask("GET", "/v1/files/" + file)->json()["id"], file);
}

TEST_F(JobRoutesTest, AJobOverBytesThatAreGoneNamesTheField) {
  const std::string file = UploadedId();
  std::filesystem::remove(jobs_->files().PathOf({.id = file}));
  const auto reply =
      Ask("POST", "/v1/fine_tuning/jobs", R"({"model": "base", "training_file": ")" + file + "\"}");
  EXPECT_EQ(reply->response.status, 404);
  EXPECT_EQ(ErrorOf(*reply)["param"], "training_file");
}

TEST_F(JobRoutesTest, AJobIsMadeAndListed) {
  const auto made = Ask("POST", "/v1/fine_tuning/jobs",
                        R"({"model": "base", "training_file": ")" + UploadedId() +
                            R"(", "metadata": {"mark": "x"}})");
  ASSERT_EQ(made->response.status, 200) << made->body;
  const std::string path = "/v1/fine_tuning/jobs/" + made->json()["id"].get<std::string>();
  Json job;
  while (job["finished_at"].is_null()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    job = Ask("GET", path)->json();
  }
  EXPECT_EQ(job["status"], "succeeded") << job;
  EXPECT_FALSE(Ask("GET", path + "/events")->json()["data"].empty());
  EXPECT_EQ(Ask("GET", path + "/checkpoints")->json()["data"].size(), 2);
  HttpRequest list;
  list.method = "GET";
  list.path = "/v1/fine_tuning/jobs";
  list.query = {{"metadata[mark]", "y"}};
  EXPECT_TRUE(Begin(list)->json()["data"].empty());
  list.query = {{"metadata[mark]", "x"}, {"limit", "1"}};
  EXPECT_EQ(Begin(list)->json()["data"].size(), 1);
  EXPECT_EQ(Ask("POST", path + "/cancel")->response.status, 400);
  const std::string model = job["fine_tuned_model"].get<std::string>();
  EXPECT_EQ(Ask("DELETE", "/v1/models/" + model)->json(),
            (OrderedJson{{"id", model}, {"object", "model"}, {"deleted", true}}));
  EXPECT_EQ(Ask("DELETE", "/v1/models/base")->response.status, 400);
}

TEST_F(JobRoutesTest, WhatIsNotThereIs404) {
  for (const char* path :
       {"/v1/files/file-none", "/v1/files/..", "/v1/fine_tuning/jobs/ftjob-none",
        "/v1/fine_tuning/jobs/ftjob-none/events", "/v1/fine_tuning/jobs/ftjob-none/checkpoints"}) {
    EXPECT_EQ(Ask("GET", path)->response.status, 404) << path;
  }
  for (const char* action : {"cancel", "pause", "resume"}) {
    EXPECT_EQ(Ask("POST", std::string("/v1/fine_tuning/jobs/x/") + action)->response.status, 404);
  }
}

TEST_F(JobRoutesTest, AServerWithoutAFolderSaysSo) {
  server_.fine_tuning = nullptr;
  EXPECT_EQ(Ask("GET", "/v1/files")->response.status, 404);
  EXPECT_EQ(Ask("POST", "/v1/fine_tuning/jobs", "{}")->response.status, 404);
}

}  // namespace
}  // namespace qlora
