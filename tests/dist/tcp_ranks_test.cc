// Ranks over TCP, as threads on this machine.
#include "dist/tcp_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <latch>
#include <thread>

#include "base/memory.h"
#include "dist/free_port.h"
#include "dist/thread_ranks.h"
#include "dist/together.h"
#include "qlora/error.h"

namespace qlora {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<Communicator> Start(int port, int rank, int size, int patience = 300) {
  return StartTcp({{"127.0.0.1", port}, rank, size, std::chrono::seconds(patience)});
}

void OnTcpRanks(int size, const std::function<void(Communicator&)>& work) {
  const FreePort port;
  OnThreads(size, [&](int rank) { work(*Start(port, rank, size)); });
}

// The message of the error that work throws.
std::string MessageOf(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(TcpRanks, KnowTheirPlaces) {
  OnTcpRanks(3, [](Communicator& ranks) {
    EXPECT_EQ(ranks.size(), 3);
    EXPECT_EQ(ranks.local_size(), 3);
    EXPECT_EQ(ranks.local_rank(), ranks.rank());
    const std::vector<std::string> texts =
        GatherTexts(ranks, "rank " + std::to_string(ranks.rank()));
    EXPECT_THAT(texts, ElementsAre("rank 0", "rank 1", "rank 2"));
    EXPECT_EQ(BroadcastText(ranks, ranks.is_root() ? "all" : ""), "all");
    EXPECT_TRUE(AnyRank(ranks, ranks.rank() == 2));
  });
}

// More than the system keeps on its way, from everyone to everyone at once.
TEST(TcpRanks, ExchangeSlicesOfAllSizes) {
  constexpr int kRanks = 4;
  const auto size_of = [](int from, int to) -> std::size_t {
    return from == 1 && to == 2 ? 0 : 1 + 3'000'000 * static_cast<std::size_t>((from + to) % 3);
  };
  const auto value_at = [](int from, int to, std::size_t i) {
    return static_cast<std::byte>(i * 31 + static_cast<std::size_t>(from * 7 + to));
  };
  OnTcpRanks(kRanks, [&](Communicator& ranks) {
    std::vector<std::vector<std::byte>> leaving;
    std::vector<std::vector<std::byte>> arriving;
    for (int other = 0; other < kRanks; ++other) {
      leaving.emplace_back(size_of(ranks.rank(), other));
      for (std::size_t i = 0; i < leaving.back().size(); ++i) {
        leaving.back()[i] = value_at(ranks.rank(), other, i);
      }
      arriving.emplace_back(size_of(other, ranks.rank()));
    }
    for (int round = 0; round < 2; ++round) {
      ranks.Exchange(std::vector<Communicator::Bytes>(leaving.begin(), leaving.end()),
                     std::vector<Communicator::MutableBytes>(arriving.begin(), arriving.end()));
    }
    for (int other = 0; other < kRanks; ++other) {
      for (std::size_t i = 0; i < arriving[other].size(); ++i) {
        ASSERT_EQ(arriving[other][i], value_at(other, ranks.rank(), i)) << other << ' ' << i;
      }
    }
  });
}

// Two ranks of three, while the third one has not come to a call yet.
TEST(TcpRanks, OnlyThoseConcernedCall) {
  OnTcpRanks(3, [](Communicator& ranks) {
    std::int32_t value = ranks.rank() == 1 ? 42 : 0;
    const auto bytes = std::as_writable_bytes(std::span(&value, 1));
    if (ranks.rank() == 1) SendAndReceive(ranks, HostMemory(), 2, bytes, -1, {});
    if (ranks.rank() == 2) SendAndReceive(ranks, HostMemory(), -1, {}, 1, bytes);
    EXPECT_EQ(value, ranks.rank() == 0 ? 0 : 42);
  });
}

// As stages do: one sends and receives at once, the other one in turn.
TEST(TcpRanks, MakeDifferentCallsOfOneExchange) {
  OnTcpRanks(2, [](Communicator& ranks) {
    std::vector<std::byte> mine(3'000'000, static_cast<std::byte>(1 + ranks.rank()));
    std::vector<std::byte> other(mine.size());
    for (int round = 0; round < 3; ++round) {
      if (ranks.is_root()) {
        SendAndReceive(ranks, HostMemory(), 1, mine, 1, other);
      } else if (round == 1) {
        SendAndReceive(ranks, HostMemory(), 0, mine, -1, {});
        SendAndReceive(ranks, HostMemory(), -1, {}, 0, other);
      } else {
        SendAndReceive(ranks, HostMemory(), -1, {}, 0, other);
        SendAndReceive(ranks, HostMemory(), 0, mine, -1, {});
      }
      EXPECT_EQ(other,
                std::vector<std::byte>(mine.size(), static_cast<std::byte>(2 - ranks.rank())));
      std::fill(other.begin(), other.end(), std::byte{});
    }
  });
}

TEST(TcpRanks, NameARankThatHasEnded) {
  const std::string message = MessageOf([] {
    OnTcpRanks(3, [](Communicator& ranks) {
      if (ranks.rank() == 1) return;
      std::vector<std::byte> all(3);
      const std::byte mine{};
      ranks.Gather(std::span(&mine, 1), all);
    });
  });
  EXPECT_THAT(message, AllOf(HasSubstr("rank 1 of 3 (127.0.0.1) has ended, or")));
}

TEST(TcpRanks, RefuseAnotherSizeOfMessage) {
  std::array<std::string, 2> messages;
  OnTcpRanks(2, [&](Communicator& ranks) {
    std::vector<std::byte> bytes(ranks.is_root() ? 8 : 4);
    messages[ranks.rank()] = MessageOf([&] { ranks.Broadcast(bytes, 1); });
  });
  EXPECT_THAT(messages[1], HasSubstr("rank 0 of 2 sent a message of another size"));
  EXPECT_THAT(messages[0], HasSubstr("rank 1 of 2 (127.0.0.1) has ended"));
}

// More than systems keep on its way leaves at once, to a rank that computes for longer than a
// machine may be silent.
TEST(TcpRanks, WaitForARankThatComputes) {
  const FreePort port;
  OnThreads(2, [&](int rank) {
    const std::unique_ptr<Communicator> ranks = StartTcp(
        {{"127.0.0.1", port}, rank, 2, std::chrono::seconds(300), std::chrono::seconds(3)});
    std::vector<std::byte> bytes(std::size_t{16} << 20, static_cast<std::byte>(rank));
    if (rank == 1) std::this_thread::sleep_for(std::chrono::seconds(5));
    ranks->Broadcast(bytes, 0);
    EXPECT_EQ(bytes.back(), std::byte{0});
  });
}

TEST(TcpRanks, TurnStrangersAway) {
  const FreePort port;
  OnThreads(2, [&](int rank) {
    std::optional<TcpSocket> stranger;
    if (rank == 1) {
      const auto deadline = TcpSocket::Clock::now() + std::chrono::seconds(300);
      stranger = TcpSocket::Connect({"127.0.0.1", port}, deadline);
      stranger->SendAll(std::as_bytes(std::span("GET / HTTP/1.1\r\nHost: first\r\n\r\n")));
    }
    const std::unique_ptr<Communicator> ranks = Start(port, rank, 2);
    EXPECT_EQ(BroadcastText(*ranks, "here"), "here");
  });
}

// Killed while the ranks met, and started again.
TEST(TcpRanks, TakeARankThatCameAgain) {
  const FreePort port;
  std::latch came_once(2);
  OnThreads(3, [&](int rank) {
    if (rank == 1) {
      std::string message;
      do {  // rank 0 may not listen yet
        message = MessageOf([&] { Start(port, 1, 3, 1); });
      } while (message.find("cannot be reached") != std::string::npos);
      EXPECT_THAT(message, HasSubstr("has ended"));
    }
    if (rank != 0) came_once.arrive_and_wait();
    const std::unique_ptr<Communicator> ranks = Start(port, rank, 3);
    EXPECT_EQ(BroadcastText(*ranks, "here"), "here");
  });
}

TEST(TcpRanks, RefuseAPortThatIsTaken) {
  const TcpSocket other = TcpSocket::Listen(0);
  EXPECT_THAT(MessageOf([&] { Start(other.Port(), 0, 2); }), HasSubstr("is taken"));
}

TEST(TcpRanks, SayWhoDidNotCome) {
  const std::string message = MessageOf([] { Start(FreePort(), 0, 3, 1); });
  EXPECT_THAT(message, HasSubstr("of the 3 ranks of the job, 1, 2 did not come"));
  EXPECT_THAT(MessageOf([] { Start(FreePort(), 1, 3, 1); }), HasSubstr("cannot be reached"));
  EXPECT_THAT(MessageOf([] {
                StartTcp({{"no.such.host.invalid", 2}, 1, 2, std::chrono::seconds(1)});
              }),
              HasSubstr("no.such.host.invalid"));
}

}  // namespace
}  // namespace qlora
