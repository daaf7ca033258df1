#include "dist/tcp_ranks.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/check.h"
#include "dist/together.h"

namespace qlora {
namespace {

// What moves between this rank and another one in a call, as messages of a word and bytes:
//
//   kReady | n    n bytes are expected
//   n             n bytes follow
//
// Bytes are sent when the other rank is ready for them, because a system takes a machine for gone
// that has no room for long. Two ranks may make different calls of the same exchange: one sends and
// receives at once, the other one in turn. So a rank may be ready before this one sends.
class Traffic {
 public:
  using Bytes = Communicator::Bytes;
  using MutableBytes = Communicator::MutableBytes;

  // ready: the bytes that the other rank is ready for, kept between calls.
  Traffic(Bytes leaving, MutableBytes arriving, std::optional<std::uint64_t>& ready)
      : leaving_(leaving), arriving_(arriving), ready_(ready) {
    if (!arriving_.empty()) AddWord(kReady | arriving_.size());
  }

  // Begins to send where the other rank is ready. False where it expects other bytes.
  bool Begin() {
    if (leaving_.empty() || begun_ || !ready_) return true;
    const bool fits = *ready_ == leaving_.size();
    begun_ = true;
    ready_.reset();
    AddWord(leaving_.size());
    return fits;
  }
  bool sends() const { return sent_ < words_out_ + (begun_ ? leaving_.size() : 0); }
  bool receives() const {
    return arrived_ < arriving_.size() || (!leaving_.empty() && !begun_ && !ready_);
  }
  Bytes NextOut() const {
    if (sent_ >= words_out_) return leaving_.subspan(sent_ - words_out_);
    return std::as_bytes(std::span(out_)).first(words_out_).subspan(sent_);
  }
  MutableBytes NextIn() {
    if (follows_) return arriving_.subspan(arrived_);
    return std::as_writable_bytes(std::span(&in_, 1)).subspan(in_read_);
  }
  void Sent(std::size_t bytes) { sent_ += bytes; }
  // False where other bytes follow than are expected.
  bool Received(std::size_t bytes) {
    if (follows_) {
      arrived_ += bytes;
      follows_ = arrived_ < arriving_.size();
      return true;
    }
    in_read_ += bytes;
    if (in_read_ < sizeof(in_)) return true;
    in_read_ = 0;
    const bool is_ready = (in_ & kReady) != 0;
    if (is_ready) ready_ = in_ & ~kReady;
    follows_ = !is_ready && in_ == arriving_.size() && arrived_ == 0 && in_ > 0;
    return is_ready || follows_;
  }

 private:
  static constexpr std::uint64_t kReady = std::uint64_t{1} << 63;

  void AddWord(std::uint64_t word) {
    out_[words_out_ / sizeof(word)] = word;
    words_out_ += sizeof(word);
  }

  Bytes leaving_;
  MutableBytes arriving_;
  std::optional<std::uint64_t>& ready_;
  bool begun_ = false;
  std::array<std::uint64_t, 2> out_ = {};
  std::size_t words_out_ = 0;  // bytes of them
  std::size_t sent_ = 0;       // of words and bytes
  std::uint64_t in_ = 0;
  std::size_t in_read_ = 0;
  bool follows_ = false;  // bytes, not a word
  std::size_t arrived_ = 0;
};

class TcpRanks final : public Communicator {
 public:
  TcpRanks(const TcpMeeting& meeting, std::vector<TcpLink> links)
      : Communicator(meeting.rank, meeting.size, "tcp"), links_(std::move(links)) {
    SetHost(HostName());
  }

  // The others find that this rank has ended.
  [[noreturn]] void Abort(int code) override { _exit(code); }

 private:
  void DoExchange(std::span<const Bytes> to_each,
                  std::span<const MutableBytes> from_each) override {
    std::vector<Traffic> traffic;
    for (int peer = 0; peer < size(); ++peer) {
      const bool is_other = peer != rank();
      traffic.emplace_back(is_other ? to_each[peer] : Bytes(),
                           is_other ? from_each[peer] : MutableBytes(), links_[peer].ready);
      Begin(peer, traffic.back());
    }
    if (const MutableBytes own = from_each[rank()]; !own.empty()) {
      std::memcpy(own.data(), to_each[rank()].data(), own.size());
    }
    // Whatever can move moves, so that no rank waits for another in an order.
    std::vector<pollfd> waiting;
    std::vector<int> peers;
    for (;;) {
      waiting.clear();
      peers.clear();
      for (int peer = 0; peer < size(); ++peer) {
        const int events =
            (traffic[peer].receives() ? POLLIN : 0) | (traffic[peer].sends() ? POLLOUT : 0);
        if (events == 0) continue;
        waiting.push_back({links_[peer].socket.descriptor(), static_cast<short>(events), 0});
        peers.push_back(peer);
      }
      if (waiting.empty()) return;
      if (poll(waiting.data(), waiting.size(), -1) < 0 && errno != EINTR) {
        ThrowRuntime("poll of {} connections: {}", waiting.size(), std::strerror(errno));
      }
      for (std::size_t i = 0; i < waiting.size(); ++i) {
        if (waiting[i].revents == 0) continue;
        if (traffic[peers[i]].receives()) Receive(peers[i], traffic[peers[i]]);
        if (traffic[peers[i]].sends()) Send(peers[i], traffic[peers[i]]);
      }
    }
  }
  void Begin(int peer, Traffic& traffic) const {
    if (!traffic.Begin()) ThrowUnequal(peer);
  }
  void Send(int peer, Traffic& traffic) const {
    const Bytes next = traffic.NextOut();
    traffic.Sent(Moved(
        peer, send(links_[peer].socket.descriptor(), next.data(), next.size(), MSG_NOSIGNAL)));
  }
  void Receive(int peer, Traffic& traffic) const {
    const MutableBytes next = traffic.NextIn();
    const ssize_t received = recv(links_[peer].socket.descriptor(), next.data(), next.size(), 0);
    if (received == 0) ThrowGone(peer, "it closed the connection");
    if (!traffic.Received(Moved(peer, received))) ThrowUnequal(peer);
    Begin(peer, traffic);
  }
  [[noreturn]] void ThrowUnequal(int peer) const {
    ThrowSent(*this, peer, "a message of another size than the one that is expected");
  }
  std::size_t Moved(int peer, ssize_t bytes) const {
    if (bytes >= 0) return static_cast<std::size_t>(bytes);
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return 0;
    ThrowGone(peer, std::strerror(errno));
  }
  [[noreturn]] void ThrowGone(int peer, const char* reason) const {
    ThrowRuntime("rank {} of {} ({}) has ended, or is out of reach: {}", peer, size(),
                 links_[peer].host, reason);
  }

  std::vector<TcpLink> links_;  // by rank; none to itself
};

}  // namespace

std::unique_ptr<Communicator> StartTcp(const TcpMeeting& meeting) {
  return std::make_unique<TcpRanks>(meeting, ConnectRanks(meeting));
}

}  // namespace qlora
