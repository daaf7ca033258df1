// The values of an adapter GGUF: general.type "adapter", adapter.type "lora", adapter.lora.alpha,
// and tensors <name of the weight>.lora_a (R, I) and .lora_b (O, R), stacked for experts. The scale
// is alpha / R, or 1 where alpha is 0.
#include <algorithm>
#include <cmath>
#include <set>

#include "adapter/lora_values.h"
#include "base/check.h"
#include "config/families.h"
#include "config/gguf_names.h"
#include "gguf/gguf.h"
#include "io/float_encoding.h"
#include "model/gguf_rows.h"
#include "model/gguf_source.h"
#include "model/tensor_list.h"

namespace qlora {
namespace {

class Reader {
 public:
  Reader(const std::filesystem::path& file, const DecoderConfig& decoder)
      : decoder_(decoder), file_(OpenGguf(file)) {
    // Values are in the order of the checkpoint, also where the model is in the file's.
    decoder_.delta_rule.tiled = false;
    values_.name = file.string();
    values_.module_prefix = decoder.module_prefix;
    CheckKind();
  }

  AdapterValues Read(const ProgressFn& progress) {
    for (std::int64_t l = 0; l < decoder_.num_hidden_layers; ++l) {
      ForEachGgufLinear(decoder_, l, [&](const LayerTensor& row, const std::string& tensor) {
        const std::string stem = StemOf(tensor);
        ReadStack(StackLinears(row, l, stem), GgufRowsOf(decoder_, l, row, tensor));
        if (row.group == LinearGroup::kSideOut) UndoExpertScales(stem, l);
      });
      if (progress) progress(l + 1, decoder_.num_hidden_layers);
    }
    std::vector<DecoderTensor> rows = DecoderTensors(decoder_);
    std::reverse(rows.begin(), rows.end());
    for (const DecoderTensor& row : rows) {
      const std::string stem = StemOf(row.gguf[0][0].tensor);
      const auto [vocab, hidden] = row.shape;
      if (row.is_head()) ReadStack({stem, {{"lm_head", vocab, hidden}}}, {});
      if (row.table == &DecoderWeights::embed) ReadEmbedding(stem, vocab, hidden);
    }
    std::int64_t norms = 0;
    for (const TensorInfo& tensor : file_->tensors()) {
      if (used_.contains(tensor.name)) continue;
      // llama.cpp passes over them, too.
      if (tensor.name.ends_with("_norm.weight")) {
        ++norms;
        continue;
      }
      ThrowInvalidInput(
          "{}: tensor '{}' is of no linear of this model; is this an adapter of another model?",
          values_.name, tensor.name);
    }
    if (values_.modules.empty()) ThrowInvalidInput("{}: holds no LoRA weights", values_.name);
    if (norms > 0) {
      values_.notes.push_back(
          fmt::format("{}: {} norms are left out, as llama.cpp leaves them out; the folder of PEFT "
                      "that the file was made from has them",
                      values_.name, norms));
    }
    return std::move(values_);
  }

 private:
  void CheckKind() {
    const auto text = [&](const char* key) {
      const auto* value = file_->Get<std::string>(key);
      return value == nullptr ? std::string() : *value;
    };
    if (text(kGgufType) != "adapter" || text("adapter.type") != "lora") {
      ThrowInvalidInput(
          "{}: is no LoRA adapter: general.type is '{}' and adapter.type '{}', expected 'adapter' "
          "and 'lora'",
          values_.name, text(kGgufType), text("adapter.type"));
    }
    if (file_->values().Find("adapter.alora.invocation_tokens") != nullptr) {
      ThrowInvalidInput(
          "{}: key 'adapter.alora.invocation_tokens' is set; adapters that begin to act at a token "
          "are not supported",
          values_.name);
    }
    const std::string_view expected = GgufFamilyOf(decoder_.model_type).architecture;
    const std::string found = text(kGgufArchitecture);
    if (expected.empty() || found != expected) {
      ThrowInvalidInput("{}: is an adapter for models of the architecture '{}', this model is '{}'",
                        values_.name, found, expected.empty() ? decoder_.model_type : expected);
    }
    // Without it the scale is 1, as with 0.
    const auto* alpha = file_->Get<float>("adapter.lora.alpha");
    alpha_ = alpha == nullptr ? 0 : *alpha;
    if (!std::isfinite(alpha_)) {
      ThrowInvalidInput(
          "{}: key 'adapter.lora.alpha': expected a finite number, found {}; convert the adapter "
          "once more",
          values_.name, alpha_);
    }
    const GgufSource base = AdapterBaseOf(*file_);
    values_.base_model_name_or_path = base.repository.empty() ? base.name : base.repository;
  }

