// Ranks over TCP, for launchers that bring no engine: torchrun, operators of Kubernetes, two
// shells.
#ifndef QLORA_DIST_TCP_RANKS_H_
#define QLORA_DIST_TCP_RANKS_H_

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "dist/tcp_socket.h"
#include "qlora/communicator.h"

namespace qlora {

// Where ranks meet: rank 0 waits there, and tells the others of each other.
struct TcpMeeting {
  TcpAddress at;  // of rank 0, as the others reach it
  int rank = 0;
  int size = 1;
  std::chrono::seconds patience{600};  // until all ranks are there
  std::chrono::seconds silence{9};     // of a machine, after which it is gone
  // Told every 30 s whom this rank waits for.
  std::function<void(const std::string&)> say = [](const std::string&) {};
};

// Connects every rank to every other. Who can reach the ports of a rank is trusted: other programs
// that connect are turned away, but nothing is encrypted. A rank that has ended, or whose machine
// is gone, is an error of the next call: Runtime, with its number and its address. Errors: Runtime
// when a rank does not come, InvalidInput for a port that is taken and for ranks of another job.
std::unique_ptr<Communicator> StartTcp(const TcpMeeting& meeting);

}  // namespace qlora

#endif  // QLORA_DIST_TCP_RANKS_H_
