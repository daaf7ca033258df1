#include "dist/tcp_hello.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "base/check.h"

namespace qlora {
namespace {

constexpr int kHighestPort = 65535;

// Messages move as they are in memory.
static_assert(std::has_unique_object_representations_v<Hello> &&
              std::has_unique_object_representations_v<Answer> &&
              std::has_unique_object_representations_v<Place>);

template <typename T>
std::string_view BytesOf(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

Nonce MakeNonce() {
  Nonce nonce;
  if (getentropy(nonce.data(), nonce.size()) != 0) {
    ThrowRuntime("the system gives no random numbers: {}", std::strerror(errno));
  }
  return nonce;
}

// side: which of the two proves, so that neither can send back what it was sent.
Proof Sign(const std::string& key, std::string_view side, const Hello& hello, Answer answer) {
  answer.proof = {};
  std::string text(side);
  text.append(BytesOf(hello)).append(BytesOf(answer));
  Proof proof;
  unsigned size = 0;
  const auto* const made = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                                reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                                reinterpret_cast<unsigned char*>(proof.data()), &size);
  if (made == nullptr || size != proof.size()) {
    ThrowRuntime("libcrypto cannot compute an HMAC with SHA-256");
  }
  return proof;
}

bool IsSame(const Proof& a, const Proof& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace

Hello MakeHello(RankId me, int port) { return {.id = me, .port = port, .nonce = MakeNonce()}; }

Answer MakeAnswer(RankId me, const std::string& key, const Hello& hello, Refusal refusal) {
  Answer answer{.id = me, .refusal = refusal, .nonce = MakeNonce()};
  answer.proof = Sign(key, "waits", hello, answer);
  return answer;
}

Proof MakeProof(const std::string& key, const Hello& hello, const Answer& answer) {
  return Sign(key, "connects", hello, answer);
}

bool IsProof(const Proof& proof, const std::string& key, const Hello& hello, const Answer& answer) {
  return IsSame(proof, MakeProof(key, hello, answer));
}

void CheckMark(const ProgramMark& mark, const TcpAddress& at) {
  if (mark == kRankMark) return;
  constexpr std::string_view kRanks = "qlora ranks ";
  if (std::string_view(mark.data(), mark.size()).starts_with(kRanks)) {
    ThrowInvalidInput("{}, port {}: a rank of another release of qlora; all ranks need the same",
                      at.host, at.port);
  }
  ThrowInvalidInput(
      "{}, port {}: another program answers there than a rank of this job; set MASTER_ADDR to the "
      "machine of rank 0 and MASTER_PORT to a port that is free there",
      at.host, at.port);
}

void CheckAnswer(const Answer& answer, const std::string& key, const Hello& hello,
                 const TcpAddress& at, int expected) {
  CheckMark(answer.mark, at);
  if (!IsSame(answer.proof, Sign(key, "waits", hello, answer))) {
    ThrowInvalidInput(
        "this rank has {} QLORA_MEETING_KEY, and rank {} ({}, port {}) {}; set it to the same on "
        "all ranks, or on none",
        key.empty() ? "no" : "a", expected, at.host, at.port,
        key.empty() ? "has one" : "has another or none");
  }
  if (answer.id.size != hello.id.size || answer.refusal == Refusal::kOtherSize) {
    ThrowInvalidInput(
        "WORLD_SIZE differs between the ranks of this job: {} on rank {}, {} on rank {}",
        hello.id.size, hello.id.rank, answer.id.size, answer.id.rank);
  }
  if (answer.id.rank != expected) {
    ThrowInvalidInput("{}, port {}: expected rank {}, found rank {}; do two jobs meet there?",
                      at.host, at.port, expected, answer.id.rank);
  }
  if (answer.refusal != Refusal::kNone) {
    ThrowInvalidInput(
        "RANK {} {}, or two jobs meet at one MASTER_PORT: rank {} awaits each of the others once",
        hello.id.rank,
        answer.refusal == Refusal::kIsThere ? "was started twice" : "is none of this job",
        answer.id.rank);
  }
}

Place MakePlace(const std::string& host, int port) {
  Place place{.port = port};
  host.copy(place.host.data(), place.host.size() - 1);
  return place;
}

TcpAddress AddressOf(const Place& place, int rank, const TcpAddress& meeting) {
  const auto end = std::find(place.host.begin(), place.host.end(), '\0');
  if (end == place.host.end() || place.port < 1 || place.port > kHighestPort) {
    ThrowRuntime("rank 0 ({}, port {}) sent no place of rank {}", meeting.host, meeting.port, rank);
  }
  const std::string host(place.host.begin(), end);
  return {host.empty() ? meeting.host : host, place.port};
}

}  // namespace qlora
