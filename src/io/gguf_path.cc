#include "io/gguf_path.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/file.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

bool IsGgufName(const fs::path& path) { return path.extension() == ".gguf"; }

// Files that lie beside models.
bool IsCompanion(const std::string& name) {
  return name.find("mmproj") != std::string::npos || name.find("imatrix") != std::string::npos;
}

// Replaces the number of a part by that of the first: "-00002-of-00003.gguf".
std::string FirstPart(std::string name) {
  constexpr std::string_view kOf = "-of-";
  constexpr std::size_t kDigits = 5;
  const std::size_t of = name.rfind(kOf);
  if (of == std::string::npos || of < kDigits) return name;
  const auto is_number = [&](std::size_t begin) {
    const std::string digits = name.substr(begin, kDigits);
    return digits.size() == kDigits &&
           std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; });
  };
  if (is_number(of - kDigits) && is_number(of + kOf.size())) {
    name.replace(of - kDigits, kDigits, "00001");
  }
  return name;
}

}  // namespace

bool HasGgufMagic(const fs::path& file) {
  // Zeros where the file is shorter, which no magic number equals.
  char magic[4] = {};
  std::ifstream(file, std::ios::binary).read(magic, sizeof magic);
  return std::string_view(magic, sizeof magic) == "GGUF";
}

std::optional<fs::path> FindGguf(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_regular_file(path, ignored)) {
    return IsGgufName(path) || HasGgufMagic(path) ? std::optional(path) : std::nullopt;
  }
  if (!fs::is_directory(path, ignored) || Exists(path / "config.json")) return std::nullopt;
  std::set<std::string> models;
  for (fs::directory_iterator at(path, ignored), end; at != end; at.increment(ignored)) {
    const std::string name = at->path().filename().string();
    if (IsGgufName(name) && !IsCompanion(name) && at->is_regular_file(ignored)) {
      models.insert(FirstPart(name));
    }
  }
  if (models.empty()) return std::nullopt;
  if (models.size() == 1) return path / *models.begin();
  ThrowInvalidInput("{}: holds {} GGUF models; give the file of one of them: {}", path.string(),
                    models.size(), fmt::join(models, ", "));
}

}  // namespace qlora
