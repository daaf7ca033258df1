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
  std::string key = {};                // that all ranks of the job have; "": none
  // Told every 30 s whom this rank waits for, and whom it turns away.
  std::function<void(const std::string&)> say = [](const std::string&) {};
};

// The connection of a rank to another one.
struct TcpLink {
  TcpSocket socket = {};
  std::string host = {};                    // of the other rank
  std::optional<std::uint64_t> ready = {};  // bytes that the other rank waits for, if it does
};

// The connections of this rank to all others, by rank; none to itself. Other programs, and ranks
// with another key or of another job, are turned away and the meeting goes on; without a key
// everybody who can reach the ports of a rank is trusted, and in no case is anything encrypted.
// Errors: Runtime when a rank does not come, InvalidInput for a port that is taken, for another
// program in the place of a rank, and for a rank that is turned away (tcp_hello.h).
std::vector<TcpLink> ConnectRanks(const TcpMeeting& meeting);

}  // namespace qlora

#endif  // QLORA_DIST_TCP_MEETING_H_
