#include "adapter/fitted_adapter.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "adapter/fitted_experts.h"
#include "adapter/fitted_modules.h"
#include "adapter/table_change.h"
#include "base/check.h"
#include "base/matrix.h"
#include "base/text.h"
#include "io/checkpoint_names.h"
#include "model/linear_shapes.h"
#include "model/module_spellings.h"
#include "model/tensor_list.h"

namespace qlora {
namespace {

constexpr const char* kHeadWeight = "lm_head.weight";
constexpr const char* kTableWeight = "model.embed_tokens.weight";

class Fitter {
 public:
  Fitter(Adapter& peft, const DecoderConfig& decoder)
      : peft_(peft), decoder_(decoder), modules_(peft, decoder) {}

  void Run() {
    LeaveOutUnreadKv();
    TieTables();
    // Modules whose names are no linear's may be pieces of some.
    modules_.Begin();
    LeaveOutBareExperts();
    for (std::int64_t l = 0; l < decoder_.num_hidden_layers; ++l) Recut(l);
    SplitStacks(modules_);
    if (decoder_.joins_experts() && modules_.is_changed()) CompleteJoinedExperts(modules_);
    modules_.Finish();
  }

 private:
  // ---- What is left out.

  void LeaveOutUnreadKv() {
    std::erase_if(peft_.modules, [&](const AdapterModule& module) {
      const auto place = PlaceInDecoder(module.path);
      if (!place || !IsUnreadKv(decoder_, place->layer, place->rest + ".weight")) return false;
      peft_.unused.push_back(module.path);
      return true;
    });
  }

  // Where the experts of a class are parameters, target_modules names none of their linears: a
  // name that they have here too is that of a shared expert, or of an MLP.
  void LeaveOutBareExperts() {
    const auto is_expert = [](const std::string& path) {
      return path.find("experts.") != std::string::npos;
    };
    AdapterConfig& config = peft_.config;
    const bool has_any = !peft_.stacks.empty() ||
                         std::ranges::any_of(config.target_parameters, is_expert) ||
                         std::ranges::any_of(peft_.modules, is_expert, &AdapterModule::path);
    if (has_any || decoder_.joins_experts() || !NamesExperts()) return;
    std::string also = R"(.*\.experts\..*)";
    if (const auto* regex = std::get_if<std::string>(&config.exclude_modules)) {
      if (!regex->empty()) also += "|" + *regex;
    } else {
      for (const std::string& name : std::get<std::vector<std::string>>(config.exclude_modules)) {
        also += R"(|(.*\.)?)" + ReplaceAll(name, ".", R"(\.)");
      }
    }
    config.exclude_modules = also;
  }

  bool NamesExperts() const {
    for (std::int64_t l = 0; l < decoder_.num_hidden_layers; ++l) {
      if (!decoder_.has_experts(l)) continue;
      const PerLinear<std::string> paths = LinearPaths(decoder_, l);
      for (const std::string& path : {paths.gate_up[0], paths.gate_up[1], paths.down[0]}) {
        if (IsTargetModule(peft_.config, path)) return true;
      }
    }
    return false;
  }

  // ---- Tables.

  // With ensure_weight_tying a tied model has one table, which the file holds under either name, or
  // twice.
  void TieTables() {
    if (!peft_.config.ensure_weight_tying || !decoder_.tie_word_embeddings) return;
    const auto head = std::ranges::find(peft_.replaced, kHeadWeight, &ReplacedWeight::name);
    const auto table = std::ranges::find(peft_.replaced, kTableWeight, &ReplacedWeight::name);
    if (head != peft_.replaced.end() && table != peft_.replaced.end()) {
      CheckTied(FiniteValues(peft_, *head->tensor) == FiniteValues(peft_, *table->tensor));
      peft_.replaced.erase(head);
    } else if (head != peft_.replaced.end()) {
      head->name = kTableWeight;
    }
    std::vector<std::string>& saved = peft_.config.modules_to_save;
    if (std::erase(saved, "lm_head") > 0 && std::ranges::count(saved, "embed_tokens") == 0) {
      saved.push_back("embed_tokens");
    }
    TieLoras();
  }

