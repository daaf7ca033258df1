#include "dist/launch.h"

#include <pthread.h>

#include <cstdlib>

#include "base/check.h"
#include "base/cores.h"
#include "base/text.h"
#include "dist/mpi_ranks.h"
#include "dist/tcp_ranks.h"

namespace qlora {
namespace {

constexpr int kHighestPort = 65535;

// Returns the number in a variable; nothing where there is none. Names such as RANK may have other
// meanings.
std::optional<int> NumberIn(const Variable& variable, const char* name) {
  const auto number = ParseNumber<int>(variable(name).value_or(""));
  return number && *number >= 0 ? number : std::nullopt;
}

// mpirun binds each of one or two ranks to one core unless it is told otherwise. A rank that alone
// may use one of many cores takes them all again. Returns a note; "" where nothing was changed.
std::string UndoBinding(const Communicator& communicator) {
  const auto mine = CoresOf(pthread_self());
  if (!mine || mine->count() != 1 || !SetCores(pthread_self(), CoreSet().set())) return "";
  const auto now = CoresOf(pthread_self());
  if (!now || static_cast<int>(now->count()) < 2 * communicator.local_size()) {
    SetCores(pthread_self(), *mine);
    return "";
  }
  return fmt::format(
      "each rank was bound to 1 of {} cores; the ranks of {} share all of them now (to choose: "
      "--bind-to none, or --map-by slot:PE=N)",
      now->count(), communicator.host());
}

}  // namespace

// Several launchers set variables of others too, so the most particular come first.
Launched ReadLauncher(const Variable& variable) {
  struct Names {
    const char* launcher;
    const char* rank;
    const char* size;
  };
  constexpr Names kMpi[] = {{"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                            {"mpiexec", "PMI_RANK", "PMI_SIZE"},
                            {"srun", "PMIX_RANK", "SLURM_NTASKS"}};
  for (const Names& names : kMpi) {
    const std::optional<int> rank = NumberIn(variable, names.rank);
    const std::optional<int> size = NumberIn(variable, names.size);
    if (rank && size) return {.launcher = names.launcher, .rank = *rank, .size = *size};
  }
  Launched alone;
  const std::optional<int> tasks = NumberIn(variable, "SLURM_STEP_NUM_TASKS");
  if (NumberIn(variable, "SLURM_PROCID") && tasks > 1) {
    alone.problem = fmt::format(
        "srun started {} processes that do not know each other: use srun --mpi=pmix", *tasks);
  }
  const auto text = [&](const char* name) { return variable(name).value_or(""); };
  const std::optional<int> world = NumberIn(variable, "WORLD_SIZE");
  const std::optional<int> rank = NumberIn(variable, "RANK");
  const std::string address = text("MASTER_ADDR");
  // RANK alone may have another meaning.
  const bool several = world > 1 && rank;
  const bool unclear =
      world != 1 && !address.empty() && (!text("RANK").empty() || !text("WORLD_SIZE").empty());
  if (!several && !unclear) return alone;
  // Who hears a proof may try keys on it. An empty one is a slip that would let anybody join.
  constexpr std::size_t kShortestKey = 16;
  const std::optional<std::string> key = variable("QLORA_MEETING_KEY");
  if (key && key->size() < kShortestKey) {
    alone.problem = fmt::format(
        "QLORA_MEETING_KEY has {} characters, expected {} or more, which nobody can guess; set it "
        "to a random text, such as that of `openssl rand -hex 16`, on all ranks, or unset it",
        key->size(), kShortestKey);
    return alone;
  }
  const bool is_torchrun = variable("TORCHELASTIC_RUN_ID").has_value();
  // The agent of torchrun listens at the port itself.
  const bool is_taken = text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  const int port = NumberIn(variable, "MASTER_PORT").value_or(0) + (is_taken ? 1 : 0);
  if (several && rank < world && !address.empty() && port > 0 && port <= kHighestPort) {
    return {.launcher = is_torchrun ? "torchrun" : "RANK and WORLD_SIZE",
            .rank = *rank,
            .size = *world,
            .meeting = {address, port},
            .key = key.value_or(""),
            .is_of_pod = !is_torchrun};
  }
  alone.problem = fmt::format(
      "ranks without MPI need WORLD_SIZE, RANK in 0 to WORLD_SIZE - 1, MASTER_ADDR and "
      "MASTER_PORT, found '{}', '{}', '{}' and '{}'; set all four, start the same command with "
      "mpirun, or unset them to train with one process",
      text("WORLD_SIZE"), text("RANK"), address, text("MASTER_PORT"));
  return alone;
}

Launched ReadLauncher() {
  return ReadLauncher([](const char* name) -> std::optional<std::string> {
    const char* value = std::getenv(name);
    return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
  });
}

std::unique_ptr<Communicator> JoinRanks(const Launched& launched,
                                        const std::function<void(const std::string&)>& say) {
  if (!launched.problem.empty()) throw Error(ErrorCode::kInvalidInput, launched.problem);
  if (launched.meeting.port != 0) {
    // Of every rank, which may wait in vain for a misspelt name.
    say(fmt::format("rank {} of {} meets the others at {}, port {}", launched.rank, launched.size,
                    launched.meeting.host, launched.meeting.port));
    TcpMeeting meeting{launched.meeting, launched.rank, launched.size};
    meeting.key = launched.key;
    meeting.say = say;
    return StartTcp(meeting);
  }
  // `mpirun -n 1` needs no engine, and may be all that a machine without MPI has.
  if (launched.size == 1 && !FindMpiPlugin()) return MakeOneProcess();
  if (launched.launcher.empty()) return MakeOneProcess();
  std::unique_ptr<Communicator> ranks = StartMpi();
  if (ranks->size() != launched.size) {
    ThrowInvalidInput(
        "{} started {} ranks and the MPI library of this program knows of {}: they are of two "
        "releases of MPI; build the target qlora_mpi with the MPI that {} belongs to",
        launched.launcher, launched.size, ranks->size(), launched.launcher);
  }
  // Of each rank; one of them is enough.
  if (const std::string note = UndoBinding(*ranks); ranks->is_root() && !note.empty()) say(note);
  return ranks;
}

}  // namespace qlora
