// What launchers say in the environment.
#include "dist/launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "qlora/error.h"

namespace qlora {
namespace {

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

// Other commands than those of ranks are not concerned.
TEST(Launch, FindsRanksThatDoNotKnowEachOther) {
  const Launched srun = Read({{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}});
  EXPECT_EQ(srun.size, 1);
  EXPECT_THAT(srun.problem, HasSubstr("srun --mpi=pmix"));
  const Launched torchrun = Read({{"RANK", "0"}, {"WORLD_SIZE", "2"}});
  EXPECT_THAT(torchrun.problem, HasSubstr("mpirun -n 2"));
  std::string note;
  EXPECT_THROW(JoinRanks(torchrun, note), Error);
  EXPECT_EQ(Read({{"RANK", "colonel"}, {"WORLD_SIZE", "2"}}).problem, "");
  EXPECT_EQ(Read({{"OMPI_COMM_WORLD_RANK", "x"}, {"OMPI_COMM_WORLD_SIZE", "2"}}).size, 1);
}

}  // namespace
}  // namespace qlora
