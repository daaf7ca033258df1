// `mpirun qlora train`: files, messages and exit codes of several ranks, and what becomes of them
// when one is killed, stopped or told to end.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <random>

#include "cli/tiny_model.h"

namespace qlora {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class MpiTest : public TinyModelTest {
 protected:
  void SetUp() override {
    TinyModelTest::SetUp();
    if (!fs::exists(QloraBinary().parent_path() / "libqlora_mpi.so")) {
      GTEST_SKIP() << "this build has no MPI: install libopenmpi-dev";
    }
    if (std::system("command -v mpirun > /dev/null") != 0) {
      GTEST_SKIP() << "there is no mpirun: install openmpi-bin";
    }
    Write("run.yaml",
          "model: model\ndataset: data.jsonl\noutput_dir: out\nmax_steps: 6\nmax_length: 64\n"
          "lora_r: 4\nlora_dropout: 0.1\nper_device_train_batch_size: 1\nglobal_batch_size: 4\n"
          "save_steps: 2\n");
    // Containers forbid what the fastest transport wants, and run tests as root.
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 1);
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1);
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1);  // those of the MPI library
  }

  // Runs `qlora` on ranks, each with the words of one line.
  Outcome RunEach(const std::vector<std::vector<std::string>>& lines,
                  const std::function<void(pid_t)>& meanwhile = {}) const {
    std::vector<std::string> words;
    for (const std::vector<std::string>& line : lines) {
      if (!words.empty()) words.push_back(":");
      words.insert(words.end(), {"-n", "1", QloraBinary().string()});
      words.insert(words.end(), line.begin(), line.end());
    }
    return RunProgram("mpirun", scratch_, words, "", meanwhile);
  }
  Outcome RunOn(int ranks, const std::vector<std::string>& line,
                const std::function<void(pid_t)>& meanwhile = {}) const {
    return RunEach(std::vector<std::vector<std::string>>(static_cast<std::size_t>(ranks), line),
                   meanwhile);
  }

  std::string Adapter(const std::string& dir) const {
    return ReadAll(scratch_ / dir / "adapter_model.safetensors");
  }

  // The processes that mpirun started, in the order of ranks.
  static std::vector<pid_t> RanksOf(pid_t mpirun) {
    std::vector<pid_t> ranks;
    const fs::path list =
        "/proc/" + std::to_string(mpirun) + "/task/" + std::to_string(mpirun) + "/children";
    std::istringstream numbers(ReadAll(list));
    for (pid_t number; numbers >> number;) ranks.push_back(number);
    return ranks;
  }
  // Waits until a file is there. False when mpirun has ended before.
  bool WaitFor(pid_t mpirun, const fs::path& path) const {
    return WaitUntil(mpirun, [&] { return fs::exists(path); });
  }
  // True when none of them runs any more.
  static bool AllGone(const std::vector<pid_t>& processes) {
    for (int i = 0; i < 6000; ++i) {
      bool gone = true;
      for (const pid_t process : processes) {
        const std::string state = ReadAll("/proc/" + std::to_string(process) + "/status");
        gone = gone && (state.empty() || state.find("State:\tZ") != std::string::npos);
      }
      if (gone) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return false;
  }
};

TEST_F(MpiTest, AnyNumberOfRanksWritesTheSameFiles) {
  ASSERT_EQ(Run({"train", "run.yaml"}).code, 0);
  const std::string expected = Adapter("out");
  for (const int ranks : {1, 2, 3}) {
    const std::string dir = "out" + std::to_string(ranks);
    const Outcome outcome = RunOn(ranks, {"train", "run.yaml", "--output_dir", dir});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_TRUE(Adapter(dir) == expected) << ranks;
    // One rank speaks for all.
    EXPECT_EQ(outcome.err.find("adapter saved"), outcome.err.rfind("adapter saved"));
  }
}

// Messages that are too long to be sent before they are asked for: a wrong order would wait for
// ever.
TEST_F(MpiTest, StagesAndReplicasWriteTheSameFiles) {
  ASSERT_EQ(Run({"train", "run.yaml"}).code, 0);
  setenv("OMPI_MCA_btl_vader_eager_limit", "512", 1);
  const Outcome outcome = RunOn(4, {"train", "run.yaml", "--output_dir", "stages",
                                    "--pipeline_stages", "2", "--global_batch_size", "4"});
  unsetenv("OMPI_MCA_btl_vader_eager_limit");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(Adapter("stages") == Adapter("out"));
  // Stages go on as one process.
  EXPECT_EQ(Run({"resume", "stages", "--max_steps", "8", "--pipeline_stages", "1"}).code, 0);
}

