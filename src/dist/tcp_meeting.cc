#include "dist/tcp_meeting.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <utility>

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

bool IsLoopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

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
  std::vector<TcpLink> Meet() {
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
    for (const TcpLink& link : links_) {
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
    Check(links_[rank].socket.SendAll(std::as_bytes(std::span(&hello, 1))), rank);
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
      if (!connection->ReceiveAll(std::as_writable_bytes(std::span(&hello, 1)),
                                  Clock::now() + kHelloComes) ||
          hello.program != Hello().program) {
        continue;
      }
      CheckRank(hello, first);
      TcpLink& link = links_[hello.rank];
      if (link.socket.descriptor() < 0) --missing;  // otherwise it was started again
      link.socket = std::move(*connection);
      link.host = link.socket.PeerHost();
      // Of a rank on this machine, the others know no other name than that of the meeting.
      const std::string host = IsLoopback(link.host) ? "" : link.host;
      Place& place = places_[hello.rank];
      place.host = {};
      host.copy(place.host.data(), place.host.size() - 1);
      place.port = hello.port;
      if (missing == 0) missing = DropClosed(first);
    }
  }
  // Forgets ranks that have ended since they came, and may be started again. Returns their number.
  int DropClosed(int first) {
    int count = 0;
    for (int rank = first; rank < meeting_.size; ++rank) {
      if (!links_[rank].socket.IsClosed()) continue;
      links_[rank] = {};
      ++count;
    }
    return count;
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
  std::vector<TcpLink> links_;
  std::vector<Place> places_;
};

}  // namespace

std::vector<TcpLink> ConnectRanks(const TcpMeeting& meeting) { return Meeting(meeting).Meet(); }

}  // namespace qlora
