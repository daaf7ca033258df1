// How ranks over TCP find each other.
#ifndef QLORA_DIST_TCP_MEETING_H_
#define QLORA_DIST_TCP_MEETING_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dist/tcp_socket.h"

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

// The connection of a rank to another one.
struct TcpLink {
  TcpSocket socket = {};
  std::string host = {};                    // of the other rank
  std::optional<std::uint64_t> ready = {};  // bytes that the other rank waits for, if it does
};

// The connections of this rank to all others, by rank; none to itself. Who can reach the ports of a
// rank is trusted: other programs that connect are turned away, but nothing is encrypted. Errors:
// Runtime when a rank does not come, InvalidInput for a port that is taken and for ranks of another
// job.
std::vector<TcpLink> ConnectRanks(const TcpMeeting& meeting);

}  // namespace qlora

#endif  // QLORA_DIST_TCP_MEETING_H_
