#include "adapter/mlx_adapter.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "base/check.h"
#include "base/file.h"
#include "base/matrix.h"
#include "io/checkpoint_names.h"
#include "io/float_encoding.h"
#include "io/json.h"
#include "io/peft/peft.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "model/tensor_list.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEmbedding = "model.embed_tokens";
constexpr const char* kHead = "lm_head";

// The module of a row, with "model." in front; experts are one module for each of their three
// matrices. "": its name there is not known here, nor the order of its outputs.
std::string MlxName(const DecoderConfig& decoder, const LayerTensor& row, std::int64_t layer) {
  if (row.experts > 0 && decoder.joins_experts()) return "";
  std::string name = row.ModuleIn("model.", layer, 0);
  if (row.experts == 0) return name;
  const bool is_down = row.group == LinearGroup::kDown;
  const std::string_view part = is_down ? "down_proj" : row.place == 0 ? "gate_proj" : "up_proj";
  return fmt::format("{}.switch_mlp.{}", name.substr(0, name.find(".experts.")), part);
}

// The path of the embedding there.
std::string EmbeddingOf(const DecoderConfig& decoder) {
  return fmt::format("model.{}", decoder.names.embedding);
}

// All modules that may have an adapter: the linears of the layers, then the tables.
std::vector<LinearStack> AllStacks(const DecoderConfig& decoder) {
  std::vector<LinearStack> stacks;
  for (std::int64_t l = 0; l < decoder.num_hidden_layers; ++l) {
    for (const LayerTensor& row : LayerTensors(decoder, l)) {
      if (row.kind != TensorKind::kLinear) continue;
      std::string name = MlxName(decoder, row, l);
      if (!name.empty()) stacks.push_back(StackLinears(row, l, std::move(name)));
    }
  }
  const std::int64_t vocab = decoder.vocab_size;
  const std::int64_t hidden = decoder.hidden_size;
  stacks.push_back({kHead, {{kHead, vocab, hidden}}});
  stacks.push_back({EmbeddingOf(decoder), {{kEmbedding, hidden, vocab}}});
  return stacks;
}

class Reader {
 public:
  Reader(const fs::path& folder, const DecoderConfig& decoder)
      : decoder_(decoder), where_((folder / kMlxWeights).string()) {
    values_.name = folder.string();
    values_.module_prefix = decoder.module_prefix;
    ReadConfig(folder / kAdapterConfig);
    file_ = OpenSafetensors(folder / kMlxWeights);
    FindTensors();
  }

  AdapterValues Read(const ProgressFn& progress) {
    const std::vector<LinearStack> stacks = AllStacks(decoder_);
    std::int64_t done = 0;
    for (const LinearStack& stack : stacks) {
      ReadStack(stack);
      if (progress) progress(++done, std::ssize(stacks));
    }
    if (!found_.empty()) {
      ThrowInvalidInput(
          "{}: the adapter has tensors for '{}', which this model does not have or which has no "
          "adapters here; is this an adapter of another model?",
          where_, found_.begin()->first);
    }
    if (values_.modules.empty()) ThrowInvalidInput("{}: holds no LoRA weights", where_);
    return std::move(values_);
  }

 private:
  struct Parts {
    const TensorInfo* a = nullptr;
    const TensorInfo* b = nullptr;
    const TensorInfo* m = nullptr;
  };

  void ReadConfig(const fs::path& path) {
    const Json json = ReadJsonFile(path);
    const std::string where = path.string();
    const auto type = JsonGetOr<std::string>(json, "fine_tune_type", "lora", where);
    if (type != "lora" && type != "dora") {
      ThrowInvalidInput(
          "{}: key 'fine_tune_type': expected \"lora\" or \"dora\", found \"{}\"; whole weights "
          "become a model with mlx_lm.fuse",
          where, type);
    }
    values_.use_dora = type == "dora";
    const Json* parameters = FindJson(json, "lora_parameters", where);
    if (parameters == nullptr) ThrowInvalidInput("{}: key 'lora_parameters' is missing", where);
    scale_ = JsonGet<double>(*parameters, "scale", where);
    values_.dropout = JsonGetOr<double>(*parameters, "dropout", 0, where);
    // As PEFT's lora_dropout, which it becomes.
    if (!(values_.dropout >= 0 && values_.dropout < 1)) {
      ThrowInvalidInput("{}: key 'dropout': expected 0 <= p < 1, found {}", where, values_.dropout);
    }
    values_.base_model_name_or_path = JsonGetOr<std::string>(json, "model", "", where);
  }

