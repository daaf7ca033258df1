#include "dist/tcp_ranks.h"

#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"

namespace qlora {
namespace {

using Clock = TcpSocket::Clock;

constexpr std::chrono::seconds kShortly{10};
constexpr std::chrono::seconds kHelloComes{2};
constexpr std::chrono::seconds kBetweenWords{30};

// The first words of a rank to another one.
struct Hello {
  std::array<char, 16> program = {"qlora ranks 1"};
  std::int32_t size = 0;
  std::int32_t rank = 0;
  std::int32_t port = 0;  // where this rank waits for those of higher numbers
};

// Where a rank waits, as rank 0 tells it.
struct Place {
  std::array<char, 64> host = {};
  std::int32_t port = 0;
};

template <typename T>
std::span<const std::byte> BytesOfValue(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}
template <typename T>
std::span<std::byte> WritableBytesOf(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

bool IsLoopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

struct Link {
  TcpSocket socket = {};
  std::string host = {};
  std::optional<std::uint64_t> ready = {};  // see Traffic
};

// The connections of one rank to all others, while they are made.
class Meeting {
 public:
  explicit Meeting(const TcpMeeting& meeting)
      : meeting_(meeting),
        deadline_(Clock::now() + meeting.patience),
        listener_(TcpSocket::Listen(meeting.rank == 0 ? meeting.at.port : 0,
                                    IsLoopback(meeting.at.host) && meeting.at.host != "::1")),
        links_(static_cast<std::size_t>(meeting.size)),
        places_(links_.size()) {}

  // Rank 0 waits for the others and tells them where each waits. Then each connects to those of
  // lower numbers, whose systems answer before they look, and waits for those of higher ones.
  std::vector<Link> Meet() {
    if (meeting_.rank == 0) {
      AcceptFrom(1);
      for (int rank = 1; rank < meeting_.size; ++rank) {
        Check(links_[rank].socket.SendAll(std::as_bytes(std::span(places_))), rank);
      }
    } else {
      ConnectTo(0, meeting_.at);
      // Rank 0 answers when it has heard from all ranks.
      Check(links_[0].socket.ReceiveAll(std::as_writable_bytes(std::span(places_)), deadline_), 0);
      // They listened before their places were known.
      deadline_ = Clock::now() + kShortly;
      for (int rank = 1; rank < meeting_.rank; ++rank) {
        const Place& place = places_[rank];
        ConnectTo(rank, {place.host[0] != 0 ? place.host.data() : meeting_.at.host, place.port});
      }
      AcceptFrom(meeting_.rank + 1);
    }
    for (const Link& link : links_) {
      if (link.socket.descriptor() >= 0) link.socket.MakeLink(meeting_.silence);
    }
    return std::move(links_);
  }

 private:
  void Check(bool done, int rank) const {
    if (done) return;
    ThrowRuntime("rank {} ({}) has ended while the {} ranks of the job met", rank,
                 links_[rank].host, meeting_.size);
  }
  void ConnectTo(int rank, const TcpAddress& address) {
    while (links_[rank].socket.descriptor() < 0) {
      try {
        links_[rank].socket = TcpSocket::Connect(address, Soon());
      } catch (const Error& error) {
        if (Clock::now() >= deadline_) throw;
        meeting_.say(fmt::format("rank {} tries on: {}", meeting_.rank, error.what()));
      }
    }
    links_[rank].host = address.host;
    Hello hello;
    hello.size = meeting_.size;
    hello.rank = meeting_.rank;
    hello.port = listener_.Port();
    Check(links_[rank].socket.SendAll(BytesOfValue(hello)), rank);
  }
  // The moment of the next word to the user.
  Clock::time_point Soon() const { return std::min(deadline_, Clock::now() + kBetweenWords); }
  std::string MissingFrom(int first) const {
    std::vector<int> missing;
    for (int rank = first; rank < meeting_.size && missing.size() < 8; ++rank) {
      if (links_[rank].socket.descriptor() < 0) missing.push_back(rank);
    }
    return fmt::format("{}", fmt::join(missing, ", "));
  }
  // Waits for the ranks from `first` on.
  void AcceptFrom(int first) {
    for (int missing = meeting_.size - first; missing > 0;) {
      std::optional<TcpSocket> connection = listener_.Accept(Soon());
      if (!connection) {
        if (first > 1) Check(!links_[0].socket.IsClosed(), 0);
        if (Clock::now() >= deadline_) {
          ThrowRuntime("of the {} ranks of the job, {} did not come to port {} of rank {}",
                       meeting_.size, MissingFrom(first), listener_.Port(), meeting_.rank);
        }
        meeting_.say(fmt::format("rank {} still waits for ranks {} at port {}", meeting_.rank,
                                 MissingFrom(first), listener_.Port()));
        continue;
      }
      // Anybody may connect; only ranks say hello.
      Hello hello;
      if (!connection->ReceiveAll(WritableBytesOf(hello), Clock::now() + kHelloComes) ||
          hello.program != Hello().program) {
        continue;
      }
      CheckRank(hello, first);
      Link& link = links_[hello.rank];
      if (link.socket.descriptor() < 0) --missing;  // otherwise it was started again
      link.socket = std::move(*connection);
      link.host = link.socket.PeerHost();
      // Of a rank on this machine, the others know no other name than that of the meeting.
      const std::string host = IsLoopback(link.host) ? "" : link.host;
      Place& place = places_[hello.rank];
      place.host = {};
      host.copy(place.host.data(), place.host.size() - 1);
      place.port = hello.port;
    }
  }
  void CheckRank(const Hello& hello, int first) const {
    if (hello.size != meeting_.size) {
      ThrowInvalidInput(
          "WORLD_SIZE differs between the ranks of this job: {} on rank {}, {} on rank {}",
          meeting_.size, meeting_.rank, hello.size, hello.rank);
    }
    const bool is_expected = hello.rank >= first && hello.rank < meeting_.size;
    if (!is_expected ||
        (links_[hello.rank].socket.descriptor() >= 0 && !links_[hello.rank].socket.IsClosed())) {
      ThrowInvalidInput(
          "RANK {} was started twice, or two jobs meet at one MASTER_PORT: expected each of {} to "
          "{} once",
          hello.rank, first, meeting_.size - 1);
    }
  }

  const TcpMeeting& meeting_;
  Clock::time_point deadline_;
  TcpSocket listener_;
  std::vector<Link> links_;
  std::vector<Place> places_;
};

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
    return WritableBytesOf(in_).subspan(in_read_);
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
    follows_ = (in_ & kReady) == 0;
    if (!follows_) ready_ = in_ & ~kReady;
    return !follows_ || in_ == arriving_.size();
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
  TcpRanks(const TcpMeeting& meeting, std::vector<Link> links)
      : Communicator(meeting.rank, meeting.size), links_(std::move(links)) {
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
    ThrowRuntime("ranks {} and {} exchange messages of other sizes; this is a defect of qlora",
                 rank(), peer);
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

  std::vector<Link> links_;  // by rank; none to itself
};

}  // namespace

std::unique_ptr<Communicator> StartTcp(const TcpMeeting& meeting) {
  return std::make_unique<TcpRanks>(meeting, Meeting(meeting).Meet());
}

}  // namespace qlora
