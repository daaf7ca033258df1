#include "serve/jobs/new_id.h"

#include <sys/random.h>

#include <array>
#include <chrono>

#include "base/check.h"

namespace qlora {
namespace {

constexpr std::string_view kLetters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
constexpr std::size_t kLength = 24;

template <typename T>
T Random() {
  T value = {};
  if (getentropy(&value, sizeof(value)) != 0) {
    ThrowRuntime("the system gives no random bytes");
  }
  return value;
}

}  // namespace

std::string NewId(std::string_view prefix) {
  std::string id(prefix);
  for (const std::uint32_t word : Random<std::array<std::uint32_t, kLength>>()) {
    id += kLetters[word % kLetters.size()];
  }
  return id;
}

bool IsId(std::string_view text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return text.size() == kLength && text.find_first_not_of(kLetters) == text.npos;
}

std::int64_t NewSeed() { return Random<std::uint32_t>() >> 1; }

std::int64_t SecondsNow() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace qlora
