// What ranks say of steps: its sums, and its place in each log and in the record of a page.
#include "log/rank_times.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <filesystem>
#include <sstream>

#include "log/log_reader.h"
#include "log/run_log.h"
#include "train/tiny_run.h"

namespace qlora {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class RankTimesTest : public TinyRunTest {
 protected:
  // Writes a log, a step for each of `ranks`, and returns what a page gets of it as ranks.
  Json Read(const std::vector<std::string>& ranks) const {
    std::string text;
    std::int64_t step = 0;
    for (const std::string& value : ranks) {
      text += fmt::format(R"({{"step":{},"ranks":{}}})", ++step, value) + "\n";
    }
    fs::create_directories(root_ / "read");
    WriteTextFile(root_ / "read" / "train_log.jsonl", text);
    return Json::parse(ReadRunLogs(root_ / "read")).at("ranks");
  }
};

TEST_F(RankTimesTest, SharesAreOfAllRanksTogether) {
  std::vector<RankReport> sums;
  EXPECT_EQ(SharesOf(sums).waiting, 0);
  AddStep({{1, 3, 10}, {2, 2, 30}, {3.5, 0.5, 20}}, sums);
  AddStep({{1, 3, 20}, {4, 0, 20}, {3, 1, 20}}, sums);
  ASSERT_EQ(sums.size(), 3u);
  EXPECT_EQ(sums[1].computing_seconds, 6);
  EXPECT_EQ(sums[1].waiting_seconds, 2);
  EXPECT_EQ(sums[1].memory_bytes, 30u);
  const RankShares shares = SharesOf(sums);
  EXPECT_EQ(shares.computing, 14.5 / 24);
  EXPECT_EQ(shares.waiting, 9.5 / 24);
  EXPECT_EQ(shares.slowest, 2);
  EXPECT_EQ(SharesOf({{}, {}}).computing, 0);
}

TEST_F(RankTimesTest, JsonLinesHaveThemAndOtherLogsStayTables) {
  TrainPlan plan;
  plan.options = Options("run");
  plan.options.report_to = {"all"};
  fs::create_directories(root_ / "run");
  TrainObserver observer;
  TrainPosition at;
  RunLog log(plan, at, true, observer);
  for (at.step = 1; at.step <= 2; ++at.step) {
    log.WriteStep(
        at, {},
        {.epochs = 0.1, .seconds = 1, .limit_share = 0.5, .ranks = {{3, 1, 10}, {4, 0, 20}}});
  }
  EXPECT_EQ(log.ranks()[1].computing_seconds, 8);
  std::istringstream json(ReadTextFile(root_ / "run" / "train_log.jsonl"));
  std::string line;
  std::getline(json, line);
  EXPECT_EQ(Json::parse(line).at("ranks"),
            Json::parse(R"([{"computing":3.0,"waiting":1.0,"memory":10},
                            {"computing":4.0,"waiting":0.0,"memory":20}])"));
  std::istringstream csv(ReadTextFile(root_ / "run" / "train_log.csv"));
  std::string names;
  std::getline(csv, names);
  EXPECT_THAT(names, Not(HasSubstr("ranks")));
  std::int64_t lines = 0;
  for (; std::getline(csv, line); ++lines) {
    EXPECT_EQ(std::count(line.begin(), line.end(), ','),
              std::count(names.begin(), names.end(), ','));
  }
  EXPECT_EQ(lines, 2);
  for (const auto& entry : fs::directory_iterator(root_ / "run" / "runs")) {
    const std::string events = ReadTextFile(entry.path());
    EXPECT_THAT(events, HasSubstr("train/spike"));
    EXPECT_THAT(events, Not(HasSubstr("train/ranks")));
  }
}

TEST_F(RankTimesTest, APageGetsMeansOfTheNewestSteps) {
  const std::string two = R"([{"computing":3,"waiting":1,"memory":10},{"computing":4}])";
  std::vector<std::string> steps(5, R"([{"computing":99},{"computing":99}])");
  steps.insert(steps.end(), 19, two);
  steps.emplace_back(R"([{"computing":5,"waiting":1,"memory":30},{"computing":"x"}])");
  const Json means = Read(steps);
  // They are no column: those of many ranks would fill the page.
  EXPECT_FALSE(Json::parse(ReadRunLogs(root_ / "read")).at("steps").contains("ranks"));
  ASSERT_EQ(means.size(), 2u);
  EXPECT_EQ(means[0], Json::parse(R"({"computing":3.1,"waiting":1.0,"memory":11.0})"));
  EXPECT_EQ(means[1], Json::parse(R"({"computing":3.8,"waiting":0.0,"memory":0.0})"));
  // A resumed run may have other ranks, or one process.
  EXPECT_EQ(Read({two, "[{},{},{}]", "[{\"waiting\":2},7,null]"})[0].at("waiting"), 1);
  EXPECT_EQ(Read({two, "null"}), Json::array());
  EXPECT_EQ(Read({two, "{\"computing\":1}"}), Json::array());
}

}  // namespace
}  // namespace qlora