  // The LoRA of a tied head is that of the embedding with A and B exchanged and turned.
  void TieLoras() {
    const auto of_head = std::ranges::find(peft_.modules, "lm_head", &AdapterModule::path);
    if (of_head == peft_.modules.end()) return;
    const AdapterModule head = *of_head;
    const LoraPair pair = modules_.PairOf(head);
    LoraPair table{.in = pair.out, .out = pair.in, .rank = pair.rank, .scale = pair.scale};
    table.a = Transposed(pair.b, pair.out, pair.rank);
    table.b = Transposed(pair.a, pair.rank, pair.in);
    peft_.modules.erase(of_head);
    const auto other = std::ranges::find(peft_.modules, "model.embed_tokens", &AdapterModule::path);
    if (other == peft_.modules.end()) {
      return modules_.Add("model.embed_tokens", std::move(table));
    }
    const LoraPair own = modules_.PairOf(*other);
    CheckTied(own.a == table.a && own.b == table.b && own.scale == table.scale);
  }

  void CheckTied(bool are_equal) const {
    if (are_equal) return;
    ThrowInvalidInput(
        "{}: ensure_weight_tying is set, and what the adapter has for lm_head and embed_tokens "
        "differs; the model has one table for both",
        modules_.file());
  }

  // ---- Pieces.

  void Recut(std::int64_t l) {
    const std::string layer = fmt::format("model.layers.{}.", l);
    // Most adapters have nothing to cut.
    if (!modules_.HasIn(layer)) return;
    for (const RecutLinear& recut : RecutLinears(decoder_, l)) {
      const std::string whole = layer + recut.whole;
      if (recut.is_cut()) {
        if (modules_.Has(whole)) Cut(layer, recut, modules_.Take(whole));
        continue;
      }
      const bool has_part = std::ranges::any_of(
          recut.parts, [&](const std::string& part) { return modules_.Has(layer + part); });
      if (has_part) Join(l, layer, recut);
    }
  }

  [[noreturn]] void RefuseSize(const std::string& path, std::int64_t found,
                               std::int64_t expected) const {
    ThrowInvalidInput(
        "{}: the LoRA of '{}' has {} outputs, and the same linears of this model have {}; it is an "
        "adapter of another model",
        modules_.file(), path, found, expected);
  }

  void Cut(const std::string& layer, const RecutLinear& recut, const LoraPair& whole) {
    const std::int64_t all = std::accumulate(recut.rows.begin(), recut.rows.end(), std::int64_t{0});
    if (whole.out != all) RefuseSize(layer + recut.whole, whole.out, all);
    std::int64_t begin = 0;
    for (std::int64_t p = 0; p < std::ssize(recut.parts); ++p) {
      const std::int64_t rows = recut.rows[p];
      LoraPair part{.in = whole.in, .out = rows, .rank = whole.rank, .scale = whole.scale};
      part.a = whole.a;
      for (std::int64_t y = 0; y < rows; ++y) {
        const std::int64_t row = RowOf(recut, p, begin, y);
        const auto values = whole.b.begin() + row * whole.rank;
        part.b.insert(part.b.end(), values, values + whole.rank);
        if (!whole.magnitude.empty()) part.magnitude.push_back(whole.magnitude[row]);
      }
      begin += rows;
      modules_.Add(layer + recut.parts[p], std::move(part));
    }
  }

  // Row y of a part whose rows begin at `begin`, in the whole.
  static std::int64_t RowOf(const RecutLinear& recut, std::int64_t part, std::int64_t begin,
                            std::int64_t y) {
    return recut.in_turn ? y * std::ssize(recut.parts) + part : begin + y;
  }

