#include "adapter/fitted_adapter.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "adapter/lora_values.h"
#include "adapter/rank_patterns.h"
#include "adapter/table_change.h"
#include "base/check.h"
#include "base/matrix.h"
#include "io/checkpoint_names.h"
#include "model/linear_shapes.h"
#include "model/module_spellings.h"
#include "model/tensor_list.h"

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

constexpr const char* kHeadWeight = "lm_head.weight";
constexpr const char* kTableWeight = "model.embed_tokens.weight";

// The LoRA of one linear in memory.
struct Pair {
  std::int64_t in = 0;
  std::int64_t out = 0;
  std::int64_t rank = 0;
  double scale = 1;
  std::vector<float> a = {};          // (rank, in)
  std::vector<float> b = {};          // (out, rank)
  std::vector<float> magnitude = {};  // (out) with DoRA
};

class Fitter {
 public:
  Fitter(Adapter& peft, const DecoderConfig& decoder) : peft_(peft), decoder_(decoder) {}

  void Run() {
    LeaveOutUnreadKv();
    TieTables();
    TakeModules();
    for (std::int64_t l = 0; l < decoder_.num_hidden_layers; ++l) Recut(l);
    const bool splits = SplitStacks();
    if (!changed_ && !splits) return PutBack();
    if (decoder_.joins_experts()) CompleteJoinedExperts();
    WriteBack();
  }

 private:
  using Modules = std::map<std::string, Pair>;

  // ---- What is left out.

  void LeaveOutUnreadKv() {
    std::erase_if(peft_.modules, [&](const AdapterModule& module) {
      const auto place = PlaceInDecoder(module.path);
      if (!place || !IsUnreadKv(decoder_, place->layer, place->rest + ".weight")) return false;
      peft_.unused.push_back(module.path);
      return true;
    });
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
    const Pair pair = PairOf(head);
    Pair table{.in = pair.out, .out = pair.in, .rank = pair.rank, .scale = pair.scale};
    table.a = Transposed(pair.b, pair.out, pair.rank);
    table.b = Transposed(pair.a, pair.rank, pair.in);
    peft_.modules.erase(of_head);
    const auto other = std::ranges::find(peft_.modules, "model.embed_tokens", &AdapterModule::path);
    if (other == peft_.modules.end()) {
      made_["model.embed_tokens"] = std::move(table);
      changed_ = true;
      return;
    }
    const Pair own = PairOf(*other);
    CheckTied(own.a == table.a && own.b == table.b && own.scale == table.scale);
  }

  void CheckTied(bool are_equal) const {
    if (are_equal) return;
    ThrowInvalidInput(
        "{}: ensure_weight_tying is set, and what the adapter has for lm_head and embed_tokens "
        "differs; the model has one table for both",
        peft_.tensors->FileOf(peft_.tensors->tensors().front()));
  }

  // ---- Names.

  // Modules whose names are no linear's may be pieces of some.
  void TakeModules() {
    for (const AdapterModule& module : peft_.modules) {
      std::string path = RouterSpelled(decoder_, module.path);
      renamed_ = renamed_ || path != module.path;
      by_path_[std::move(path)] = module;
    }
    changed_ = changed_ || renamed_;
  }

  Pair PairOf(const AdapterModule& module) const {
    return {.in = module.a->shape[1],
            .out = module.b->shape[0],
            .rank = module.a->shape[0],
            .scale = ScaleOf(peft_.config, module.path),
            .a = FiniteValues(peft_, *module.a),
            .b = FiniteValues(peft_, *module.b),
            .magnitude = module.magnitude == nullptr ? std::vector<float>()
                                                     : FiniteValues(peft_, *module.magnitude)};
  }

  // Takes a module out of those of the file.
  Pair Take(const std::string& path) {
    const AdapterModule module = by_path_.at(path);
    by_path_.erase(path);
    changed_ = true;
    return PairOf(module);
  }

  // ---- Pieces.

