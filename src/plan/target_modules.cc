#include "plan/target_modules.h"

#include <algorithm>

#include "base/check.h"
#include "base/text.h"
#include "model/linear_shapes.h"

namespace qlora {

ModuleSelection ToSelection(const std::vector<std::string>& modules) {
  if (modules.size() != 1) return modules;
  const std::string& only = modules.front();
  if (only == "all" || only == "all-linear") return std::string("all-linear");
  // A dot does not make an entry a regular expression, because it also divides the parts of a path.
  const bool is_name = only.find_first_of("*+?()[]{}|^$\\") == std::string::npos;
  if (is_name) return modules;
  return only;
}

std::vector<std::string> LinearNamesOf(const DecoderConfig& decoder) {
  std::vector<std::string> names;
  for (const std::string& name : DistinctLinearNames(decoder)) {
    if (IsJoinedExpert(decoder, name) || IsRouter(name) || name == kPerLayerModel) continue;
    names.push_back(name.substr(name.rfind('.') + 1));
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());  // the same for all experts
  return names;
}

std::vector<std::int64_t> ToLayers(const std::vector<std::string>& ranges, std::int64_t layers) {
  std::vector<std::int64_t> out;
  for (const std::string& range : ranges) {
    // A single number N is the range N-N.
    const std::size_t dash = range.find('-');
    const auto first = ParseNumber<std::int64_t>(range.substr(0, dash));
    const auto last =
        dash == range.npos ? first : ParseNumber<std::int64_t>(range.substr(dash + 1));
    if (!first || !last || *last < *first || *last >= layers) {
      ThrowInvalidInput(
          "layers_to_transform: expected layers of this model, 0 to {}, as a number or a range "
          "such as 4-7, found '{}'",
          layers - 1, range);
    }
    for (std::int64_t l = *first; l <= *last; ++l) out.push_back(l);
  }
  return out;
}

}  // namespace qlora
