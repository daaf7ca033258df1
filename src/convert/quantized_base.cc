#include "qlora/quantized_base.h"

#include <filesystem>

#include "base/check.h"
#include "base/file.h"
#include "convert/model_folder.h"
#include "hub/hub_cache.h"
#include "io/gguf_path.h"
#include "io/json.h"
#include "model/model_fingerprint.h"
#include "qlora/quantize.h"
#include "tokenizer/lookup_tables.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStamp = "qlora_quantized_from.json";

// What older stamps do not have.
constexpr const char* kContent = "content";

// The source of the checkpoint: the model's files by name, size and time, what is in them as far as
// a look tells, and the options.
OrderedJson SourceOf(const TrainOptions& options) {
  // No hash of all bytes: reading 15 GB to save the reading of 15 GB gains nothing. Sizes and times
  // may be those of another model; the first bytes of its tensors are not.
  const fs::path model = ResolveModelDir(options.model_name_or_path);
  OrderedJson files = OrderedJson::object();
  for (const auto& entry : fs::directory_iterator(model)) {
    if (!entry.is_regular_file()) continue;
    files[entry.path().filename().string()] = {entry.file_size(),
                                               entry.last_write_time().time_since_epoch().count()};
  }
  const QuantizationFields& q = options.quantization;
  return {{"model", fs::canonical(model).string()},
          {"files", files},
          {kContent, fmt::format("{:016x}", ModelFingerprint(model) ^
                                                HashBytes(ReadTextFile(model / "config.json")))},
          {"bnb_4bit_quant_type", q.bnb_4bit_quant_type},
          {"bnb_4bit_use_double_quant", q.bnb_4bit_use_double_quant},
          {"bnb_4bit_blocksize", q.bnb_4bit_blocksize},
          {"scale_search", q.scale_search}};
}

void CheckStamp(const fs::path& folder, const OrderedJson& source) {
  const fs::path file = folder / kStamp;
  const Json stamp = fs::is_regular_file(file) ? ReadJsonFile(file) : Json();
  // Without the stamp nothing tells what the weights are; they are never replaced.
  if (!stamp.is_object()) {
    ThrowInvalidInput(
        "save_quantized: {} exists and was not made by this option; give another folder, or give "
        "it as the model",
        folder.string());
  }
  for (const auto& [key, value] : source.items()) {
    // Another model of the same name, or other options: the run would train on a base that was not
    // asked for.
    if (stamp.value(key, Json()) == Json(value)) continue;
    if (key == kContent && !stamp.contains(key)) continue;
    ThrowInvalidInput(
        "save_quantized: {} was made from something else ({} differs); remove it or give another "
        "folder",
        folder.string(), key);
  }
}

}  // namespace

bool FindQuantizedBase(const std::string& folder, TrainOptions& options) {
  if (folder.empty()) return false;
  if (!options.load_in_4bit) ThrowInvalidInput("save_quantized needs load_in_4bit");
  if (const auto gguf = FindGguf(ResolveModelDir(options.model_name_or_path))) {
    ThrowInvalidInput(
        "save_quantized: {} is a GGUF file, on whose own weights a run trains; to train on 4 bits "
        "of bitsandbytes instead, give `qlora quantize {} {}` first, and train on {}",
        gguf->string(), gguf->string(), folder, folder);
  }
  const fs::path output = WithoutLinks(options.output_dir);
  const fs::path base = WithoutLinks(folder);
  // overwrite_output_dir would remove the base, or the base would be taken for a part of the run.
  if (Contains(output, base) || Contains(base, output)) {
    ThrowInvalidInput(
        "save_quantized {} and output_dir {} are one folder, or one is inside the other; "
        "choose two folders side by side",
        folder, options.output_dir);
  }
  if (!fs::exists(folder) || fs::is_empty(folder)) return true;
  CheckStamp(folder, SourceOf(options));
  options.model_name_or_path = folder;
  return false;
}

void MakeQuantizedBase(Context& context, const std::string& folder, const TrainOptions& options,
                       const ProgressFn& progress) {
  QuantizeCheckpointOptions quantize;
  quantize.model_name_or_path = options.model_name_or_path;
  quantize.output_dir = folder;
  quantize.quantization = options.quantization;
  // The stamp is written with the checkpoint, whose folder appears only when it is complete.
  quantize.extra_files[kStamp] = FormatJson(SourceOf(options), 2) + "\n";
  QuantizeCheckpoint(context, quantize, progress);
}

TrainPlan PlanOnQuantizedBase(Context& context, const TrainPlan& plan, const std::string& folder) {
  try {
    // Vocabulary and context of the new base are the same.
    return ChangeBase(context, plan, folder);
  } catch (const Error& error) {  // InvalidInput would say that no files were changed
    throw Error(error.code() == ErrorCode::kInvalidInput ? ErrorCode::kRuntime : error.code(),
                fmt::format("{}\nthe quantized base in {} is complete", error.what(), folder));
  }
}

}  // namespace qlora
