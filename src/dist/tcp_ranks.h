// Ranks over TCP, for launchers that bring no engine: torchrun, operators of Kubernetes, two
// shells.
#ifndef QLORA_DIST_TCP_RANKS_H_
#define QLORA_DIST_TCP_RANKS_H_

#include <memory>

#include "dist/tcp_meeting.h"
#include "qlora/communicator.h"

namespace qlora {

// Connects every rank to every other. A rank that has ended, or whose machine is gone, is an error
// of the next call: Runtime, with its number and its address. Errors: those of ConnectRanks.
std::unique_ptr<Communicator> StartTcp(const TcpMeeting& meeting);

}  // namespace qlora

#endif  // QLORA_DIST_TCP_RANKS_H_
