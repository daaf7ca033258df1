// How a program learns that it is one of several ranks, and reaches the others.
//
//   launch.h          reads the variables of mpirun, srun and their like; undoes their binding
//   mpi_ranks.h       the communicator over MPI; mpi_plugin.h has what the plugin offers
//   tcp_ranks.h       the communicator over TCP, for torchrun and its like; tcp_meeting.h connects
//                     its ranks, which say who they are in tcp_hello.h; tcp_socket.h
//   together.h        work that all ranks do, with one outcome for all
//   agreement.h       compares what ranks were given
//   folder_copy.h     a folder of rank 0 for all
//   rank_place.h      replicas and stages: who computes what, and in which order
//   window_split.h    the micro-batches of a step, shared out among replicas
//
// The interface is qlora/communicator.h; who adds what in which order is a matter of its users.
#ifndef QLORA_DIST_LAUNCH_H_
#define QLORA_DIST_LAUNCH_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "dist/tcp_socket.h"
#include "qlora/communicator.h"

namespace qlora {

// What a launcher tells a process.
struct Launched {
  std::string launcher = {};  // "mpirun", "srun", "RANK and WORLD_SIZE" ...
  int rank = 0;
  int size = 1;
  std::string problem = {};  // why ranks that were started could not reach each other; "" otherwise
  TcpAddress meeting = {};   // where ranks meet whose launcher brings no engine
  std::string key = {};      // that such ranks have in QLORA_MEETING_KEY
  // The variables are those of a shell or a pod, in which other commands are those of one process.
  bool is_of_pod = false;
};

// The value of a variable of the environment; nothing where it is not set.
using Variable = std::function<std::optional<std::string>(const char* name)>;

// Reads the variables of launchers; one rank without them, and where they are no numbers.
Launched ReadLauncher(const Variable& variable);
// The same of this process.
Launched ReadLauncher();

// Joins the other ranks. say: receives remarks for the user of this rank. Errors: InvalidInput with
// launched.problem, when no engine is there, or when it counts other ranks than the launcher. A
// process that was started alone gets one rank, without an engine.
std::unique_ptr<Communicator> JoinRanks(const Launched& launched,
                                        const std::function<void(const std::string&)>& say);

}  // namespace qlora

#endif  // QLORA_DIST_LAUNCH_H_
