// Export: reads the model, merges the adapter, writes the output.
#include "qlora/export.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <optional>
#include <string_view>

#include "backend/backend_factory.h"
#include "base/check.h"
#include "base/file.h"
#include "base/stopwatch.h"
#include "base/text.h"
#include "convert/export_gguf.h"
#include "convert/export_hf.h"
#include "convert/gguf_mix.h"
#include "convert/gguf_weights.h"
#include "convert/imatrix.h"
#include "convert/model_folder.h"
#include "convert/modelfile.h"
#include "convert/verify.h"
#include "hub/hub_adapter.h"
#include "hub/hub_cache.h"
#include "model/base_record.h"
#include "tokenizer/adapter_files.h"
#include "tokenizer/chat_template_files.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

bool IsGguf(const fs::path& file) {
  // Zeros where the file is shorter, which no magic number equals.
  char magic[4] = {};
  std::ifstream(file, std::ios::binary).read(magic, sizeof magic);
  return std::string_view(magic, sizeof magic) == "GGUF";
}

// Refuses a name that suggests a format other than the written one.
void CheckName(const ExportOptions& options) {
  constexpr auto kCheckpointFiles =
      std::to_array<std::string_view>({".safetensors", ".bin", ".pt", ".pth", ".ckpt"});
  const std::string extension = LowerCase(fs::path(options.output).extension().string());
  const bool is_checkpoint = std::find(kCheckpointFiles.begin(), kCheckpointFiles.end(),
                                       extension) != kCheckpointFiles.end();
  if (options.format == "hf" && (is_checkpoint || extension == ".gguf")) {
    ThrowInvalidInput("output {}: --format hf writes a folder; choose a name without {}",
                      options.output, extension);
  }
  if (options.format != "hf" && is_checkpoint) {
    ThrowInvalidInput(
        "output {}: --format {} writes a GGUF file; choose a name that ends in .gguf, or write a "
        "merged checkpoint in safetensors: --format hf and the name of a folder",
        options.output, options.format);
  }
}