  // Collects the tensors by the path of their module, spelled as in a text model.
  void FindTensors() {
    for (const TensorInfo& tensor : file_->tensors()) {
      const std::size_t dot = tensor.name.rfind('.');
      const std::string part = dot == std::string::npos ? "" : tensor.name.substr(dot + 1);
      if (part != "lora_a" && part != "lora_b" && part != "m") {
        ThrowInvalidInput(
            "{}: tensor '{}' is not supported; expected names that end with .lora_a, .lora_b or .m",
            where_, tensor.name);
      }
      std::string path = tensor.name.substr(0, dot);
      if (path.ends_with(".lm_head")) path = kHead;
      if (const auto split = SplitDecoderName(path)) path = "model." + std::string(split->rest);
      Parts& parts = found_[path];
      const TensorInfo*& slot = part == "lora_a" ? parts.a : part == "lora_b" ? parts.b : parts.m;
      if (slot != nullptr) {
        ThrowInvalidInput("{}: tensors '{}' and '{}' name the same matrix", where_, slot->name,
                          tensor.name);
      }
      slot = &tensor;
    }
  }

  void CheckParts(const std::string& path, const Parts& parts) const {
    if (parts.a == nullptr || parts.b == nullptr) {
      ThrowInvalidInput("{}: module '{}' has no lora_{}", where_, path,
                        parts.a == nullptr ? "a" : "b");
    }
    if ((parts.m != nullptr) != values_.use_dora) {
      ThrowInvalidInput("{}: module '{}' has {} magnitude 'm', but fine_tune_type is \"{}\"",
                        where_, path, parts.m == nullptr ? "no" : "a",
                        values_.use_dora ? "dora" : "lora");
    }
    const bool embeds = path == EmbeddingOf(decoder_);
    const bool table = embeds || path == kHead;
    if (table && values_.use_dora) {
      ThrowInvalidInput("{}: module '{}': DoRA on the head or the embeddings is not supported",
                        where_, path);
    }
    if (embeds && decoder_.tie_word_embeddings) {
      ThrowInvalidInput(
          "{}: module '{}': a LoRA on embeddings that are also the head changes both in mlx-lm, "
          "which adapters cannot say here; merge it with mlx_lm.fuse",
          where_, path);
    }
  }

  std::vector<float> Values(const TensorInfo& tensor, std::int64_t count) const {
    if (tensor.dtype != DType::kF32 && tensor.dtype != DType::kF16 &&
        tensor.dtype != DType::kBF16) {
      ThrowInvalidInput("{}: tensor '{}': expected F32, F16 or BF16, found {}", where_, tensor.name,
                        NameOf(tensor.dtype));
    }
    if (tensor.elements() != count) ThrowShape(tensor, fmt::format("{} values", count));
    std::vector<float> values(count);
    DecodeFloats(tensor.dtype, file_->Bytes(tensor), values);
    const auto bad = std::ranges::find_if_not(values, [](float v) { return std::isfinite(v); });
    if (bad != values.end()) {
      ThrowInvalidInput("{}: tensor '{}' holds a NaN or Inf at index {}", where_, tensor.name,
                        bad - values.begin());
    }
    return values;
  }

  [[noreturn]] void ThrowShape(const TensorInfo& tensor, const std::string& expected) const {
    ThrowInvalidInput(
        "{}: tensor '{}' has shape [{}], this model expects {}; it is an adapter of another model",
        where_, tensor.name, fmt::join(tensor.shape, ", "), expected);
  }

