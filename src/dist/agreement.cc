#include "dist/agreement.h"

#include <fmt/ranges.h>

#include <charconv>
#include <system_error>

#include "base/check.h"
#include "dist/together.h"

namespace qlora {
namespace {

// The values of all ranks: one text per rank, the values of a rank after one another, each behind
// the bytes that it has: "4:adam2:10".
std::vector<std::vector<std::string>> GatherValues(Communicator& communicator, const Facts& facts) {
  std::string mine;
  for (const auto& [name, value] : facts) mine += fmt::format("{}:{}", value.size(), value);
  std::vector<std::vector<std::string>> all;
  for (const std::string& text : GatherTexts(communicator, mine)) {
    std::vector<std::string> values;
    const char* at = text.data();
    const char* const end = at + text.size();
    while (at != end) {
      std::size_t size = 0;
      const auto [colon, error] = std::from_chars(at, end, size);
      if (error != std::errc() || colon == end || *colon != ':' ||
          size > static_cast<std::size_t>(end - colon - 1)) {
        break;
      }
      values.emplace_back(colon + 1, size);
      at = colon + 1 + size;
    }
    if (at != end || values.size() != facts.size()) {
      ThrowSent(communicator, static_cast<int>(all.size()), "no values to compare");
    }
    all.push_back(std::move(values));
  }
  return all;
}

}  // namespace

void AgreeOn(Communicator& communicator, const Facts& facts) {
  if (communicator.is_alone()) return;
  const auto all = GatherValues(communicator, facts);
  const std::vector<std::string> hosts = GatherTexts(communicator, communicator.host());
  std::string differences;
  for (std::size_t f = 0; f < facts.size(); ++f) {
    std::vector<std::string> others;
    for (int rank = 1; rank < communicator.size(); ++rank) {
      if (all[rank][f] == all[0][f]) continue;
      others.push_back(
          fmt::format("'{}' on {}", all[rank][f], NameOfRank(communicator, rank, hosts[rank])));
    }
    if (others.empty()) continue;
    constexpr std::size_t kShown = 3;
    const std::size_t more = others.size() > kShown ? others.size() - kShown : 0;
    others.resize(others.size() - more);
    differences += fmt::format("\n{}: '{}' on {}, {}{}", facts[f].first, all[0][f],
                               NameOfRank(communicator, 0, hosts[0]), fmt::join(others, ", "),
                               more > 0 ? fmt::format(" and {} more", more) : "");
  }
  if (differences.empty()) return;
  communicator.EndTogether();
  ThrowInvalidInput("the ranks of this job differ, so they would not compute the same:{}",
                    differences);
}

}  // namespace qlora
