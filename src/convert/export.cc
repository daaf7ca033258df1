// Export: what to read, what to merge, where to write.
#include <fstream>
#include <optional>
#include <string_view>

#include "base/check.h"
#include "base/file.h"
#include "base/stopwatch.h"
#include "convert/checkpoint_dir.h"
#include "convert/convert_on.h"
#include "convert/export_gguf.h"
#include "convert/export_hf.h"
#include "convert/gguf_weights.h"
#include "convert/verify.h"
#include "io/hub.h"
#include "model/base_form.h"
#include "model/setup.h"
#include "tokenizer/tokenizer_config.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

bool IsGguf(const fs::path& file) {
  char magic[4] = {};
  std::ifstream(file, std::ios::binary).read(magic, sizeof magic);
  return std::string_view(magic, sizeof magic) == "GGUF";
}

// Errors: InvalidInput when the output exists or cannot be made.
void CheckOutput(const ExportOptions& options) {
  if (options.output.empty()) ThrowInvalidInput("no output given: set output to a path");
  std::error_code ignored;
  const fs::path output = fs::absolute(options.output);
  if (options.format == "hf") {
    std::vector<fs::path> sources = {ResolveModelDir(options.model_name_or_path)};
    if (!options.adapter.empty() && fs::exists(options.adapter)) sources.push_back(options.adapter);
    CheckCheckpointTarget(output, options.overwrite, sources);
    return;
  }
  if (fs::is_directory(output, ignored)) {
    ThrowInvalidInput("output {} is a directory; --format {} writes a file", options.output,
                      options.format);
  }
  if (fs::exists(output, ignored)) {
    if (!options.overwrite) {
      ThrowInvalidInput("output {} exists; give --overwrite to replace it", options.output);
    }
    if (!IsGguf(output)) {
      ThrowInvalidInput(
          "output {} is no GGUF file, and --overwrite replaces nothing else; choose "
          "another name",
          options.output);
    }
  } else if (!fs::is_directory(output.parent_path(), ignored)) {
    ThrowInvalidInput("output {}: there is no directory {}", options.output,
                      output.parent_path().string());
  }
  AtomicFile try_it(output);
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

DecoderWeights LoadBase(Context& context, Backend& backend, const fs::path& model_dir,
                        const DecoderConfig& config, const BaseForm& form,
                        const ProgressFn& progress) {
  LoadOptions load = LoadOptionsOf(form);
  load.progress = progress;
  return LoadWeights(context, backend, model_dir, config, load);
}

// The last part of a path or of org/name@revision.
std::string NameOf(std::string model) {
  model = model.substr(0, model.find('@'));
  while (model.size() > 1 && model.back() == '/') model.pop_back();
  return fs::absolute(model).lexically_normal().filename().string();
}

std::uint64_t BytesOnDisk(const fs::path& path) {
  std::error_code ignored;
  const auto size = fs::file_size(path, ignored);
  return ignored ? 0 : size;
}

}  // namespace

ExportReport Export(Context& context, const ExportOptions& options, const ProgressFn& progress) {
  return ExportOn(context, BackendsOf(ParseDevice(options.device)), options, progress);
}

ExportReport ExportOn(Context& context, const BackendMaker& make_backend,
                      const ExportOptions& options, const ProgressFn& progress) {
  const Stopwatch watch;
  CheckOutput(options);
  const DType outtype = ParseOuttype(options.outtype);
  const fs::path model_dir = ResolveModelDir(options.model_name_or_path);
  const DecoderConfig config = LoadDecoderConfig(model_dir);
  const std::unique_ptr<Backend> backend = make_backend(context, DType::kF32);
  Memory& memory = backend->memory();
  std::optional<LoraAdapter> adapter;
  if (!options.adapter.empty()) adapter = LoraAdapter::Load(options.adapter, config, memory);
  LoraAdapter* lora = adapter ? &*adapter : nullptr;
  const std::string name = NameOf(options.model_name_or_path);

  const bool adapter_only = options.format == "gguf-adapter";
  if (adapter_only && !adapter) ThrowInvalidInput("--format gguf-adapter needs --adapter");
  if (adapter_only && !adapter->modules().empty()) {
    ThrowInvalidInput(
        "{} holds the whole '{}', which a GGUF adapter cannot; merge it into the model: --format "
        "gguf",
        options.adapter, adapter->modules().front().name);
  }
  if (adapter_only && adapter->config().use_dora) {
    ThrowInvalidInput(
        "{} is a DoRA adapter, which a GGUF adapter cannot hold; merge it into the model: --format "
        "gguf",
        options.adapter);
  }

  const BaseForm form = ChooseBase(options);
  DecoderWeights weights;
  if (!adapter_only || options.verify) {
    weights = LoadBase(context, *backend, model_dir, config, form, progress);
  }
  if (adapter && !adapter_only) {
    weights.embed = EmbeddingOf(weights, &*adapter);
    weights.head = HeadOf(weights, &*adapter);
  }
  DecoderConfig written_config = config;
  written_config.tie_word_embeddings = weights.head.data == weights.embed.data;
  if (options.merge_base == "original" && weights.sizes.stored_4bit) {
    ThrowInvalidInput(
        "{} holds its linears in 4 bits only; --merge-base original needs the checkpoint that they "
        "were quantized from",
        model_dir.string());
  }
  ExportReport report;
  report.files = {options.output};
  if (adapter_only) {
    ExportGgufAdapter(config, *adapter, name, outtype, options.output);
  } else if (options.format == "gguf") {
    ExportGgufModel(context, memory, config, Tokenizer::Load(model_dir, options.adapter), weights,
                    lora, name, outtype, options.output, progress);
  } else {
    const fs::path kept = fs::path(options.adapter) / kChatTemplateFile;
    const std::string chat_template = adapter && fs::exists(kept) ? ReadTextFile(kept) : "";
    report.files = ExportHf(context, memory, model_dir, weights, lora, outtype, options.output,
                            chat_template, progress);
  }
  if (adapter && !adapter_only) {
    const bool quantized = form.load_in_4bit || weights.sizes.stored_4bit;
    report.merge_base = quantized ? "nf4" : "original";
  }

  if (options.on_written) options.on_written();
  if (options.verify) {
    const ModelForm source{weights, lora};
    Divergence divergence;
    try {
      if (adapter_only) {
        LoraAdapter written = LoraAdapter::Load(options.adapter, config, memory);
        LoadGgufAdapter(options.output, config, written);
        divergence = Compare(*backend, config, source, {weights, &written});
      } else {
        BaseForm dense;
        dense.load_in_4bit = false;
        const DecoderWeights written =
            options.format == "gguf"
                ? LoadGgufWeights(options.output, written_config, memory)
                : LoadBase(context, *backend, options.output, written_config, dense, progress);
        divergence = Compare(*backend, config, source, {written, nullptr});
      }
    } catch (const Error& error) {  // InvalidInput would say that nothing was written
      ThrowRuntime("{} was written, but could not be verified: {}", options.output, error.what());
    }
    report.verified = true;
    report.mean_logprob_difference = divergence.mean;
    report.max_logprob_difference = divergence.max;
  }
  for (const std::string& file : report.files) report.bytes += BytesOnDisk(file);
  report.seconds = watch.seconds();
  return report;
}

}  // namespace qlora
