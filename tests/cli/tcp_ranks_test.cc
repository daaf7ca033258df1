// `qlora train` as torchrun and its like start it: ranks that meet at an address.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/tiny_model.h"
#include "dist/free_port.h"

namespace qlora {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class TcpRanksTest : public TinyModelTest {
 protected:
  void SetUp() override {
    TinyModelTest::SetUp();
    Write("run.yaml",
          "model: model\ndataset: data.jsonl\noutput_dir: out\nmax_steps: 6\nmax_length: 64\n"
          "lora_r: 4\nper_device_train_batch_size: 1\nglobal_batch_size: 4\nsave_steps: 2\n");
  }
  // Runs a line on ranks; their exit codes are the output. $RANK is the number of a rank;
  // meanwhile: shell words, where rank 1 has the number $second.
  Outcome RunOn(int ranks, const std::string& line, const std::string& meanwhile = "") const {
    const FreePort port;
    std::string script = "export WORLD_SIZE=" + std::to_string(ranks) +
                         " MASTER_ADDR=localhost MASTER_PORT=" + std::to_string(port) + "; all=; ";
    for (int rank = 0; rank < ranks; ++rank) {
      script += "RANK=" + std::to_string(rank) + "; export RANK; " + QloraBinary().string() + " " +
                line + " >/dev/null & all=\"$all $!\"; [ $RANK -ne 1 ] || second=$!; ";
    }
    script += meanwhile + " for one in $all; do wait $one; echo $?; done";
    return RunProgram("sh", scratch_, {"-c", script});
  }
  std::string Adapter(const std::string& dir) const {
    return ReadAll(scratch_ / dir / "adapter_model.safetensors");
  }
};

TEST_F(TcpRanksTest, WriteTheFilesOfOneProcess) {
  ASSERT_EQ(Run({"train", "run.yaml"}).code, 0);
  const Outcome outcome = RunOn(3, "train run.yaml --output_dir several");
  EXPECT_EQ(outcome.out, "0\n0\n0\n") << outcome.err;
  EXPECT_TRUE(Adapter("several") == Adapter("out"));
  EXPECT_THAT(outcome.err, HasSubstr("ranks=3"));
  const Outcome stages = RunOn(2, "train run.yaml --output_dir stages --pipeline_stages 2");
  EXPECT_EQ(stages.out, "0\n0\n") << stages.err;
  EXPECT_TRUE(Adapter("stages") == Adapter("out"));
}

TEST_F(TcpRanksTest, RefuseWhatOneRankRefuses) {
  const Outcome outcome = RunOn(2, "train run.yaml --seed $RANK");
  EXPECT_EQ(outcome.out, "2\n2\n") << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("seed"), HasSubstr("rank 1 of 2")));
  EXPECT_FALSE(fs::exists(scratch_ / "out"));
}

// The variables of a pod are there for all of its commands.
TEST_F(TcpRanksTest, OtherCommandsAreOfOneProcess) {
  const std::string variables = "RANK=1 WORLD_SIZE=2 MASTER_ADDR=localhost MASTER_PORT=1 ";
  const std::string qlora = QloraBinary().string();
  for (const char* command : {" version", " inspect model", " train --help"}) {
    const Outcome outcome = RunProgram("sh", scratch_, {"-c", variables + qlora + command});
    EXPECT_EQ(outcome.code, 0) << command << outcome.err;
    EXPECT_NE(outcome.out, "") << command;
  }
  const Outcome torchrun =
      RunProgram("sh", scratch_,
                 {"-c", variables + "TORCHELASTIC_RUN_ID=x RANK=0 " + qlora + " inspect model"});
  EXPECT_EQ(torchrun.code, 2);
  EXPECT_THAT(torchrun.err, HasSubstr("torchrun started 2 processes"));
}

TEST_F(TcpRanksTest, EndWhenOneIsKilled) {
  // More steps than there is time for.
  const Outcome outcome = RunOn(
      2, "train run.yaml --lr_scheduler_type constant --max_steps 100000",
      "until [ -e out/checkpoint-2 ] || ! kill -0 $second; do sleep 0.01; done; kill -9 $second;");
  EXPECT_EQ(outcome.out, "1\n137\n") << outcome.err;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("rank 1 of 2"), HasSubstr("has ended")));
  const std::string steps = std::to_string(NewestCheckpoint(scratch_ / "out") + 4);
  EXPECT_EQ(Run({"resume", "out", "--max_steps", steps}).code, 0);
  ASSERT_EQ(Run({"train", "run.yaml", "--lr_scheduler_type", "constant", "--output_dir", "whole",
                 "--max_steps", steps})
                .code,
            0);
  EXPECT_TRUE(Adapter("out") == Adapter("whole"));
}

}  // namespace
}  // namespace qlora
