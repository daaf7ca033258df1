#include "adapter/combined_adapter.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "adapter/expert_stack.h"
#include "adapter/lora_reduce.h"
#include "adapter/mlx_adapter.h"
#include "base/check.h"
#include "base/matrix.h"
#include "model/base_record.h"

namespace qlora {
namespace {

AdapterValues ReadValues(const std::filesystem::path& path, const DecoderConfig& decoder,
                         const ProgressFn& progress) {
  switch (FormatOfAdapter(path)) {
    case AdapterFormat::kGguf:
      return ReadGgufValues(path, decoder, progress);
    case AdapterFormat::kMlx:
      return ReadMlxValues(path, decoder, progress);
    case AdapterFormat::kPeft:
      break;
  }
  return ReadPeftValues(path, decoder, progress);
}

// Runs `read`, which reads the adapter at `path`. Its errors name the adapter: among several the
// option does not tell which one it was.
template <typename Read>
auto NamingAdapter(const std::string& path, const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    const std::string what = error.what();
    if (what.find(path) != std::string::npos) throw;
    throw Error(error.code(), fmt::format("{}: {}", path, what));
  }
}

[[noreturn]] void ThrowDora(const AdapterValues& adapter, const char* what) {
  ThrowInvalidInput(
      "{}: is a DoRA adapter, which cannot be {}: its magnitudes are not part of a sum; merge it "
      "first (qlora export MODEL NEW --adapter {} --format hf) and use the other adapters on the "
      "result",
      adapter.name, what, adapter.name);
}

// The parts of one module, in the order of the adapters.
struct Part {
  const LoraValues* values = nullptr;
  double factor = 1;  // weight * scale
};

LoraValues Concatenate(const std::vector<Part>& parts) {
  const LoraValues& first = *parts.front().values;
  LoraValues sum{.path = first.path, .in = first.in, .out = first.out};
  for (const Part& part : parts) sum.rank += part.values->rank;
  const double factor = parts.front().factor;
  const bool equal =
      std::ranges::all_of(parts, [&](const Part& part) { return part.factor == factor; });
  sum.scale = equal ? factor : 1;
  sum.b.resize(sum.out * sum.rank);
  std::int64_t column = 0;
  for (const Part& part : parts) {
    const LoraValues& values = *part.values;
    sum.a.insert(sum.a.end(), values.a.begin(), values.a.end());
    for (std::int64_t o = 0; o < sum.out; ++o) {
      for (std::int64_t i = 0; i < values.rank; ++i) {
        const float value = values.b[o * values.rank + i];
        sum.b[o * sum.rank + column + i] =
            equal ? value : static_cast<float>(part.factor * double{value});
      }
    }
    column += values.rank;
  }
  return sum;
}

// Scales and weights are float64; the sum is float32.
void CheckFinite(const AdapterValues& sum) {
  for (const LoraValues& module : sum.modules) {
    const bool is_finite = std::isfinite(static_cast<float>(module.scale)) &&
                           std::ranges::all_of(module.b, [](float b) { return std::isfinite(b); });
    if (is_finite) continue;
    ThrowInvalidInput(
        "{}: the change of '{}' is not finite in float32 (scale {}); look at the alpha of the "
        "adapter "
        "and at its weight",
        sum.name, module.path, module.scale);
  }
}

// Which bases the adapters were trained on, where their records differ from the first one's.
std::string NoteForms(const AdapterSet& adapters) {
  const auto form = [](const std::string& path) -> std::optional<std::string> {
    const std::optional<BaseRecord> base = LoadBaseRecord(path);
    if (!base) return {};
    return base->load_in_4bit ? base->quantization.bnb_4bit_quant_type + " weights"
                              : std::string("weights that are not quantized");
  };
  const std::optional<std::string> first = form(adapters.first());
  for (const AdapterSource& source : adapters.sources) {
    const std::optional<std::string> other = form(source.path);
    if (!first || !other || *other == *first) continue;
    return fmt::format("{} was trained on {}, {} on {}; the first adapter decides", source.path,
                       *other, adapters.first(), *first);
  }
  return "";
}

TableChange ChangeOf(const LoraValues& module) {
  TableChange change;
  change.name = module.path + ".weight";
  change.scale = module.scale;
  change.rank = module.rank;
  const bool head = module.path == "lm_head";
  change.left = head ? module.b : Transposed(module.a, module.rank, module.in);
  change.right = head ? module.a : Transposed(module.b, module.out, module.rank);
  return change;
}

}  // namespace

