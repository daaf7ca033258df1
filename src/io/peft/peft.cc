#include "io/peft/peft.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "base/spelling.h"
#include "base/text.h"
#include "io/checkpoint_names.h"
#include "io/gguf_path.h"
#include "io/peft/adapter_source.h"
#include "io/safetensors.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// Parts of the paths of encoders of images and sound.
constexpr auto kEncoderWords = std::to_array<std::string_view>(
    {"vision", "visual", "image", "audio", "multi_modal", "multimodal", "mm_projector"});

enum class Part { kA, kB, kMagnitude, kReplaced, kTokenRows };
struct NameParts {
  std::string path;  // of the module, as it is spelled; for kReplaced the name of the weight
  Part part;
};

// True for what follows the kind of a matrix in a name: nothing, ".weight", and between the two the
// name of the adapter, which savers other than PEFT leave in it ("lora_A.default.weight").
bool IsNameEnd(std::string_view end) {
  if (end.empty()) return true;
  if (end.ends_with(".bias")) return false;
  if (end.ends_with(".weight")) end.remove_suffix(7);
  return end.empty() || (end.front() == '.' && end.find('.', 1) == std::string_view::npos);
}

// Takes a word such as ".modules_to_save" and the name of the adapter behind it out of a name.
void EraseWrapper(std::string_view word, bool named, std::string& name) {
  const std::size_t at = name.find(word);
  if (at == std::string::npos) return;
  name.erase(at, word.size());
  // What is left is ".weight", or the name of the adapter and ".weight".
  if (!named || name.find('.', at + 1) == std::string::npos) return;
  name.erase(at, name.find('.', at + 1) - at);
}

// Splits a tensor's name.
NameParts SplitName(const std::string& name, const std::string& where) {
  const std::string rest = WithoutWrappers(name);
  for (const auto& [word, part] : {std::pair(".lora_A", Part::kA),
                                   {".lora_B", Part::kB},
                                   {".lora_embedding_A", Part::kA},
                                   {".lora_embedding_B", Part::kB},
                                   {".lora_magnitude_vector", Part::kMagnitude},
                                   {".token_adapter.trainable_tokens_delta", Part::kTokenRows}}) {
    const std::size_t at = rest.rfind(word);
    if (at == std::string::npos) continue;
    if (IsNameEnd(std::string_view(rest).substr(at + std::string_view(word).size()))) {
      return {rest.substr(0, at), part};
    }
  }
  if (rest.find(".lora_") == std::string::npos) {
    std::string weight = rest;
    // A module that is replaced as a whole keeps its name in the base, behind PEFT's wrappers.
    EraseWrapper(".token_adapter", false, weight);
    EraseWrapper(".base_layer", false, weight);
    EraseWrapper(".modules_to_save", true, weight);
    return {weight, Part::kReplaced};
  }
  ThrowInvalidInput(
      "{}: tensor '{}' is not supported; expected names that end with lora_A.weight, "
      "lora_B.weight, lora_embedding_A, lora_embedding_B or lora_magnitude_vector",
      where, name);
}

// True for modules of encoders of images and sound and of the projectors behind them.
bool IsOfEncoder(std::string_view path) {
  return std::any_of(kEncoderWords.begin(), kEncoderWords.end(), [&](std::string_view word) {
    return path.find(word) != std::string_view::npos;
  });
}

// The path (or name) of a module as that of a text model. Sets the prefix of the adapter by the
// first name of its decoder, and the name of its embedding. Errors: InvalidInput for a second
// spelling in the same file.
std::string CanonicalPath(const std::string& path, const std::string& where,
                          std::optional<std::string>& prefix, std::string& embedding) {
  for (const std::string_view head : {"lm_head", "lm_head.weight"}) {
    if (path == head || path.ends_with("." + std::string(head))) return std::string(head);
  }
  const std::optional<DecoderName> split = SplitDecoderName(path);
  if (!split) return path;
  if (!prefix) prefix = std::string(split->prefix);
  if (*prefix != split->prefix) {
    ThrowInvalidInput(
        "{}: names of modules begin with '{}' and with '{}'; expected the modules of one model",
        where, *prefix, split->prefix);
  }
  const std::string_view first = split->rest.substr(0, split->rest.find('.'));
  if (!IsEmbedding(first)) return "model." + std::string(split->rest);
  embedding = first;
  return std::string(kEmbeddingPath).append(split->rest.substr(first.size()));
}

void SetOnce(const TensorInfo*& slot, const TensorInfo& tensor, const std::string& where) {
  if (slot != nullptr) {
    ThrowInvalidInput("{}: tensors '{}' and '{}' name the same matrix", where, slot->name,
                      tensor.name);
  }
  slot = &tensor;
}

