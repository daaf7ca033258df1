#include "adapter/lora_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "model/linear_shapes.h"

namespace qlora {
namespace {

// What an entry of PEFT's configuration names for a module: itself, or the parameter that it is a
// part of.
std::string TargetPath(const DecoderConfig& decoder, const std::string& path) {
  if (!IsJoinedExpert(decoder, path)) return path;
  const std::string_view experts = std::string_view(path).substr(0, path.find("experts.") + 8);
  return fmt::format("{}{}", experts, JoinedExpertParameter(decoder, path));
}

// The alpha whose quotient by the rank is the scale: a whole number where one is.
double AlphaOf(const LoraValues& module) {
  const auto rank = static_cast<double>(module.rank);
  const double alpha = module.scale * rank;
  if (std::round(alpha) / rank == module.scale) return std::round(alpha);
  for (const double other : {alpha, std::nextafter(alpha, 0.0), std::nextafter(alpha, 2 * alpha)}) {
    if (other / rank == module.scale) return other;
  }
  return alpha;
}

// The value that most modules have.
template <typename T>
T MostCommon(const std::vector<T>& values) {
  std::map<T, std::int64_t> counts;
  for (const T& value : values) ++counts[value];
  return std::max_element(counts.begin(), counts.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

// The short names of a decoder's linears and tables, with the number of modules of each.
std::map<std::string, std::int64_t> CountNames(const DecoderConfig& decoder) {
  std::map<std::string, std::int64_t> counts = {{"lm_head", 1}, {"embed_tokens", 1}};
  for (std::int64_t l = 0; l < decoder.num_hidden_layers; ++l) {
    LinearNames(decoder, l).ForEach([&](const std::string& name) {
      ++counts[TargetName(decoder, name)];
    });
  }
  return counts;
}

}  // namespace

LinearStack StackLinears(const LayerTensor& row, std::int64_t layer, std::string name) {
  LinearStack stack{std::move(name), {}};
  for (std::int64_t e = 0; e < row.matrices(); ++e) {
    stack.linears.push_back({row.ModuleIn("model.", layer, e), row.shape.out, row.shape.in});
  }
  return stack;
}

std::vector<RankedTarget> RankedTargets(const std::vector<LoraValues>& modules,
                                        const AdapterConfig& config, const DecoderConfig& decoder) {
  std::vector<RankedTarget> ranked;
  for (const LoraValues& module : modules) {
    ranked.push_back({TargetName(decoder, module.path),
                      SpelledPath(config, TargetPath(decoder, module.path)), module.rank,
                      AlphaOf(module)});
  }
  return ranked;
}

AdapterConfig ConfigOf(const AdapterValues& adapter, const DecoderConfig& decoder) {
  AdapterConfig config;
  config.base_model_name_or_path = adapter.base_model_name_or_path;
  config.revision = adapter.revision;
  config.module_prefix = adapter.module_prefix;
  config.embedding = decoder.names.embedding;
  config.lora_dropout = adapter.dropout;
  config.use_dora = adapter.use_dora;
  const std::map<std::string, std::int64_t> all = CountNames(decoder);
  std::map<std::string, std::int64_t> counts;
  std::vector<std::int64_t> ranks;
  std::vector<double> alphas;
  for (const LoraValues& module : adapter.modules) {
    ++counts[TargetName(decoder, module.path)];
    ranks.push_back(module.rank);
    alphas.push_back(AlphaOf(module));
  }
  std::set<std::string> targets;
  std::set<std::string> parameters;
  for (const LoraValues& module : adapter.modules) {
    const std::string name = TargetName(decoder, module.path);
    const auto found = all.find(name);
    const bool everywhere = found != all.end() && counts[name] == found->second;
    (IsJoinedExpert(decoder, module.path) ? parameters : targets)
        .insert(everywhere ? name : SpelledPath(config, TargetPath(decoder, module.path)));
  }
  config.target_modules = std::vector<std::string>(targets.begin(), targets.end());
  config.target_parameters.assign(parameters.begin(), parameters.end());
  if (adapter.modules.empty()) return config;
  config.r = MostCommon(ranks);
  config.lora_alpha = MostCommon(alphas);
  SetPatterns(RankedTargets(adapter.modules, config, decoder), config);
  return config;
}

}  // namespace qlora
