// `qlora report` and `train --dashboard`. How the page behaves in a browser is tested in
// tests/interop/report_test.mjs.
#include <gmock/gmock.h>
#include <httplib.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>
#include <thread>

#include "cli/tiny_model.h"
#include "report/dashboard.h"
#include "report/report_page.h"

namespace qlora {
namespace {

using ::testing::HasSubstr;

nlohmann::json DataOf(const std::string& page) {
  const std::string open = "<script type=\"application/json\" id=\"record\">";
  const std::size_t begin = page.find(open) + open.size();
  return nlohmann::json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

// A port that was free a moment ago.
int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(fd);
  return ntohs(address.sin_port);
}

class ReportTest : public TinyModelTest {
 protected:
  void Train(const std::string& name, const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {"--output_dir", name, "--max_steps", "6"};
    words.insert(words.end(), more.begin(), more.end());
    ASSERT_EQ(Run(TrainWords(words)).code, 0);
  }
};

TEST_F(ReportTest, HoldsWhatTheRunsRecorded) {
  Train("first", {"--val_set_size", "2", "--eval_steps", "3", "--eval_on_start"});
  Train("second", {"--lora_r", "8"});
  const Outcome outcome = Run({"report", "first,second", "--out", "page.html"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(Run({"report", "second", "--out", "second/train_log.jsonl"}).code, 2);
  EXPECT_EQ(ReadAll(scratch_ / "second" / "train_log.jsonl").front(), '{');
  ASSERT_EQ(Run({"report", "first,second", "--out", "page.html"}).code, 0) << "a page is replaced";
  const std::string page = ReadAll(scratch_ / "page.html");
  for (const char* absent :
       {"@CSS@", "@CHART@", "@JS@", "@DATA@", "src=", "href=\"http", "import "}) {
    EXPECT_EQ(page.find(absent), std::string::npos) << absent;
  }
  const nlohmann::json data = DataOf(page);
  ASSERT_EQ(data.at("runs").size(), 2u);
  const nlohmann::json& first = data.at("runs")[0];
  EXPECT_EQ(first.at("name"), "first");
  EXPECT_EQ(first.at("steps").at("loss").size(), 6u);
  EXPECT_EQ(first.at("evals").at("step"), nlohmann::json({0, 3, 6}));
  EXPECT_EQ(first.at("data").at("samples"), 6);
  EXPECT_EQ(first.at("eval_data").at("samples"), 2);
  EXPECT_TRUE(first.at("finished").get<bool>());
  EXPECT_EQ(data.at("runs")[1].at("options").at("lora_r"), "8");
}

TEST_F(ReportTest, TextsCannotEndTheScript) {
  Write("prompts.yaml", "sample_prompts: [\"</script><script>alert(1)</script>\"]\n" +
                            ReadAll(scratch_ / "base.yaml"));
  ASSERT_EQ(Run({"train", "prompts.yaml", "--sample_max_new_tokens", "4"}).code, 0);
  ASSERT_EQ(Run({"report", "out", "--out", "page.html"}).code, 0);
  const std::string page = ReadAll(scratch_ / "page.html");
  EXPECT_EQ(page.find("<script>alert"), std::string::npos);
  EXPECT_EQ(DataOf(page).at("runs")[0].at("samples")[0].at("prompt"),
            "</script><script>alert(1)</script>");
}

TEST_F(ReportTest, AFolderWithoutARunIsRefused) {
  EXPECT_THAT(Refused({"report", "model"}), HasSubstr("model: no run there"));
}

TEST_F(ReportTest, DashboardShowsARunWhileItTrains) {
  const int port = FreePort();
  nlohmann::json data;
  std::string page;
  int foreign = 0;
  int other = 0;
  const Outcome outcome = RunQlora(
      scratch_, TrainWords({"--max_steps", "1000000", "--dashboard", std::to_string(port)}), "",
      [&](pid_t program) {
        httplib::Client client("127.0.0.1", port);
        for (int tries = 0; tries < 600 && !data.contains("runs"); ++tries) {
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          const httplib::Result answer = client.Get("/data.json");
          if (!answer || answer->status != 200) continue;
          const nlohmann::json now = nlohmann::json::parse(answer->body);
          if (!now.at("runs").empty() && !now.at("runs")[0].at("steps").empty()) data = now;
        }
        if (const httplib::Result answer = client.Get("/")) page = answer->body;
        if (const auto answer = client.Get("/data.json", {{"Host", "evil.example:80"}})) {
          foreign = answer->status;
        }
        if (const auto answer = client.Get("/../train_log.jsonl")) other = answer->status;
        kill(program, SIGTERM);
      });
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_THAT(outcome.err,
              HasSubstr("dashboard: http://127.0.0.1:" + std::to_string(port) + "/\n"));
  ASSERT_TRUE(data.contains("runs"));
  EXPECT_TRUE(data.at("live").get<bool>());
  const nlohmann::json& run = data.at("runs")[0];
  EXPECT_EQ(run.at("total_steps"), 1000000);
  EXPECT_FALSE(run.at("finished").get<bool>());
  EXPECT_GE(run.at("steps").at("loss").size(), 1u);
  EXPECT_TRUE(DataOf(page).at("live").get<bool>());
  EXPECT_EQ(foreign, 403);
  EXPECT_EQ(other, 404);
}

TEST_F(ReportTest, DashboardPortThatIsTakenOrNone) {
  const int port = FreePort();
  const Dashboard taken(port, "");
  EXPECT_THAT(Refused(TrainWords({"--dashboard", std::to_string(port)})), HasSubstr("is taken"));
  EXPECT_THAT(Refused(TrainWords({"--dashboard", "70000"})), HasSubstr("1 to 65535"));
}

}  // namespace
}  // namespace qlora