std::string ShapeOf(const TensorInfo& tensor) {
  return fmt::format("[{}]", fmt::join(tensor.shape, ", "));
}

void CheckModule(const AdapterModule& module, const AdapterConfig& config,
                 const std::string& where) {
  const std::string place = fmt::format("{}: module '{}'", where, module.path);
  // With one of the two, B A would be 0 or random.
  if (module.a == nullptr || module.b == nullptr) {
    ThrowInvalidInput("{}: has no lora_{} weight", place, module.a == nullptr ? "A" : "B");
  }
  for (const TensorInfo* matrix : {module.a, module.b}) {
    if (matrix->elements() == 0) {
      ThrowInvalidInput(
          "{}: tensor '{}' has shape {}: it was saved under DeepSpeed ZeRO-3, which holds parts of "
          "it on each rank; gather the parameters before saving "
          "(stage3_gather_16bit_weights_on_model_save)",
          where, matrix->name, ShapeOf(*matrix));
    }
    if (matrix->shape.size() > 2) {
      ThrowInvalidInput("{}: has tensor '{}' of shape {}: a LoRA on a convolution is not supported",
                        place, matrix->name, ShapeOf(*matrix));
    }
  }
  // PEFT makes modules from the configuration and then loads weights by name. It silently skips
  // weights without a module. Of tied tables one is named.
  const bool is_tied =
      config.ensure_weight_tying && IsTable(module.path) &&
      (IsTargetModule(config, kEmbeddingPath) || IsTargetModule(config, kHeadPath));
  if (!is_tied && !IsTargetModule(config, module.path)) {
    ThrowInvalidInput(
        "{}: has adapter weights, but target_modules of {} do not name it, so PEFT "
        "would silently ignore them",
        place, kAdapterConfig);
  }
  if (config.use_dora && IsTable(module.path)) {
    ThrowInvalidInput(
        "{}: use_dora is set, and DoRA on the head or the embeddings is not supported", place);
  }
  // The scale is alpha / r: it would be wrong if r differed from the rank of the tensors.
  const std::int64_t r = RankOf(config, module.path);
  if (module.a->shape.size() != 2 || module.b->shape.size() != 2 || module.a->shape[0] != r ||
      module.b->shape[1] != r) {
    ThrowInvalidInput(
        "{}: expected lora_A [{}, in] and lora_B [out, {}] for rank {}, found {} and "
        "{}",
        place, r, r, r, ShapeOf(*module.a), ShapeOf(*module.b));
  }
  if (config.use_dora != (module.magnitude != nullptr)) {
    ThrowInvalidInput("{}: use_dora is {}, but there is {} lora_magnitude_vector", place,
                      config.use_dora, module.magnitude == nullptr ? "no" : "a");
  }
  if (module.magnitude != nullptr &&
      module.magnitude->shape != std::vector<std::int64_t>{module.b->shape[0]}) {
    ThrowInvalidInput("{}: expected lora_magnitude_vector [{}], found {}", place,
                      module.b->shape[0], ShapeOf(*module.magnitude));
  }
}

// True for the path of a PEFT wrapper around the parameters of experts.
bool IsStack(std::string_view path) {
  return path.ends_with(".experts") || path.ends_with(".experts.base_layer");
}

// The matrices of one wrapper. Two parameters have nested wrappers: gate_up_proj, the first of the
// module, is the inner one.
ExpertStack StackOf(const AdapterModule& module, const AdapterConfig& config,
                    const std::map<std::string, AdapterModule>& modules, const std::string& where) {
  constexpr std::string_view kInner = ".base_layer";
  ExpertStack stack;
  stack.experts = module.path;
  const bool inner = stack.experts.ends_with(kInner);
  if (inner) stack.experts.resize(stack.experts.size() - kInner.size());
  if (module.a == nullptr || module.b == nullptr) {
    ThrowInvalidInput("{}: module '{}': has no lora_{} weight", where, module.path,
                      module.a == nullptr ? "A" : "B");
  }
  stack.a = module.a;
  stack.b = module.b;
  const bool nested = modules.contains(stack.experts + std::string(kInner));
  const bool down = IsTargetModule(config, stack.experts + ".0.down_proj");
  const bool gate_up = IsTargetModule(config, stack.experts + ".0.gate_proj");
  if (nested ? !(down && gate_up) : down == gate_up) {
    ThrowInvalidInput(
        "{}: module '{}': its tensors and target_parameters do not agree; expected one wrapper for "
        "each of experts.gate_up_proj and experts.down_proj that is targeted",
        where, module.path);
  }
  stack.parameter = inner || !down ? "gate_up_proj" : "down_proj";
  return stack;
}

