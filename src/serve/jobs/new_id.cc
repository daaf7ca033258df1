#include "serve/jobs/new_id.h"

#include <sys/random.h>

#include <array>
#include <cstdint>

#include "base/check.h"

namespace qlora {
namespace {

constexpr std::string_view kLetters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
constexpr std::size_t kLength = 24;

}  // namespace

std::string NewId(std::string_view prefix) {
  std::array<std::uint32_t, kLength> words;
  if (getentropy(words.data(), sizeof(words)) != 0) {
    ThrowRuntime("the system gives no random bytes");
  }
  std::string id(prefix);
  for (const std::uint32_t word : words) id += kLetters[word % kLetters.size()];
  return id;
}

bool IsId(std::string_view text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return text.size() == kLength && text.find_first_not_of(kLetters) == text.npos;
}

}  // namespace qlora
