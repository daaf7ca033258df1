// `qlora report` and `train --dashboard`. How the page behaves in a browser is tested in
// tests/interop/report_test.mjs.
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <chrono>

#include "cli/tiny_model.h"
#include "dist/free_port.h"
#include "report/dashboard.h"
#include "report/shared_text.h"

namespace qlora {
namespace {

using ::testing::HasSubstr;

nlohmann::json DataOf(const std::string& page) {
  const std::string open = "<script type=\"application/json\" id=\"record\">";
  const std::size_t begin = page.find(open) + open.size();
  return nlohmann::json::parse(page.substr(begin, page.find("</script>", begin) - begin));
}

// A connection to the live page, -1 when there is none.
int Connect(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) return fd;
  close(fd);
  return -1;
}

std::string Exchange(int port, const std::string& request) {
  const int fd = Connect(port);
  if (fd < 0) return "";
  send(fd, request.data(), request.size(), MSG_NOSIGNAL);
  std::string answer;
  char bytes[4096];
  for (ssize_t count; (count = recv(fd, bytes, sizeof(bytes), 0)) > 0;) answer.append(bytes, count);
  close(fd);
  return answer;
}

std::string Get(int port, const std::string& path, const std::string& host = "127.0.0.1") {
  return Exchange(port,
                  "GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n");
}

int StatusOf(const std::string& answer) {
  return answer.starts_with("HTTP/1.1 ") ? std::stoi(answer.substr(9)) : 0;
}

std::string BodyOf(const std::string& answer) { return answer.substr(answer.find("\r\n\r\n") + 4); }

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
  const Outcome outcome = Run({"report", "first", "second", "--out", "page.html"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(Run({"report", "second", "--out", "second/train_log.jsonl"}).code, 2);
  EXPECT_EQ(ReadAll(scratch_ / "second" / "train_log.jsonl").front(), '{');
  Write("mine.html", "<!DOCTYPE html>\n<p>A page of the user.</p>\n");
  EXPECT_THAT(Refused({"report", "second", "--out", "mine.html"}),
              HasSubstr("was not written by `qlora report`"));
  ASSERT_EQ(Run({"report", "first,second", "--out", "page.html"}).code, 0) << "a page is replaced";
  const std::string page = ReadAll(scratch_ / "page.html");
  for (const char* absent :
       {"@CSS@", "@CHART@", "@JS@", "@DATA@", "src=", "href=\"http", "import "}) {
    EXPECT_EQ(page.find(absent), std::string::npos) << absent;
  }
  const nlohmann::json data = DataOf(page);
  EXPECT_EQ(data.at("remarks").at("truncated"), "samples cut to max_length");
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

TEST_F(ReportTest, HoldsTheTasksThatLieInTheFolder) {
  Train("run");
  Write("run/gate.json", R"({"tasks": [
    {"task": "arc", "figure": "acc", "value": 0.5, "with": 0.25, "p": 0.01, "lost": true,
     "examples": [{"doc": 3}]},
    {"task": 7}, 7]})");
  Write("run/task_results.json",
        R"({"results": {"run": {}, "base": {}}, "compared": {"run": {"mmlu": [
    {"figure": "acc_norm", "value": null, "with": 0.5}]}, "7": 7}})");
  ASSERT_EQ(Run({"report", "run"}).code, 0);
  const auto tables = [&] {
    return DataOf(ReadAll(scratch_ / "report.html")).at("runs")[0].at("tasks");
  };
  nlohmann::json found = tables();
  ASSERT_EQ(found.size(), 2u) << found;
  EXPECT_EQ(found[0]["rows"].size(), 1u);
  EXPECT_EQ(found[0]["rows"][0]["examples"][0]["doc"], 3);
  EXPECT_EQ(found[1]["name"], "run beside base");
  EXPECT_EQ(found[1]["rows"][0]["task"], "mmlu");
  // Of one model there is no figure before.
  fs::remove(scratch_ / "run/gate.json");
  Write("run/task_results.json",
        R"({"results": {"arc": {"n": 10, "acc": 0.5, "acc_stderr": 0.1}}})");
  ASSERT_EQ(Run({"report", "run"}).code, 0);
  found = tables();
  ASSERT_EQ(found.size(), 1u) << found;
  EXPECT_EQ(found[0]["rows"],
            nlohmann::json::parse(R"([{"task": "arc", "figure": "acc", "with": 0.5}])"));
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