  void Recut(std::int64_t l) {
    if (by_path_.empty()) return;
    const std::string layer = fmt::format("model.layers.{}.", l);
    // Most adapters have nothing to cut.
    const auto first = by_path_.lower_bound(layer);
    if (first == by_path_.end() || !first->first.starts_with(layer)) return;
    for (const RecutLinear& recut : RecutLinears(decoder_, l)) {
      const std::string whole = layer + recut.whole;
      if (recut.is_cut()) {
        if (by_path_.contains(whole)) Cut(layer, recut, Take(whole));
        continue;
      }
      const bool has_part = std::ranges::any_of(
          recut.parts, [&](const std::string& part) { return by_path_.contains(layer + part); });
      if (has_part) Join(l, layer, recut);
    }
  }

  [[noreturn]] void RefuseSize(const std::string& path, std::int64_t found,
                               std::int64_t expected) const {
    ThrowInvalidInput(
        "{}: the LoRA of '{}' has {} outputs, and the same linears of this model have {}; it is an "
        "adapter of another model",
        peft_.tensors->FileOf(peft_.tensors->tensors().front()), path, found, expected);
  }

  void Cut(const std::string& layer, const RecutLinear& recut, const Pair& whole) {
    const std::int64_t all = std::accumulate(recut.rows.begin(), recut.rows.end(), std::int64_t{0});
    if (whole.out != all) RefuseSize(layer + recut.whole, whole.out, all);
    std::int64_t begin = 0;
    for (std::int64_t p = 0; p < std::ssize(recut.parts); ++p) {
      const std::int64_t rows = recut.rows[p];
      Pair part{.in = whole.in, .out = rows, .rank = whole.rank, .scale = whole.scale};
      part.a = whole.a;
      for (std::int64_t y = 0; y < rows; ++y) {
        const std::int64_t row = RowOf(recut, p, begin, y);
        const auto values = whole.b.begin() + row * whole.rank;
        part.b.insert(part.b.end(), values, values + whole.rank);
        if (!whole.magnitude.empty()) part.magnitude.push_back(whole.magnitude[row]);
      }
      begin += rows;
      Add(layer + recut.parts[p], std::move(part));
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
    std::vector<Pair> parts(recut.parts.size());
    Pair whole{.in = shape.in, .out = shape.out};
    double scale = 0;
    for (std::int64_t p = 0; p < std::ssize(parts); ++p) {
      const std::string path = layer + recut.parts[p];
      if (!by_path_.contains(path)) continue;
      parts[p] = Take(path);
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
      const Pair& part = parts[p];
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
          whole.b[row * whole.rank + column + i] = Scaled(part.b[y * part.rank + i], part, scale);
        }
        if (!part.magnitude.empty()) whole.magnitude[row] = part.magnitude[y];
      }
      begin += rows[p];
      column += part.rank;
    }
    Add(layer + recut.whole, std::move(whole));
  }

  [[noreturn]] void RefuseInputs(const std::string& path, std::int64_t found,
                                 std::int64_t expected) const {
    ThrowInvalidInput(
        "{}: the LoRA of '{}' has {} inputs, and the same linear of this model has {}; it is an "
        "adapter of another model",
        peft_.tensors->FileOf(peft_.tensors->tensors().front()), path, found, expected);
  }

  // A value of B where another scale is the one of all.
  static float Scaled(float value, const Pair& part, double scale) {
    return part.scale == scale ? value : static_cast<float>(value * (part.scale / scale));
  }

  void Add(const std::string& path, Pair pair) {
    if (by_path_.contains(path) || made_.contains(path)) {
      ThrowInvalidInput("{}: the adapter has '{}' alone and as a part of another LoRA",
                        peft_.tensors->FileOf(peft_.tensors->tensors().front()), path);
    }
    made_[path] = std::move(pair);
  }

  // ---- Experts.

  // Splits stacks in two blocks, as PEFT makes them of a LoRA for each expert. Returns whether
  // there were any.
  bool SplitStacks() {
    if (decoder_.joins_experts() || peft_.stacks.empty()) return false;
    for (const ExpertStack& stack : peft_.stacks) {
      if (!IsInBlocks(stack)) return false;
    }
    for (const ExpertStack& stack : peft_.stacks) Split(stack);
    peft_.stacks.clear();
    return true;
  }

  static bool HasHalves(const ExpertStack& stack) { return stack.parameter == "gate_up_proj"; }

  std::string PathOf(const ExpertStack& stack, std::int64_t expert, std::string_view name) const {
    return fmt::format("{}.{}.{}", ExpertsOf(stack), expert, name);
  }
  // As the decoder spells the module: Mixtral's class calls the block otherwise than its files.
  std::string ExpertsOf(const ExpertStack& stack) const {
    const auto place = PlaceInDecoder(stack.experts);
    if (!place) return stack.experts;
    return fmt::format("model.layers.{}.{}.experts", place->layer, decoder_.names.mlp);
  }

  // The first half of A and of the columns of B is of gate, the second of up, which have none of
  // the other's.
  bool IsInBlocks(const ExpertStack& stack) const {
    const std::int64_t experts = decoder_.experts().num_experts;
    if (experts < 1 || stack.a->shape.size() != 2 || stack.b->shape.size() != 2) return false;
    const auto place = PlaceInDecoder(stack.experts);
    if (!place || place->layer >= decoder_.num_hidden_layers ||
        !decoder_.has_experts(place->layer)) {
      return false;
    }
    const std::int64_t f = decoder_.layer(place->layer).intermediate_size;
    const std::int64_t in = HasHalves(stack) ? decoder_.hidden_size : f;
    const std::int64_t out = HasHalves(stack) ? 2 * f : decoder_.hidden_size;
    const std::int64_t columns = stack.b->shape[1];
    if (stack.a->shape != std::vector<std::int64_t>{columns, in} || stack.b->shape[0] != out ||
        columns % experts != 0) {
      return false;
    }
    if (!HasHalves(stack)) return true;
    const std::int64_t rank = columns / experts;
    if (rank % 2 != 0) return false;
    const std::vector<float> b = FiniteValues(peft_, *stack.b);
    for (std::int64_t y = 0; y < out; ++y) {
      // Column i E + e.
      const std::int64_t half = columns / 2;
      const float* others = b.data() + y * columns + (y < f ? half : 0);
      if (std::any_of(others, others + half, [](float value) { return value != 0; })) return false;
    }
    return true;
  }

  void Split(const ExpertStack& stack) {
    const std::int64_t experts = decoder_.experts().num_experts;
    const std::int64_t columns = stack.b->shape[1];
    const std::int64_t rank = columns / experts;
    const std::int64_t in = stack.a->shape[1];
    const std::int64_t out = stack.b->shape[0];
    const std::vector<float> a = FiniteValues(peft_, *stack.a);
    const std::vector<float> b = FiniteValues(peft_, *stack.b);
    const ModuleNames& names = decoder_.names;
    const std::vector<std::string_view> linears =
        HasHalves(stack) ? std::vector<std::string_view>{names.gate, names.up}
                         : std::vector<std::string_view>{names.down};
    const std::int64_t parts = std::ssize(linears);
    const double scale = ScaleOf(
        peft_.config,
        fmt::format("{}.0.{}", stack.experts, HasHalves(stack) ? "gate_proj" : "down_proj"));
    for (std::int64_t e = 0; e < experts; ++e) {
      for (std::int64_t p = 0; p < parts; ++p) {
        Pair pair{.in = in, .out = out / parts, .rank = rank / parts, .scale = scale};
        const std::int64_t first = p * pair.rank;
        const auto rows = a.begin() + (e * rank + first) * in;
        pair.a.assign(rows, rows + pair.rank * in);
        for (std::int64_t y = 0; y < pair.out; ++y) {
          for (std::int64_t i = 0; i < pair.rank; ++i) {
            pair.b.push_back(b[(p * pair.out + y) * columns + (first + i) * experts + e]);
          }
        }
        Add(PathOf(stack, e, linears[p]), std::move(pair));
      }
    }
  }

  // All experts of a parameter have one rank and one scale, and gate and up one A, where PEFT has
  // them in one parameter: smaller ranks, and experts without an adapter, are filled with zeros.
  void CompleteJoinedExperts() {
    for (std::int64_t l = 0; l < decoder_.num_hidden_layers; ++l) {
      const PerLinear<std::string> paths = LinearPaths(decoder_, l);
      const PerLinear<LinearShape> shapes = ShapeLinears(decoder_, l);
      if (decoder_.moe.is_joined) {
        Complete(paths.gate_up, shapes.gate_up, 2);
        Complete(paths.down, shapes.down, 1);
      } else {
        Complete(paths.side_in, shapes.side_in, 1);
        Complete(paths.side_out, shapes.side_out, 1);
      }
    }
  }

  // `step` linears of each expert, which have one A.
  void Complete(const std::vector<std::string>& paths, const std::vector<LinearShape>& shapes,
                std::int64_t step) {
    std::int64_t rank = 0;
    double scale = 0;
    for (const std::string& path : paths) {
      if (by_path_.contains(path)) made_[path] = Take(path);
      if (made_.contains(path) && scale == 0) scale = made_[path].scale;
    }
    if (scale == 0) return;
    for (std::int64_t i = 0; i < std::ssize(paths); i += step) {
      std::int64_t of_expert = 0;
      for (const std::int64_t r : RanksOf(paths, i, step)) of_expert += r;
      rank = std::max(rank, of_expert);
    }
    for (std::int64_t i = 0; i < std::ssize(paths); i += step) {
      const std::vector<std::int64_t> ranks = RanksOf(paths, i, step);
      Pair joined{.in = shapes[i].in, .out = 0, .rank = rank, .scale = scale};
      for (std::int64_t p = 0; p < step; ++p) {
        if (ranks[p] == 0) continue;
        const Pair& part = made_[paths[i + p]];
        joined.a.insert(joined.a.end(), part.a.begin(), part.a.end());
      }
      joined.a.resize(rank * joined.in);
      std::int64_t column = 0;
      for (std::int64_t p = 0; p < step; ++p) {
        Pair whole = joined;
        whole.out = shapes[i + p].out;
        whole.b.resize(whole.out * rank);
        const Pair part = made_[paths[i + p]];  // of rank 0: none
        const bool shares = p > 0 && ranks[p] == 0;
        const std::int64_t first = shares ? column - part.rank : column;
        for (std::int64_t y = 0; y < part.out; ++y) {
          for (std::int64_t r = 0; r < part.rank; ++r) {
            whole.b[y * rank + first + r] = Scaled(part.b[y * part.rank + r], part, scale);
          }
        }
        column += ranks[p];
        made_[paths[i + p]] = std::move(whole);
      }
    }
  }

  // The ranks that the linears of an expert add to the one A of all of them: 0 of a linear whose A
  // is that of the one before.
  std::vector<std::int64_t> RanksOf(const std::vector<std::string>& paths, std::int64_t first,
                                    std::int64_t step) {
    std::vector<std::int64_t> ranks;
    const Pair* before = nullptr;
    for (std::int64_t p = 0; p < step; ++p) {
      const Pair& pair = made_[paths[first + p]];
      const bool shares = before != nullptr && before->a == pair.a;
      ranks.push_back(shares ? 0 : pair.rank);
      before = &pair;
    }
    return ranks;
  }

  // ---- The result.

  // Nothing was changed.
  void PutBack() {
    peft_.modules.clear();
    for (auto& [path, module] : by_path_) peft_.modules.push_back(module);
  }

  void WriteBack() {
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
    auto tensors = std::make_unique<WithMadeTensors>(std::move(peft_.tensors));
    PutBack();
    for (std::size_t i = 0; i < peft_.modules.size(); ++i) {
      peft_.modules[i].path = std::next(by_path_.begin(), static_cast<std::ptrdiff_t>(i))->first;
    }
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

  // A stack that stays, with the rank and the scale that it had.
  RankedTarget RankedStack(const ExpertStack& stack, const AdapterConfig& was) const {
    const std::string linear =
        fmt::format("{}.0.{}", stack.experts, HasHalves(stack) ? "gate_proj" : "down_proj");
    const std::int64_t rank = RankOf(was, linear);
    return {"experts." + stack.parameter, PatternPath(was, linear), rank,
            ScaleOf(was, linear) * static_cast<double>(rank)};
  }

  Adapter& peft_;
  const DecoderConfig& decoder_;
  std::map<std::string, AdapterModule> by_path_;  // as the file has them
  Modules made_;
  bool renamed_ = false;
  bool changed_ = false;
};

}  // namespace

Adapter OpenAdapterFor(const std::filesystem::path& directory, const DecoderConfig& decoder) {
  Adapter adapter = OpenAdapter(directory);
  Fitter(adapter, decoder).Run();
  return adapter;
}

}  // namespace qlora
