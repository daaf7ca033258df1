// CSV, TensorBoard event files and samples beside the JSON Lines of a run.
#include "log/run_log.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <sstream>

#include "checkpoint/run_info.h"
#include "io/test_util.h"
#include "log/log_reader.h"
#include "log/tensorboard.h"
#include "qlora/error.h"
#include "train/tiny_run.h"

namespace qlora {
namespace {

std::vector<std::string> Lines(const fs::path& path) {
  std::vector<std::string> lines;
  std::istringstream in(ReadTextFile(path));
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

class RunLogTest : public TinyRunTest {
 protected:
  static std::string Reported(const std::vector<std::string>& report_to) {
    try {
      ParseReportTo(report_to);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidInput);
      return error.what();
    }
    return "";
  }
};

TEST(Crc32c, KnownValues) {
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(""), 0u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);  // RFC 3720, B.4
}

TEST_F(RunLogTest, CsvHoldsWhatTheJsonLinesHold) {
  TrainOptions options = Options("run");
  options.report_to = {"csv"};
  options.data.val_set_size = 4;
  Run(options);
  for (const std::string name : {kStepLog, kEvalLog}) {
    const std::vector<std::string> csv = Lines(root_ / "run" / (name + ".csv"));
    const std::vector<std::string> json = Lines(root_ / "run" / (name + ".jsonl"));
    ASSERT_EQ(csv.size(), json.size() + 1);
    for (std::size_t i = 0; i < json.size(); ++i) {
      const Json line = Json::parse(json[i]);
      std::istringstream names(csv[0]);
      std::istringstream values(csv[i + 1]);
      std::size_t columns = 0;
      for (std::string key, value; std::getline(names, key, ',');) {
        ASSERT_TRUE(std::getline(values, value, ','));
        EXPECT_EQ(Json::parse(value), line.at(key)) << key;
        ++columns;
      }
      EXPECT_EQ(columns, line.size());
    }
  }
}

TEST_F(RunLogTest, AResumedRunWritesTheRestAnew) {
  TrainOptions options = Options("run");
  options.report_to = {"csv", "tensorboard"};
  options.save_steps = 5;
  Run(options, 8);
  options.resume_from_checkpoint = root_ / "run" / "checkpoint-5";
  Run(options);
  const std::vector<std::string> csv = Lines(root_ / "run" / "train_log.csv");
  ASSERT_EQ(csv.size(), 13u);
  EXPECT_EQ(csv[0].rfind("step,", 0), 0u);
  for (std::size_t i = 1; i < csv.size(); ++i) {
    EXPECT_EQ(csv[i].substr(0, csv[i].find(',')), std::to_string(i));
  }
  std::size_t event_files = 0;
  for (const auto& entry : fs::directory_iterator(root_ / "run" / "runs")) {
    event_files += entry.path().filename().string().rfind("events.out.tfevents.", 0) == 0 ? 1 : 0;
  }
  EXPECT_EQ(event_files, 2u);
}

TEST_F(RunLogTest, NotANumberInEveryLog) {
  TrainOptions options = Options("run");
  options.report_to = {"all"};
  fs::create_directories(root_ / "run");
  TrainPlan plan;
  plan.options = options;
  TrainObserver observer;
  TrainPosition at;
  RunLog log(plan, at, true, observer);
  StepResult result;
  result.loss = std::nan("");
  at.step = 1;
  log.WriteStep(at, result, {.epochs = 0.1, .seconds = 1, .limit_share = 0.5});
  EXPECT_TRUE(Json::parse(Lines(root_ / "run" / "train_log.jsonl").at(0)).at("loss").is_null());
  EXPECT_THAT(Lines(root_ / "run" / "train_log.csv").at(1), testing::HasSubstr(",nan,"));
}

// A log of evaluations is opened for the first of them.
TEST_F(RunLogTest, ALogThatIsInTheWayInMidRunCostsNoRun) {
  class Observer : public TrainObserver {
   public:
    explicit Observer(fs::path log) : log_(std::move(log)) {}
    void OnStep(const StepReport&) override { fs::create_directories(log_ / "folder"); }
    void OnWarning(const std::string& text) override { warnings.push_back(text); }
    std::vector<std::string> warnings;

   private:
    fs::path log_;
  };
  TrainOptions options = Options("run");
  options.data.val_set_size = 4;
  options.eval_steps = 2;
  options.max_steps = 4;
  Observer observer(root_ / "run" / (std::string(kEvalLog) + ".jsonl"));
  Context context(1);
  EXPECT_EQ(PlanAndTrain(context, options, observer).steps, 4);
  EXPECT_THAT(observer.warnings, testing::ElementsAre(testing::HasSubstr("the run goes on")));

  // Before the first step it is a mistake that the user can mend.
  fs::remove_all(root_ / "run");
  fs::create_directories(root_ / "run" / "train_log.jsonl");
  EXPECT_THROW(PlanAndTrain(context, options, observer), Error);
}

// The folder of a report may be a stranger's.
TEST_F(RunLogTest, LogsThatAreNoFilesAreRefusedAndNotWaitedFor) {
  const fs::path dir = root_ / "theirs";
  fs::create_directories(dir);
  WriteTextFile(dir / "train_log.jsonl", "{\"step\": 1, \"loss\": 2.5}\n");
  WriteTextFile(dir / "eval_log.jsonl", "{\"step\": 1");  // is just being written
  EXPECT_EQ(Json::parse(ReadRunLogs(dir)).at("damaged_lines"), 0);
  const auto refused = [&](const char* log, const char* reason) {
    EXPECT_THAT(ErrorOf([&] { ReadRunLogs(dir); }).what(), testing::HasSubstr(reason)) << log;
    fs::remove_all(dir / log);
  };
  for (const char* log : {"samples.jsonl", "eval_log.jsonl", "train_log.jsonl"}) {
    fs::remove_all(dir / log);
    ASSERT_EQ(mkfifo((dir / log).c_str(), 0600), 0);
    refused(log, "is not a regular file");
    fs::create_symlink("/dev/zero", dir / log);
    refused(log, "is not a regular file");
    fs::create_directory(dir / log);
    refused(log, "is a directory");
    WriteTextFile(dir / log, "");
    fs::resize_file(dir / log, std::uintmax_t{1} << 40);
    refused(log, "a line of more than");
  }
}

TEST_F(RunLogTest, ServicesAreRefused) {
  EXPECT_THAT(Reported({"wandb"}), testing::HasSubstr("'wandb'"));
  EXPECT_EQ(Reported({"jsonl", "none"}), "");
}

TEST_F(RunLogTest, SamplesChangeNothingAndAreTheSameEachTime) {
  TrainOptions options = Options("plain");
  Run(options);
  options.output_dir = root_ / "sampled";
  options.sample_prompts = {"Once upon a time", "The bear, and so on for a while"};
  options.sample_steps = 5;
  options.sample_max_new_tokens = 12;
  Run(options);
  EXPECT_TRUE(Adapter("plain") == Adapter("sampled"));
  EXPECT_EQ(Steps("plain"), Steps("sampled"));
  const std::vector<std::string> samples = Lines(root_ / "sampled" / "samples.jsonl");
  ASSERT_EQ(samples.size(), 8u);  // before, at 5 and 10, after; two prompts each
  const std::vector<std::int64_t> steps = {0, 0, 5, 5, 10, 10, 12, 12};
  for (std::size_t i = 0; i < samples.size(); ++i) {
    EXPECT_EQ(Json::parse(samples[i]).at("step"), steps[i]);
    EXPECT_EQ(Json::parse(samples[i]).at("prompt"), options.sample_prompts[i % 2]);
  }
  options.output_dir = root_ / "again";
  Run(options);
  EXPECT_EQ(samples, Lines(root_ / "again" / "samples.jsonl"));
}

// The live page is made in the memory of the trainer, which no log may fill.
TEST_F(RunLogTest, APageHasABoundedNumberOfPoints) {
  const fs::path dir = root_ / "long";
  fs::create_directories(dir);
  const auto write = [&](const char* log, std::int64_t count, const auto& line) {
    std::string text;
    for (std::int64_t i = 0; i < count; ++i) text += line(i) + "\n";
    WriteTextFile(dir / (std::string(log) + ".jsonl"), text);
  };
  const auto of_step = [](std::int64_t i) {
    return fmt::format(R"({{"step":{},"loss":1.5,"tokens":2}})", i + 1);
  };
  write("train_log", 25001, of_step);
  // Only every third evaluation is drawn, and the best is none of them.
  constexpr std::int64_t kBest = 10000;
  write("eval_log", 25001, [](std::int64_t i) {
    return fmt::format(R"({{"step":{},"eval_loss":{}}})", i + 1,
                       i == kBest ? "0.25"
                       : i == 5   ? "null"
                                  : "1.5");
  });
  // 251 rounds of 2 texts.
  write("samples", 502, [](std::int64_t i) {
    return fmt::format(R"({{"step":{},"prompt":"p{}","text":"t"}})", i / 2, i % 2);
  });
  Json record = Json::parse(ReadRunLogs(dir));
  EXPECT_EQ(record.at("steps").at("step").size(), 8335u);  // every third, and the last
  EXPECT_EQ(record.at("every"), 3);
  EXPECT_EQ(record.at("evals").at("step").size(), 8336u);
  EXPECT_EQ(record.at("every_eval"), 3);
  EXPECT_THAT(record.at("evals").at("eval_loss"), testing::Contains(0.25).Times(1));
  EXPECT_THAT(record.at("evals").at("step"), testing::Contains(kBest + 1).Times(1));
  EXPECT_EQ(record.at("evals").at("step").back(), 25001);
  EXPECT_EQ(record.at("tokens"), 50002);
  EXPECT_EQ(record.at("samples").size(), 2u * 85);  // every third round, and the last
  EXPECT_EQ(record.at("samples_left_out"), 502 - 2 * 85);
  EXPECT_EQ(record.at("samples").back().at("step"), 250);
  EXPECT_EQ(record.at("samples").back().at("prompt"), "p1");
  // More texts of one step, and longer ones, than a page shows.
  write("samples", 300, [](std::int64_t) { return std::string(R"({"step":0,"text":"t"})"); });
  record = Json::parse(ReadRunLogs(dir));
  EXPECT_EQ(record.at("samples").size(), 100u);
  EXPECT_EQ(record.at("samples_left_out"), 200);
  write("samples", 9, [](std::int64_t i) {
    return fmt::format(R"({{"step":{},"text":"{}"}})", i, std::string(1 << 20, 't'));
  });
  record = Json::parse(ReadRunLogs(dir));
  ASSERT_EQ(record.at("samples").size(), 3u);
  EXPECT_EQ(record.at("samples").front().at("step"), 0);
  EXPECT_EQ(record.at("samples").back().at("step"), 8);  // what the run has led to
}

// The folder may be a stranger's: run_info.json adds what it has to say, and replaces nothing.
TEST_F(RunLogTest, RunInfoDoesNotReplaceTheLogs) {
  TrainOptions options = Options("run");
  options.max_steps = 2;
  Run(options);
  const Json record = Json::parse(ReadRunLogs(options.output_dir));
  ASSERT_TRUE(record.contains("data") && record.contains("memory"));
  const fs::path file = root_ / "run" / kRunInfo;
  const Json info = ReadJsonFile(file);
  const Json values = Json::array({nullptr,
                                   7,
                                   "x",
                                   true,
                                   Json::array({Json::array({1})}),
                                   Json::object(),
                                   {{"files", nullptr}},
                                   {{"peak", "x"}}});
  for (const char* key :
       {"name", "steps", "every", "tokens", "ranks", "evals", "every_eval", "samples", "options",
        "damaged_lines", "finished", "unknown", "total_steps", "memory", "data", "eval_data"}) {
    for (const Json& value : values) {
      Json changed = info;
      changed[key] = value;
      WriteTextFile(file, changed.dump());
      Json expected = record;
      Json found = Json::parse(ReadRunLogs(options.output_dir));
      // What run_info.json may say: in its form, or not at all.
      for (const char* own : {"total_steps", "memory", "data", "eval_data"}) {
        if (key != std::string(own)) continue;
        EXPECT_TRUE(!found.contains(own) || found[own] == record[own] || value == 7)
            << key << value;
        found.erase(own);
        expected.erase(own);
      }
      EXPECT_EQ(found, expected) << key << ' ' << value;
    }
  }
}

TEST_F(RunLogTest, RunInfoHoldsPlanAndData) {
  const TrainOptions options = Options("run");
  Run(options);
  const Json info = Json::parse(ReadTextFile(root_ / "run" / kRunInfo));
  EXPECT_EQ(info.at("total_steps"), 12);
  EXPECT_GT(info.at("memory").at("peak").get<std::size_t>(), 0u);
  EXPECT_EQ(info.at("data").at("samples"), 40);
}

}  // namespace
}  // namespace qlora
