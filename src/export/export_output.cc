#include "export/export_output.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>
#include <vector>

#include "adapter/mlx_adapter.h"
#include "base/check.h"
#include "base/file.h"
#include "base/text.h"
#include "convert/model_folder.h"
#include "export/modelfile.h"
#include "gguf/gguf.h"
#include "gguf/gguf_parts.h"
#include "hub/hub_cache.h"
#include "io/gguf_path.h"
#include "io/peft/peft.h"

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
  RecoverFolder(output);
  std::error_code ignored;
  if (fs::exists(output, ignored) && !fs::is_directory(output, ignored)) {
    ThrowInvalidInput("output {} is a file; --format {} writes a folder", options.output,
                      options.format);
  }
  if (fs::exists(output, ignored) && !fs::is_empty(output, ignored)) {
    if (!options.overwrite) {
      ThrowInvalidInput("output {} exists; give --overwrite to replace it", options.output);
    }
    for (const AdapterSource& adapter : adapters.sources) {
      if (fs::equivalent(output, adapter.path, ignored)) {
        ThrowInvalidInput("output {} is the adapter itself; choose another name", options.output);
      }
    }
    if (fs::exists(output / "run_info.json", ignored)) {
      ThrowInvalidInput(
          "output {} is the folder of a training, which --overwrite does not "
          "replace; choose another name",
          options.output);
    }
    const fs::path weights =
        output / (options.format == "mlx-adapter" ? kMlxWeights : kPeftWeights);
    if (!fs::exists(output / kAdapterConfig, ignored) || !fs::exists(weights, ignored)) {
      ThrowInvalidInput(
          "output {} holds no {}, and --overwrite replaces only an adapter of the same format; "
          "choose another name",
          options.output, weights.filename().string());
    }
  }
  // A folder that cannot be made is found before the model is loaded.
  NewModelFolder try_it(output, OpenMode::kReplace);
}

// True where both name one file, which need not exist.
bool IsSame(const fs::path& a, const fs::path& b) {
  std::error_code ignored;
  return fs::equivalent(a, b, ignored) || fs::weakly_canonical(fs::absolute(a), ignored) ==
                                              fs::weakly_canonical(fs::absolute(b), ignored);
}

// Refuses a file that the export reads.
void CheckIsNoSource(const ExportOptions& options, const AdapterSet& adapters) {
  const fs::path model = ResolveModelDir(options.model_name_or_path);
  if (!fs::is_directory(model)) {
    for (const fs::path& part : FindGgufParts(model).files) {
      if (!IsSame(options.output, part)) continue;
      ThrowInvalidInput("output {} is the model itself; choose another name", options.output);
    }
  }
  for (const AdapterSource& adapter : adapters.sources) {
    if (!IsSame(options.output, adapter.path)) continue;
    ThrowInvalidInput("output {} is the adapter itself; choose another name", options.output);
  }
  if (!options.imatrix.empty() && IsSame(options.output, options.imatrix)) {
    ThrowInvalidInput("output {} is the importance matrix; choose another name", options.output);
  }
}

bool IsImportanceMatrix(const fs::path& file) {
  if (!HasGgufMagic(file)) return false;
  const GgufMetadata metadata = ReadGgufMetadata(file);
  const GgufValue* type = metadata.Find(kGgufType);
  const auto* name = type == nullptr ? nullptr : std::get_if<std::string>(type);
  return name != nullptr && *name == "imatrix";
}

void CheckWrittenImatrix(const ExportOptions& options) {
  const std::string& path = options.write_imatrix;
  if (options.imatrix.empty()) {
    ThrowInvalidInput("write_imatrix needs imatrix: a text or data to make the matrix from");
  }
  if (IsSame(path, options.output)) {
    ThrowInvalidInput("write_imatrix {} is the output; choose another name", path);
  }
  if (Exists(path)) {
    if (!options.overwrite) {
      ThrowInvalidInput("write_imatrix {} exists; give --overwrite to replace it", path);
    }
    if (!IsImportanceMatrix(path)) {
      ThrowInvalidInput(
          "write_imatrix {} is no importance matrix in GGUF, and --overwrite replaces nothing "
          "else; choose another name",
          path);
    }
  }
  // Found before the model runs over the text.
  AtomicFile try_it(path, options.overwrite ? OpenMode::kReplace : OpenMode::kCreate);
}

void CheckModelfile(const ExportOptions& options) {
  const fs::path modelfile = ModelfileOf(options.output);
  if (options.format != "gguf" && options.format != "gguf-adapter") {
    ThrowInvalidInput("--format {} has no Modelfile: it names a GGUF model", options.format);
  }
  const auto gguf = FindGguf(ResolveModelDir(options.model_name_or_path));
  if (options.format == "gguf-adapter" && !gguf) {
    ThrowInvalidInput(
        "a Modelfile of an adapter names the GGUF file of its model, and {} is none; export the "
        "model to GGUF and give that file as the model",
        options.model_name_or_path);
  }
  if (IsSame(modelfile, options.output)) {
    ThrowInvalidInput(
        "output {} is the name of the Modelfile itself; choose a name that ends in .gguf",
        options.output);
  }
  const fs::path folder = fs::absolute(modelfile).parent_path();
  PathInModelfile(folder, options.output);
  if (options.format == "gguf-adapter") PathInModelfile(folder, *gguf);
  if (!Exists(modelfile)) return;
  if (!options.overwrite) {
    ThrowInvalidInput("{} exists; give --overwrite to replace it", modelfile.string());
  }
  if (!IsModelfileOf(ReadTextFile(modelfile), options.output)) {
    ThrowInvalidInput(
        "{} is of another model, or was written or changed by hand, which --overwrite does not "
        "replace; move it, or choose another folder",
        modelfile.string());
  }
}

}  // namespace

void CheckExportOutput(const ExportOptions& options, const AdapterSet& adapters) {
  if (options.output.empty()) ThrowInvalidInput("no output given: set output to a path");
  CheckName(options);
  if (!options.write_imatrix.empty()) CheckWrittenImatrix(options);
  if (options.modelfile) CheckModelfile(options);
  std::error_code ignored;
  const fs::path output = fs::absolute(options.output);
  if (options.format == "hf") {
    // The output must not be one of the sources: replacing a folder removes it before the new one
    // is complete.
    std::vector<fs::path> sources = {ResolveModelDir(options.model_name_or_path)};
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
    CheckIsNoSource(options, adapters);
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
