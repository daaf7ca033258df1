#include "dist/tcp_meeting.h"

#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "dist/tcp_hello.h"

namespace qlora {
namespace {

using Clock = TcpSocket::Clock;

constexpr std::chrono::seconds kShortly{30};
constexpr std::chrono::seconds kHelloComes{10};
constexpr std::chrono::seconds kBetweenWords{30};
constexpr std::chrono::milliseconds kBetweenTries{200};
constexpr std::ptrdiff_t kStrangers = 64;  // that may be heard at a time, beside the ranks

template <typename T>
std::span<const std::byte> BytesOf(const T& message) {
  return std::as_bytes(std::span(&message, 1));
}

template <typename T>
std::span<std::byte> RoomOf(T& message) {
  return std::as_writable_bytes(std::span(&message, 1));
}

bool IsLoopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

// A connection of which nothing is known yet. Anybody may connect.
struct Guest {
  TcpSocket socket;
  Clock::time_point until;  // when it is turned away, unless it has said all
  Hello hello = {};
  Answer answer = {};
  Proof proof = {};
  std::size_t received = 0;  // of hello and proof

  bool has_said_hello() const { return received >= sizeof(hello); }
  bool has_said_all() const { return received == sizeof(hello) + sizeof(proof); }
  std::span<std::byte> Room() {
    return has_said_hello() ? RoomOf(proof).subspan(received - sizeof(hello))
                            : RoomOf(hello).subspan(received);
  }
};

// The connections of one rank to all others, while they are made.
class Meeting {
 public:
  explicit Meeting(const TcpMeeting& meeting)
      : meeting_(meeting),
        me_{meeting.size, meeting.rank},
        deadline_(Clock::now() + meeting.patience),
        listener_(TcpSocket::Listen(meeting.rank == 0 ? meeting.at.port : 0,
                                    IsLoopback(meeting.at.host) && meeting.at.host != "::1")),
        links_(static_cast<std::size_t>(meeting.size)),
        places_(links_.size()) {}

