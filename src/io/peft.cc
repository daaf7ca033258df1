#include "io/peft.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

#include "base/check.h"
#include "base/file.h"
#include "base/spelling.h"
#include "io/float_encoding.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

constexpr const char* kConfigName = "adapter_config.json";
constexpr const char* kWeightsName = "adapter_model.safetensors";
// PeftModel holds LoraModel as base_model, which holds the base as model.
constexpr std::string_view kPrefix = "base_model.model.";

// Takes `suffix` off the end of `text`; false when it is not there.
bool TakeSuffix(std::string_view& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) return false;
  text.remove_suffix(suffix.size());
  return true;
}

enum class Part { kA, kB, kMagnitude, kReplaced };
struct NameParts {
  std::string path;  // of the module; for kReplaced the name of the weight in the base
  Part part;
};

// Splits a tensor's name. Third-party savers leave the adapter's name ("default") in it.
NameParts SplitName(const std::string& name, const std::string& where) {
  std::string_view rest = name;
  if (!rest.starts_with(kPrefix)) {
    ThrowInvalidInput("{}: tensor '{}': expected a name that begins with \"{}\"", where, name,
                      kPrefix);
  }
  rest.remove_prefix(kPrefix.size());
  // The end of this function refuses names of other kinds of adapters.
  if (rest.find(".lora_") == std::string_view::npos &&
      rest.find("token_adapter.") == std::string_view::npos &&
      rest.find(".base_layer.bias") == std::string_view::npos) {
    std::string weight(rest);
    // A module that is replaced as a whole keeps its name in the base, behind PEFT's wrappers.
    for (const std::string_view wrapper :
         {".base_layer", ".modules_to_save.default", ".modules_to_save"}) {
      if (const std::size_t at = weight.find(wrapper); at != std::string::npos) {
        weight.erase(at, wrapper.size());
      }
    }
    return {weight, Part::kReplaced};
  }
  TakeSuffix(rest, ".weight");
  // After ".weight": names are "lora_A.default.weight", or without "default".
  TakeSuffix(rest, ".default");
  for (const auto& [suffix, part] : {std::pair(".lora_A", Part::kA),
                                     {".lora_B", Part::kB},
                                     {".lora_magnitude_vector", Part::kMagnitude}}) {
    if (TakeSuffix(rest, suffix)) return {std::string(rest), part};
  }
  ThrowInvalidInput(
      "{}: tensor '{}' is not supported; expected names that end with "
      "lora_A.weight, lora_B.weight or lora_magnitude_vector",
      where, name);
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
  // PEFT makes modules from the configuration and then loads weights by name. It silently skips
  // weights without a module.
  if (!Targets(config, module.path)) {
    ThrowInvalidInput(
        "{}: has adapter weights, but target_modules of {} do not name it, so PEFT "
        "would silently ignore them",
        place, kConfigName);
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

// Returns advice that names the newest adapter of an unfinished run; "" where there is no adapter.
std::string CheckpointAdvice(const fs::path& directory) {
  constexpr std::string_view kCheckpoint = "checkpoint-";
  std::int64_t newest = -1;
  std::error_code failed;
  fs::directory_iterator entry(directory, failed);
  for (; !failed && entry != fs::directory_iterator(); entry.increment(failed)) {
    const std::string name = entry->path().filename().string();
    if (!name.starts_with(kCheckpoint) || !Exists(entry->path() / kWeightsName)) continue;
    std::int64_t step = -1;
    // A name without a number leaves -1, which is never the newest.
    std::from_chars(name.data() + kCheckpoint.size(), name.data() + name.size(), step);
    newest = std::max(newest, step);
  }
  if (newest < 0) return "";
  return fmt::format("; the run has not ended, and its newest adapter is {}",
                     (directory / fmt::format("{}{}", kCheckpoint, newest)).string());
}

fs::path WeightsPathOf(const fs::path& directory) {
  const fs::path weights = directory / kWeightsName;
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
    ThrowInvalidInput("{}: is a file; an adapter is given as the folder that holds {}",
                      directory.string(), kWeightsName);
  }
  ThrowInvalidInput("{}: is not the folder of a LoRA adapter ({} is missing){}", directory.string(),
                    kWeightsName, CheckpointAdvice(directory));
}

// `stored` is `config` as a reader will see it: there, overlapping patterns are in sorted order.
void CheckWeights(const AdapterWeights& module, const AdapterConfig& config,
                  const AdapterConfig& stored, const std::string& where) {
  const std::string place = fmt::format("{}: module '{}'", where, module.path);
  const std::int64_t r = RankOf(stored, module.path);
  if (!Targets(stored, module.path)) {
    ThrowInvalidInput("{}: target_modules do not name it", place);
  }
  // The first pattern that matches decides, and JSON objects are written in sorted order.
  if (ScaleOf(stored, module.path) != ScaleOf(config, module.path)) {
    ThrowInvalidInput(
        "{}: several entries of rank_pattern or alpha_pattern match it, and sorted "
        "they would mean another scale",
        place);
  }
  if (module.a.empty() || module.b.empty() || module.a.rows != r || module.b.cols != r) {
    ThrowInvalidInput("{}: expected A ({}, in) and B (out, {}), found ({}, {}) and ({}, {})", place,
                      r, r, module.a.rows, module.a.cols, module.b.rows, module.b.cols);
  }
  if (config.use_dora == module.magnitude.empty() ||
      (config.use_dora && module.magnitude.cols != module.b.rows)) {
    ThrowInvalidInput("{}: with use_dora = {} expected a magnitude of {} values, found {}", place,
                      config.use_dora, config.use_dora ? module.b.rows : 0, module.magnitude.cols);
  }
}

// Values that are read from another memory at a time.

// Writes a matrix row by row as `dtype`.
void WriteMatrix(TensorWriter& writer, Memory& memory, const ConstMatrixView& m, DType dtype,
                 const std::string& name) {
  std::vector<float> values(m.cols);
  std::vector<std::byte> bytes(BytesOf(dtype, values.size()));
  const std::size_t row_bytes = BytesOf(m.dtype, values.size());
  // Adapters may be in the memory of a GPU: some MiB per transfer, not a row.
  const std::int64_t piece_rows = std::max<std::int64_t>(1, kPieceValues / m.stride);
  for (std::int64_t begin = 0; begin < m.rows; begin += piece_rows) {
    const std::int64_t rows = std::min(piece_rows, m.rows - begin);
    const HostBytes piece(memory, Rows(m, begin, rows).data,
                          BytesOf(m.dtype, (rows - 1) * m.stride + m.cols));
    for (std::int64_t row = 0; row < rows; ++row) {
      DecodeFloats(m.dtype, {piece.data() + BytesOf(m.dtype, row * m.stride), row_bytes}, values);
      // A NaN of a run that diverged is refused here, or it would be found by whoever loads the
      // adapter.
      const std::int64_t bad = EncodeFloats(dtype, values, bytes);
      if (bad >= 0) {
        ThrowRuntime("tensor '{}': value {} of row {} is {}, which cannot be stored as {}", name,
                     bad, begin + row, values[bad], NameOf(dtype));
      }
      writer.Write(bytes);
    }
  }
}

}  // namespace