  // The rows of the parts of a linear of this layer.
  std::vector<std::int64_t> RowsOfParts(std::int64_t l, const RecutLinear& recut,
                                        std::int64_t all) const {
    const std::int64_t count = std::ssize(recut.parts);
    if (count < 3) return std::vector<std::int64_t>(count, all / count);
    const LayerConfig layer = decoder_.layer(l);
    const DeltaRuleShape& delta = decoder_.delta_rule;
    const bool attends = layer.mixer == Mixer::kAttention;
    const std::int64_t keys = attends ? layer.kv_features() : delta.key_heads * delta.key_dim;
    return attends ? std::vector<std::int64_t>{all - 2 * keys, keys, keys}
                   : std::vector<std::int64_t>{keys, keys, all - 2 * keys};
  }

  void Join(std::int64_t l, const std::string& layer, const RecutLinear& recut) {
    LinearShape shape;
    ForEachPair(LinearNames(decoder_, l), ShapeLinears(decoder_, l),
                [&](const std::string& name, const LinearShape& other) {
                  if (name == recut.whole) shape = other;
                });
    const std::vector<std::int64_t> rows = RowsOfParts(l, recut, shape.out);
    std::vector<LoraPair> parts(recut.parts.size());
    LoraPair whole{.in = shape.in, .out = shape.out};
    double scale = 0;
    for (std::int64_t p = 0; p < std::ssize(parts); ++p) {
      const std::string path = layer + recut.parts[p];
      if (!modules_.Has(path)) continue;
      parts[p] = modules_.Take(path);
      if (parts[p].out != rows[p]) RefuseSize(path, parts[p].out, rows[p]);
      if (parts[p].in != shape.in) RefuseInputs(path, parts[p].in, shape.in);
      whole.rank += parts[p].rank;
      if (scale == 0) scale = parts[p].scale;
    }
    whole.scale = scale;
    whole.b.resize(shape.out * whole.rank);
    if (peft_.config.use_dora) whole.magnitude.resize(shape.out);
    std::int64_t begin = 0;
    std::int64_t column = 0;
    for (std::int64_t p = 0; p < std::ssize(parts); ++p) {
      const LoraPair& part = parts[p];
      if (part.rank == 0 && peft_.config.use_dora) {
        ThrowInvalidInput(
            "the DoRA adapter has '{}' and not all of {}, which are one linear of this model with "
            "one magnitude for each row; merge it into the model that it was trained on",
            layer + recut.parts[0], fmt::join(recut.parts, ", "));
      }
      whole.a.insert(whole.a.end(), part.a.begin(), part.a.end());
      for (std::int64_t y = 0; y < part.out; ++y) {
        const std::int64_t row = RowOf(recut, p, begin, y);
        for (std::int64_t i = 0; i < part.rank; ++i) {
          whole.b[row * whole.rank + column + i] = part.Scaled(part.b[y * part.rank + i], scale);
        }
        if (!part.magnitude.empty()) whole.magnitude[row] = part.magnitude[y];
      }
      begin += rows[p];
      column += part.rank;
    }
    modules_.Add(layer + recut.whole, std::move(whole));
  }

  [[noreturn]] void RefuseInputs(const std::string& path, std::int64_t found,
                                 std::int64_t expected) const {
    ThrowInvalidInput(
        "{}: the LoRA of '{}' has {} inputs, and the same linear of this model has {}; it is an "
        "adapter of another model",
        modules_.file(), path, found, expected);
  }

  Adapter& peft_;
  const DecoderConfig& decoder_;
  FittedModules modules_;
};

}  // namespace

Adapter OpenAdapterFor(const std::filesystem::path& directory, const DecoderConfig& decoder) {
  Adapter adapter = OpenAdapter(directory);
  Fitter(adapter, decoder).Run();
  return adapter;
}

}  // namespace qlora
