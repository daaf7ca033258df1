#include "adapter/expert_stack.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <optional>
#include <set>
#include <utility>

#include "adapter/rank_patterns.h"
#include "adapter/table_change.h"
#include "base/check.h"
#include "base/matrix.h"
#include "base/text.h"
#include "config/families.h"
#include "io/checkpoint_names.h"
#include "io/float_encoding.h"

namespace qlora {
namespace {

// What the sides of A and B fit.
struct Sides {
  bool direct = false;     // A (E R, in), B (out, E R)
  bool exchanged = false;  // A (E R, out), B (in, E R)
};

// hidden, intermediate: sizes of an expert.
Sides SidesOf(const ExpertStack& stack, std::int64_t hidden, std::int64_t intermediate) {
  if (stack.a->shape.size() != 2 || stack.b->shape.size() != 2) return {};
  const bool down = stack.parameter == "down_proj";
  const std::int64_t in = down ? intermediate : hidden;
  const std::int64_t out = down ? hidden : 2 * intermediate;
  const std::int64_t of_a = stack.a->shape[1];
  const std::int64_t of_b = stack.b->shape[0];
  return {of_a == in && of_b == out, of_a == out && of_b == in};
}

}  // namespace

const ExpertStack* ExpertStackReader::Read(const LoraLinear& lora) {
  const auto stack = std::ranges::find_if(peft_.stacks, [&](const ExpertStack& s) {
    const bool down = lora.path.ends_with(".down_proj") || lora.path.ends_with(".w2");
    const bool up_or_down = down == (s.parameter == "down_proj");
    // Mixtral's files name the block of the experts otherwise than its class does now.
    const std::string experts = ReplaceAll(s.experts, ".mlp.", ".block_sparse_moe.");
    return up_or_down &&
           (lora.path.starts_with(s.experts + ".") || lora.path.starts_with(experts + "."));
  });
  if (stack == peft_.stacks.end()) return nullptr;
  const std::int64_t r = lora.rank;
  const bool down = stack->parameter == "down_proj";
  // Gate and up of an expert are two linears, or one.
  const bool is_whole = down || lora.path.ends_with(".gate_up_proj");
  const std::int64_t out = is_whole ? lora.out : 2 * lora.out;
  const std::int64_t columns = experts_ * r;  // of lora_B
  const std::int64_t hidden = down ? lora.out : lora.in;
  const std::int64_t intermediate = down ? lora.in : out / 2;
  Sides sides = SidesOf(*stack, hidden, intermediate);
  if (take_turns_) sides.exchanged = false;
  if (sides.direct && sides.exchanged) {
    // A square parameter: one that is not tells, of the same version of PEFT. Where all are square,
    // the newer version is assumed.
    for (const ExpertStack& other : peft_.stacks) {
      const Sides told = SidesOf(other, hidden, intermediate);
      if (told.direct != told.exchanged) sides = told;
    }
  }
  const bool is_direct = sides.direct;
  const bool fits = (sides.direct || sides.exchanged) && stack->a->shape[0] == columns &&
                    stack->b->shape[1] == columns;
  if (!fits) {
    ThrowInvalidInput(
        "{}: '{}' has the shapes [{}] and [{}], expected [{}, {}] and [{}, {}], or the last two "
        "sides exchanged, for {} experts of rank {}",
        peft_.tensors->FileOf(*stack->a), stack->a->name, fmt::join(stack->a->shape, ", "),
        fmt::join(stack->b->shape, ", "), columns, lora.in, out, columns, experts_, r);
  }
  // "....experts.3.gate_proj"
  const std::size_t end = lora.path.rfind('.');
  const std::size_t begin = lora.path.rfind('.', end - 1) + 1;
  const std::int64_t expert = std::stoll(lora.path.substr(begin, end - begin));
  const bool second = lora.path.ends_with(".up_proj") || lora.path.ends_with(".w3");
  if (last_ != &*stack) {
    last_ = &*stack;
    a_ = FiniteValues(peft_, *stack->a);
    b_ = FiniteValues(peft_, *stack->b);
  }
  // The output of the parameter that is output y of the linear.
  const auto place = [&](std::int64_t y) {
    if (is_whole) return y;
    return take_turns_ ? 2 * y + (second ? 1 : 0) : y + (second ? lora.out : 0);
  };
  const auto a_at = [&](std::int64_t i, std::int64_t side, std::int64_t width) {
    return a_[(expert * r + i) * width + side];
  };
  const auto b_at = [&](std::int64_t side, std::int64_t i) {
    return b_[side * columns + i * experts_ + expert];
  };
  std::vector<float> a(r * lora.in);
  std::vector<float> b(lora.out * r);
  for (std::int64_t i = 0; i < r; ++i) {
    for (std::int64_t x = 0; x < lora.in; ++x) {
      a[i * lora.in + x] = is_direct ? a_at(i, x, lora.in) : b_at(x, i);
    }
    for (std::int64_t y = 0; y < lora.out; ++y) {
      b[y * r + i] = is_direct ? b_at(place(y), i) : a_at(i, place(y), out);
    }
  }
  UploadWide(memory_, a, lora.a);
  UploadWide(memory_, b, lora.b);
  return &*stack;
}

namespace {

bool IsExpert(std::string_view path) { return path.find(".experts.") != std::string_view::npos; }

// "model.layers.0.mlp.experts"
std::string ExpertsOf(std::string_view path) {
  return std::string(path.substr(0, path.find(".experts.") + 8));
}

// The adapters of experts by path.
using ByPath = std::map<std::string, const LoraValues*>;

// linears: of all experts, `step` of each one after the other, whose outputs take turns and which
// have one A, or in_halves each have a block of B and their own rows of A.
std::optional<StackedLora> Stacked(const ByPath& modules, const std::vector<std::string>& linears,
                                   std::int64_t step, bool in_halves) {
  const auto first = modules.find(linears.front());
  if (first == modules.end()) {
    for (const std::string& path : linears) {
      if (!modules.contains(path)) continue;
      ThrowInvalidInput(
          "'{}' has an adapter and '{}' has none; PEFT has one parameter for all experts of a "
          "layer",
          path, linears.front());
    }
    return std::nullopt;
  }
  const LoraValues& like = *first->second;
  StackedLora out{.path = like.path,
                  .wrapper = ExpertsOf(like.path),
                  .experts = std::ssize(linears) / step,
                  .rank = in_halves ? step * like.rank : like.rank,
                  .in = like.in,
                  .out = step * like.out,
                  .a = {},
                  .b = {}};
  const std::int64_t columns = out.experts * out.rank;  // of B
  out.b.resize(out.out * columns);
  for (std::size_t i = 0; i < linears.size(); ++i) {
    const auto found = modules.find(linears[i]);
    const LoraValues* lora = found == modules.end() ? nullptr : found->second;
    if (lora == nullptr || lora->rank != like.rank || lora->scale != like.scale) {
      ThrowInvalidInput(
          "the adapters of '{}' and '{}' have different ranks or scales, or one is missing; PEFT "
          "has one parameter for all experts of a layer",
          like.path, linears[i]);
    }
    const auto expert = static_cast<std::int64_t>(i) / step;
    const std::int64_t part = static_cast<std::int64_t>(i) % step;
    if (in_halves || part == 0) {
      out.a.insert(out.a.end(), lora->a.begin(), lora->a.end());
    } else if (lora->a != modules.at(linears[i - 1])->a) {
      ThrowInvalidInput(
          "the adapters of '{}' and '{}' have different matrices A, and PEFT has one parameter for "
          "both; merge the adapter into the model",
          linears[i - 1], lora->path);
    }
    const std::int64_t first_rank = in_halves ? part * lora->rank : 0;
    for (std::int64_t y = 0; y < lora->out; ++y) {
      const std::int64_t row = in_halves ? part * lora->out + y : step * y + part;
      for (std::int64_t r = 0; r < lora->rank; ++r) {
        out.b[row * columns + (first_rank + r) * out.experts + expert] =
            lora->b[y * lora->rank + r];
      }
    }
  }
  return out;
}

}  // namespace

std::vector<StackedLora> StackExperts(const std::vector<LoraValues>& modules,
                                      const DecoderConfig& decoder, bool in_halves) {
  ByPath by_path;
  for (const LoraValues& module : modules) {
    const bool is_of_stack =
        in_halves ? IsExpert(module.path) : IsJoinedExpert(decoder, module.path);
    if (is_of_stack) by_path[module.path] = &module;
  }
  std::vector<StackedLora> stacks;
  for (std::int64_t l = 0; l < decoder.num_hidden_layers && !by_path.empty(); ++l) {
    const PerLinear<std::string> paths = LinearPaths(decoder, l);
    const bool is_mlp = in_halves || decoder.moe.is_joined;
    std::optional<StackedLora> gate_up = is_mlp ? Stacked(by_path, paths.gate_up, 2, in_halves)
                                                : Stacked(by_path, paths.side_in, 1, in_halves);
    std::optional<StackedLora> down =
        Stacked(by_path, is_mlp ? paths.down : paths.side_out, 1, in_halves);
    // Of two wrappers that of the first parameter is inside.
    if (gate_up && down) gate_up->wrapper += ".base_layer";
    if (gate_up) stacks.push_back(std::move(*gate_up));
    if (down) stacks.push_back(std::move(*down));
  }
  return stacks;
}

// ---- A LoRA for each expert.

namespace {

enum class ExpertLoras { kNone, kEqual, kUneven };

// kEqual: gate and up of all experts of a layer have one rank and scale, or none; so have those of
// down.
ExpertLoras LookAtExperts(const AdapterConfig& config, const DecoderConfig& decoder) {
  bool has_any = false;
  for (std::int64_t l = 0; l < decoder.num_hidden_layers; ++l) {
    if (!decoder.has_experts(l)) continue;
    const PerLinear<std::string> paths = LinearPaths(decoder, l);
    for (const auto* group : {&paths.gate_up, &paths.down}) {
      const std::string& first = group->front();
      for (const std::string& path : *group) {
        if (IsTargetModule(config, path) != IsTargetModule(config, first) ||
            RankOf(config, path) != RankOf(config, first) ||
            AlphaOf(config, path) != AlphaOf(config, first)) {
          return ExpertLoras::kUneven;
        }
      }
      has_any = has_any || IsTargetModule(config, first);
    }
  }
  return has_any ? ExpertLoras::kEqual : ExpertLoras::kNone;
}

// What an adapter has beside linears of experts.
std::vector<std::string> OthersThanExperts(const AdapterConfig& config,
                                           const DecoderConfig& decoder) {
  std::vector<std::string> others;
  const auto add = [&](const std::string& path) {
    if (!IsExpert(path) && IsTargetModule(config, path)) others.push_back(path);
  };
  add("model.embed_tokens");
  add("lm_head");
  for (std::int64_t l = 0; l < decoder.num_hidden_layers; ++l) {
    LinearPaths(decoder, l).ForEach(add);
  }
  return others;
}

// A module beside experts whose linears have its name. PEFT takes the names of those out of
// target_modules where it converts a LoRA for each expert, and attaches nothing to such a module;
// its weight can be named as a parameter.
bool HasNameOfExperts(const DecoderConfig& decoder, const std::string& path) {
  const std::string name = path.substr(path.rfind('.') + 1);
  return name == decoder.names.gate || name == decoder.names.up || name == decoder.names.down;
}

// Whether what PEFT makes of a LoRA for each expert is this adapter: it gives the parameters of
// gate and up of all layers rank and scale of the whole adapter, without rsLoRA, and has no dropout
// for parameters. Entries of patterns name the linears of down otherwise than their parameter.
bool IsConvertedWhole(const AdapterConfig& config, const DecoderConfig& decoder) {
  std::int64_t layers = 0;
  std::map<std::string, std::int64_t> adapted;  // layers, by the name of the linear
  for (std::int64_t l = 0; l < decoder.num_hidden_layers; ++l) {
    if (!decoder.has_experts(l)) continue;
    ++layers;
    const PerLinear<std::string> paths = LinearPaths(decoder, l);
    for (const std::string& first : {paths.gate_up.front(), paths.down.front()}) {
      if (!IsTargetModule(config, first)) continue;
      ++adapted[first.substr(first.rfind('.') + 1)];
      if (RankOf(config, first) != config.r || AlphaOf(config, first) != config.lora_alpha) {
        return false;
      }
    }
  }
  const bool has_experts = !adapted.empty();
  if (has_experts && (config.use_rslora || config.lora_dropout > 0)) return false;
  return std::ranges::all_of(adapted, [&](const auto& entry) { return entry.second == layers; }) &&
         std::ranges::none_of(OthersThanExperts(config, decoder), [&](const std::string& path) {
           return HasNameOfExperts(decoder, path);
         });
}

// Names modules and weights for a family whose experts PEFT converts. Weights are appended to
// target_parameters.
void NameOthers(const AdapterConfig& config, const std::vector<std::string>& others,
                const DecoderConfig& decoder, AdapterConfig& out) {
  const auto in_layer = [](const std::string& path) {  // "mlp.shared_expert.gate_proj"
    const auto place = PlaceInDecoder(path);
    return place ? place->rest : path;
  };
  std::map<std::string, std::int64_t> all;  // modules of the decoder
  for (std::int64_t l = 0; l < decoder.num_hidden_layers; ++l) {
    LinearPaths(decoder, l).ForEach([&](const std::string& path) { ++all[in_layer(path)]; });
  }
  std::map<std::string, std::vector<std::string>> adapted;
  for (const std::string& path : others) adapted[in_layer(path)].push_back(path);
  std::set<std::string> modules;
  for (const auto& [name, paths] : adapted) {
    const bool is_weight = HasNameOfExperts(decoder, name);
    const bool everywhere = !all.contains(name) || std::ssize(paths) == all.at(name);
    const std::string short_name = name.substr(name.rfind('.') + 1);
    for (const std::string& path : paths) {
      const std::string spelled = SpelledPath(config, path);
      if (is_weight) {
        out.target_parameters.push_back((everywhere ? name : spelled) + ".weight");
        if (everywhere) break;
      } else {
        modules.insert(everywhere ? short_name : spelled);
      }
    }
  }
  out.target_modules = std::vector<std::string>(modules.begin(), modules.end());
  out.exclude_modules = {};
  out.layers_to_transform = {};
  out.layers_pattern = {};
}

}  // namespace

bool NeedsParameters(const DecoderConfig& decoder) {
  return decoder.moe.num_experts > 0 && FamilyOf(decoder.model_type, "").experts.needs_parameters;
}

bool HaveEqualExperts(const AdapterConfig& config, const DecoderConfig& decoder) {
  return LookAtExperts(config, decoder) == ExpertLoras::kEqual;
}

bool HasUnevenExperts(const AdapterConfig& config, const DecoderConfig& decoder) {
  return decoder.moe.num_experts > 0 && !decoder.joins_experts() &&
         LookAtExperts(config, decoder) == ExpertLoras::kUneven;
}

bool WritesParameters(const AdapterConfig& config, const DecoderConfig& decoder) {
  if (decoder.moe.num_experts == 0 || decoder.joins_experts()) return false;
  const ExpertLoras experts = LookAtExperts(config, decoder);
  if (experts == ExpertLoras::kUneven) return false;
  if (NeedsParameters(decoder)) return experts == ExpertLoras::kEqual;
  return !IsConvertedWhole(config, decoder);
}

AdapterConfig ConfigOfParameters(const AdapterConfig& config, const DecoderConfig& decoder) {
  AdapterConfig out = config;
  out.target_parameters.clear();
  const std::vector<std::string> others = OthersThanExperts(config, decoder);
  const bool converts = !NeedsParameters(decoder);
  std::vector<RankedTarget> ranked;
  for (const std::string& path : others) {
    const bool is_weight = converts && HasNameOfExperts(decoder, path);
    const char* const end = is_weight ? ".weight" : "";
    ranked.push_back({TargetName(decoder, path) + end, SpelledPath(config, path) + end,
                      RankOf(config, path), AlphaOf(config, path)});
  }
  std::map<std::string, std::vector<std::string>> targets;  // by short name
  std::int64_t layers = 0;
  for (std::int64_t l = 0; l < decoder.num_hidden_layers; ++l) {
    if (!decoder.has_experts(l)) continue;
    ++layers;
    const PerLinear<std::string> paths = LinearPaths(decoder, l);
    for (const auto* group : {&paths.gate_up, &paths.down}) {
      const std::string& first = group->front();
      if (!IsTargetModule(config, first)) continue;
      const bool down = group == &paths.down;
      const char* const parameter = down ? "down_proj" : "gate_up_proj";
      // The class of Mixtral calls the block mlp since its experts are parameters.
      const std::string experts = ReplaceAll(ExpertsOf(first), ".block_sparse_moe.", ".mlp.");
      const std::string path = SpelledPath(config, experts + "." + parameter);
      targets[parameter].push_back(path);
      // The scale stays.
      const double factor = down ? 1 : config.use_rslora ? std::numbers::sqrt2 : 2;
      ranked.push_back({fmt::format("experts.{}", parameter), path,
                        RankOf(config, first) * (down ? 1 : 2), AlphaOf(config, first) * factor});
    }
  }
  const std::string_view block =
      decoder.names.mlp == "block_sparse_moe" ? "mlp" : decoder.names.mlp;
  for (const auto& [parameter, paths] : targets) {
    if (std::ssize(paths) == layers) {
      out.target_parameters.push_back(fmt::format("{}.experts.{}", block, parameter));
    } else {
      out.target_parameters.insert(out.target_parameters.end(), paths.begin(), paths.end());
    }
  }
  if (converts) NameOthers(config, others, decoder, out);
  SetPatterns(ranked, out);
  return out;
}

}  // namespace qlora
