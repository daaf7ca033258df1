// The page, and the runs that it shows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <string>

#include "serve/routes/serve_fixture.h"

namespace qlora {
namespace {

using testing::HasSubstr;
using testing::Not;

class PageRoutesTest : public RoutesTest {
 protected:
  void AddRun(const std::filesystem::path& run) {
    std::filesystem::create_directories(run);
    WriteTextFile(run / "train_log.jsonl", "{\"step\": 1, \"loss\": 2.5}\n");
  }

  TemporaryFolder runs_;
};

TEST_F(PageRoutesTest, ThePageAsksThisServerAlone) {
  for (const std::string& path : PagePaths()) {
    const auto reply = Ask("GET", path);
    ASSERT_EQ(reply->response.status, 200) << path;
    std::string policy;
    for (const auto& [name, value] : reply->response.headers) {
      if (name == "Content-Security-Policy") policy = value;
    }
    EXPECT_THAT(policy, HasSubstr("default-src 'none'"));
    EXPECT_THAT(policy, HasSubstr("frame-ancestors 'none'"));
    EXPECT_THAT(policy, Not(HasSubstr("unsafe")));
    // Names of XML are no addresses that are asked.
    std::string body = reply->body;
    for (std::size_t at; (at = body.find("http://www.w3.org/")) != body.npos;) body.erase(at, 18);
    EXPECT_THAT(body, Not(HasSubstr("http://"))) << path;
    EXPECT_THAT(body, Not(HasSubstr("https://"))) << path;
    for (const char* unsafe : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write",
                               "eval(", "localStorage", "sessionStorage"}) {
      EXPECT_THAT(body, Not(HasSubstr(unsafe))) << path;
    }
  }
  EXPECT_THAT(Ask("GET", "/")->response.type, HasSubstr("text/html"));
}

TEST_F(PageRoutesTest, SaysWhatTheServerHas) {
  EXPECT_EQ(Ask("GET", "/page.json")->json(), (OrderedJson{{"runs", false}, {"marks", false}}));
  options_.runs = runs_.path().string();
  EXPECT_EQ(Ask("GET", "/page.json")->json()["runs"], true);
}

TEST_F(PageRoutesTest, ShowsRunsBeneathOneFolder) {
  EXPECT_EQ(Ask("GET", "/runs")->response.status, 404) << "without --runs";
  options_.runs = (runs_.path() / "here").string();
  EXPECT_EQ(Ask("GET", "/runs")->json()["data"], OrderedJson::array()) << "no folder yet";
  AddRun(runs_.path() / "here" / "one");
  AddRun(runs_.path() / "outside");
  std::filesystem::create_directories(runs_.path() / "here" / "files");
  std::filesystem::create_directory_symlink(runs_.path() / "outside",
                                            runs_.path() / "here" / "out");
  const Json record = Ask("GET", "/runs/one/data.json")->json();
  EXPECT_EQ(record["steps"]["loss"], Json::array({2.5}));
  for (const char* name : {"two", "files", "out", "..", ".", "../outside"}) {
    EXPECT_EQ(Ask("GET", std::string("/runs/") + name + "/data.json")->response.status, 404)
        << name;
  }
  Json names = Json::array();
  const Json list = Ask("GET", "/runs")->json();
  for (const Json& run : list["data"]) names.push_back(run["name"]);
  EXPECT_EQ(names, Json::array({"one"})) << list.dump();
}

TEST_F(PageRoutesTest, ListsTheNewestRuns) {
  options_.runs = runs_.path().string();
  const auto now = std::filesystem::file_time_type::clock::now();
  Json expected = Json::array();
  for (int i = 0; i < 1001; ++i) {
    const std::string name = std::to_string(i);
    const auto log = runs_.Write(name + "/train_log.jsonl", "");
    std::filesystem::last_write_time(log, now - std::chrono::seconds(i));
    if (i < 1000) expected.push_back({{"name", name}});
  }
  EXPECT_EQ(Json(Ask("GET", "/runs")->json()["data"]), expected);
}

}  // namespace
}  // namespace qlora
