#include "adapter/twin_values.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "config/families.h"
#include "config/family_table.h"
#include "io/peft.h"

namespace qlora {
namespace {

// "model.layers.3." of a module of the MLP, and its name in there; nothing of others.
struct MlpModule {
  std::string layer;
  std::string name;
};
std::optional<MlpModule> MlpModuleOf(const std::string& path, const ModuleNames& names) {
  const std::string inside = fmt::format(".{}.", names.mlp);
  const std::size_t at = path.find(inside);
  if (at == std::string::npos) return std::nullopt;
  return MlpModule{path.substr(0, at + 1), path.substr(at + inside.size())};
}

std::string PathOf(const std::string& layer, const ModuleNames& names, std::string_view module) {
  return fmt::format("{}{}.{}", layer, names.mlp, module);
}

// Rows [first, first + count) of a module.
LoraValues RowsOf(const LoraValues& whole, std::string path, std::int64_t first,
                  std::int64_t count) {
  LoraValues part = whole;
  part.path = std::move(path);
  part.out = count;
  const auto b = whole.b.begin() + first * whole.rank;
  part.b.assign(b, b + count * whole.rank);
  if (whole.magnitude.empty()) return part;
  part.magnitude.assign(whole.magnitude.begin() + first, whole.magnitude.begin() + first + count);
  return part;
}

// Adds the rows of `part` from `first` on.
void AddRows(const LoraValues& part, std::int64_t first, LoraValues& whole) {
  const bool shares = whole.rank > 0 && whole.a == part.a && whole.scale == part.scale;
  const std::int64_t before = shares ? 0 : whole.rank;
  if (!shares) {
    // B of the rows that are there, in wider rows.
    const std::int64_t rank = whole.rank + part.rank;
    std::vector<float> b(whole.out * rank);
    const bool scales = whole.rank > 0 && whole.scale != part.scale;
    for (std::int64_t o = 0; o < whole.out; ++o) {
      for (std::int64_t i = 0; i < whole.rank; ++i) {
        const float value = whole.b[o * whole.rank + i];
        b[o * rank + i] = scales ? static_cast<float>(whole.scale * double{value}) : value;
      }
    }
    whole.b = std::move(b);
    whole.a.insert(whole.a.end(), part.a.begin(), part.a.end());
    whole.scale = scales ? 1 : part.scale;
    whole.rank = rank;
  }
  for (std::int64_t o = 0; o < part.out; ++o) {
    for (std::int64_t i = 0; i < part.rank; ++i) {
      const float value = part.b[o * part.rank + i];
      whole.b[(first + o) * whole.rank + before + i] =
          whole.scale == part.scale ? value : static_cast<float>(part.scale * double{value});
    }
  }
  // Up may come first.
  const auto at = first == 0 ? whole.magnitude.begin() : whole.magnitude.end();
  whole.magnitude.insert(at, part.magnitude.begin(), part.magnitude.end());
}

void Split(const LoraValues& whole, const std::string& layer, const ModuleNames& names,
           std::vector<LoraValues>& out) {
  const std::int64_t half = whole.out / 2;
  out.push_back(RowsOf(whole, PathOf(layer, names, names.gate), 0, half));
  out.push_back(RowsOf(whole, PathOf(layer, names, names.up), half, half));
}

// gate or up, whichever comes first, makes the module of both.
void Join(const LoraValues& part, bool is_up, const std::string& path,
          std::vector<LoraValues>& out) {
  auto whole = std::ranges::find(out, path, &LoraValues::path);
  if (whole == out.end()) {
    LoraValues empty{.path = path, .in = part.in, .out = 2 * part.out};
    whole = out.insert(out.end(), std::move(empty));
  }
  AddRows(part, is_up ? part.out : 0, *whole);
}

}  // namespace

std::optional<DecoderConfig> TwinOf(const DecoderConfig& decoder) {
  const std::string_view architecture = GgufFamilyOf(decoder.model_type).architecture;
  if (architecture.empty() || decoder.has_experts(0)) return std::nullopt;
  for (const Family& family : AllFamilies()) {
    if (family.gguf.architecture != architecture || family.moe ||
        family.fused_gate_up == decoder.fused_gate_up) {
      continue;
    }
    DecoderConfig twin = decoder;
    twin.model_type = family.model_type;
    twin.names = family.names;
    twin.fused_gate_up = family.fused_gate_up;
    return twin;
  }
  return std::nullopt;
}

std::optional<DecoderConfig> TwinOfAdapter(const std::filesystem::path& folder,
                                           const DecoderConfig& decoder) {
  std::optional<DecoderConfig> twin = TwinOf(decoder);
  if (!twin) return std::nullopt;
  const Adapter peft = OpenAdapter(folder);
  const bool fits = std::ranges::any_of(peft.modules, [&](const AdapterModule& module) {
    return MlpModuleOf(module.path, twin->names).has_value();
  });
  return fits ? twin : std::nullopt;
}

AdapterValues ToTwin(AdapterValues values, const DecoderConfig& from, const DecoderConfig& to) {
  std::vector<LoraValues> modules;
  for (LoraValues& module : values.modules) {
    const auto mlp = MlpModuleOf(module.path, from.names);
    if (!mlp) {
      modules.push_back(std::move(module));
    } else if (mlp->name == from.names.down) {
      module.path = PathOf(mlp->layer, to.names, to.names.down);
      modules.push_back(std::move(module));
    } else if (from.fused_gate_up) {
      Split(module, mlp->layer, to.names, modules);
    } else {
      const std::string path = PathOf(mlp->layer, to.names, to.names.gate_up);
      Join(module, mlp->name == from.names.up, path, modules);
    }
  }
  for (const LoraValues& module : modules) {
    if (!values.use_dora || std::ssize(module.magnitude) == module.out) continue;
    ThrowInvalidInput(
        "the DoRA adapter of '{}' is of one of two linears that are one in this model; merge it "
        "into the model that it was trained on",
        module.path);
  }
  values.modules = std::move(modules);
  return values;
}

}  // namespace qlora
