#include "dist/tcp_ranks.h"

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

struct Link {
  TcpSocket socket;
  std::string host;
};

// The connections of one rank to all others, while they are made.
class Meeting {
 public:
  explicit Meeting(const TcpMeeting& meeting)
      : meeting_(meeting),
        deadline_(Clock::now() + meeting.patience),
        listener_(TcpSocket::Listen(meeting.rank == 0 ? meeting.at.port : 0)),
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
      Check(links_[0].socket.ReceiveAll(std::as_writable_bytes(std::span(places_)),
                                        meeting_.patience),
            0);
      for (int rank = 1; rank < meeting_.rank; ++rank) {
        ConnectTo(rank, {places_[rank].host.data(), places_[rank].port});
      }
      AcceptFrom(meeting_.rank + 1);
    }
    for (const Link& link : links_) {
      if (link.socket.descriptor() >= 0) link.socket.MakeLink();
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
    links_[rank] = {TcpSocket::Connect(address, deadline_), address.host};
    const Hello hello{{"qlora ranks 1"}, meeting_.size, meeting_.rank, listener_.Port()};
    Check(links_[rank].socket.SendAll(BytesOfValue(hello)), rank);
  }
  // Waits for the ranks from `first` on.
  void AcceptFrom(int first) {
    for (int missing = meeting_.size - first; missing > 0;) {
      std::optional<TcpSocket> connection = listener_.Accept(deadline_);
      if (!connection) {
        ThrowRuntime("{} of {} ranks did not come to port {} within {} s", missing, meeting_.size,
                     listener_.Port(), meeting_.patience.count());
      }
      // Anybody may connect; only ranks say hello.
      Hello hello;
      if (!connection->ReceiveAll(WritableBytesOf(hello), std::chrono::seconds(5)) ||
          hello.program != Hello().program) {
        continue;
      }
      CheckRank(hello, first);
      Link& link = links_[hello.rank];
      link.host = connection->PeerHost();
      link.socket = std::move(*connection);
      Place& place = places_[hello.rank];
      link.host.copy(place.host.data(), place.host.size() - 1);
      place.port = hello.port;
      --missing;
    }
  }
  void CheckRank(const Hello& hello, int first) const {
    if (hello.size != meeting_.size) {
      ThrowInvalidInput(
          "WORLD_SIZE differs between the ranks of this job: {} on rank {}, {} on rank {}",
          meeting_.size, meeting_.rank, hello.size, hello.rank);
    }
    if (hello.rank < first || hello.rank >= meeting_.size ||
        links_[hello.rank].socket.descriptor() >= 0) {
      ThrowInvalidInput(
          "RANK {} was started twice, or two jobs meet at one MASTER_PORT: expected each of 0 to "
          "{} "
          "once",
          hello.rank, meeting_.size - 1);
    }
  }

  const TcpMeeting& meeting_;
  Clock::time_point deadline_;
  TcpSocket listener_;
  std::vector<Link> links_;
  std::vector<Place> places_;
};

// One message on its way: its size, then its bytes.
template <typename Bytes>
struct Message {
  std::uint64_t size = 0;
  Bytes data = {};
  std::size_t done = 0;  // bytes of both

  explicit Message(Bytes bytes) : size(bytes.size()), data(bytes) {}
  bool is_done() const { return data.empty() || done == sizeof(size) + data.size(); }
  Bytes Rest() {
    if (done >= sizeof(size)) return data.subspan(done - sizeof(size));
    return Bytes(reinterpret_cast<typename Bytes::pointer>(&size), sizeof(size)).subspan(done);
  }
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
  using Out = Message<Bytes>;
  using In = Message<MutableBytes>;

  void DoExchange(std::span<const Bytes> to_each,
                  std::span<const MutableBytes> from_each) override {
    std::vector<Out> out(to_each.begin(), to_each.end());
    std::vector<In> in(from_each.begin(), from_each.end());
    if (!in[rank()].is_done()) {
      std::memcpy(in[rank()].data.data(), out[rank()].data.data(), in[rank()].data.size());
    }
    in[rank()] = In({});
    out[rank()] = Out({});
    // Whatever can move moves, so that no rank waits for another in an order.
    std::vector<pollfd> waiting;
    std::vector<int> ranks;
    for (;;) {
      waiting.clear();
      ranks.clear();
      for (int peer = 0; peer < size(); ++peer) {
        const int events = (in[peer].is_done() ? 0 : POLLIN) | (out[peer].is_done() ? 0 : POLLOUT);
        if (events == 0) continue;
        waiting.push_back({links_[peer].socket.descriptor(), static_cast<short>(events), 0});
        ranks.push_back(peer);
      }
      if (waiting.empty()) return;
      if (poll(waiting.data(), waiting.size(), -1) < 0) continue;  // a signal
      for (std::size_t i = 0; i < waiting.size(); ++i) {
        if (waiting[i].revents == 0) continue;
        if (!out[ranks[i]].is_done()) Send(ranks[i], out[ranks[i]]);
        if (!in[ranks[i]].is_done()) Receive(ranks[i], in[ranks[i]]);
      }
    }
  }
  void DoGather(Bytes mine, MutableBytes all) override {
    std::vector<MutableBytes> from_each;
    for (int from = 0; from < size(); ++from) {
      from_each.push_back(all.subspan(mine.size() * static_cast<std::size_t>(from), mine.size()));
    }
    DoExchange(std::vector<Bytes>(links_.size(), mine), from_each);
  }
  void DoBroadcast(MutableBytes data, int root) override {
    std::vector<Bytes> to_each(links_.size());
    std::vector<MutableBytes> from_each(links_.size());
    if (rank() == root) {
      to_each.assign(links_.size(), data);
    } else {
      from_each[root] = data;
    }
    DoExchange(to_each, from_each);
  }

  void Send(int peer, Out& message) const {
    const Bytes rest = message.Rest();
    message.done +=
        Moved(peer, send(links_[peer].socket.descriptor(), rest.data(), rest.size(), MSG_NOSIGNAL));
  }
  void Receive(int peer, In& message) const {
    const MutableBytes rest = message.Rest();
    const ssize_t received = recv(links_[peer].socket.descriptor(), rest.data(), rest.size(), 0);
    if (received == 0) ThrowGone(peer, "it closed the connection");
    message.done += Moved(peer, received);
    if (message.done >= sizeof(message.size) && message.size != message.data.size()) {
      ThrowRuntime("rank {} sent {} bytes where rank {} expects {}; this is a defect of qlora",
                   peer, message.size, rank(), message.data.size());
    }
  }
  std::size_t Moved(int peer, ssize_t bytes) const {
    if (bytes >= 0) return static_cast<std::size_t>(bytes);
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return 0;
    ThrowGone(peer, std::strerror(errno));
  }
  [[noreturn]] void ThrowGone(int peer, const char* reason) const {
    ThrowRuntime("rank {} of {} ({}) has ended: {}; its own message says why", peer, size(),
                 links_[peer].host, reason);
  }

  std::vector<Link> links_;  // by rank; none to itself
};

}  // namespace

std::unique_ptr<Communicator> StartTcp(const TcpMeeting& meeting) {
  return std::make_unique<TcpRanks>(meeting, Meeting(meeting).Meet());
}

}  // namespace qlora
