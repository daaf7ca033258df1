// Export: what to read, what to merge, where to write.
#include <chrono>
#include <optional>

#include "base/check.h"
#include "convert/export_gguf.h"
#include "convert/export_hf.h"
#include "convert/verify.h"
#include "io/bnb.h"
#include "model/base_form.h"
#include "model/hub.h"
#include "model/setup.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

DType ParseOuttype(const std::string& name) {
  if (name == "f32") return DType::kF32;
  if (name == "f16") return DType::kF16;
  if (name == "bf16") return DType::kBF16;
  if (name == "q8_0") return DType::kQ8_0;
  ThrowInvalidInput("outtype expects f32, f16, bf16 or q8_0, found '{}'", name);
}

// Errors: InvalidInput when the output exists or cannot be made.
void CheckOutput(const ExportOptions& options) {
  if (options.output.empty()) ThrowInvalidInput("no output given: set output to a path");
  std::error_code ignored;
  const fs::path output = fs::absolute(options.output);
  const bool is_dir = options.format == "hf" || options.format == "bnb";
  if (fs::exists(output, ignored)) {
    if (fs::is_directory(output, ignored) != is_dir) {
      ThrowInvalidInput("output {} is {}; --format {} writes {}", options.output,
                        is_dir ? "a file" : "a directory", options.format,
                        is_dir ? "a directory" : "a file");
    }
    const bool empty = is_dir && fs::is_empty(output, ignored);
    if (!options.overwrite && !empty) {
      ThrowInvalidInput("output {} exists; give --overwrite to replace it", options.output);
    }
  } else if (!fs::is_directory(output.parent_path(), ignored)) {
    ThrowInvalidInput("output {}: there is no directory {}", options.output,
                      output.parent_path().string());
  }
}

// What the adapter is merged into.
BaseForm ChooseBase(const ExportOptions& options) {
  std::optional<BaseForm> trained;
  if (!options.adapter.empty()) trained = LoadBaseForm(options.adapter);
  if (options.merge_base == "nf4") {
    if (trained && trained->load_in_4bit) return *trained;
    return {};
  }
  BaseForm original;
  original.load_in_4bit = false;
  if (options.merge_base == "original") return original;
  return trained ? *trained : original;
}

std::uint64_t FileBytes(const fs::path& path) {
  std::error_code ignored;
  const auto size = fs::file_size(path, ignored);
  return ignored ? 0 : size;
}

}  // namespace

ExportReport Export(Context& context, const ExportOptions& options, const ProgressFn& progress) {
  const auto start = std::chrono::steady_clock::now();
  CheckOutput(options);
  const DType outtype = ParseOuttype(options.outtype);
  const fs::path model_dir = ResolveModelDir(options.model_name_or_path);
  const DecoderConfig config = LoadDecoderConfig(model_dir);
  std::optional<LoraAdapter> adapter;
  if (!options.adapter.empty()) adapter = LoraAdapter::Load(options.adapter, config);
  const LoraAdapter* lora = adapter ? &*adapter : nullptr;
  const std::string name = fs::weakly_canonical(model_dir).filename().string();

  ExportReport report;
  if (options.format == "gguf-adapter") {
    if (!adapter) ThrowInvalidInput("--format gguf-adapter needs --adapter");
    ExportGgufAdapter(config, *adapter, name, outtype, options.output);
    report.files = {options.output};
  } else {
    const BaseForm form = ChooseBase(options);
    LoadOptions load;
    load.load_in_4bit = form.load_in_4bit;
    load.quantize = form.ToQuantizeOptions();
    DecoderWeights weights = LoadWeights(context, model_dir, config, load);
    if (adapter) report.merge_base = form.load_in_4bit ? "nf4" : "original";
    if (options.format == "gguf") {
      const Tokenizer tokenizer = Tokenizer::Load(model_dir);
      ExportGgufModel(context, config, tokenizer, weights, lora, name, outtype, options.output,
                      progress);
      report.files = {options.output};
    } else {
      report.files =
          ExportHf(context, model_dir, config, weights, lora, outtype, options.output, progress);
    }
  }
  for (const std::string& file : report.files) report.bytes += FileBytes(file);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace qlora
