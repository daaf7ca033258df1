#include "serve/jobs/record_files.h"

#include <fmt/format.h>
#include <sys/random.h>

#include <array>
#include <cstdint>
#include <exception>

#include "base/check.h"
#include "base/file.h"
#include "io/json.h"

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

void ReadRecords(const std::filesystem::path& folder, std::string_view prefix,
                 const std::function<void(const std::string& line)>& log,
                 const std::function<void(const Json& record, const std::string& id,
                                          const std::string& where)>& take) {
  constexpr std::int64_t kMaxRecordBytes = std::int64_t{4} << 20;
  MakeDirectories(folder);
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::filesystem::path& path = entry.path();
    const std::string id = path.stem().string();
    if (path.extension() != ".json" || !IsId(id, prefix)) continue;
    try {
      const std::string where = path.string();
      take(ParseJson(ReadTextFile(path, kMaxRecordBytes), where), id, where);
    } catch (const std::exception& error) {
      log(fmt::format("{}; {} is left out: mend the file, or remove it, and start again",
                      error.what(), id));
    }
  }
}

}  // namespace qlora
