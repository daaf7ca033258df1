// How two ranks that have connected show each other who they are, before anything else of the other
// one is used:
//
//   the one that connects                the one that waits
//   Hello: size, rank, port, nonce  -->
//                                   <--  Answer: size, rank, refusal, nonce, proof
//   Proof                           -->
//
// A proof is the HMAC-SHA-256 of hello and answer under the key of the job (QLORA_MEETING_KEY). The
// nonces are random, so that no proof counts twice. With a key, a process that does not have it can
// neither join nor pose as a rank; with the empty key anybody can.
#ifndef QLORA_DIST_TCP_HELLO_H_
#define QLORA_DIST_TCP_HELLO_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "dist/tcp_socket.h"

namespace qlora {

// The first bytes of both messages. The number is raised with every change of messages.
using ProgramMark = std::array<char, 16>;
inline constexpr ProgramMark kRankMark = {"qlora ranks 2"};

using Nonce = std::array<std::byte, 16>;
using Proof = std::array<std::byte, 32>;

// What a rank says of itself, and of the rank that it meets.
struct RankId {
  std::int32_t size = 0;
  std::int32_t rank = 0;
};

struct Hello {
  ProgramMark mark = kRankMark;
  RankId id = {};
  std::int32_t port = 0;  // where this rank waits for those of higher numbers
  Nonce nonce = {};
};

// Why a rank turns another one away.
enum class Refusal : std::int32_t { kNone, kOtherSize, kNotAwaited, kIsThere };

struct Answer {
  ProgramMark mark = kRankMark;
  RankId id = {};
  Refusal refusal = Refusal::kNone;
  Nonce nonce = {};
  Proof proof = {};  // by the one that waits
};

Hello MakeHello(RankId me, int port);
Answer MakeAnswer(RankId me, const std::string& key, const Hello& hello, Refusal refusal);
// The proof by the one that connects.
Proof MakeProof(const std::string& key, const Hello& hello, const Answer& answer);

// True for the proof that MakeProof makes. Takes the same time for all others.
bool IsProof(const Proof& proof, const std::string& key, const Hello& hello, const Answer& answer);

// Errors: InvalidInput when the bytes that came from `at` are none of a rank of this release.
void CheckMark(const ProgramMark& mark, const TcpAddress& at);
// Errors: InvalidInput when the one at `at`, who should be rank `expected`, has another key, is
// another rank or of another job, or turns this rank away.
void CheckAnswer(const Answer& answer, const std::string& key, const Hello& hello,
                 const TcpAddress& at, int expected);

// Where a rank waits, as rank 0 tells it.
struct Place {
  std::array<char, 64> host = {};  // "": that of the meeting
  std::int32_t port = 0;
};
Place MakePlace(const std::string& host, int port);
// Errors: Runtime when rank 0 has sent no place of `rank`.
TcpAddress AddressOf(const Place& place, int rank, const TcpAddress& meeting);

}  // namespace qlora

#endif  // QLORA_DIST_TCP_HELLO_H_
