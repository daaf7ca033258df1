// A port for a program of a test.
#ifndef QLORA_TESTS_DIST_FREE_PORT_H_
#define QLORA_TESTS_DIST_FREE_PORT_H_

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace qlora {

// Held as long as this lives: bound, so that the system gives it to nobody who asks for any port,
// and not listened to, so that whoever asks for it (with SO_REUSEADDR) has it.
class FreePort {
 public:
  FreePort() : held_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int yes = 1;
    setsockopt(held_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* any = reinterpret_cast<sockaddr*>(&address);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(held_, any, size), 0);
    EXPECT_EQ(getsockname(held_, any, &size), 0);
    number_ = ntohs(address.sin_port);
  }
  ~FreePort() { close(held_); }
  FreePort(const FreePort&) = delete;
  FreePort& operator=(const FreePort&) = delete;

  operator int() const { return number_; }

 private:
  int held_;
  int number_ = 0;
};

}  // namespace qlora

#endif  // QLORA_TESTS_DIST_FREE_PORT_H_