// The rows of one table with their token ids.
TokenRows TokenRowsOf(const std::string& path, const TensorInfo& tensor,
                      const AdapterConfig& config, const std::string& where) {
  for (const auto& [module, ids] : config.trainable_token_indices) {
    if (path != module && !path.ends_with("." + module) &&
        !SpelledPath(config, path).ends_with(module)) {
      continue;
    }
    if (tensor.shape.size() != 2 || tensor.shape[0] != std::ssize(ids)) {
      ThrowInvalidInput("{}: tensor '{}': expected a row for each of {} token ids, found {}", where,
                        tensor.name, ids.size(), ShapeOf(tensor));
    }
    return {path, ids, &tensor};
  }
  ThrowInvalidInput("{}: tensor '{}': trainable_token_indices of {} do not name its module", where,
                    tensor.name, kAdapterConfig);
}

// Every module of trainable_token_indices needs its rows, but for a head, which PEFT stores only
// where it is not tied to the embeddings.
void CheckTokenRows(const Adapter& adapter, const std::string& where) {
  for (const TokenRows& rows : adapter.token_rows) {
    if (!IsTable(rows.path)) {
      ThrowInvalidInput("{}: tensor '{}': '{}' is neither the embeddings nor the head", where,
                        rows.rows->name, rows.path);
    }
  }
  if (!adapter.config.trainable_token_indices.empty() && adapter.token_rows.empty()) {
    ThrowInvalidInput("{}: trainable_token_indices is set, but there are no rows for it", where);
  }
}

// Returns advice that names the newest adapter of an unfinished run; "" where there is no adapter.
std::string CheckpointAdvice(const fs::path& directory) {
  constexpr std::string_view kCheckpoint = "checkpoint-";
  std::int64_t newest = -1;
  std::error_code failed;
  fs::directory_iterator entry(directory, failed);
  for (; !failed && entry != fs::directory_iterator(); entry.increment(failed)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(kCheckpoint) || !Exists(entry->path() / kPeftWeights)) continue;
    // A name without a number is never the newest.
    newest =
        std::max(newest, ParseNumber<std::int64_t>(name.substr(kCheckpoint.size())).value_or(-1));
  }
  if (newest < 0) {
    // PEFT saves an adapter with a name of its own in a folder of that name.
    for (const auto& folder : fs::directory_iterator(directory, failed)) {
      if (!Exists(folder.path() / kPeftWeights)) continue;
      return fmt::format("; there is one in {}", folder.path().string());
    }
    return "";
  }
  return fmt::format("; the run has not ended, and its newest adapter is {}",
                     (directory / fmt::format("{}{}", kCheckpoint, newest)).string());
}

fs::path WeightsPathOf(const fs::path& directory) {
  const fs::path weights = directory / kPeftWeights;
  if (Exists(weights)) return weights;
  if (Exists(directory / "adapter_model.bin")) {
    ThrowInvalidInput(
        "{}: pickled adapters can run code and are not read; save it once in Python "
        "with PeftModel.save_pretrained(DIR, safe_serialization=True)",
        (directory / "adapter_model.bin").string());
  }
  if (!Exists(directory)) {
    // In other trainers `adapter` names the method: adapter: qlora.
    const bool method = directory == "lora" || directory == "qlora";
    ThrowInvalidInput("{}: there is no such adapter folder{}", directory.string(),
                      method
                          ? "; for a new adapter leave this option out, and for a base in 4 bits "
                            "set load_in_4bit"
                          : SuggestPath(directory));
  }
  if (fs::is_regular_file(directory)) {
    if (HasGgufMagic(directory)) {
      ThrowInvalidInput(
          "{0}: is a GGUF file where the folder of an adapter is needed; "
          "an adapter in it can be made one of PEFT: qlora export MODEL FOLDER "
          "--adapter {0} --format peft-adapter",
          directory.string());
    }
    ThrowInvalidInput("{}: is a file; an adapter is given as the folder that holds {}",
                      directory.string(), kPeftWeights);
  }
  if (FormatOfAdapter(directory) == AdapterFormat::kMlx) {
    ThrowInvalidInput(
        "{0}: is an adapter of mlx-lm where one of PEFT is needed; to make it one: "
        "qlora export MODEL FOLDER --adapter {0} --format peft-adapter",
        directory.string());
  }
  ThrowInvalidInput("{}: is not the folder of a LoRA adapter ({} is missing){}", directory.string(),
                    kPeftWeights, CheckpointAdvice(directory));
}

// The dropout in the metadata of weights, or `stated`, that of the configuration.
double DropoutOf(const StringMap& metadata, double stated, const std::string& where) {
  const auto found = metadata.find(kPeftDropout);
  if (found == metadata.end()) return stated;
  const double dropout = ParseNumber<double>(found->second).value_or(-1);
  if (dropout >= 0 && dropout < 1) return dropout;
  ThrowInvalidInput("{}: metadata '{}': expected 0 <= p < 1, found {}", where, kPeftDropout,
                    found->second);
}

}  // namespace