// Errors: InvalidInput when the output exists or cannot be made.
void CheckOutput(const ExportOptions& options) {
  if (options.output.empty()) ThrowInvalidInput("no output given: set output to a path");
  CheckName(options);
  std::error_code ignored;
  const fs::path output = fs::absolute(options.output);
  if (options.format == "hf") {
    // The output must not be one of the sources: replacing a folder removes it before the new one
    // is complete.
    std::vector<fs::path> sources = {ResolveModelFolder(options.model_name_or_path)};
    if (!options.adapter.empty() && fs::exists(options.adapter)) sources.push_back(options.adapter);
    CheckModelFolder(options.output, options.overwrite, sources);
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

// Chooses the base that the adapter is merged into.
BaseRecord ChooseBase(const ExportOptions& options) {
  std::optional<BaseRecord> trained;
  if (!options.adapter.empty()) trained = LoadBaseRecord(options.adapter);
  if (options.merge_base == "nf4") {
    if (trained && trained->load_in_4bit) return *trained;
    return {};
  }
  BaseRecord original;
  original.load_in_4bit = false;
  // An adapter has learned to correct the error of the 4-bit weights that it was trained on. Merged
  // into the 16-bit weights, it corrects an error that is not there; that is done on request only.
  if (options.merge_base == "original") return original;
  return trained ? *trained : original;
}

// Returns the last part of a path or of org/name@revision.
std::string NameOf(std::string model) {
  model = model.substr(0, model.find('@'));
  while (model.size() > 1 && model.back() == '/') model.pop_back();
  return fs::absolute(model).lexically_normal().filename().string();
}

// Returns org/name of a model that was found in the cache of the hub; "" of a folder or a file.
std::string RepositoryOf(const std::string& model) {
  return fs::exists(model) ? "" : ParseHubRepository(model).name;
}

// Returns the greatest mean difference of log-probabilities that is expected of a file. Blocks of
// few bits change those of a small model by 0.4 (Q4_K_M) to 1 (Q2_K).
double MostExpected(const GgufFileType& file) {
  if (BitsOf(file) >= 8) return MostExpectedMean(file.base);
  return BitsOf(file) >= 4 ? 2 : 4;
}

std::uint64_t BytesOnDisk(const fs::path& path) {
  std::error_code ignored;
  const auto size = fs::file_size(path, ignored);
  return ignored ? 0 : size;
}

// One export: the model, the adapter and the output.
class Exporter {
 public:
  Exporter(Context& context, Backend& backend, const ExportOptions& options,
           const ProgressFn& progress)
      : context_(context),
        backend_(backend),
        options_(options),
        progress_(progress),
        model_dir_(ResolveModelDir(options.model_name_or_path)),
        config_(LoadDecoderConfig(model_dir_)),
        target_{.path = options.output,
                .mode = options.overwrite ? OpenMode::kReplace : OpenMode::kCreate} {
    CheckOuttype();
    if (!options.adapter.empty()) {
      adapter_ = LoraAdapter::Load(options.adapter, config_, backend.memory());
    }
  }

  ExportReport Run() {
    if (adapter_only()) CheckAdapterOnly();
    const BaseRecord base = ChooseBase(options_);
    // A GGUF adapter holds nothing of the model, whose weights are then needed for the comparison
    // alone.
    if (!adapter_only() || options_.verify) LoadSource(base);
    file_type_ = &ChooseFileType();
    target_.outtype = file_type_->base;
    ExportReport report;
    if (adapter_ && !adapter_only()) {
      notes_.push_back(NoteOtherTokenizer(model_dir_, options_.adapter));
      notes_.push_back(adapter_->note());
      std::erase(notes_, "");
      config_.vocab_size = adapter_->vocab_size();
    }
    report.files = Write(report);
    if (adapter_ && !adapter_only()) {
      const bool quantized = base.load_in_4bit || weights_.sizes.stored_4bit;
      report.merge_base = quantized ? "nf4" : "original";
    }
    // Before the comparison, which may fail: the files are written all the same.
    if (options_.on_written) options_.on_written();
    report.notes = notes_;
    if (options_.verify) Verify(report);
    for (const std::string& file : report.files) report.bytes += BytesOnDisk(file);
    return report;
  }

 private:
  bool adapter_only() const { return options_.format == "gguf-adapter"; }
  LoraAdapter* adapter() { return adapter_ ? &*adapter_ : nullptr; }

  // Errors: InvalidInput for a type that the format cannot hold or that needs what is not given.
  void CheckOuttype() const {
    if (!options_.write_imatrix.empty() && options_.imatrix.empty()) {
      ThrowInvalidInput("write_imatrix needs imatrix: a text or data to make the matrix from");
    }
    if (options_.imatrix_tokens < 1) {
      ThrowInvalidInput("imatrix_tokens must be positive, found {}", options_.imatrix_tokens);
    }
    if (options_.modelfile && options_.format != "gguf") {
      ThrowInvalidInput("--format {} has no Modelfile: it names a GGUF model", options_.format);
    }
    if (options_.modelfile && !options_.overwrite && Exists(ModelfilePath())) {
      ThrowInvalidInput("{} exists; give --overwrite to replace it", ModelfilePath().string());
    }
    if (!options_.imatrix.empty() && options_.format != "gguf") {
      ThrowInvalidInput("--format {} has no use for imatrix, which is for types of blocks in GGUF",
                        options_.format);
    }
    if (options_.outtype == "auto") return;
    const GgufFileType& file = ParseOuttype(options_.outtype);
    if (!file.base.is_blocks() && !options_.imatrix.empty() && options_.write_imatrix.empty()) {
      ThrowInvalidInput("imatrix has no effect on {}; choose a type of fewer bits", file.name);
    }
    if (!file.base.is_blocks()) return;
    const bool is_model = options_.format == "gguf";
    if (!is_model && !(adapter_only() && BitsOf(file) >= 8)) {
      ThrowInvalidInput("--format {} cannot be written as {}: choose f32, f16{} bf16",
                        options_.format, file.name, adapter_only() ? ", q8_0 or" : " or");
    }
    if (file.needs_importance && options_.imatrix.empty()) {
      ThrowInvalidInput(
          "{} has too few bits for a rounding that weighs all columns alike; give --imatrix a "
          "text like those that the model shall write, or an importance matrix of llama.cpp",
          file.name);
    }
  }

  // The type of the output; auto: the nearest to the form in which the model is stored.
  const GgufFileType& ChooseFileType() const {
    if (options_.outtype != "auto") return ParseOuttype(options_.outtype);
    if (adapter_only()) return ParseOuttype("f16");
    if (!fs::is_directory(model_dir_) && options_.format == "gguf") {
      const GgufMetadata metadata = ReadGgufMetadata(model_dir_);
      const GgufValue* number = metadata.Find("general.file_type");
      const auto* stored = number == nullptr ? nullptr : std::get_if<std::uint32_t>(number);
      for (const GgufFileType& file : GgufFileTypes()) {
        if (stored != nullptr && file.number == *stored) return file;
      }
    }
    // The dtype of the embedding, which is dense in models of 4 bits too.
    return ParseOuttype(weights_.embed.dense.dtype == DType::kBF16 ? "bf16" : "f16");
  }

  // Errors: InvalidInput when there is no adapter, or a GGUF adapter cannot hold this one.
  void CheckAdapterOnly() const {
    if (!adapter_) ThrowInvalidInput("--format gguf-adapter needs --adapter");
    if (!adapter_->modules().empty()) {
      ThrowInvalidInput(
          "{} changes '{}', which a GGUF adapter cannot hold; merge it into the model: --format "
          "gguf",
          options_.adapter, adapter_->modules().front().name);
    }
    if (adapter_->config().use_dora) {
      ThrowInvalidInput(
          "{} is a DoRA adapter, which a GGUF adapter cannot hold; merge it into the model: "
          "--format gguf",
          options_.adapter);
    }
  }

  DecoderWeights LoadBase(const fs::path& dir, const DecoderConfig& config,
                          const BaseRecord& base) {
    LoadOptions load = LoadOptionsOf(base);
    load.progress = progress_;
    return LoadWeights(context_, backend_, dir, config, load);
  }

  // Loads the weights of the model, with whole modules of the adapter in the place of the model's.
  void LoadSource(const BaseRecord& base) {
    weights_ = LoadBase(model_dir_, config_, base);
    notes_ = weights_.sizes.notes;
    if (options_.merge_base == "original" && weights_.sizes.stored_4bit) {
      ThrowInvalidInput(
          "{} holds its linears in 4 bits only; --merge-base original needs the checkpoint that "
          "they were quantized from",
          model_dir_.string());
    }
    if (adapter_only() || !adapter_) return;
    adapter()->FoldTables(weights_);
    weights_.embed = EmbeddingOf(weights_.embed, adapter());
    weights_.head = HeadOf(weights_, adapter());
  }

  // Returns the files that were written.
  std::vector<std::string> Write(ExportReport& report) {
    if (options_.format == "hf") return WriteHf();
    const std::string name = NameOf(options_.model_name_or_path);
    if (adapter_only()) {
      ExportGgufAdapter(context_, config_, *adapter_, name,
                        RepositoryOf(options_.model_name_or_path), target_);
      return {options_.output};
    }
    const std::optional<ImportanceMatrix> importance = Importance();
    const Tokenizer tokenizer = Tokenizer::Load(model_dir_, options_.adapter, TemplateUse::kShow);
    ExportGgufModel(context_, backend_.memory(),
                    {.config = config_,
                     .tokenizer = tokenizer,
                     .weights = weights_,
                     .adapter = adapter(),
                     .name = name,
                     .repository = RepositoryOf(options_.model_name_or_path),
                     .folder = model_dir_,
                     .file = *file_type_,
                     .importance = importance ? &*importance : nullptr,
                     .importance_file = options_.imatrix,
                     .check = [&](const auto& kept) { CheckKept(kept, report); }},
                    target_, progress_, notes_);
    if (!options_.modelfile) return {options_.output};
    const fs::path modelfile = ModelfilePath();
    AtomicFile file(modelfile, target_.mode);
    file.Write(Modelfile(options_.output, StopTexts(tokenizer), config_.max_position_embeddings));
    file.Commit();
    return {options_.output, modelfile.string()};
  }

  fs::path ModelfilePath() const { return fs::path(options_.output).replace_filename("Modelfile"); }

  // Reads the importance matrix, or makes it, and writes it where that is asked for.
  std::optional<ImportanceMatrix> Importance() {
    if (options_.imatrix.empty()) return std::nullopt;
    const bool is_file = IsImatrixFile(options_.imatrix);
    ImportanceMatrix matrix =
        is_file ? ReadImatrix(options_.imatrix)
                : CollectImatrix(context_, backend_, model_dir_, LoadDecoderConfig(model_dir_),
                                 weights_, options_.imatrix, options_.imatrix_tokens);
    if (!options_.write_imatrix.empty()) {
      WriteImatrix(matrix, options_.write_imatrix, target_.mode);
    }
    return matrix;
  }

  // Reports what rounding to blocks leaves of the adapter. Errors: InvalidInput where it leaves
  // little, and nobody asked for that.
  void CheckKept(const std::vector<KeptChange>& kept, ExportReport& report) {
    if (kept.empty()) return;
    KeptChange all;
    for (const KeptChange& tensor : kept) {
      all.wanted += tensor.wanted;
      all.achieved += tensor.achieved;
      report.kept_by_tensor.push_back({tensor.tensor, tensor.share()});
    }
    report.kept_change = all.share();
    constexpr double kWarnBelow = 0.9;
    constexpr double kRefuseBelow = 0.7;
    // Negated, so that NaN counts as too little.
    if (all.share() >= kWarnBelow) return;
    const std::string found =
        fmt::format("rounding to {} keeps {:.0f} % of the adapter's change of the weights",
                    file_type_->name, 100 * all.share());
    constexpr const char* kAdvice =
        "merge into the 16-bit model, choose an outtype of more bits, or keep the adapter apart: "
        "--format gguf-adapter";
    if (!(all.share() >= kRefuseBelow) && !options_.force) {
      ThrowInvalidInput("{}: {}; {}; --force writes it all the same", options_.output, found,
                        kAdvice);
    }
    notes_.push_back(fmt::format("{}; {}", found, kAdvice));
  }

  std::vector<std::string> WriteHf() {
    MergedPrompts prompts;
    const fs::path kept = fs::path(options_.adapter) / kChatTemplateFile;
    const auto base = adapter_ ? LoadBaseRecord(options_.adapter) : std::nullopt;
    if (adapter_ && fs::exists(kept)) {
      prompts.chat_template = ReadTextFile(kept);
    } else if (adapter_ && fs::exists(model_dir_ / kChatTemplateFile)) {
      // The template of the adapter may be in its tokenizer_config.json, over which a file wins.
      const Tokenizer tokenizer = Tokenizer::Load(model_dir_, options_.adapter);
      const auto& templates = tokenizer.spec().chat_templates;
      if (!templates.empty()) prompts.chat_template = templates.front().text;
    }
    if (adapter_) {
      prompts.record = base ? base->prompts : PromptRecord{};
      prompts.tokenizer_dir = options_.adapter;
    }
    std::vector<std::string> files;
    NamingTarget(options_.output, [&] {
      files = ExportHf(context_, backend_.memory(), model_dir_, weights_, adapter(), target_,
                       prompts, progress_);
    });
    return files;
  }

  // Compares the written model with the source. Errors: Runtime, since InvalidInput would say that
  // nothing was written.
  void Verify(ExportReport& report) {
    Divergence divergence;
    try {
      divergence = adapter_only() ? CompareAdapter() : CompareModel();
    } catch (const Error& error) {
      ThrowRuntime("{} was written, but could not be verified: {}", options_.output, error.what());
    }
    const double most = MostExpected(*file_type_);
    // Negated, so that NaN counts as too much.
    if (!(divergence.mean <= most)) {
      ThrowRuntime(
          "{} was written, but its log-probabilities differ from those of the source by {:.2e} on "
          "average, where at most {:.0e} is expected of {}; do not use the output",
          options_.output, divergence.mean, most, options_.outtype);
    }
    report.verified = true;
    report.mean_logprob_difference = divergence.mean;
    report.max_logprob_difference = divergence.max;
  }

  Divergence CompareAdapter() {
    // Loaded for its shapes; LoadGgufAdapter replaces the values by the values of the file.
    LoraAdapter written = LoraAdapter::Load(options_.adapter, config_, backend_.memory());
    LoadGgufAdapter(options_.output, config_, written);
    return Compare(backend_, config_, {weights_, adapter()}, {weights_, &written});
  }

  Divergence CompareModel() {
    DecoderConfig config = config_;
    // An adapter that trained the head has untied it; config.json of the model does not count.
    config.tie_word_embeddings = weights_.is_tied();
    BaseRecord dense;
    dense.load_in_4bit = false;
    // Reports of progress, without which a signal would not end the comparison.
    const DecoderWeights written =
        options_.format == "gguf"
            ? LoadGgufWeights(options_.output, config, backend_.memory(), progress_)
            : LoadBase(options_.output, config, dense);
    return Compare(backend_, config_, {weights_, adapter()}, {written, nullptr});
  }

  Context& context_;
  Backend& backend_;
  const ExportOptions& options_;
  const ProgressFn& progress_;
  fs::path model_dir_;
  DecoderConfig config_;
  ExportTarget target_;
  const GgufFileType* file_type_ = nullptr;
  std::optional<LoraAdapter> adapter_;
  DecoderWeights weights_;
  std::vector<std::string> notes_;
};

}  // namespace

ExportReport Export(Context& context, const ExportOptions& options, const ProgressFn& progress) {
  const Stopwatch watch;
  const BackendFactory::Ptr backends = BackendFactory::ForJob(context, options.device);
  ExportOptions resolved = options;
  resolved.adapter = ResolveAdapterDir(options.adapter);
  CheckOutput(resolved);
  // Products in float32: the comparison shall measure the output, not the backend.
  const std::unique_ptr<Backend> backend = backends->Make(context, DType::kF32);
  ExportReport report = Exporter(context, *backend, resolved, progress).Run();
  report.seconds = watch.seconds();
  return report;
}

}  // namespace qlora
