#include "gguf/gguf_parts.h"

#include <optional>
#include <string>

#include "base/check.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// "NAME-00002-of-00003.gguf" in its pieces.
struct PartName {
  std::string name;
  int number = 0;  // from 1
  int count = 0;
};

// The number in five digits; 0 for other texts.
int FiveDigits(const std::string& text) {
  int number = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') return 0;
    number = 10 * number + (c - '0');
  }
  return text.size() == 5 ? number : 0;
}

std::optional<PartName> ParsePartName(const fs::path& path) {
  const std::string stem = path.stem().string();
  // "-00002-of-00003"
  constexpr std::size_t kEnd = 15;
  if (path.extension() != ".gguf" || stem.size() < kEnd) return std::nullopt;
  const std::string end = stem.substr(stem.size() - kEnd);
  const int number = FiveDigits(end.substr(1, 5));
  const int count = FiveDigits(end.substr(10));
  if (end[0] != '-' || end.substr(6, 4) != "-of-" || number < 1 || number > count) {
    return std::nullopt;
  }
  return PartName{stem.substr(0, stem.size() - kEnd), number, count};
}

std::string NameOfPart(const PartName& name, int number) {
  return fmt::format("{}-{:05}-of-{:05}.gguf", name.name, number, name.count);
}

}  // namespace

GgufParts FindGgufParts(const fs::path& path) {
  const std::optional<PartName> name = ParsePartName(path);
  if (!name || name->count == 1) return {{path}};
  GgufParts parts;
  for (int number = 1; number <= name->count; ++number) {
    fs::path part = path;
    part.replace_filename(NameOfPart(*name, number));
    if (!Exists(part)) {
      ThrowInvalidInput("{}: is part {} of {} of a model, and part {} is missing: {}",
                        path.string(), name->number, name->count, number, part.string());
    }
    parts.files.push_back(std::move(part));
  }
  return parts;
}

void CheckGgufPart(const GgufParts& parts, std::size_t part, const GgufMetadata& values) {
  const std::string where = parts.files[part].string();
  const auto* number = GetGguf<std::uint16_t>(values, "split.no", where);
  const auto* count = GetGguf<std::uint16_t>(values, "split.count", where);
  const std::size_t said = count == nullptr ? 1 : std::max<std::size_t>(*count, 1);
  if (said == 1 && parts.files.size() == 1) return;
  // The name tells where the other parts are, so it must be the one that the writer gave.
  if (said != parts.files.size() || number == nullptr || *number != part) {
    ThrowInvalidInput(
        "{}: its keys say part {} of {}, its name says part {} of {}; parts are found by their "
        "names: give them back the names that they were made with, ...-00001-of-{:05}.gguf",
        where, number == nullptr ? 1 : *number + 1, said, part + 1, parts.files.size(), said);
  }
}

void CheckGgufTensors(const GgufParts& parts, const GgufMetadata& first, std::size_t tensors) {
  const std::string where = parts.files.front().string();
  const auto* count = GetGguf<std::int32_t>(first, "split.tensors.count", where);
  if (count == nullptr || static_cast<std::int64_t>(tensors) == *count) return;
  ThrowInvalidInput("{}: split.tensors.count is {}, but the {} files hold {} tensors", where,
                    *count, parts.files.size(), tensors);
}

}  // namespace qlora