TEST_F(MpiTest, WhatRanksDoIsShown) {
  const Outcome outcome =
      RunEach({{"train", "run.yaml", "--threads", "2", "--report_to", "all", "--json"},
               {"train", "run.yaml", "--threads", "1", "--report_to", "all", "--json"}});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("note: ranks have up to 2 threads, and wait for those "
                                           "with fewer: "),
                                 HasSubstr(" (1)\n"), HasSubstr("\nranks=2 computing=")));
  const nlohmann::json result = nlohmann::json::parse(outcome.out);
  EXPECT_NEAR(result.at("computing").get<double>() + result.at("waiting").get<double>(), 1, 1e-9);
  ASSERT_EQ(Run({"report", "out", "--out", "page.html"}).code, 0);
  EXPECT_THAT(ReadAll(scratch_ / "page.html"), HasSubstr("\"ranks\":[{\"computing\":"));
  EXPECT_THAT(RunOn(2, {"train", "run.yaml", "--output_dir", "even", "--threads", "1"}).err,
              Not(HasSubstr("threads, and wait")));
}

TEST_F(MpiTest, EvaluationIsSharedOut) {
  const std::vector<std::string> words = {"eval", "model", "data.jsonl", "--json", "--per_token"};
  const auto result = [](const Outcome& outcome) {
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    nlohmann::json json = nlohmann::json::parse(outcome.out);
    json.erase("seconds");
    return json;
  };
  EXPECT_EQ(result(RunOn(3, words)), result(Run(words)));
}

TEST_F(MpiTest, ErrorsAreToldOnceWithTheirCode) {
  const Outcome missing = RunOn(2, {"train", "run.yaml", "--dataset", "missing.jsonl"});
  EXPECT_EQ(missing.code, 2);
  EXPECT_EQ(missing.err.find("error:"), missing.err.rfind("error:")) << missing.err;
  const Outcome option = RunOn(2, {"train", "run.yaml", "--no_such_option", "1"});
  EXPECT_EQ(option.code, 2);
  const Outcome one = RunEach({{"train", "run.yaml"}, {"train", "no.yaml"}});
  EXPECT_EQ(one.code, 2);
  EXPECT_THAT(one.err, AllOf(HasSubstr("error: rank 1 of 2 ("), HasSubstr("no.yaml")));
  const Outcome seed = RunEach({{"train", "run.yaml"}, {"train", "run.yaml", "--seed", "7"}});
  EXPECT_EQ(seed.code, 2);
  EXPECT_THAT(seed.err, HasSubstr("seed: '42' on rank 0 of 2"));
  Write("other.jsonl", "{\"text\": \"Another text.\"}\n");
  const Outcome samples = RunEach({{"eval", "model", "data.jsonl", "--max_length", "64"},
                                   {"eval", "model", "other.jsonl", "--max_length", "64"}});
  EXPECT_EQ(samples.code, 2);
  EXPECT_THAT(samples.err, HasSubstr("samples of dataset"));
  const Outcome mixed =
      RunEach({{"train", "run.yaml"}, {"eval", "model", "data.jsonl", "--max_length", "64"}});
  EXPECT_EQ(mixed.code, 2);
  EXPECT_THAT(mixed.err, HasSubstr("the ranks of this job differ: 'train, qlora"));
  const Outcome verb = RunOn(2, {"inspect", "model"});
  EXPECT_EQ(verb.code, 2);
  EXPECT_THAT(verb.err, HasSubstr("the work of one"));
  EXPECT_FALSE(fs::exists(scratch_ / "out"));
}

// A failure after the start ends the other ranks too.
TEST_F(MpiTest, AFailureOfOneRankEndsAll) {
  // The folder turns into a file between two checkpoints.
  const Outcome outcome =
      RunOn(2, {"train", "run.yaml", "--max_steps", "100000"}, [&](pid_t mpirun) {
        ASSERT_TRUE(WaitFor(mpirun, scratch_ / "out/checkpoint-4/trainer_state.json"));
        fs::rename(scratch_ / "out", scratch_ / "moved");
        Write("out", "");
      });
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("output_dir out was renamed"));
}

