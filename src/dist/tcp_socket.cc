#include "dist/tcp_socket.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>

#include "base/check.h"
#include "base/file.h"

namespace qlora {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kBetweenTries{200};

void Set(int descriptor, int level, int name, int value) {
  setsockopt(descriptor, level, name, &value, sizeof(value));
}

// Above 0, 1 and 2, which may be closed: messages would be written into the socket.
TcpSocket Open(int family) {
  return TcpSocket(AboveStandardDescriptors(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)));
}

void SetBlocking(const TcpSocket& socket, bool blocking) {
  const int flags = fcntl(socket.descriptor(), F_GETFL);
  fcntl(socket.descriptor(), F_SETFL, blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK);
}

int MillisecondsUntil(TcpSocket::Clock::time_point moment) {
  const auto left = std::chrono::ceil<milliseconds>(moment - TcpSocket::Clock::now()).count();
  return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1 << 30));
}

bool IsReady(int descriptor, short events, TcpSocket::Clock::time_point deadline) {
  for (;;) {
    pollfd one = {descriptor, events, 0};
    const int ready = poll(&one, 1, MillisecondsUntil(deadline));
    if (ready >= 0) return ready > 0;
    if (errno != EINTR) return false;
  }
}

// Both kinds of addresses reach a socket of IPv6; a system without IPv6 has the other one.
bool Bind(const TcpSocket& listener, int family, int port, bool loopback_only) {
  sockaddr_storage any = {};
  any.ss_family = static_cast<sa_family_t>(family);
  socklen_t size = sizeof(sockaddr_in);
  if (family == AF_INET6) {
    Set(listener.descriptor(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
    reinterpret_cast<sockaddr_in6&>(any).sin6_port = htons(static_cast<std::uint16_t>(port));
    size = sizeof(sockaddr_in6);
  } else {
    reinterpret_cast<sockaddr_in&>(any).sin_port = htons(static_cast<std::uint16_t>(port));
    reinterpret_cast<sockaddr_in&>(any).sin_addr.s_addr =
        htonl(loopback_only ? INADDR_LOOPBACK : INADDR_ANY);
  }
  Set(listener.descriptor(), SOL_SOCKET, SO_REUSEADDR, 1);
  return bind(listener.descriptor(), reinterpret_cast<const sockaddr*>(&any), size) == 0 &&
         listen(listener.descriptor(), SOMAXCONN) == 0;
}

// The host and the port of an address as numbers.
TcpAddress NumbersOf(const sockaddr_storage& address, socklen_t size) {
  std::array<char, NI_MAXHOST> host = {};
  std::array<char, NI_MAXSERV> port = {};
  getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host.data(), host.size(),
              port.data(), port.size(), NI_NUMERICHOST | NI_NUMERICSERV);
  constexpr std::string_view kMapped = "::ffff:";  // an address of IPv4 at a socket of IPv6
  std::string text = host.data();
  if (text.starts_with(kMapped)) text.erase(0, kMapped.size());
  return {text, std::atoi(port.data())};
}

}  // namespace

TcpSocket::~TcpSocket() {
  if (descriptor_ >= 0) close(descriptor_);
}

TcpSocket TcpSocket::Listen(int port, bool loopback_only) {
  for (const int family : {AF_INET6, AF_INET}) {
    if (loopback_only && family == AF_INET6) continue;
    TcpSocket listener = Open(family);
    if (listener.descriptor_ >= 0 && Bind(listener, family, port, loopback_only)) return listener;
    if (errno == EADDRINUSE) {
      ThrowInvalidInput("port {} is taken, at which ranks meet; choose another MASTER_PORT", port);
    }
  }
  ThrowInvalidInput("port {}, at which ranks meet, cannot be opened: {}", port,
                    std::strerror(errno));
}

