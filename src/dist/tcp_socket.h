// Connections between ranks: a TCP socket that ends with its owner.
#ifndef QLORA_DIST_TCP_SOCKET_H_
#define QLORA_DIST_TCP_SOCKET_H_

#include <chrono>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace qlora {

// A machine and a port, as text: "10.0.0.3", "fe80::1", "first.example".
struct TcpAddress {
  std::string host;
  int port = 0;
};

class TcpSocket {
 public:
  using Clock = std::chrono::steady_clock;

  TcpSocket() = default;
  explicit TcpSocket(int descriptor) : descriptor_(descriptor) {}
  ~TcpSocket();
  TcpSocket(TcpSocket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  TcpSocket& operator=(TcpSocket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }

  // Waits for connections to `port` of every address of this machine, or of its loopback alone; 0:
  // a free port. Errors: InvalidInput for a port that is taken.
  static TcpSocket Listen(int port, bool loopback_only = false);
  // Connects to an address, again and again until `deadline`: neither its machine nor its name need
  // be there yet. Errors: Runtime after that.
  static TcpSocket Connect(const TcpAddress& address, Clock::time_point deadline);
  // The next connection to a socket that listens; nothing where none came until `deadline`.
  std::optional<TcpSocket> Accept(Clock::time_point deadline) const;

  int descriptor() const { return descriptor_; }
  // The port of this end, and the host of the other one.
  int Port() const;
  std::string PeerHost() const;

  // Sends or receives all bytes. False where the other end has closed, or `deadline` has come.
  bool SendAll(std::span<const std::byte> data) const;
  bool ReceiveAll(std::span<std::byte> data, Clock::time_point deadline) const;
  // Receives what is there, without waiting. Returns how much; nothing where the other end has
  // closed.
  std::optional<std::size_t> ReceiveSome(std::span<std::byte> data) const;
  // True where the other end has closed and nothing is left to receive.
  bool IsClosed() const;
  // From now on calls of the system return at once, bytes leave at once, and calls fail when the
  // other machine has not answered for `silence` (3 s or more), while bytes wait or not. Its system
  // answers, whatever its programs do, unless more bytes wait than it has room for.
  void MakeLink(std::chrono::seconds silence) const;

 private:
  int descriptor_ = -1;
};

}  // namespace qlora

#endif  // QLORA_DIST_TCP_SOCKET_H_