// At a random moment, any rank; then the run goes on with another number of ranks, to the same
// bits.
TEST_F(MpiTest, AKilledRankEndsAllAndTheRunGoesOn) {
  std::mt19937 random(std::random_device{}());
  const auto words = [](std::int64_t steps) {
    return std::vector<std::string>{"train",
                                    "run.yaml",
                                    "--resume_from_checkpoint",
                                    "auto",
                                    "--lr_scheduler_type",
                                    "constant",
                                    "--save_total_limit",
                                    "2",
                                    "--max_steps",
                                    std::to_string(steps)};
  };
  for (int round = 0; round < 3; ++round) {
    std::vector<pid_t> ranks;
    const std::int64_t before = NewestCheckpoint(scratch_ / "out");
    // More steps than there is time for.
    const Outcome outcome = RunOn(2 + round % 2, words(1'000'000), [&](pid_t mpirun) {
      ASSERT_TRUE(WaitUntil(mpirun, [&] { return NewestCheckpoint(scratch_ / "out") > before; }));
      std::this_thread::sleep_for(std::chrono::milliseconds(random() % 100));
      ranks = RanksOf(mpirun);
      ASSERT_EQ(ranks.size(), 2u + static_cast<std::size_t>(round % 2));
      kill(ranks[random() % ranks.size()], SIGKILL);
    });
    EXPECT_EQ(outcome.code, 137) << outcome.err;
    EXPECT_TRUE(AllGone(ranks));
  }
  const std::int64_t steps = NewestCheckpoint(scratch_ / "out") + 4;
  const Outcome end = RunOn(2, words(steps));
  EXPECT_EQ(end.code, 0) << end.err;
  std::vector<std::string> alone = words(steps);
  alone.insert(alone.end(), {"--output_dir", "whole"});
  ASSERT_EQ(Run(alone).code, 0);
  EXPECT_TRUE(Adapter("out") == Adapter("whole"));
}

TEST_F(MpiTest, AStoppedRankIsNamed) {
  std::vector<pid_t> ranks;
  const Outcome outcome = RunOn(
      2, {"train", "run.yaml", "--max_steps", "100000", "--ddp_timeout", "2"}, [&](pid_t mpirun) {
        // A rank that a slow machine keeps from its work for as long ends the run alike, and the
        // other one may be the first to say so.
        if (!WaitFor(mpirun, scratch_ / "out/checkpoint-2/trainer_state.json")) return;
        ranks = RanksOf(mpirun);
        if (ranks.size() == 2) kill(ranks[1], SIGSTOP);
      });
  EXPECT_EQ(outcome.code, 1);
  EXPECT_THAT(outcome.err, testing::ContainsRegex("rank [01] of 2 \\(.*waits in"));
  EXPECT_TRUE(AllGone(ranks));
}

// mpirun hands SIGUSR1 on, and the run ends with a checkpoint of the step it is at.
TEST_F(MpiTest, SigUsr1SavesACheckpoint) {
  const Outcome outcome =
      RunOn(2, {"train", "run.yaml", "--max_steps", "100000"}, [&](pid_t mpirun) {
        ASSERT_TRUE(WaitFor(mpirun, scratch_ / "out/checkpoint-2/trainer_state.json"));
        kill(mpirun, SIGUSR1);
      });
  EXPECT_EQ(outcome.code, 130) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr("interrupted; checkpoint saved in out/checkpoint-"));
  EXPECT_THAT(outcome.err, Not(HasSubstr("MPI_ABORT")));
}

TEST_F(MpiTest, CtrlCEndsAllAndLeavesACheckpoint) {
  std::vector<pid_t> ranks;
  const Outcome outcome =
      RunOn(2, {"train", "run.yaml", "--max_steps", "100000"}, [&](pid_t mpirun) {
        ASSERT_TRUE(WaitFor(mpirun, scratch_ / "out/checkpoint-2/trainer_state.json"));
        ranks = RanksOf(mpirun);
        kill(mpirun, SIGINT);
      });
  EXPECT_NE(outcome.code, 0);
  EXPECT_TRUE(AllGone(ranks));
  EXPECT_THAT(outcome.err, HasSubstr("interrupted; checkpoint saved in"));
}

}  // namespace
}  // namespace qlora