TEST_F(ReportTest, DamagedLogsAreNamed) {
  Train("run");
  const std::string log = ReadAll(scratch_ / "run" / "train_log.jsonl");
  Write("run/train_log.jsonl", "garbage\n" + log + "42\n{\"step\": 7, \"lo");
  const Outcome outcome = Run({"report", "run"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.err,
              HasSubstr("warning: run: lines of the logs that are damaged and left out: 2\n"));
  Write("run/train_log.jsonl", "garbage\nmore\n");
  EXPECT_THAT(Refused({"report", "run"}), HasSubstr("train_log.jsonl: no line is a JSON object"));
}

TEST_F(ReportTest, AFolderWithoutARunIsRefused) {
  EXPECT_THAT(Refused({"report", "model"}), HasSubstr("model: no run there"));
}

TEST_F(ReportTest, ALinkToNothingIsNotReplaced) {
  fs::create_symlink("absent", scratch_ / "page.html");
  EXPECT_THAT(Refused({"report", "model", "--out", "page.html"}),
              HasSubstr("page.html: is a symbolic link and is not replaced"));
  EXPECT_THAT(Refused({"config-schema", "--out", "page.html"}),
              HasSubstr("page.html exists; give --overwrite"));
  EXPECT_EQ(Run({"config-schema", "--out", "page.html", "--overwrite"}).code, 0);
  EXPECT_FALSE(fs::is_symlink(scratch_ / "page.html"));
}

TEST_F(ReportTest, DashboardShowsARunWhileItTrains) {
  const FreePort port;
  nlohmann::json data;
  std::string page;
  int foreign = 0;
  int other = 0;
  const Outcome outcome = RunQlora(
      scratch_, TrainWords({"--max_steps", "1000000", "--dashboard", std::to_string(port)}), "",
      [&](pid_t program) {
        WaitUntil(program, [&] {
          const std::string answer = Get(port, "/data.json");
          if (StatusOf(answer) != 200) return false;
          data = nlohmann::json::parse(BodyOf(answer));
          return !data.at("runs").empty() && !data.at("runs")[0].at("steps").empty();
        });
        page = BodyOf(Get(port, "/"));
        foreign = StatusOf(Get(port, "/data.json", "evil.example:80"));
        other = StatusOf(Get(port, "/../train_log.jsonl"));
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
  const FreePort port;
  const Dashboard taken(port, "");
  EXPECT_THAT(Refused(TrainWords({"--dashboard", std::to_string(port)})), HasSubstr("is taken"));
  EXPECT_THAT(Refused(TrainWords({"--dashboard", "70000"})), HasSubstr("1 to 65535"));
}

TEST_F(ReportTest, DashboardAnswersOnlyWhatItServes) {
  const FreePort port;
  const Dashboard dashboard(port, scratch_.string());
  EXPECT_EQ(StatusOf(Get(port, "/")), 200);
  EXPECT_EQ(StatusOf(Get(port, "/?x", "LOCALHOST:" + std::to_string(port))), 200);
  EXPECT_EQ(StatusOf(Get(port, "/nothing")), 404);
  EXPECT_EQ(StatusOf(Get(port, "/", "")), 403);
  // Names that a page of the web may have.
  for (const char* host : {"localhost.example.org", "localhosts", "127.0.0.1.example.org", "x"}) {
    EXPECT_EQ(StatusOf(Get(port, "/", host)), 403) << host;
  }
  EXPECT_EQ(StatusOf(Exchange(port, "GET / HTTP/1.1\r\nConnection: close\r\n\r\n")), 400);
  EXPECT_EQ(
      StatusOf(Exchange(
          port, "GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\nConnection: close\r\n\r\n")),
      400);
  EXPECT_EQ(
      StatusOf(Exchange(port, "POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")),
      405);
}

// However many clients leave it unread, a large text is in memory once, or twice.
TEST(SharedTextTest, IsSharedForATime) {
  int made = 0;
  SharedText text([&] { return std::to_string(++made); }, std::chrono::hours(1));
  const auto first = text.Get();
  EXPECT_EQ(*first, "1");
  EXPECT_EQ(text.Get(), first);
}

TEST(SharedTextTest, IsNotMadeWhileTwoAreRead) {
  int made = 0;
  SharedText text([&] { return std::to_string(++made); }, std::chrono::milliseconds(0));
  auto first = text.Get();
  const auto second = text.Get();
  EXPECT_EQ(*second, "2");
  EXPECT_EQ(text.Get(), second);
  first = nullptr;
  EXPECT_EQ(*text.Get(), "3");
}

TEST(SharedTextTest, IsMadeAgainAfterAFailure) {
  bool fails = true;
  SharedText text(
      [&]() -> std::string { return fails ? throw Error(ErrorCode::kRuntime, "") : "text"; },
      std::chrono::hours(1));
  EXPECT_THROW(text.Get(), Error);
  fails = false;
  EXPECT_EQ(*text.Get(), "text");
}

// Clients that send or read nothing do not lock others out, nor do they keep the server from
// ending.
TEST_F(ReportTest, DashboardEndsWhateverItsClientsDo) {
  const FreePort port;
  std::vector<int> idle;
  {
    const Dashboard dashboard(port, scratch_.string());
    for (int i = 0; i < 40; ++i) {
      idle.push_back(Connect(port));
      send(idle.back(), "GET / HTTP/1.1\r\nX: ", 19, MSG_NOSIGNAL);
    }
    EXPECT_EQ(StatusOf(Get(port, "/")), 200);
    const std::string start = "GET / HTTP/1.1\r\nX: ";
    // A little too long, and far too long: the server does not read that to the end.
    EXPECT_EQ(StatusOf(Exchange(port, start + std::string(10240 - start.size(), 'x'))), 431);
    const std::string endless = start + std::string(1 << 20, 'x');
    EXPECT_NE(StatusOf(Exchange(port, endless)), 200);
  }
  for (const int fd : idle) close(fd);
  EXPECT_EQ(Connect(port), -1);
}

}  // namespace
}  // namespace qlora