  // Rank 0 waits for the others and tells them where each waits. Then each connects to those of
  // lower numbers, in order, and waits for those of higher ones.
  std::vector<TcpLink> Meet() {
    if (meeting_.rank == 0) {
      AcceptFrom(1);
      for (int rank = 1; rank < meeting_.size; ++rank) {
        Check(links_[rank].socket.SendAll(std::as_bytes(std::span(places_))), rank);
      }
    } else {
      ConnectTo(0, meeting_.at);
      // Rank 0 tells the places when it has heard from all ranks.
      Check(links_[0].socket.ReceiveAll(std::as_writable_bytes(std::span(places_)), deadline_), 0);
      // They listened before their places were known.
      deadline_ = Clock::now() + kShortly;
      for (int rank = 1; rank < meeting_.rank; ++rank) {
        ConnectTo(rank, AddressOf(places_[rank], rank, meeting_.at));
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
  // The moment of the next word to the user.
  Clock::time_point Soon() const { return std::min(deadline_, Clock::now() + kBetweenWords); }

  void ConnectTo(int rank, const TcpAddress& address) {
    Clock::time_point word = Soon();
    for (;;) {
      const std::string reason = TryConnect(rank, address);
      if (reason.empty()) break;
      if (Clock::now() >= deadline_) ThrowRuntime("{}", reason);
      if (Clock::now() >= word) {
        meeting_.say(fmt::format("rank {} tries on: {}", meeting_.rank, reason));
        word = Soon();
      }
      std::this_thread::sleep_for(kBetweenTries);
    }
    links_[rank].host = address.host;
  }
  // Returns "", or why the connection came to nothing and may be tried again.
  std::string TryConnect(int rank, const TcpAddress& address) {
    TcpSocket socket;
    try {
      socket = TcpSocket::Connect(address, Soon());
    } catch (const Error& error) {
      return error.what();
    }
    const std::string silent =
        fmt::format("{}, port {}, does not answer as rank {}", address.host, address.port, rank);
    const Hello hello = MakeHello(me_, listener_.Port());
    Answer answer;
    if (!socket.SendAll(BytesOf(hello)) || !socket.ReceiveAll(RoomOf(answer.mark), Soon())) {
      return silent;
    }
    CheckMark(answer.mark, address);
    const auto rest = RoomOf(answer).subspan(sizeof(answer.mark));
    if (!socket.ReceiveAll(rest, Soon())) return silent;
    // The other one wants to know of another key, too.
    const bool is_sent = socket.SendAll(BytesOf(MakeProof(meeting_.key, hello, answer)));
    CheckAnswer(answer, meeting_.key, hello, address, rank);
    if (!is_sent) return silent;
    links_[rank].socket = std::move(socket);
    return "";
  }

  std::string MissingFrom(int first) const {
    std::vector<int> missing;
    for (int rank = first; rank < meeting_.size && missing.size() < 8; ++rank) {
      if (links_[rank].socket.descriptor() < 0) missing.push_back(rank);
    }
    return fmt::format("{}", fmt::join(missing, ", "));
  }
  // Waits for the ranks from `first` on, whoever else connects.
  void AcceptFrom(int first) {
    Clock::time_point word = Soon();
    for (missing_ = meeting_.size - first; missing_ > 0;) {
      if (first > 1) Check(!links_[0].socket.IsClosed(), 0);
      const Clock::time_point now = Clock::now();
      if (now >= deadline_) {
        ThrowRuntime("of the {} ranks of the job, {} did not come to port {} of rank {}",
                     meeting_.size, MissingFrom(first), listener_.Port(), meeting_.rank);
      }
      if (now >= word) {
        meeting_.say(fmt::format("rank {} still waits for ranks {} at port {}", meeting_.rank,
                                 MissingFrom(first), listener_.Port()));
        word = Soon();
      }
      std::erase_if(guests_, [&](const Guest& guest) { return now >= guest.until; });
      WaitForGuests();
      for (Guest& guest : guests_) {
        if (!Hear(guest, first)) guest.until = Clock::time_point::min();
      }
      if (missing_ == 0) missing_ = DropClosed(first);
    }
    guests_.clear();
  }
  // Takes some new connections, and returns after a second at most.
  void WaitForGuests() {
    constexpr int kMilliseconds = 1000;
    std::vector<pollfd> waiting = {{listener_.descriptor(), POLLIN, 0}};
    for (const Guest& guest : guests_) waiting.push_back({guest.socket.descriptor(), POLLIN, 0});
    poll(waiting.data(), waiting.size(), kMilliseconds);
    for (int i = 0; i < kStrangers; ++i) {
      std::optional<TcpSocket> connection = listener_.Accept(Clock::now());
      if (!connection) return;
      // The oldest one has had the most time to speak.
      if (std::ssize(guests_) == kStrangers + meeting_.size) guests_.erase(guests_.begin());
      guests_.push_back({std::move(*connection), Clock::now() + kHelloComes});
    }
  }
  // False for a guest that is done with.
  bool Hear(Guest& guest, int first) {
    const bool is_answered = guest.has_said_hello();
    const std::optional<std::size_t> received = guest.socket.ReceiveSome(guest.Room());
    if (!received) return false;
    guest.received += *received;
    const Hello& hello = guest.hello;
    if (guest.received >= sizeof(hello.mark) && hello.mark != kRankMark) return false;
    if (guest.has_said_hello() && !is_answered) {
      guest.answer = MakeAnswer(me_, meeting_.key, hello, RefusalOf(hello, first));
      return guest.socket.SendAll(BytesOf(guest.answer));
    }
    if (!guest.has_said_all()) return true;
    Admit(guest, first);
    return false;
  }
  Refusal RefusalOf(const Hello& hello, int first) const {
    const int rank = hello.id.rank;
    if (hello.id.size != meeting_.size) return Refusal::kOtherSize;
    if (rank < first || rank >= meeting_.size) return Refusal::kNotAwaited;
    const TcpSocket& there = links_[rank].socket;
    return there.descriptor() >= 0 && !there.IsClosed() ? Refusal::kIsThere : Refusal::kNone;
  }
  // Makes a guest the link of its rank, or turns it away: another one may be right.
  void Admit(Guest& guest, int first) {
    const Hello& hello = guest.hello;
    const std::string host = guest.socket.PeerHost();
    const bool has_key = IsProof(guest.proof, meeting_.key, hello, guest.answer);
    if (!has_key || guest.answer.refusal != Refusal::kNone ||
        RefusalOf(hello, first) != Refusal::kNone) {
      meeting_.say(fmt::format("rank {} turns {} away, which comes as rank {} of {}{}",
                               meeting_.rank, host, hello.id.rank, hello.id.size,
                               has_key ? "" : " and has another QLORA_MEETING_KEY"));
      return;
    }
    TcpLink& link = links_[hello.id.rank];
    if (link.socket.descriptor() < 0) --missing_;  // otherwise it was started again
    link.socket = std::move(guest.socket);
    link.host = host;
    // Of a rank on this machine, the others know no other name than that of the meeting.
    places_[hello.id.rank] = MakePlace(IsLoopback(host) ? "" : host, hello.port);
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

  const TcpMeeting& meeting_;
  const RankId me_;
  Clock::time_point deadline_;
  TcpSocket listener_;
  std::vector<TcpLink> links_;
  std::vector<Place> places_;
  std::vector<Guest> guests_;  // the oldest first
  int missing_ = 0;            // ranks that this one waits for
};

}  // namespace

std::vector<TcpLink> ConnectRanks(const TcpMeeting& meeting) { return Meeting(meeting).Meet(); }

}  // namespace qlora