  void ReadStack(const LinearStack& stack) {
    const auto found = found_.find(stack.name);
    if (found == found_.end()) return;
    const Parts parts = found->second;
    found_.erase(found);
    CheckParts(stack.name, parts);
    const std::int64_t experts = std::ssize(stack.linears);
    const LinearPlace& first = stack.linears.front();
    // (I, R) and (R, O); of experts (E, R, I) and (E, O, R).
    const bool stacked =
        decoder_.moe.num_experts > 0 && stack.name.find(".switch_mlp.") != std::string::npos;
    // B first: the file then has as many values, which bounds the rank.
    const std::vector<std::int64_t>& b_shape = parts.b->shape;
    const bool sides =
        b_shape.size() == (stacked ? 3u : 2u) && b_shape.size() == parts.a->shape.size();
    const std::int64_t rank = !sides ? 0 : stacked ? b_shape[2] : b_shape[0];
    if (!sides || rank < 1 || b_shape[1] != first.out || (stacked && b_shape[0] != experts)) {
      ThrowShape(*parts.b, stacked ? fmt::format("({}, {}, rank)", experts, first.out)
                                   : fmt::format("(rank, {})", first.out));
    }
    using Shape = std::vector<std::int64_t>;
    const Shape a_shape = stacked ? Shape{experts, rank, first.in} : Shape{first.in, rank};
    if (parts.a->shape != a_shape) {
      ThrowShape(*parts.a, fmt::format("({})", fmt::join(a_shape, ", ")));
    }
    const std::vector<float> all_a = Values(*parts.a, experts * rank * first.in);
    const std::vector<float> all_b = Values(*parts.b, experts * first.out * rank);
    for (std::int64_t e = 0; e < experts; ++e) {
      const auto a = all_a.begin() + e * rank * first.in;
      const auto b = all_b.begin() + e * first.out * rank;
      LoraValues module{.path = stack.linears[e].path,
                        .in = first.in,
                        .out = first.out,
                        .rank = rank,
                        .scale = scale_,
                        .a = std::vector<float>(a, a + rank * first.in),
                        .b = std::vector<float>(b, b + first.out * rank),
                        .magnitude = {}};
      if (!stacked) {
        module.a = Transposed(module.a, first.in, rank);
        module.b = Transposed(module.b, rank, first.out);
      }
      if (parts.m != nullptr) module.magnitude = Values(*parts.m, first.out);
      values_.modules.push_back(std::move(module));
    }
  }

  const DecoderConfig& decoder_;
  std::string where_;
  std::unique_ptr<TensorReader> file_;
  double scale_ = 1;
  std::map<std::string, Parts> found_;  // not read yet
  AdapterValues values_;
};

// The rows [0, rank) of A and columns of B, with zeros behind them, and `factor` in B.
LoraValues Padded(const LoraValues& module, std::int64_t rank, double factor) {
  LoraValues out = module;
  out.rank = rank;
  out.a.resize(rank * module.in);
  out.b.assign(module.out * rank, 0.0f);
  for (std::int64_t o = 0; o < module.out; ++o) {
    for (std::int64_t i = 0; i < module.rank; ++i) {
      const double value = module.b[o * module.rank + i];
      out.b[o * rank + i] = static_cast<float>(factor == 1 ? value : factor * value);
    }
  }
  return out;
}

class Writer {
 public:
  Writer(const AdapterValues& adapter, const DecoderConfig& decoder)
      : adapter_(adapter), decoder_(decoder) {
    for (const LoraValues& module : adapter.modules) {
      if (IsJoinedExpert(decoder, module.path)) {
        ThrowInvalidInput(
            "{}: adapts '{}', an expert of a {}, which is not written for mlx-lm; merge it into "
            "the "
            "model, or leave the experts out",
            adapter.name, module.path, decoder.model_type);
      }
      by_path_[module.path] = &module;
      rank_ = std::max(rank_, module.rank);
    }
    for (const LoraValues& module : adapter.modules) {
      if (scale_ == 0) scale_ = module.scale;
    }
    if (scale_ == 0) scale_ = 1;
    if (!decoder.tie_word_embeddings) return;
    for (const char* table : {kEmbedding, kHead}) {
      if (!by_path_.contains(table)) continue;
      ThrowInvalidInput(
          "{}: has a LoRA on '{}' alone, and in mlx-lm the embeddings and the head of this model "
          "are one; merge it into the model: --format hf",
          adapter.name, table);
    }
  }

  void Write(const fs::path& folder, DType dtype) {
    std::vector<TensorInfo> infos;
    std::vector<std::vector<float>> values;
    const auto add = [&](const std::string& name, std::vector<std::int64_t> shape,
                         std::vector<float> data) {
      infos.push_back({name, dtype, std::move(shape)});
      values.push_back(std::move(data));
    };
    for (const LinearStack& stack : AllStacks(decoder_)) AddStack(stack, add);
    const std::string text = Config();
    MakeDirectories(folder);
    const auto writer = CreateSafetensors(folder / kMlxWeights, infos, {});
    for (std::size_t i = 0; i < infos.size(); ++i) {
      std::vector<std::byte> bytes(infos[i].bytes());
      const std::int64_t bad = EncodeFloats(dtype, values[i], bytes);
      if (bad >= 0) {
        ThrowRuntime("tensor '{}': value {} is {}, which cannot be stored as {}", infos[i].name,
                     bad, values[i][bad], NameOf(dtype));
      }
      writer->Write(bytes);
    }
    CommitAdapter(*writer, folder, text);
  }

