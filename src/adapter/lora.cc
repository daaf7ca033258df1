#include "adapter/lora.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/matrix.h"
#include "base/random.h"
#include "base/text.h"
#include "io/float_encoding.h"
#include "io/peft/peft.h"
#include "model/tensor_list.h"
#include "quant/dynamic_map.h"

namespace qlora {
namespace {

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

// The module of this name, or null.
template <typename Modules>
auto* FindModule(Modules& modules, std::string_view name) {
  const auto module = std::find_if(modules.begin(), modules.end(),
                                   [&](const TrainedModule& m) { return m.name == name; });
  return module == modules.end() ? nullptr : &*module;
}

// Copies the first rows of a table (V, D) to out (rows, D), with a change or none. A piece of rows
// at a time: a table of a large vocabulary is not held twice.
void CopyTable(Memory& memory, const WeightView& table, const MatrixView& out,
               const TableChange* change = nullptr) {
  const std::int64_t hidden = out.cols;
  const std::int64_t piece = std::max<std::int64_t>(1, kPieceValues / hidden);
  for (std::int64_t first = 0; first < out.rows; first += piece) {
    const std::int64_t rows = std::min(piece, out.rows - first);
    const HostWeight source(memory, table, first, rows);
    std::vector<float> values(rows * hidden);
    for (std::int64_t r = 0; r < rows; ++r) source.Read(r, values.data() + r * hidden);
    if (change != nullptr) ApplyChange(*change, first, hidden, values);
    UploadWide(memory, values, Rows(out, first, rows));
  }
}

// Whether a module of this model ends with `name`, as modules_to_save has it.
bool HasModule(const DecoderConfig& decoder, const std::string& name) {
  const auto ends = [&](const auto& row) { return StemOf(row.name).ends_with(name); };
  if (name == "lm_head" || std::ranges::any_of(DecoderTensors(decoder), ends)) return true;
  for (std::int64_t l = 0; l < decoder.num_hidden_layers; ++l) {
    if (std::ranges::any_of(LayerTensors(decoder, l), ends)) return true;
  }
  return false;
}

}  // namespace

// ---- Construction.

LoraAdapter::LoraAdapter(const AdapterConfig& config, const DecoderConfig& decoder, Memory& memory,
                         DType wide, std::vector<TableChange> changes)
    : LoraAdapter(config, decoder, memory, wide, nullptr, std::move(changes)) {}

// Shapes and sizes alone; nothing is allocated.
LoraAdapter::LoraAdapter(const AdapterConfig& config, const DecoderConfig& decoder, Memory& memory,
                         DType wide, const Adapter* peft, std::vector<TableChange> changes)
    : config_(config),
      memory_(&memory),
      wide_(wide),
      vocab_(decoder.vocab_size),
      hidden_(decoder.hidden_size),
      decoder_(decoder),
      tied_(decoder.tie_word_embeddings) {
  if (peft != nullptr) AddReplaced(*peft);
  AddWholeModules(peft);
  if (peft != nullptr) AddTables(*peft);
  for (TableChange& change : changes) {
    modules_.push_back({change.name, vocab_, {}, {}});
    changes_.push_back(std::move(change));
  }
  CheckTables();
  AddLinears();
  CheckLinears();
  // Carvers without memory: the bytes that Layout hands out are the parameters, padding included.
  Carver plan;
  Layout(plan, kParameterSlots);
  count_ = static_cast<std::int64_t>(plan.bytes() / BytesOf(wide, 1));
  Carver norms;
  LayoutNorms(norms);
  norm_bytes_ = norms.bytes();
}

void LoraAdapter::AddWholeModules(const Adapter* peft) {
  // PEFT compares the ends of paths.
  const auto is_replaced = [&](const std::string& name) {
    return replaced_ != nullptr && std::ranges::any_of(*replaced_, [&](const auto& tensor) {
             return StemOf(tensor.first).ends_with(name);
           });
  };
  if (peft != nullptr) {
    std::erase_if(config_.modules_to_save, [&](const std::string& name) {
      if (is_replaced(name) || HasModule(decoder_, name)) return false;
      notes_.push_back(
          fmt::format("modules_to_save names '{}', which this model does not have", name));
      return true;
    });
  }
  for (const std::string& name : config_.modules_to_save) {
    if (is_replaced(name)) continue;
    if (name != "embed_tokens" && name != "lm_head") {
      ThrowInvalidInput(
          "modules_to_save: '{}' cannot be trained as a whole; expected embed_tokens or lm_head",
          name);
    }
    const std::string weight = name == "lm_head" ? kHead : kEmbedding;
    if (Find(weight) != nullptr) ThrowInvalidInput("modules_to_save names '{}' twice", name);
    modules_.push_back({weight, vocab_, {}, {}});
  }
  if (peft == nullptr && config_.ensure_weight_tying && tied_ && !modules_.empty()) {
    ThrowInvalidInput(
        "ensure_weight_tying is set: tables of a model with tied embeddings are trained apart from "
        "each other here; merge the adapter first (qlora export MODEL NEW --format hf)");
  }
}

void LoraAdapter::AddReplaced(const Adapter& peft) {
  auto tensors = std::make_shared<ReplacedTensors>();
  for (const ReplacedWeight& weight : peft.replaced) {
    if (!IsReplaceable(decoder_, weight.name)) continue;
    (*tensors)[weight.name] = {weight.tensor->shape, FiniteValues(peft, *weight.tensor), false};
  }
  for (const AdapterModule& module : peft.modules) {
    const std::string name = module.path + ".weight";
    if (!IsReplaceable(decoder_, name)) continue;
    const std::int64_t rank = module.a->shape[0];
    const std::int64_t cols = module.a->shape[1];
    const std::int64_t rows = module.b->shape[0];
    if (module.magnitude != nullptr) {
      ThrowInvalidInput("'{}': DoRA on the router of a mixture of experts is not supported", name);
    }
    const std::vector<float> a = FiniteValues(peft, *module.a);
    const std::vector<float> b = FiniteValues(peft, *module.b);
    const double scale = ScaleOf(peft.config, module.path);
    std::vector<float> change(rows * cols);
    for (std::int64_t y = 0; y < rows; ++y) {
      for (std::int64_t x = 0; x < cols; ++x) {
        double sum = 0;
        for (std::int64_t r = 0; r < rank; ++r) sum += double{b[y * rank + r]} * a[r * cols + x];
        change[y * cols + x] = static_cast<float>(scale * sum);
      }
    }
    (*tensors)[name] = {{rows, cols}, std::move(change), true};
  }
  if (!tensors->empty()) replaced_ = std::move(tensors);
}

void LoraAdapter::CheckTables() const {
  for (const TrainedModule& module : modules_) {
    if (decoder_.per_layer_size == 0 || module.rows <= decoder_.per_layer_vocab) continue;
    ThrowInvalidInput(
        "the adapter's '{}' has {} rows, and the model's table of per-layer embeddings {}: a token "
        "without a row there cannot be used",
        module.name, module.rows, decoder_.per_layer_vocab);
  }
}

void LoraAdapter::AddLinears() {
  for (std::int64_t l = 0; l < decoder_.num_hidden_layers; ++l) {
    layers_.push_back(Combine(
        LinearPaths(decoder_, l), ShapeLinears(decoder_, l),
        [&](const std::string& path, const LinearShape& shape) { return LoraOf(path, shape); }));
  }
  if (decoder_.delta_rule.tiled) SetOrders(decoder_);
}

LoraLinear LoraAdapter::LoraOf(const std::string& path, const LinearShape& shape) const {
  LoraLinear lora;
  lora.path = path;
  lora.in = shape.in;
  lora.out = shape.out;
  if (!IsTargetModule(config_, path)) return lora;
  if (IsJoinedExpert(decoder_, path)) {
    // They are parameters to PEFT, no modules.
    if (config_.target_parameters.empty()) return lora;
    lora.shares_a = path.ends_with(".up_proj");
  }
  lora.rank = lora.trained_rank = RankOf(config_, path);
  lora.scale = static_cast<float>(ScaleOf(config_, path));
  if (!std::isfinite(lora.scale)) {
    ThrowInvalidInput("the scale of '{}', {}, is not finite in float32; look at lora_alpha", path,
                      ScaleOf(config_, path));
  }
  lora.dropout = static_cast<float>(config_.lora_dropout);
  return lora;
}

void LoraAdapter::CheckLinears() const {
  bool has_stacks = false;  // experts that are parameters to PEFT
  for (const PerLinear<LoraLinear>& layer : layers_) {
    layer.ForEach([&](const LoraLinear& lora) {
      has_stacks |= lora.rank > 0 && IsJoinedExpert(decoder_, lora.path);
    });
  }
  // The names help with a misspelt target_modules.
  if (max_group_rank() == 0 && changes_.empty() && replaced_ == nullptr) {
    std::string names;
    for (const std::string& name : DistinctLinearNames(decoder_)) names += "\n  " + name;
    ThrowInvalidInput("target_modules match no linear of this model; its layers have{}", names);
  }
  if (has_stacks && config_.lora_dropout > 0) {
    ThrowInvalidInput(
        "lora_dropout is {}, and PEFT has no dropout for target_parameters, which the experts of "
        "this model are; set it to 0, or leave the experts out",
        config_.lora_dropout);
  }
  if (config_.use_dora && decoder_.moe.num_experts > 0) {
    ThrowInvalidInput("use_dora is not supported for models with experts");
  }
  if (config_.use_dora && has_stacks) {
    ThrowInvalidInput("use_dora is not supported for experts; leave them out");
  }
}

// ---- Memory.

// The order of parameters, gradients, moments and the tensors of optimizer.safetensors:
//
//   A of layer 0 (q k v o gate up down ...), A of layer 1 ... | B likewise | magnitudes | modules
//
// Kinds are contiguous, because each has its own learning rate and decay. Absent linears take no
// room. Padding up to a multiple of 256 values begins as zero and has zero gradients, so it stays
// zero.
void LoraAdapter::Layout(Carver& carver, const Slots& slots) {
  const std::size_t element = BytesOf(wide_, 1);
  groups_.clear();
  const auto group = [&](ParameterKind kind, auto&& place_all) {
    const auto begin = static_cast<std::int64_t>(carver.bytes() / element);
    place_all();
    const auto end = static_cast<std::int64_t>(carver.bytes() / element);
    if (end > begin) groups_.push_back({kind, begin, end - begin});
  };
  const auto place = [&](MatrixView& slot, std::int64_t rows, std::int64_t cols) {
    slot = carver.Matrix(wide_, rows, cols);
    carver.Align(kDynamicBlock * element);
  };
  const auto linears = [&](ParameterKind kind, auto&& place_one) {
    std::vector<std::int64_t> begins;
    const auto begin = [&] {
      begins.push_back(static_cast<std::int64_t>(carver.bytes() / element));
    };
    group(kind, [&] {
      for (PerLinear<LoraLinear>& layer : layers_) {
        begin();
        layer.ForEach([&](LoraLinear& lora) {
          if (lora.rank > 0) place_one(lora);
        });
      }
      begin();
    });
    if (begins.back() > begins.front()) groups_.back().layers = std::move(begins);
  };
  MatrixView before;
  linears(ParameterKind::kA, [&](LoraLinear& lora) {
    MatrixView& a = lora.*slots.a;
    if (lora.shares_a) {
      a = before;
    } else {
      place(a, lora.rank, lora.in);
    }
    before = a;
  });
  linears(ParameterKind::kB, [&](LoraLinear& lora) { place(lora.*slots.b, lora.out, lora.rank); });
  if (config_.use_dora) {
    linears(ParameterKind::kMagnitude,
            [&](LoraLinear& lora) { place(lora.*slots.magnitude, 1, lora.out); });
  }
  group(ParameterKind::kModule, [&] {
    for (TrainedModule& module : modules_) place(module.*slots.module, module.rows, hidden_);
  });
}

// Allocates once: Initialize and Read may both be called, and views stay valid.
void LoraAdapter::Allocate() {
  if (parameters_.bytes() > 0) return;
  parameters_ = Arena(BytesOf(wide_, count_), *memory_);
  Carver carver(parameters_);
  Layout(carver, kParameterSlots);
  norms_ = Arena(norm_bytes_, *memory_);
  Carver norms(norms_);
  LayoutNorms(norms);
}

LoraAdapter LoraAdapter::Create(const AdapterConfig& config, const DecoderConfig& decoder,
                                Memory& memory, std::uint64_t seed, DType wide) {
  LoraAdapter adapter(config, decoder, memory, wide);
  adapter.Initialize(seed);
  return adapter;
}

// ---- Values.

// Each linear has its own random numbers, counted over all linears of the model, so the start of a
// linear does not depend on which others are adapted.
void LoraAdapter::Initialize(std::uint64_t seed) {
  Allocate();
  Zero(*memory_, parameters());
  std::uint64_t place = 0;
  for (PerLinear<LoraLinear>& layer : layers_) {
    layer.ForEach([&](LoraLinear& lora) {
      const RandomKey key = MakeKey(seed, RandomPlace::kLoraInit, place++);
      if (lora.rank == 0 || lora.shares_a) return;
      UploadWide(*memory_, KaimingUniform(key, lora.rank, lora.in), lora.a);
    });
  }
}

const TrainedModule* LoraAdapter::embedding() const { return Find(kEmbedding); }
const TrainedModule* LoraAdapter::head() const { return Find(tied_rows_ ? kEmbedding : kHead); }

const TrainedModule* LoraAdapter::Find(std::string_view name) const {
  return FindModule(modules_, name);
}
TrainedModule* LoraAdapter::Find(std::string_view name) { return FindModule(modules_, name); }

void LoraAdapter::InitializeModules(const DecoderWeights& weights) {
  for (TrainedModule& module : modules_) {
    CopyTable(*memory_, &module == embedding() ? weights.embed : weights.head, module.weight);
  }
}

void LoraAdapter::FoldTables(const DecoderWeights& weights) {
  for (const TableChange& change : changes_) {
    const TrainedModule& module = *Find(change.name);
    const bool embeds = change.name == kEmbedding;
    const WeightView base = !change.from_base ? WeightView(module.weight)
                            : embeds          ? weights.embed
                                              : weights.head;
    CopyTable(*memory_, base, module.weight, &change);
  }
  changes_.clear();
}

void LoraAdapter::AddTables(const Adapter& peft) {
  for (const char* name : {kEmbedding, kHead}) {
    const auto stored = std::find_if(peft.replaced.begin(), peft.replaced.end(),
                                     [&](const ReplacedWeight& w) { return w.name == name; });
    const bool holds = stored != peft.replaced.end() && stored->tensor->shape.size() == 2;
    const std::int64_t rows = holds ? stored->tensor->shape[0] : vocab_;
    TableChange change = TableChangeOf(peft, name, rows, hidden_);
    const bool changes = change.rank > 0 || !change.ids.empty();
    if (!holds && !changes) continue;
    TrainedModule* module = Find(name);
    const bool listed = module != nullptr;
    if (!listed) module = &modules_.emplace_back(TrainedModule{name, rows, {}, {}});
    module->rows = rows;
    // PEFT keeps rows of tokens, and a table that was resized, in one place for both. A LoRA and
    // modules_to_save are of the embeddings alone, unless they are tied.
    const bool is_of_both = (change.rank == 0 && !listed) || config_.ensure_weight_tying;
    const bool shared = name == std::string_view(kEmbedding) && is_of_both;
    tied_rows_ = tied_rows_ || (tied_ && shared);
    if (changes) changes_.push_back(std::move(change));
  }
  // The adapter holds the head too: the two tables are apart.
  if (Find(kHead) != nullptr) tied_rows_ = false;
  for (const TrainedModule& module : modules_) {
    const bool both = embedding() != nullptr && head() != nullptr;
    const std::int64_t other = both ? (module.name == kHead ? embedding() : head())->rows : vocab_;
    if (module.rows == other) continue;
    ThrowInvalidInput(
        "the adapter's '{}' has {} rows and its other table {}: with a resized vocabulary, the "
        "adapter must hold embeddings and head of the same size (save_embedding_layers=True of "
        "PEFT's save_pretrained stores both)",
        module.name, module.rows, other);
  }
}

void LoraAdapter::LayoutNorms(Carver& carver) {
  for (PerLinear<LoraLinear>& layer : layers_) {
    layer.ForEach([&](LoraLinear& lora) {
      if (lora.is_dora()) lora.inverse_norm = carver.Matrix(wide_, 1, lora.out);
    });
  }
}

void LoraAdapter::AllocateGradients() {
  gradients_ = Arena(BytesOf(wide_, count_) + sizeof(double), *memory_);
  Carver carver(gradients_);
  Layout(carver, kGradientSlots);
  gradient_sum_ = carver.Matrix(DType::kF64, 1, 1);
}

void LoraAdapter::FreezeSecondHalf() {
  for (PerLinear<LoraLinear>& layer : layers_) {
    layer.ForEach([](LoraLinear& lora) { lora.trained_rank = lora.rank / 2; });
  }
}

void LoraAdapter::ZeroFrozenGradients(Backend& backend) {
  for (PerLinear<LoraLinear>& layer : layers_) {
    layer.ForEach([&](LoraLinear& lora) {
      // The backward pass computes the gradients of the whole of A and B, because the frozen half
      // takes part in the forward pass. Without weight decay, a gradient of zero leaves a value as
      // it is.
      const std::int64_t frozen = lora.rank - lora.trained_rank;
      if (frozen == 0) return;
      backend.Run(ops::Zero{Rows(lora.da, lora.trained_rank, frozen)});
      backend.Run(ops::Zero{Columns(lora.db, lora.trained_rank, frozen)});
    });
  }
}

std::vector<IndexRange> LoraAdapter::PartsOf(const IndexRange& layers) const {
  std::vector<IndexRange> parts;
  for (const ParameterGroup& group : groups_) {
    if (group.layers.empty()) continue;
    parts.push_back({group.layers[layers.begin], group.layers[layers.end]});
  }
  return parts;
}

void LoraAdapter::ZeroGradients() { Zero(*memory_, gradients()); }

// ---- Queries.

std::int64_t LoraAdapter::max_group_rank() const {
  std::int64_t most = 0;
  // Groups of `size` linears each.
  const auto visit = [&](const std::vector<LoraLinear>& linears, std::size_t size) {
    for (std::size_t begin = 0; begin < linears.size(); begin += size) {
      std::int64_t rank = 0;
      for (std::size_t i = begin; i < begin + size; ++i) rank += linears[i].rank;
      most = std::max(most, rank);
    }
  };
  for (const PerLinear<LoraLinear>& layer : layers_) {
    visit(layer.qkv, layer.qkv.size());
    visit({layer.o}, 1);
    // With experts, gate and up of each expert form a group.
    visit(layer.gate_up, std::min<std::size_t>(layer.gate_up.size(), 2));
    visit(layer.down, 1);
    visit(layer.shared_in, layer.shared_in.size());
    visit(layer.shared_out, 1);
    visit(layer.per_layer_gate, 1);
    visit(layer.per_layer_out, 1);
    visit(layer.per_layer_model, 1);
    visit(layer.side_router, 1);
    visit(layer.side_in, 1);
    visit(layer.side_out, 1);
  }
  return most;
}

Adapters AdaptersOf(const LoraAdapter* adapter) {
  return adapter == nullptr ? Adapters{} : Adapters{adapter};
}

WeightView EmbeddingOf(const DecoderWeights& weights, const LoraAdapter* adapter) {
  const TrainedModule* module = adapter == nullptr ? nullptr : adapter->embedding();
  return module == nullptr ? weights.embed : WeightView(module->weight);
}

WeightView HeadOf(const DecoderWeights& weights, const LoraAdapter* adapter) {
  const TrainedModule* module = adapter == nullptr ? nullptr : adapter->head();
  return module == nullptr ? weights.head : WeightView(module->weight);
}

}  // namespace qlora