  // The pair of tensors of one name; null where the file has neither.
  std::pair<const TensorInfo*, const TensorInfo*> Find(const std::string& name) {
    const TensorInfo* a = file_->Find(name + ".weight.lora_a");
    const TensorInfo* b = file_->Find(name + ".weight.lora_b");
    if ((a == nullptr) != (b == nullptr)) {
      ThrowInvalidInput("{}: '{}.weight' has no lora_{}", values_.name, name,
                        a == nullptr ? "a" : "b");
    }
    if (a != nullptr) {
      used_.insert(a->name);
      used_.insert(b->name);
    }
    return {a, b};
  }

  void CheckShape(const TensorInfo& tensor, std::int64_t rows, std::int64_t cols) const {
    // Stacks of experts have three dimensions, so the product of all but the last is compared.
    const bool fits = cols > 0 && !tensor.shape.empty() && tensor.shape.back() == cols &&
                      tensor.elements() % cols == 0 && tensor.elements() / cols == rows;
    if (fits) return;
    ThrowInvalidInput(
        "{}: tensor '{}' has shape [{}], this model expects [{}, {}]; it is an adapter of another "
        "model",
        file_->FileOf(tensor), tensor.name, fmt::join(tensor.shape, ", "), rows, cols);
  }

  std::vector<float> Decode(const TensorInfo& tensor) const {
    if (!tensor.dtype.is_blocks() && tensor.dtype != DType::kF32 && tensor.dtype != DType::kF16 &&
        tensor.dtype != DType::kBF16) {
      ThrowInvalidInput(
          "{}: tensor '{}': expected F32, F16, BF16 or a type of blocks, found {}; convert the "
          "adapter once more",
          file_->FileOf(tensor), tensor.name, NameOf(tensor.dtype));
    }
    std::vector<float> values(tensor.elements());
    DecodeFloats(tensor.dtype, file_->Bytes(tensor), values);
    const auto bad = std::ranges::find_if_not(values, [](float v) { return std::isfinite(v); });
    if (bad != values.end()) {
      ThrowInvalidInput("{}: tensor '{}' holds a NaN or Inf at index {}", file_->FileOf(tensor),
                        tensor.name, bad - values.begin());
    }
    return values;
  }

  // As llama.cpp computes it, in float32.
  double ScaleOfRank(std::int64_t rank) const {
    return alpha_ == 0 ? 1 : double{alpha_} / static_cast<double>(rank);
  }

  void ReadStack(const LinearStack& stack, const LinearRows& rows) {
    const auto [a, b] = Find(stack.name);
    if (a == nullptr) return;
    const std::int64_t rank = b->shape.empty() ? 0 : b->shape.back();
    if (rank < 1) {
      ThrowInvalidInput("{}: tensor '{}' has shape [{}]: the rank is 0; convert the adapter again",
                        file_->FileOf(*b), b->name, fmt::join(b->shape, ", "));
    }
    const std::int64_t experts = std::ssize(stack.linears);
    const LinearPlace& first = stack.linears.front();
    // A tensor may hold a part of the rows of one linear (GgufFamily::splits_gate_up).
    const std::int64_t part = rows.order.empty() ? first.out : std::ssize(rows.order);
    // B first: the file then has as many values, which bounds the rank.
    CheckShape(*b, experts * part, rank);
    CheckShape(*a, experts * rank, first.in);
    const std::vector<float> all_a = Decode(*a);
    const std::vector<float> all_b = Decode(*b);
    for (std::int64_t e = 0; e < experts; ++e) {
      LoraValues module{.path = stack.linears[e].path,
                        .in = first.in,
                        .out = first.out,
                        .rank = rank,
                        .scale = ScaleOfRank(rank),
                        .a = {},
                        .b = std::vector<float>(first.out * rank),
                        .magnitude = {}};
      const auto begin = all_a.begin() + e * rank * first.in;
      module.a.assign(begin, begin + rank * first.in);
      for (std::int64_t i = 0; i < rank * std::ssize(rows.columns); ++i) {
        const std::int64_t row = i / first.in * first.in;
        module.a[row + rows.columns[i % first.in]] = begin[i];
      }
      LoraValues& whole = PartOf(module);
      for (std::int64_t r = 0; r < part; ++r) {
        // The inverse of the export, which wrote row order[r] of the source as row r.
        const std::int64_t target = rows.order.empty() ? r : rows.order[r];
        for (std::int64_t i = 0; i < rank; ++i) {
          const float value = all_b[(e * part + r) * rank + i];
          whole.b[target * rank + i] = rows.factor == 1 ? value : value / rows.factor;
        }
      }
    }
  }