 private:
  template <typename Add>
  void AddStack(const LinearStack& stack, const Add& add) {
    const bool any = std::ranges::any_of(
        stack.linears, [&](const LinearPlace& place) { return by_path_.contains(place.path); });
    if (!any) return;
    const bool stacked =
        stack.linears.size() > 1 || stack.name.find(".switch_mlp.") != std::string::npos;
    std::vector<float> all_a;
    std::vector<float> all_b;
    const LinearPlace& first = stack.linears.front();
    for (const LinearPlace& place : stack.linears) {
      const auto found = by_path_.find(place.path);
      // An expert without an adapter has one of zeros.
      LoraValues module{.path = place.path, .in = place.in, .out = place.out, .scale = scale_};
      if (found != by_path_.end()) module = *found->second;
      module = Padded(module, rank_, module.scale / scale_);
      if (!stacked) {
        module.a = Transposed(module.a, rank_, module.in);
        module.b = Transposed(module.b, module.out, rank_);
      }
      all_a.insert(all_a.end(), module.a.begin(), module.a.end());
      all_b.insert(all_b.end(), module.b.begin(), module.b.end());
      if (!module.magnitude.empty()) add(TensorName(stack) + ".m", {place.out}, module.magnitude);
    }
    const std::int64_t experts = std::ssize(stack.linears);
    using Shape = std::vector<std::int64_t>;
    add(TensorName(stack) + ".lora_a",
        stacked ? Shape{experts, rank_, first.in} : Shape{first.in, rank_}, std::move(all_a));
    add(TensorName(stack) + ".lora_b",
        stacked ? Shape{experts, first.out, rank_} : Shape{rank_, first.out}, std::move(all_b));
    AddKey(stack.name);
  }

  // The name of a tensor: multimodal models hold their language model under its own name.
  std::string TensorName(const LinearStack& stack) const {
    return (decoder_.module_prefix == "model." ? "" : "language_model.") + stack.name;
  }

  // Modules of layers are named inside their layer.
  void AddKey(const std::string& name) {
    constexpr std::string_view kLayers = "model.layers.";
    if (!name.starts_with(kLayers)) {
      keys_.insert(name);
      return;
    }
    const std::size_t dot = name.find('.', kLayers.size());
    keys_.insert(name.substr(dot + 1));
    const std::int64_t layer = std::stoll(name.substr(kLayers.size()));
    first_layer_ = std::min(first_layer_.value_or(layer), layer);
  }

  std::string Config() const {
    // The loader takes 0 for all layers, in which keys of tables name nothing.
    const std::int64_t layers = first_layer_ ? decoder_.num_hidden_layers - *first_layer_ : 0;
    OrderedJson json = {{"fine_tune_type", adapter_.use_dora ? "dora" : "lora"},
                        {"num_layers", layers}};
    json["lora_parameters"] = {{"rank", rank_},
                               {"scale", scale_},
                               {"dropout", adapter_.dropout},
                               {"keys", std::vector(keys_.begin(), keys_.end())}};
    if (!adapter_.base_model_name_or_path.empty()) {
      json["model"] = adapter_.base_model_name_or_path;
    }
    return FormatJson(json, 4) + "\n";
  }

  const AdapterValues& adapter_;
  const DecoderConfig& decoder_;
  std::map<std::string, const LoraValues*> by_path_;
  std::int64_t rank_ = 0;
  double scale_ = 0;  // of the first module that has one
  std::set<std::string> keys_;
  std::optional<std::int64_t> first_layer_;
};

}  // namespace

AdapterValues ReadMlxValues(const fs::path& folder, const DecoderConfig& decoder,
                            const ProgressFn& progress) {
  return Reader(folder, decoder).Read(progress);
}

void WriteMlxAdapter(const fs::path& folder, const AdapterValues& adapter,
                     const DecoderConfig& decoder, DType dtype) {
  Writer(adapter, decoder).Write(folder, dtype);
}

}  // namespace qlora
