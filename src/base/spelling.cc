#include "base/spelling.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <vector>

namespace qlora {
namespace {

namespace fs = std::filesystem;

// Corrections that turn a into b (the optimal string alignment distance), row by row of the table
// distance[i][j] of the prefixes of i and j letters.
std::size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> two_above(b.size() + 1);
  std::vector<std::size_t> above(b.size() + 1);
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    two_above.swap(above);
    above.swap(row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const bool same = a[i - 1] == b[j - 1];
      // Delete a letter of a, insert a letter of b, or replace one; a swap of neighbours counts
      // once.
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (same ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], two_above[j - 2] + 1);
      }
    }
  }
  return row.back();
}

// Returns the names in a folder, sorted; none where it cannot be read.
std::vector<std::string> NamesIn(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code failed;
  fs::directory_iterator entry(folder.empty() ? "." : folder, failed);
  for (; !failed && entry != fs::directory_iterator(); entry.increment(failed)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

std::string Nearest(std::string_view name, std::span<const std::string> candidates) {
  const std::vector<std::string> nearest = AllNearest(name, candidates);
  return nearest.empty() ? "" : nearest.front();
}

std::vector<std::string> AllNearest(std::string_view name,
                                    std::span<const std::string> candidates) {
  std::vector<std::string> nearest;
  // A third of the letters, but one correction is allowed in a short name.
  std::size_t best = std::max<std::size_t>(1, name.size() / 3);
  for (const std::string& candidate : candidates) {
    const std::size_t distance = EditDistance(name, candidate);
    if (distance > best) continue;
    if (distance < best) nearest.clear();
    best = distance;
    nearest.push_back(candidate);
  }
  return nearest;
}

std::string SuggestPath(const fs::path& path) {
  fs::path folder;
  // The missing part is compared with the content of its folder. Later parts are unknown.
  for (const fs::path& part : path) {
    std::error_code ignored;
    if (fs::exists(folder / part, ignored)) {
      folder /= part;
      continue;
    }
    const std::string nearest = Nearest(part.string(), NamesIn(folder));
    return nearest.empty() ? "" : fmt::format("; did you mean '{}'?", (folder / nearest).string());
  }
  return "";
}

}  // namespace qlora