AdapterValues WeightedSum(std::vector<AdapterValues> adapters, const std::vector<double>& weights,
                          const ProgressFn& progress) {
  if (adapters.size() == 1) {
    AdapterValues& only = adapters.front();
    if (only.use_dora && weights[0] != 1) ThrowDora(only, "given a weight");
    for (LoraValues& module : only.modules) module.scale *= weights[0];
    return std::move(only);
  }
  AdapterValues sum;
  sum.base_model_name_or_path = adapters.front().base_model_name_or_path;
  sum.revision = adapters.front().revision;
  sum.module_prefix = adapters.front().module_prefix;
  std::map<std::string, std::vector<Part>> parts;
  std::vector<std::string> order;
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    if (adapters[i].use_dora) ThrowDora(adapters[i], "combined with others");
    sum.name += (i == 0 ? "" : " + ") + adapters[i].name;
    sum.notes.insert(sum.notes.end(), adapters[i].notes.begin(), adapters[i].notes.end());
    for (const LoraValues& module : adapters[i].modules) {
      std::vector<Part>& of_module = parts[module.path];
      if (of_module.empty()) order.push_back(module.path);
      of_module.push_back({&module, weights[i] * module.scale});
    }
  }
  for (const std::string& path : order) {
    sum.modules.push_back(Concatenate(parts[path]));
    if (progress) progress(std::ssize(sum.modules), std::ssize(order));
  }
  return sum;
}

AdapterValues LoadAdapterValues(const AdapterSet& adapters, const DecoderConfig& decoder,
                                const ProgressFn& progress) {
  std::vector<AdapterValues> values;
  std::vector<double> weights;
  for (const AdapterSource& source : adapters.sources) {
    values.push_back(
        NamingAdapter(source.path, [&] { return ReadValues(source.path, decoder, progress); }));
    weights.push_back(source.weight);
  }
  AdapterValues sum = WeightedSum(std::move(values), weights, progress);
  CheckFinite(sum);
  const bool reduces = std::ranges::any_of(
      sum.modules, [&](const LoraValues& module) { return module.rank > adapters.rank; });
  if (adapters.rank != 0 && reduces) {
    if (sum.use_dora) ThrowDora(sum, "reduced in rank");
    const RankError error = ReduceRank(sum, adapters.rank, progress);
    sum.notes.push_back(
        fmt::format("reduced to rank {}: the relative error of the change is {:.3g} "
                    "in all, {:.3g} at most ({})",
                    adapters.rank, error.all, error.worst, error.worst_path));
  }
  if (const std::string note = NoteForms(adapters); !note.empty()) sum.notes.push_back(note);
  return sum;
}

LoraAdapter ToLoraAdapter(const AdapterValues& values, const DecoderConfig& decoder,
                          Memory& memory) {
  std::map<std::string, const LoraValues*> by_path;
  std::vector<TableChange> changes;
  for (const LoraValues& module : values.modules) {
    if (IsTable(module.path)) changes.push_back(ChangeOf(module));
    by_path[module.path] = &module;
  }
  // Refuses what has no such form.
  StackExperts(values.modules, decoder);
  LoraAdapter adapter(ConfigOf(values, decoder), decoder, memory, DType::kF32, std::move(changes));
  adapter.Allocate();
  for (PerLinear<LoraLinear>& layer : adapter.layers()) {
    layer.ForEach([&](LoraLinear& lora) {
      if (lora.rank == 0) return;
      const LoraValues& module = *by_path.at(lora.path);
      lora.scale = static_cast<float>(module.scale);
      UploadWide(memory, module.a, lora.a);
      UploadWide(memory, module.b, lora.b);
      if (lora.is_dora()) UploadWide(memory, module.magnitude, lora.magnitude);
      adapter.ToModelOrder(lora);
    });
  }
  adapter.set_notes(values.notes);
  return adapter;
}

LoraAdapter LoadAdapters(const AdapterSet& adapters, const DecoderConfig& decoder, Memory& memory,
                         const ProgressFn& progress) {
  if (adapters.is_single() && FormatOfAdapter(adapters.first()) == AdapterFormat::kPeft) {
    return NamingAdapter(adapters.first(), [&] {
      return LoraAdapter::Load(adapters.first(), decoder, memory, DType::kF32, progress);
    });
  }
  return ToLoraAdapter(LoadAdapterValues(adapters, decoder, progress), decoder, memory);
}

std::optional<LoraAdapter> ShapeOfAdapter(const std::string& path, const DecoderConfig& decoder,
                                          Memory& memory) {
  if (FormatOfAdapter(path) != AdapterFormat::kPeft) return std::nullopt;
  return NamingAdapter(path, [&] { return LoraAdapter::Shape(path, decoder, memory); });
}

}  // namespace qlora
