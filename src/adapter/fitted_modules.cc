#include "adapter/fitted_modules.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "adapter/expert_stack.h"
#include "adapter/lora_values.h"
#include "adapter/rank_patterns.h"
#include "adapter/table_change.h"
#include "base/check.h"
#include "model/module_spellings.h"

namespace qlora {
namespace {

// The tensors of a file, and F32 tensors that were made of them.
class WithMadeTensors : public ForwardingReader {
 public:
  explicit WithMadeTensors(std::unique_ptr<TensorReader> file) : ForwardingReader(std::move(file)) {
    for (const TensorInfo& tensor : stored().tensors()) Add(tensor);
  }

  const TensorInfo* Make(const std::string& name, std::vector<std::int64_t> shape,
                         std::vector<float> values) {
    Made& made = made_[name];
    made.info = {name, DType::kF32, std::move(shape)};
    made.values = std::move(values);
    return &made.info;
  }

  std::span<const std::byte> Bytes(const TensorInfo& tensor) const override {
    const Made* made = FindMade(tensor);
    return made == nullptr ? ForwardingReader::Bytes(tensor)
                           : std::as_bytes(std::span(made->values));
  }
  void Release(const TensorInfo& tensor) const override {
    if (FindMade(tensor) == nullptr) ForwardingReader::Release(tensor);
  }
  StoredValue StoredAt(const TensorInfo& tensor, std::int64_t element) const override {
    return FindMade(tensor) == nullptr ? ForwardingReader::StoredAt(tensor, element)
                                       : StoredValue{&tensor, element};
  }

 private:
  struct Made {
    TensorInfo info;
    std::vector<float> values;
  };
  const Made* FindMade(const TensorInfo& tensor) const {
    const auto found = made_.find(tensor.name);
    return found == made_.end() || &found->second.info != &tensor ? nullptr : &found->second;
  }
  const TensorInfo& Stored(const TensorInfo& tensor) const override {
    return FindMade(tensor) == nullptr ? ForwardingReader::Stored(tensor)
                                       : stored().tensors().front();
  }

  std::map<std::string, Made> made_;
};

// A stack that stays, with the rank and the scale that it had.
RankedTarget RankedStack(const ExpertStack& stack, const AdapterConfig& was) {
  const std::string linear =
      fmt::format("{}.0.{}", stack.experts, stack.is_gate_up() ? "gate_proj" : "down_proj");
  const std::int64_t rank = RankOf(was, linear);
  return {"experts." + stack.parameter, PatternPath(was, linear), rank,
          ScaleOf(was, linear) * static_cast<double>(rank)};
}

}  // namespace

void FittedModules::Begin() {
  for (const AdapterModule& module : peft_.modules) {
    std::string path = RouterSpelled(decoder_, module.path);
    is_changed_ = is_changed_ || path != module.path;
    by_path_[std::move(path)] = module;
  }
}

bool FittedModules::HasIn(const std::string& layer) const {
  const auto first = by_path_.lower_bound(layer);
  return first != by_path_.end() && first->first.starts_with(layer);
}

LoraPair FittedModules::PairOf(const AdapterModule& module) const {
  return {.in = module.a->shape[1],
          .out = module.b->shape[0],
          .rank = module.a->shape[0],
          .scale = ScaleOf(peft_.config, module.path),
          .a = FiniteValues(peft_, *module.a),
          .b = FiniteValues(peft_, *module.b),
          .magnitude = module.magnitude == nullptr ? std::vector<float>()
                                                   : FiniteValues(peft_, *module.magnitude)};
}

LoraPair FittedModules::Take(const std::string& path) {
  const AdapterModule module = by_path_.at(path);
  by_path_.erase(path);
  is_changed_ = true;
  return PairOf(module);
}

void FittedModules::Add(const std::string& path, LoraPair pair) {
  if (by_path_.contains(path) || made_.contains(path)) {
    ThrowInvalidInput("{}: the adapter has '{}' alone and as a part of another LoRA", file(), path);
  }
  made_[path] = std::move(pair);
  is_changed_ = true;
}

void FittedModules::Finish() {
  if (!is_changed_) return PutBack();
  SetConfig();
  auto tensors = std::make_unique<WithMadeTensors>(std::move(peft_.tensors));
  PutBack();
  for (auto& [path, pair] : made_) {
    AdapterModule& module = peft_.modules.emplace_back();
    module.path = path;
    module.a = tensors->Make(path + ".lora_A.weight", {pair.rank, pair.in}, std::move(pair.a));
    module.b = tensors->Make(path + ".lora_B.weight", {pair.out, pair.rank}, std::move(pair.b));
    if (pair.magnitude.empty()) continue;
    module.magnitude =
        tensors->Make(path + ".lora_magnitude_vector", {pair.out}, std::move(pair.magnitude));
  }
  peft_.tensors = std::move(tensors);
  std::ranges::sort(peft_.modules, {}, &AdapterModule::path);
}

void FittedModules::PutBack() {
  peft_.modules.clear();
  for (auto& [path, module] : by_path_) {
    peft_.modules.push_back(module);
    peft_.modules.back().path = path;
  }
}

void FittedModules::SetConfig() {
  AdapterValues values;
  for (const auto& [path, module] : by_path_) {
    const bool is_table = IsTable(path);
    values.modules.push_back({.path = path,
                              .in = module.a->shape[1],
                              .out = module.b->shape[0],
                              .rank = module.a->shape[0],
                              .scale = ScaleOf(peft_.config, is_table ? path : module.path)});
  }
  for (const auto& [path, pair] : made_) {
    values.modules.push_back(
        {.path = path, .in = pair.in, .out = pair.out, .rank = pair.rank, .scale = pair.scale});
  }
  values.module_prefix = peft_.config.module_prefix;
  const AdapterConfig fitted = ConfigOf(values, decoder_);
  AdapterConfig& config = peft_.config;
  const AdapterConfig was = config;
  config.use_rslora = false;
  config.target_modules = fitted.target_modules;
  // Stacks keep their entries.
  if (peft_.stacks.empty()) config.target_parameters = fitted.target_parameters;
  config.exclude_modules = {};
  config.layers_to_transform = {};
  config.layers_pattern = {};
  config.r = fitted.r;
  config.lora_alpha = fitted.lora_alpha;
  std::vector<RankedTarget> ranked = RankedTargets(values.modules, config, decoder_);
  for (const ExpertStack& stack : peft_.stacks) ranked.push_back(RankedStack(stack, was));
  SetPatterns(ranked, config);
}

}  // namespace qlora
