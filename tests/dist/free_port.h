// A port for a program of a test.
#ifndef QLORA_TESTS_DIST_FREE_PORT_H_
#define QLORA_TESTS_DIST_FREE_PORT_H_

#include "dist/tcp_socket.h"

namespace qlora {

// Free until somebody else takes it.
inline int FreePort() { return TcpSocket::Listen(0, /*loopback_only=*/true).Port(); }

}  // namespace qlora

#endif  // QLORA_TESTS_DIST_FREE_PORT_H_
