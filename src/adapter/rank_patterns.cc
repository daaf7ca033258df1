#include "adapter/rank_patterns.h"

#include <fmt/format.h>

#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "model/linear_shapes.h"

namespace qlora {
namespace {

// Whether an entry with this name matches the path.
bool EndsWithName(std::string_view path, std::string_view name) {
  if (!path.ends_with(name)) return false;
  return path.size() == name.size() || path[path.size() - name.size() - 1] == '.';
}

template <typename T, typename ValueOf>
std::vector<std::pair<std::string, T>> PatternsOf(const std::vector<RankedTarget>& targets, T usual,
                                                  const ValueOf& value_of) {
  std::map<std::string, std::set<T>> values;  // of all that a name matches
  for (const RankedTarget& target : targets) values[target.name];
  for (auto& [name, of_name] : values) {
    for (const RankedTarget& target : targets) {
      if (EndsWithName(target.path, name)) of_name.insert(value_of(target));
    }
  }
  std::map<std::string, T> patterns;
  for (const RankedTarget& target : targets) {
    const T value = value_of(target);
    if (value == usual) continue;
    patterns[values[target.name].size() == 1 ? target.name : target.path] = value;
  }
  return {patterns.begin(), patterns.end()};
}

}  // namespace

std::string TargetName(const DecoderConfig& decoder, const std::string& path) {
  if (IsJoinedExpert(decoder, path)) {
    return fmt::format("{}.{}", JoinedExpertsName(decoder), JoinedExpertParameter(decoder, path));
  }
  const std::size_t end = IsRouter(path) ? path.rfind('.') - 1 : std::string::npos;
  return path.substr(path.rfind('.', end) + 1);
}

void SetPatterns(const std::vector<RankedTarget>& targets, AdapterConfig& config) {
  config.rank_pattern =
      PatternsOf(targets, config.r, [](const RankedTarget& target) { return target.rank; });
  config.alpha_pattern = PatternsOf(targets, config.lora_alpha,
                                    [](const RankedTarget& target) { return target.alpha; });
}

}  // namespace qlora