Adapter OpenAdapter(const fs::path& directory) {
  const fs::path weights = WeightsPathOf(directory);
  const fs::path config_path = directory / kConfigName;
  if (!Exists(config_path)) {
    ThrowInvalidInput("{}: is missing; without it rank, scale and modules are unknown",
                      config_path.string());
  }
  Adapter adapter;
  adapter.config =
      ParseAdapterConfig(ReadTextFile(config_path), config_path.string(), adapter.unknown_keys);
  adapter.tensors = OpenSafetensors(weights);
  const std::string where = weights.string();
  std::map<std::string, AdapterModule> modules;
  std::map<std::string, const TensorInfo*> replaced;
  for (const TensorInfo& tensor : adapter.tensors->tensors()) {
    const NameParts name = SplitName(tensor.name, where);
    if (tensor.dtype != DType::kF32 && tensor.dtype != DType::kF16 &&
        tensor.dtype != DType::kBF16) {
      ThrowInvalidInput("{}: tensor '{}': expected F32, F16 or BF16, found {}", where, tensor.name,
                        NameOf(tensor.dtype));
    }
    if (name.part == Part::kReplaced) {
      SetOnce(replaced[name.path], tensor, where);
      continue;
    }
    AdapterModule& module = modules[name.path];
    module.path = name.path;
    SetOnce(name.part == Part::kA   ? module.a
            : name.part == Part::kB ? module.b
                                    : module.magnitude,
            tensor, where);
  }
  if (modules.empty()) ThrowInvalidInput("{}: holds no LoRA weights", where);
  for (auto& [path, module] : modules) {
    CheckModule(module, adapter.config, where);
    adapter.modules.push_back(std::move(module));
  }
  for (const auto& [name, tensor] : replaced) adapter.replaced.push_back({name, tensor});
  return adapter;
}

void WriteAdapter(const fs::path& directory, const AdapterConfig& config,
                  std::span<const AdapterWeights> weights, DType dtype,
                  std::span<const ReplacedMatrix> replaced, Memory& memory) {
  const std::string where = directory.string();
  if (weights.empty()) ThrowInvalidInput("{}: an adapter needs at least one module", where);
  // A name without a weight would make PEFT keep the base's own, silently.
  if (config.modules_to_save.size() != replaced.size()) {
    ThrowInvalidInput("{}: modules_to_save names {} modules, but {} weights are given", where,
                      config.modules_to_save.size(), replaced.size());
  }
  const std::string text = FormatAdapterConfig(config);
  std::vector<std::string> unknown_keys;
  // Reads the text back: an adapter that this program could not load is refused now.
  const AdapterConfig stored = ParseAdapterConfig(text, where, unknown_keys);
  struct Item {
    std::string name;
    ConstMatrixView matrix;
  };
  std::vector<Item> items;
  std::vector<TensorInfo> infos;
  for (const AdapterWeights& module : weights) {
    CheckWeights(module, config, stored, where);
    const std::string prefix = std::string(kPrefix) + module.path;
    items.push_back({prefix + ".lora_A.weight", module.a});
    items.push_back({prefix + ".lora_B.weight", module.b});
    if (config.use_dora) items.push_back({prefix + ".lora_magnitude_vector", module.magnitude});
  }
  for (const ReplacedMatrix& matrix : replaced) {
    items.push_back({std::string(kPrefix) + matrix.name, matrix.weight});
  }
  for (const Item& item : items) {
    // All are declared before the first byte, since the header of the file states their places.
    infos.push_back({item.name, dtype, {item.matrix.rows, item.matrix.cols}});
    if (item.name.ends_with("_vector")) infos.back().shape = {item.matrix.cols};
  }

  MakeDirectories(directory);
  const auto writer = CreateSafetensors(directory / kWeightsName, std::move(infos), {});
  for (const Item& item : items) WriteMatrix(*writer, memory, item.matrix, dtype, item.name);
  const fs::path config_path = directory / kConfigName;
  AtomicFile config_file(config_path);
  config_file.Write(text);
  // Between the two renames there must be no old configuration next to new weights.
  if (Exists(config_path) && ReadTextFile(config_path) != text) RemoveFile(config_path);
  writer->Finish();
  config_file.Commit();
}

}  // namespace qlora
