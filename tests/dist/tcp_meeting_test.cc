// Who comes to a meeting of ranks, and what they say.
#include "dist/tcp_meeting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cstring>
#include <thread>

#include "base/random.h"
#include "dist/agreement.h"
#include "dist/free_port.h"
#include "dist/lying_rank.h"
#include "dist/tcp_hello.h"
#include "dist/tcp_ranks.h"
#include "dist/thread_ranks.h"
#include "dist/together.h"
#include "qlora/error.h"

namespace qlora {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr seconds kLong{300};

TcpMeeting MeetingOf(int port, int rank, int size, const std::string& key = "",
                     seconds patience = kLong) {
  TcpMeeting meeting{{"127.0.0.1", port}, rank, size, patience};
  meeting.key = key;
  return meeting;
}

std::unique_ptr<Communicator> Start(const TcpMeeting& meeting) { return StartTcp(meeting); }

// The message of the error that work throws; "" for none.
std::string MessageOf(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TcpSocket Connect(int port) {
  return TcpSocket::Connect({"127.0.0.1", port}, TcpSocket::Clock::now() + kLong);
}

template <typename T>
std::string BytesOf(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

// What rank 1 of `size` is told by something at the port of rank 0 that sends `text`.
std::string ToldBy(const std::string& text, int size = 8) {
  const FreePort port;
  const TcpSocket listener = TcpSocket::Listen(port, true);
  std::string message;
  OnThreads(2, [&](int thread) {
    if (thread == 1) {
      message = MessageOf([&] { Start(MeetingOf(port, 1, size, "", seconds(3))); });
      return;
    }
    const auto stranger = listener.Accept(TcpSocket::Clock::now() + kLong);
    stranger->SendAll(std::as_bytes(std::span(text)));
  });
  return message;
}

TEST(TcpMeeting, NothingOfAnotherProgramIsUsed) {
  const std::string page(4096, 'x');
  EXPECT_THAT(ToldBy("HTTP/1.1 400 Bad Request\r\n\r\n" + page),
              HasSubstr("another program answers there than a rank of this job"));
  EXPECT_THAT(ToldBy("SSH-2.0-OpenSSH_9.2p1\r\n"), HasSubstr("another program answers"));
  EXPECT_THAT(ToldBy(std::string("qlora ranks 1\0\0\0", 16) + page), HasSubstr("another release"));
  EXPECT_THAT(ToldBy("SSH"), HasSubstr("does not answer as rank 0"));
}

TEST(TcpMeeting, ARankSaysThatItIsNotRank0) {
  const auto told = [](RankId id, Refusal refusal, RankId me = {3, 1}) {
    const Hello hello = MakeHello(me, 40000);
    const Answer answer = MakeAnswer(id, "key", hello, refusal);
    return MessageOf([&] { CheckAnswer(answer, "key", hello, {"first", 29500}, 0); });
  };
  EXPECT_EQ(told({3, 0}, Refusal::kNone), "");
  EXPECT_THAT(told({2, 0}, Refusal::kOtherSize), HasSubstr("WORLD_SIZE differs between"));
  EXPECT_THAT(told({3, 2}, Refusal::kNone), HasSubstr("expected rank 0, found rank 2"));
  EXPECT_THAT(told({3, 0}, Refusal::kIsThere), HasSubstr("RANK 1 was started twice"));
  EXPECT_THAT(told({3, 0}, Refusal::kNotAwaited), HasSubstr("RANK 1 is none of this job"));
}

// Bits of an answer change on the way: it is refused, whatever it says.
TEST(TcpMeeting, ChangedAnswersAreRefused) {
  const RandomKey random = MakeKey(1, RandomPlace::kTest);
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const Hello hello = MakeHello({4, 2}, 40000);
    Answer answer = MakeAnswer({4, 0}, "key", hello, Refusal::kNone);
    std::string bytes = BytesOf(answer);
    const std::uint64_t bit = RandomBelow(random, i, 8 * bytes.size());
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    std::memcpy(&answer, bytes.data(), bytes.size());
    EXPECT_NE(MessageOf([&] {
                CheckAnswer(answer, "key", hello, {"first", 29500}, 0);
              }),
              "")
        << bit;
  }
}

TEST(TcpMeeting, PlacesAreCutAndChecked) {
  const TcpAddress meeting{"first", 29500};
  EXPECT_EQ(AddressOf(MakePlace("10.0.0.7", 40000), 3, meeting).host, "10.0.0.7");
  EXPECT_EQ(AddressOf(MakePlace("", 40000), 3, meeting).host, "first");
  EXPECT_EQ(AddressOf(MakePlace(std::string(100, 'h'), 1), 3, meeting).host, std::string(63, 'h'));
  Place endless = MakePlace("h", 40000);
  endless.host.fill('h');
  EXPECT_THAT(MessageOf([&] { AddressOf(endless, 3, meeting); }),
              HasSubstr("rank 0 (first, port 29500) sent no place of rank 3"));
  for (const int port : {0, -1, 65536, 1 << 30}) {
    EXPECT_NE(MessageOf([&] { AddressOf(MakePlace("h", port), 3, meeting); }), "") << port;
  }
}

TEST(TcpMeeting, AKeyKeepsOthersOut) {
  for (const auto& keys :
       {std::pair("secret", "secrets"), std::pair("", "secret"), std::pair("secret", "")}) {
    const char* const first = keys.first;
    const char* const second = keys.second;
    const FreePort port;
    std::string message;
    std::string said;
    OnThreads(2, [&](int rank) {
      TcpMeeting meeting = MeetingOf(port, rank, 2, first);
      meeting.say = [&](const std::string& text) { said += text; };
      if (rank == 1) {
        // One with another key comes first; the meeting goes on.
        message = MessageOf([&] { Start(MeetingOf(port, 1, 2, second)); });
        meeting.say = [](const std::string&) {};
      }
      const std::unique_ptr<Communicator> ranks = Start(meeting);
      EXPECT_EQ(BroadcastText(*ranks, "here"), "here");
    });
    EXPECT_THAT(message, AllOf(HasSubstr("this rank has"), HasSubstr("QLORA_MEETING_KEY")));
    EXPECT_THAT(said, HasSubstr("comes as rank 1 of 2 and has another QLORA_MEETING_KEY"));
  }
}

TEST(TcpMeeting, AWrongHelloDoesNotEndIt) {
  const FreePort port;
  OnThreads(2, [&](int rank) {
    if (rank == 1) {
      EXPECT_THAT(MessageOf([&] { Start(MeetingOf(port, 1, 5)); }),
                  HasSubstr("WORLD_SIZE differs"));
      EXPECT_THAT(MessageOf([&] { Start(MeetingOf(port, 7, 2)); }),
                  HasSubstr("RANK 7 is none of this job"));
      for (const std::string& text : {BytesOf(Hello()), std::string("qlora")}) {
        Connect(port).SendAll(std::as_bytes(std::span(text)));
      }
    }
    EXPECT_EQ(BroadcastText(*Start(MeetingOf(port, rank, 2)), "here"), "here");
  });
}

// In a job of three, while rank 1 has not come.
TEST(TcpMeeting, ARankComesOnce) {
  const FreePort port;
  OnThreads(2, [&](int thread) {
    if (thread == 1) {
      {
        const TcpSocket first = Connect(port);
        const Hello hello = MakeHello({3, 2}, 40000);
        Answer answer;
        first.SendAll(std::as_bytes(std::span(&hello, 1)));
        ASSERT_TRUE(first.ReceiveAll(std::as_writable_bytes(std::span(&answer, 1)),
                                     TcpSocket::Clock::now() + kLong));
        const Proof proof = MakeProof("", hello, answer);
        first.SendAll(std::as_bytes(std::span(proof)));
        EXPECT_THAT(MessageOf([&] { Start(MeetingOf(port, 2, 3)); }),
                    HasSubstr("RANK 2 was started twice"));
      }
      OnThreads(2, [&](int one) {
        EXPECT_EQ(BroadcastText(*Start(MeetingOf(port, one + 1, 3)), ""), "here");
      });
      return;
    }
    EXPECT_EQ(BroadcastText(*Start(MeetingOf(port, 0, 3)), "here"), "here");
  });
}

// As many as may be heard at a time, and more.
TEST(TcpMeeting, SilentStrangersDoNotHoldIt) {
  const FreePort port;
  OnThreads(2, [&](int rank) {
    std::vector<TcpSocket> silent;
    for (int i = 0; rank == 1 && i < 200; ++i) silent.push_back(Connect(port));
    EXPECT_EQ(BroadcastText(*Start(MeetingOf(port, rank, 2)), "here"), "here");
  });
}

TEST(TcpMeeting, PatienceEndsWhileStrangersCome) {
  const FreePort port;
  std::atomic<bool> ended = false;
  std::string message;
  OnThreads(2, [&](int thread) {
    if (thread == 0) {
      message = MessageOf([&] { Start(MeetingOf(port, 0, 2, "", seconds(1))); });
      ended = true;
    }
    while (!ended) MessageOf([&] { TcpSocket::Connect({"127.0.0.1", port}, {}); });
  });
  EXPECT_THAT(message, HasSubstr("of the 2 ranks of the job, 1 did not come"));
}

// ---- What ranks send each other behind the meeting.

TEST(TcpMeeting, LengthsOfOtherRanksAreNotBelieved) {
  const auto told = [](const std::string& bytes, const std::function<void(Communicator&)>& work,
                       int rank = 0) {
    return MessageOf([&] {
      LyingRank communicator(bytes, rank);
      work(communicator);
    });
  };
  const auto gather = [](Communicator& c) { GatherTexts(c, "mine"); };
  const auto agree = [](Communicator& c) { AgreeOn(c, {{"seed", "1"}, {"optim", "adamw"}}); };
  const std::uint64_t huge = std::uint64_t{1} << 40;
  const auto text = [](const std::string& of) { return BytesOf(std::uint64_t{of.size()}) + of; };
  EXPECT_THAT(told(BytesOf(huge), gather), HasSubstr("rank 1 of 2 sent a text of 1099511627776"));
  EXPECT_THAT(told(
                  BytesOf(huge), [](Communicator& c) { BroadcastText(c, ""); }, 1),
              HasSubstr("rank 0 of 2 sent a text of 1099511627776 bytes to rank 1"));
  EXPECT_THAT(told(text("x"), [](Communicator& c) { Together(c, [] {}); }),
              HasSubstr("rank 1 of 2 sent no outcome of its work"));
  for (const char* values : {"", "1", "1:", "x:1", "9:1", "-1:1", "1:15:adam", "1:15:adamwx",
                             "1:1 5:adamw", "18446744073709551615:1", "99999999999999999999:1"}) {
    EXPECT_THAT(told(text(values), agree), HasSubstr("rank 1 of 2 sent no values to compare"))
        << values;
  }
  EXPECT_THAT(told(text("1:25:adamw") + text("host"), agree),
              HasSubstr("the ranks of this job differ"));
}

// Passes bytes on in one direction, with eight of them, from `at` on, replaced.
void PassOn(const TcpSocket& from, const TcpSocket& to, std::size_t at, std::uint64_t word) {
  std::size_t done = 0;
  std::array<std::byte, 4096> bytes;
  for (;;) {
    const ssize_t count = recv(from.descriptor(), bytes.data(), bytes.size(), 0);
    if (count <= 0) break;
    for (ssize_t i = 0; i < count; ++i, ++done) {
      if (done < at || done >= at + sizeof(word)) continue;
      bytes[i] = static_cast<std::byte>(word >> 8 * (done - at));
    }
    if (!to.SendAll(std::span(bytes).first(count))) break;
  }
  shutdown(to.descriptor(), SHUT_WR);
  shutdown(from.descriptor(), SHUT_RD);
}

// Numbers change on the way between two ranks. Each ends as if nothing had happened, or with an
// error that tells.
TEST(TcpMeeting, RanksThatSendRubbishAreNamed) {
  const RandomKey random = MakeKey(2, RandomPlace::kTest);
  constexpr std::uint64_t kWords[] = {
      0, 1, 7, 1 << 20, std::uint64_t{1} << 40, ~std::uint64_t{0}, std::uint64_t{1} << 63 | 9};
  const std::size_t met = sizeof(Answer) + 2 * sizeof(Place);  // sent by rank 0 until all have met
  for (std::uint64_t i = 0; i < 16; ++i) {
    const FreePort port;
    const FreePort relayed;
    const std::size_t at = met + 8 * RandomBelow(random, 2 * i, 100);
    const std::uint64_t word = kWords[RandomBelow(random, 2 * i + 1, std::size(kWords))];
    OnThreads(3, [&](int thread) {
      if (thread == 2) {
        const TcpSocket listener = TcpSocket::Listen(relayed, true);
        const auto one = listener.Accept(TcpSocket::Clock::now() + kLong);
        const TcpSocket zero = Connect(port);
        std::thread back([&] { PassOn(*one, zero, ~std::size_t{0} - 8, 0); });
        PassOn(zero, *one, at, word);
        back.join();
        return;
      }
      const std::string message = MessageOf([&] {
        const auto ranks = Start(MeetingOf(thread == 0 ? port : relayed, thread, 2));
        GatherTexts(*ranks, "rank " + std::to_string(thread));
        AgreeOn(*ranks, {{"seed", "1"}, {"optim", "adamw"}});
        Together(*ranks, [] {});
        BroadcastText(*ranks, ranks->is_root() ? "a text of rank 0" : "");
      });
      EXPECT_THAT(message, testing::AnyOf("", HasSubstr(" of 2 "), HasSubstr("differ")))
          << "byte " << at << " becomes " << word;
    });
  }
}

}  // namespace
}  // namespace qlora