  // Takes the numbers of the experts of a layer out of the B of `name`, which was read last.
  void UndoExpertScales(const std::string& name, std::int64_t layer) {
    if (!used_.contains(name + ".weight.lora_b")) return;
    const std::int64_t experts = decoder_.side_moe.num_experts;
    const auto* scales = file_->Get<std::vector<float>>(kGgufExpertScales);
    if (scales == nullptr || std::ssize(*scales) != decoder_.num_hidden_layers * experts) {
      ThrowInvalidInput(
          "{}: has an adapter of '{}', which llama.cpp adds behind the scale of each expert, "
          "without the scales of {} experts (key '{}'); give the folder of PEFT that it was made "
          "from",
          values_.name, name, decoder_.num_hidden_layers * experts, kGgufExpertScales);
    }
    for (std::int64_t e = 0; e < experts; ++e) {
      const float scale = (*scales)[layer * experts + e];
      LoraValues& module = values_.modules[std::ssize(values_.modules) - experts + e];
      // An expert that counts nothing has no adapter either.
      for (float& b : module.b) b = scale == 0 ? 0 : b / scale;
      if (std::ranges::all_of(module.b, [](float b) { return std::isfinite(b); })) continue;
      ThrowInvalidInput("{}: key '{}': the scale {} of expert {} of layer {} is not possible",
                        values_.name, kGgufExpertScales, scale, e, layer);
    }
  }

  // The module that `part` belongs to: a new one, or the one whose other rows are there.
  LoraValues& PartOf(LoraValues& part) {
    const auto other = std::ranges::find(values_.modules, part.path, &LoraValues::path);
    if (other == values_.modules.end()) {
      values_.modules.push_back(std::move(part));
      return values_.modules.back();
    }
    if (other->a != part.a) {
      ThrowInvalidInput(
          "{}: the parts of '{}' have different lora_a, and this model has one linear for both",
          values_.name, part.path);
    }
    return *other;
  }

  // lora_a (V, R) is A transposed, since llama.cpp takes rows of it by tokens; lora_b is (D, R).
  void ReadEmbedding(const std::string& stem, std::int64_t vocab, std::int64_t hidden) {
    const auto [a, b] = Find(stem);
    if (a == nullptr) return;
    const std::int64_t rank = b->shape.empty() ? 0 : b->shape.back();
    CheckShape(*b, hidden, rank);
    CheckShape(*a, vocab, rank);
    const std::vector<float> rows = Decode(*a);
    LoraValues module{.path = "model.embed_tokens",
                      .in = vocab,
                      .out = hidden,
                      .rank = rank,
                      .scale = ScaleOfRank(rank),
                      .a = std::vector<float>(rows.size()),
                      .b = Decode(*b),
                      .magnitude = {}};
    for (std::int64_t v = 0; v < vocab; ++v) {
      for (std::int64_t i = 0; i < rank; ++i) module.a[i * vocab + v] = rows[v * rank + i];
    }
    values_.modules.push_back(std::move(module));
  }

  DecoderConfig decoder_;
  std::unique_ptr<GgufReader> file_;
  float alpha_ = 0;
  std::set<std::string> used_;
  AdapterValues values_;
};

}  // namespace

AdapterValues ReadGgufValues(const std::filesystem::path& file, const DecoderConfig& decoder,
                             const ProgressFn& progress) {
  return Reader(file, decoder).Read(progress);
}

}  // namespace qlora
