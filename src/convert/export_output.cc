#include "convert/export_output.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/file.h"
#include "base/text.h"
#include "convert/model_folder.h"
#include "hub/hub_cache.h"
#include "io/gguf_path.h"
#include "io/peft.h"
#include "model/mlx_adapter.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

bool IsFolder(const ExportOptions& options) {
  return options.format == "hf" || options.format == "peft-adapter" ||
         options.format == "mlx-adapter";
}

// Refuses a name that suggests a format other than the written one.
void CheckName(const ExportOptions& options) {
  constexpr auto kCheckpointFiles =
      std::to_array<std::string_view>({".safetensors", ".bin", ".pt", ".pth", ".ckpt"});
  const std::string extension = LowerCase(fs::path(options.output).extension().string());
  const bool is_checkpoint = std::find(kCheckpointFiles.begin(), kCheckpointFiles.end(),
                                       extension) != kCheckpointFiles.end();
  if (IsFolder(options) && (is_checkpoint || extension == ".gguf")) {
    ThrowInvalidInput("output {}: --format {} writes a folder; choose a name without {}",
                      options.output, options.format, extension);
  }
  if (!IsFolder(options) && is_checkpoint) {
    ThrowInvalidInput(
        "output {}: --format {} writes a GGUF file; choose a name that ends in .gguf, or write a "
        "merged checkpoint in safetensors: --format hf and the name of a folder",
        options.output, options.format);
  }
}

// A new or empty folder, or one of an adapter of the same format that may be replaced.
void CheckAdapterFolder(const ExportOptions& options, const AdapterSet& adapters,
                        const fs::path& output) {
  std::error_code ignored;
  if (!fs::exists(output, ignored) || fs::is_empty(output, ignored)) return;
  if (!options.overwrite) {
    ThrowInvalidInput("output {} exists; give --overwrite to replace it", options.output);
  }
  for (const AdapterSource& adapter : adapters.sources) {
    if (fs::equivalent(output, adapter.path, ignored)) {
      ThrowInvalidInput("output {} is the adapter itself; choose another name", options.output);
    }
  }
  const bool mlx = options.format == "mlx-adapter";
  const fs::path weights = output / (mlx ? kMlxWeights : kPeftWeights);
  if (fs::exists(output / kAdapterConfig, ignored) && fs::exists(weights, ignored)) return;
  ThrowInvalidInput(
      "output {} holds no {}, and --overwrite replaces only an adapter of the same format; choose "
      "another name",
      options.output, weights.filename().string());
}

}  // namespace

void CheckExportOutput(const ExportOptions& options, const AdapterSet& adapters) {
  if (options.output.empty()) ThrowInvalidInput("no output given: set output to a path");
  CheckName(options);
  std::error_code ignored;
  const fs::path output = fs::absolute(options.output);
  if (options.format == "hf") {
    // The output must not be one of the sources: replacing a folder removes it before the new one
    // is complete.
    std::vector<fs::path> sources = {
        ResolveModelFolder(options.model_name_or_path, "export --format hf")};
    for (const AdapterSource& adapter : adapters.sources) {
      if (fs::exists(adapter.path)) sources.emplace_back(adapter.path);
    }
    CheckModelFolder(options.output, options.overwrite, sources);
    return;
  }
  if (IsFolder(options)) return CheckAdapterFolder(options, adapters, output);
  if (fs::is_directory(output, ignored)) {
    ThrowInvalidInput("output {} is a directory; --format {} writes a file", options.output,
                      options.format);
  }
  if (fs::exists(output, ignored)) {
    if (!options.overwrite) {
      ThrowInvalidInput("output {} exists; give --overwrite to replace it", options.output);
    }
    if (fs::equivalent(output, ResolveModelDir(options.model_name_or_path), ignored)) {
      ThrowInvalidInput("output {} is the model itself; choose another name", options.output);
    }
    if (!HasGgufMagic(output)) {
      ThrowInvalidInput(
          "output {} is not a GGUF file, and --overwrite replaces nothing else; choose "
          "another name",
          options.output);
    }
  } else if (!fs::is_directory(output.parent_path(), ignored)) {
    ThrowInvalidInput("output {}: there is no directory {}", options.output,
                      output.parent_path().string());
  }
  // Makes a file in the folder of the output and removes it again: a folder that cannot be written
  // to is found before minutes of loading.
  AtomicFile try_it(output, options.overwrite ? OpenMode::kReplace : OpenMode::kCreate);
}

}  // namespace qlora