TcpSocket TcpSocket::Connect(const TcpAddress& address, Clock::time_point deadline) {
  constexpr std::chrono::seconds kOneTry{5};  // a firewall may let an attempt come to nothing
  std::string reason;
  do {
    addrinfo hints = {};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    const int error =
        getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, freeaddrinfo);
    if (error != 0) reason = gai_strerror(error);
    for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
      TcpSocket connection = Open(at->ai_family);
      SetBlocking(connection, false);
      connect(connection.descriptor_, at->ai_addr, at->ai_addrlen);
      int result = ETIMEDOUT;
      if (IsReady(connection.descriptor_, POLLOUT, std::min(deadline, Clock::now() + kOneTry))) {
        socklen_t size = sizeof(result);
        getsockopt(connection.descriptor_, SOL_SOCKET, SO_ERROR, &result, &size);
      }
      SetBlocking(connection, true);
      if (result == 0) return connection;
      reason = std::strerror(result);
    }
    std::this_thread::sleep_for(kBetweenTries);
  } while (Clock::now() < deadline);
  ThrowRuntime("{}, port {}, cannot be reached: {}", address.host, address.port, reason);
}

std::optional<TcpSocket> TcpSocket::Accept(Clock::time_point deadline) const {
  while (IsReady(descriptor_, POLLIN, deadline)) {
    TcpSocket connection(
        AboveStandardDescriptors(accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC)));
    if (connection.descriptor_ >= 0) return connection;
    if (errno == EMFILE || errno == ENFILE) {
      ThrowRuntime("no more connections between ranks: {} (see ulimit -n)", std::strerror(errno));
    }
  }
  return std::nullopt;
}

int TcpSocket::Port() const {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  getsockname(descriptor_, reinterpret_cast<sockaddr*>(&address), &size);
  return NumbersOf(address, size).port;
}

std::string TcpSocket::PeerHost() const {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  getpeername(descriptor_, reinterpret_cast<sockaddr*>(&address), &size);
  return NumbersOf(address, size).host;
}

bool TcpSocket::SendAll(std::span<const std::byte> data) const {
  while (!data.empty()) {
    const ssize_t sent = send(descriptor_, data.data(), data.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EINTR) return false;
    if (sent > 0) data = data.subspan(static_cast<std::size_t>(sent));
  }
  return true;
}

bool TcpSocket::ReceiveAll(std::span<std::byte> data, Clock::time_point deadline) const {
  while (!data.empty()) {
    if (!IsReady(descriptor_, POLLIN, deadline)) return false;
    const ssize_t received = recv(descriptor_, data.data(), data.size(), 0);
    if (received == 0 || (received < 0 && errno != EINTR)) return false;
    if (received > 0) data = data.subspan(static_cast<std::size_t>(received));
  }
  return true;
}

std::optional<std::size_t> TcpSocket::ReceiveSome(std::span<std::byte> data) const {
  const ssize_t received = recv(descriptor_, data.data(), data.size(), MSG_DONTWAIT);
  if (received > 0) return static_cast<std::size_t>(received);
  if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return 0;
  return std::nullopt;
}

bool TcpSocket::IsClosed() const {
  std::byte next;
  const ssize_t received = recv(descriptor_, &next, 1, MSG_PEEK | MSG_DONTWAIT);
  return received == 0 || (received < 0 && errno != EAGAIN && errno != EINTR);
}

void TcpSocket::MakeLink(std::chrono::seconds silence) const {
  constexpr int kProbes = 3;
  const int seconds = static_cast<int>(silence.count());
  SetBlocking(*this, false);
  Set(descriptor_, IPPROTO_TCP, TCP_NODELAY, 1);
  Set(descriptor_, SOL_SOCKET, SO_KEEPALIVE, 1);
  Set(descriptor_, IPPROTO_TCP, TCP_KEEPIDLE, seconds / kProbes);
  Set(descriptor_, IPPROTO_TCP, TCP_KEEPINTVL, seconds / kProbes);
  Set(descriptor_, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  // Where bytes wait, keepalive does not look.
  Set(descriptor_, IPPROTO_TCP, TCP_USER_TIMEOUT, 1000 * seconds);
}

}  // namespace qlora
