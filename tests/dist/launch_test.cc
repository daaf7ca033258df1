// What launchers say in the environment.
#include "dist/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "qlora/error.h"

namespace qlora {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Launched Read(const std::map<std::string, std::string>& variables) {
  return ReadLauncher([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

TEST(Launch, AProcessAloneHasNoLauncher) {
  EXPECT_EQ(Read({}).size, 1);
  EXPECT_EQ(Read({}).launcher, "");
  // In a batch script of Slurm, which is not started by srun.
  EXPECT_EQ(Read({{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}}).size, 1);
}

TEST(Launch, ReadsLaunchersOfMpi) {
  const Launched mpirun = Read({{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}});
  EXPECT_EQ(mpirun.launcher, "mpirun");
  EXPECT_EQ(mpirun.rank, 3);
  EXPECT_EQ(mpirun.size, 4);
  EXPECT_EQ(Read({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}).launcher, "mpiexec");
  const Launched srun = Read({{"PMIX_RANK", "1"}, {"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "1"}});
  EXPECT_EQ(srun.launcher, "srun");
  EXPECT_EQ(srun.size, 8);
}

TEST(Launch, ReadsWhereRanksMeet) {
  const std::map<std::string, std::string> variables = {
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "first"}, {"MASTER_PORT", "29500"}};
  const Launched torchrun = Read(variables);
  EXPECT_EQ(torchrun.rank, 1);
  EXPECT_EQ(torchrun.size, 2);
  EXPECT_EQ(torchrun.meeting.host, "first");
  EXPECT_EQ(torchrun.meeting.port, 29500);
  // A key that can be guessed, or that a script forgot, protects nothing.
  auto with_key = variables;
  for (const std::size_t size : {0, 1, 15}) {
    with_key["QLORA_MEETING_KEY"] = std::string(size, 'k');
    EXPECT_THAT(Read(with_key).problem, HasSubstr("QLORA_MEETING_KEY has " + std::to_string(size)));
  }
  with_key["QLORA_MEETING_KEY"] = "0123456789abcdef";
  EXPECT_EQ(Read(with_key).problem, "");
  EXPECT_EQ(Read(with_key).key, "0123456789abcdef");
  EXPECT_EQ(Read({{"QLORA_MEETING_KEY", ""}}).problem, "");
  // Its agent has the port; mpirun goes first where both have set variables.
  auto of_agent = variables;
  of_agent["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_EQ(Read(of_agent).meeting.port, 29501);
  of_agent["OMPI_COMM_WORLD_RANK"] = "0";
  of_agent["OMPI_COMM_WORLD_SIZE"] = "2";
  EXPECT_EQ(Read(of_agent).launcher, "mpirun");
  EXPECT_EQ(Read({{"RANK", "0"}, {"WORLD_SIZE", "1"}}).problem, "");
}

// Other commands than those of ranks are not concerned.
TEST(Launch, FindsRanksThatDoNotKnowEachOther) {
  const Launched srun = Read({{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}});
  EXPECT_EQ(srun.size, 1);
  EXPECT_THAT(srun.problem, HasSubstr("srun --mpi=pmix"));
  const Launched torchrun = Read({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "x"}});
  EXPECT_THAT(torchrun.problem, AllOf(HasSubstr("'2', '0', '' and 'x'"), HasSubstr("mpirun")));
  EXPECT_THROW(JoinRanks(torchrun, [](const std::string&) {}), Error);
  EXPECT_THAT(Read({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}})
                  .problem,
              HasSubstr("RANK in 0 to WORLD_SIZE - 1"));
  // One that was forgotten does not make two runs of one.
  const std::pair<const std::string, std::string> address = {"MASTER_ADDR", "a"};
  EXPECT_NE(Read({address, {"WORLD_SIZE", "2"}}).problem, "");
  EXPECT_NE(Read({address, {"WORLD_SIZE", "x"}, {"RANK", "0"}}).problem, "");
  EXPECT_NE(Read({address, {"RANK", "1"}}).problem, "");
  EXPECT_EQ(Read({address, {"WORLD_SIZE", "1"}}).problem, "");
  EXPECT_EQ(Read({address}).problem, "");
  EXPECT_EQ(Read({{"RANK", "colonel"}, {"WORLD_SIZE", "2"}}).problem, "");
  EXPECT_EQ(Read({{"OMPI_COMM_WORLD_RANK", "x"}, {"OMPI_COMM_WORLD_SIZE", "2"}}).size, 1);
}

}  // namespace
}  // namespace qlora