Adapter OpenAdapter(const fs::path& directory) {
  const fs::path weights = WeightsPathOf(directory);
  const fs::path config_path = directory / kAdapterConfig;
  if (!Exists(config_path)) {
    ThrowInvalidInput("{}: is missing; without it rank, scale and modules are unknown",
                      config_path.string());
  }
  Adapter adapter;
  adapter.config =
      ParseAdapterConfig(ReadTextFile(config_path), config_path.string(), adapter.unknown_keys);
  adapter.tensors = OpenSafetensors(weights);
  const std::string where = weights.string();
  if (!adapter.config.target_parameters.empty()) {
    adapter.config.lora_dropout =
        DropoutOf(adapter.tensors->metadata(), adapter.config.lora_dropout, where);
  }
  std::map<std::string, AdapterModule> modules;
  std::map<std::string, const TensorInfo*> replaced;
  std::map<std::string, const TensorInfo*> token_rows;
  std::set<std::string> left_out;
  std::optional<std::string> prefix;
  for (const TensorInfo& tensor : adapter.tensors->tensors()) {
    const NameParts name = SplitName(tensor.name, where);
    if (IsOfEncoder(name.path)) {
      left_out.insert(name.path);
      continue;
    }
    if (tensor.dtype != DType::kF32 && tensor.dtype != DType::kF16 &&
        tensor.dtype != DType::kBF16) {
      ThrowInvalidInput("{}: tensor '{}': expected F32, F16 or BF16, found {}", where, tensor.name,
                        NameOf(tensor.dtype));
    }
    const std::string path = CanonicalPath(name.path, where, prefix, adapter.config.embedding);
    if (name.part == Part::kReplaced || name.part == Part::kTokenRows) {
      auto& list = name.part == Part::kReplaced ? replaced : token_rows;
      SetOnce(list[path], tensor, where);
      continue;
    }
    AdapterModule& module = modules[path];
    module.path = path;
    SetOnce(name.part == Part::kA   ? module.a
            : name.part == Part::kB ? module.b
                                    : module.magnitude,
            tensor, where);
  }
  adapter.left_out.assign(left_out.begin(), left_out.end());
  if (prefix) adapter.config.module_prefix = *prefix;
  for (auto& [path, module] : modules) {
    if (!adapter.config.target_parameters.empty() && IsStack(path)) {
      adapter.stacks.push_back(StackOf(module, adapter.config, modules, where));
      continue;
    }
    CheckModule(module, adapter.config, where);
    adapter.modules.push_back(std::move(module));
  }
  for (const auto& [name, tensor] : replaced) adapter.replaced.push_back({name, tensor});
  for (const auto& [path, tensor] : token_rows) {
    adapter.token_rows.push_back(TokenRowsOf(path, *tensor, adapter.config, where));
  }
  CheckTokenRows(adapter, where);
  if (adapter.modules.empty() && adapter.stacks.empty() && adapter.token_rows.empty()) {
    ThrowInvalidInput("{}: holds no LoRA weights{}", where,
                      adapter.left_out.empty()
                          ? ""
                          : fmt::format(" of a text model, only of {}", adapter.left_out.front()));
  }
  return adapter;
}

bool IsTable(std::string_view path) { return path == kEmbeddingPath || path == kHeadPath; }

void CheckTrainable(const Adapter& adapter, const fs::path& directory, bool trains_stacks) {
  std::string what;
  for (const AdapterModule& module : adapter.modules) {
    if (IsTable(module.path)) what = fmt::format("a LoRA on '{}'", module.path);
  }
  if (!adapter.token_rows.empty()) {
    what =
        fmt::format("new rows of '{}' (trainable_token_indices)", adapter.token_rows.front().path);
  }
  if (!adapter.stacks.empty() && !trains_stacks) {
    what = "a LoRA on experts in one tensor (target_parameters)";
  }
  for (const ReplacedWeight& weight : adapter.replaced) {
    const std::string path = weight.name.substr(0, weight.name.rfind('.'));
    if (!IsTable(path)) what = fmt::format("the whole of '{}'", path);
  }
  if (!adapter.left_out.empty()) {
    what = fmt::format("a LoRA on '{}', outside of the text model", adapter.left_out.front());
  }
  if (what.empty()) return;
  ThrowInvalidInput(
      "{}: the adapter has {}, which is read by generate, eval, chat and export but not trained "
      "further; merge it first (qlora export MODEL NEW --adapter {} --format hf) and train a new "
      "adapter on the result",
      directory.string(), what, directory.string());
}

}  // namespace qlora
