// Export: reads the model, merges the adapter, writes the output.
#include "qlora/export.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "adapter/combined_adapter.h"
#include "backend/backend_factory.h"
#include "base/check.h"
#include "base/file.h"
#include "base/stopwatch.h"
#include "base/text.h"
#include "convert/config_json.h"
#include "convert/gguf_base.h"
#include "convert/model_folder.h"
#include "convert/verify.h"
#include "convert/verify_output.h"
#include "convert/verify_report.h"
#include "export/export_adapter.h"
#include "export/export_checks.h"
#include "export/export_decision.h"
#include "export/export_hf.h"
#include "export/export_output.h"
#include "export/gguf/export_gguf.h"
#include "export/gguf/export_gguf_adapter.h"
#include "export/gguf/gguf_decision_keys.h"
#include "export/gguf/gguf_limits.h"
#include "export/gguf/gguf_mix.h"
#include "export/gguf/gguf_plan.h"
#include "export/gguf/imatrix.h"
#include "export/modelfile.h"
#include "gguf/gguf.h"
#include "hub/hub_adapter.h"
#include "hub/hub_cache.h"
#include "inference/decision_source.h"
#include "io/gguf_path.h"
#include "io/json.h"
#include "model/base_record.h"
#include "model/checkpoint.h"
#include "model/gguf_source.h"
#include "tokenizer/adapter_files.h"
#include "tokenizer/chat_template_files.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

// Chooses the base that the adapter is merged into.
BaseRecord ChooseBase(const ExportOptions& options, const AdapterSet& adapters) {
  std::optional<BaseRecord> trained;
  if (!adapters.empty()) trained = LoadBaseRecord(adapters.first());
  if (options.merge_base == "nf4") {
    if (trained && trained->load_in_4bit) return *trained;
    return {};
  }
  BaseRecord original;
  original.load_in_4bit = false;
  if (options.merge_base == "original") return original;
  // An adapter has learned to correct the error of the 4-bit weights that it was trained on. Merged
  // into the 16-bit weights, it corrects an error that is not there. Rounding the sum to few bits
  // loses more (docs/gguf.md).
  const GgufFileType* type = FindGgufFileType(options.outtype);
  const bool rounds = options.format == "gguf" && type != nullptr && BitsOf(*type) < 8;
  return trained && !rounds ? *trained : original;
}

// Returns the last part of a path or of org/name@revision.
std::string NameOf(std::string model) {
  model = model.substr(0, model.find('@'));
  while (model.size() > 1 && model.back() == '/') model.pop_back();
  return fs::absolute(model).lexically_normal().filename().string();
}

// Returns org/name of a model that was found in the cache of the hub; "" of a folder or file.
std::string RepositoryOf(const std::string& model) {
  return fs::exists(model) ? "" : ParseHubRepository(model).name;
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
           const AdapterSet& adapters, const ProgressFn& progress)
      : context_(context),
        backend_(backend),
        options_(options),
        adapters_(adapters),
        progress_(progress),
        model_dir_(ResolveModelDir(options.model_name_or_path)),
        config_(options.format == "hf" ? LoadForCheckpoint(model_dir_)
                                       : LoadDecoderConfig(model_dir_)),
        target_{.path = options.output,
                .mode = options.overwrite ? OpenMode::kReplace : OpenMode::kCreate} {
    // A GGUF file may hold what no checkpoint can: found before minutes of work, as files that are
    // needed late are read before.
    if (options.format == "hf") config_json_ = CheckpointConfig(model_dir_);
    verify_text_ = options.verify_text.empty() ? std::string(BuiltInText())
                                               : ReadTextFile(options.verify_text);
    if (adapters.empty()) return;
    if (writes_values()) {
      values_ = LoadAdapterValues(adapters, config_, progress_);
      adapter_ = ToLoraAdapter(values_, config_, backend.memory());
    } else {
      adapter_ = LoadAdapters(adapters, config_, backend.memory(), progress_);
    }
    table_changes_ = adapter_->changes();
  }

  ExportReport Run() {
    if (adapter_only()) CheckAdapterOnly();
    const BaseRecord base = ChooseBase(options_, adapters_);
    // An adapter holds nothing of the model, whose weights are then needed for the comparison
    // alone.
    const bool verifies = Verifies();
    if (!adapter_only() || verifies) LoadSource(base);
    if (options_.format.starts_with("gguf")) notes_.push_back(TakeGgufYarn(config_));
    std::erase(notes_, "");
    file_type_ = &ChooseFileType();
    target_.outtype = file_type_->base;
    ExportReport report;
    report.outtype = LowerCase(options_.outtype == "auto" ? file_type_->name : options_.outtype);
    if (adapter_) {
      notes_.insert(notes_.end(), adapter_->notes().begin(), adapter_->notes().end());
    }
    if (adapter_ && !adapter_only()) {
      notes_.push_back(NoteOtherTokenizer(model_dir_, adapters_.first()));
      std::erase(notes_, "");
      config_.vocab_size = adapter_->vocab_size();
    }
    if (adapter_ && !adapter_only()) {
      const bool quantized = base.load_in_4bit || weights_.sizes.stored_4bit;
      report.merge_base = quantized ? "nf4" : "original";
      if (!weights_.sizes.block_formats.empty()) report.merge_base = "blocks";
    }
    report.files = Write(report);
    RemoveVerifyReport(options_);
    // Before the comparison, which may fail: the files are written all the same.
    if (options_.on_written) options_.on_written();
    report.notes = notes_;
    if (verifies) Verify(report);
    for (const std::string& file : report.files) report.bytes += BytesOnDisk(file);
    return report;
  }

 private:
  bool adapter_only() const { return options_.format.ends_with("-adapter"); }
  // The adapter has whole norms, vectors or routers, which are in the weights already.
  bool replaces() const { return adapter_ && adapter_->replaced() != nullptr; }
  // The tensors of a GGUF file keep their types, whatever general.file_type says.
  bool keeps_types() const {
    return options_.outtype == "auto" && options_.format == "gguf" && FindGguf(model_dir_) &&
           !replaces();
  }
  // Adapters of PEFT and mlx-lm are written from their values.
  bool writes_values() const { return adapter_only() && options_.format != "gguf-adapter"; }
  LoraAdapter* adapter() { return adapter_ ? &*adapter_ : nullptr; }

  // The type of the output; auto: the nearest to the form in which the model is stored.
  const GgufFileType& ChooseFileType() const {
    if (options_.outtype != "auto") return ParseOuttype(options_.outtype);
    if (adapter_only()) return ParseOuttype(writes_values() ? "f32" : "f16");
    if (keeps_types()) {
      // A label: its tensors may have any types.
      const GgufMetadata metadata = ReadGgufMetadata(model_dir_);
      const GgufValue* number = metadata.Find("general.file_type");
      const auto* stored = number == nullptr ? nullptr : std::get_if<std::uint32_t>(number);
      for (const GgufFileType& file : GgufFileTypes()) {
        if (stored != nullptr && file.number == *stored) return file;
      }
    }
    // The type of the embedding, which is dense in models of 4 bits too.
    DType type = weights_.embed.dense.dtype;
    if (FindGguf(model_dir_)) {
      const TensorReader& reader = *weights_.reader;
      type = DenseTypeOf(reader.Find(EmbeddingName(reader))->dtype, config_);
    }
    return ParseOuttype(type == DType::kBF16 ? "bf16" : "f16");
  }

  // By default small models are verified, which takes seconds.
  bool Verifies() const {
    if (options_.verify != "auto") return options_.verify == "true";
    if (!options_.verify_text.empty()) return true;
    constexpr std::size_t kSmall = 1'000'000'000;
    std::size_t bytes = 0;
    const std::unique_ptr<TensorReader> reader = OpenStoredTensors(model_dir_);
    for (const TensorInfo& tensor : reader->tensors()) {
      bytes += BytesOf(tensor.dtype, tensor.elements());
    }
    return bytes < kSmall;
  }

  // Errors: InvalidInput when there is no adapter, or a GGUF adapter cannot hold this one.
  void CheckAdapterOnly() const {
    if (!adapter_) ThrowInvalidInput("--format {} needs --adapter", options_.format);
    if (writes_values()) return;
    if (adapter_->replaced() != nullptr) {
      ThrowInvalidInput(
          "{} brings '{}', which is not written in a GGUF adapter; merge it into the model: "
          "--format gguf",
          fmt::join(options_.adapter, ","), adapter_->replaced()->begin()->first);
    }
    CheckGgufAdapter(config_, *adapter_, table_changes_,
                     fmt::format("{}", fmt::join(options_.adapter, ",")));
    if (const auto gguf = FindGguf(model_dir_)) CheckFitsGguf(*gguf, config_, *adapter_);
  }

  DecoderWeights LoadBase(const fs::path& dir, const DecoderConfig& config,
                          const BaseRecord& base) {
    LoadOptions load = LoadOptionsOf(base);
    load.progress = progress_;
    if (adapter_) load.replaced = adapter_->replaced();
    return LoadWeights(context_, backend_, dir, config, load);
  }

  // The blocks of a GGUF file are the one base that there is.
  void CheckMergeBase() const {
    const std::vector<std::string>& formats = weights_.sizes.block_formats;
    if (formats.empty() || options_.merge_base == "auto") return;
    ThrowInvalidInput(
        "--merge-base {} has no meaning for {}, which holds its linears in blocks of {}; leave it "
        "out{}",
        options_.merge_base, model_dir_.string(), fmt::join(formats, ", "),
        IsPublishedForm() ? "" : ", or give the checkpoint that the file was made from");
  }

  // Loads the weights of the model, with whole modules of the adapter in the place of the model's.
  void LoadSource(const BaseRecord& base) {
    weights_ = LoadBase(model_dir_, config_, base);
    notes_ = weights_.sizes.notes;
    CheckMergeBase();
    if (options_.merge_base == "original" && weights_.sizes.stored_4bit) {
      ThrowInvalidInput(
          "{} holds its linears in 4 bits only; --merge-base original needs the checkpoint that "
          "they were quantized from",
          model_dir_.string());
    }
    if (!adapter_) return;
    adapter()->FoldTables(weights_);
    if (adapter_only()) return;
    weights_.embed = EmbeddingOf(weights_, adapter());
    weights_.head = HeadOf(weights_, adapter());
  }

  // The name of the model, and its repository on a hub.
  GgufSource Source() const {
    GgufSource source;
    if (const auto gguf = FindGguf(model_dir_)) source = GgufSourceOf(*OpenGguf(*gguf));
    if (source.name.empty()) source.name = NameOf(options_.model_name_or_path);
    if (source.repository.empty()) source.repository = RepositoryOf(options_.model_name_or_path);
    return source;
  }

  // Of the weights that all adapters were trained on; "" where they differ or are not recorded.
  std::string Fingerprint() const {
    const std::string first = TrainedFingerprint(adapters_.first());
    const bool same = std::ranges::all_of(adapters_.sources, [&](const AdapterSource& adapter) {
      return TrainedFingerprint(adapter.path) == first;
    });
    return same ? first : "";
  }

  // Returns the files that were written.
  std::vector<std::string> Write(ExportReport& report) {
    if (options_.format == "hf") return WriteHf();
    if (writes_values()) return WriteAdapterFolder();
    const GgufSource source = Source();
    const std::string& name = source.name;
    decision_ = DecisionToWrite(options_, adapters_, model_dir_);
    if (adapter_only()) {
      if (decision_) {
        notes_.push_back(
            "the adapter was trained to decide, and llama.cpp reads template and temperatures from "
            "the file of the model: write one of the base with --decision-template, or merge");
      }
      ExportGgufAdapter(context_, config_, weights_, *adapter_, table_changes_,
                        {name, source.repository, Fingerprint()}, target_);
      if (!decision_ && !options_.modelfile) NoteChatTemplate(report);
      return options_.modelfile ? WithModelfile(LoadTokenizer())
                                : std::vector<std::string>{options_.output};
    }
    const std::optional<ImportanceMatrix> importance = Importance();
    const Tokenizer tokenizer = LoadTokenizer();
    prefix_space_ = WritesPrefixSpace(tokenizer, decision());
    if (tokenizer.spec().add_prefix_space && !prefix_space_) {
      notes_.push_back(
          "the file puts no space before texts (tokenizer.ggml.add_space_prefix false), as prompts "
          "of decisions need; text that it writes may begin otherwise than the model's");
    }
    std::unique_ptr<GgufReader> stored;
    const auto gguf = FindGguf(model_dir_);
    if (gguf && !replaces()) stored = OpenGguf(*gguf);
    const auto check_kept = [&](const std::vector<KeptChange>& kept) {
      notes_.push_back(CheckKeptChange(kept, options_,
                                       keeps_types() ? "the types of the file" : file_type_->name,
                                       IsPublishedForm(), report));
      std::erase(notes_, "");
    };
    target_.outtype = ExportGgufModel(context_, backend_.memory(),
                                      {.config = config_,
                                       .tokenizer = tokenizer,
                                       .weights = weights_,
                                       .adapter = adapter(),
                                       .merged_before = HoldsMergedWeights(model_dir_),
                                       .name = name,
                                       .repository = source.repository,
                                       .folder = model_dir_,
                                       .file = *file_type_,
                                       .importance = importance ? &*importance : nullptr,
                                       .importance_file = options_.imatrix,
                                       .check = check_kept,
                                       .decision = decision(),
                                       .stored = stored.get(),
                                       .keeps_types = keeps_types()},
                                      target_, progress_, notes_);
    // Beside the model alone: an export that is refused changes no file.
    if (!options_.write_imatrix.empty()) {
      WriteImatrix(*importance, options_.write_imatrix, target_.mode);
    }
    return WithModelfile(tokenizer);
  }

  // An adapter GGUF has no place for the template of its prompts, for which llama.cpp takes that of
  // the model's file.
  void NoteChatTemplate(ExportReport& report) {
    const fs::path file = OtherChatTemplate(model_dir_, adapters_.first());
    if (file.empty()) return;
    const bool is_own = file.filename() == kChatTemplateFile;
    report.chat_template = is_own ? file.string() : "TEMPLATE.jinja";
    notes_.push_back(fmt::format(
        "the model's file has no chat template, or another than the adapter was trained with: give "
        "llama.cpp {} (--jinja --chat-template-file)",
        is_own ? file.string() : "that of " + file.string() + ", written to a file"));
  }

  // The files that were written, after a Modelfile that was asked for.
  std::vector<std::string> WithModelfile(const Tokenizer& tokenizer) {
    if (!options_.modelfile) return {options_.output};
    OllamaModel model = OllamaModelOf(tokenizer, notes_);
    model.gguf = options_.output;
    model.context = config_.max_position_embeddings;
    if (adapter_only()) {
      model.gguf = *FindGguf(model_dir_);
      model.adapter = options_.output;
    }
    const fs::path modelfile = ModelfileOf(options_.output);
    const fs::path folder = fs::absolute(modelfile).parent_path();
    AtomicFile file(modelfile, target_.mode);
    file.Write(Modelfile(model, folder, notes_));
    file.Commit();
    return {options_.output, modelfile.string()};
  }

  // Reads the importance matrix, or makes it.
  std::optional<ImportanceMatrix> Importance() {
    if (options_.imatrix.empty()) return std::nullopt;
    const bool is_file = IsImatrixFile(options_.imatrix);
    ImportanceMatrix matrix =
        is_file ? ReadImatrix(options_.imatrix)
                : CollectImatrix(context_, backend_, model_dir_, LoadDecoderConfig(model_dir_),
                                 weights_, options_.imatrix, options_.imatrix_tokens, progress_);
    if (!is_file) NoteFewTokens(matrix);
    return matrix;
  }

  void NoteFewTokens(const ImportanceMatrix& matrix) {
    // A chunk of llama.cpp's, whose matrices are of a hundred and more.
    const auto tokens = static_cast<std::int64_t>(matrix.entries.begin()->second.counts[0]);
    if (tokens >= matrix.chunk_size) return;
    notes_.push_back(
        fmt::format("the importance matrix is of {} tokens of {}; some ten thousand tell reliably "
                    "which columns matter",
                    tokens, options_.imatrix));
  }

  // MXFP4 is the form in which gpt-oss was published: there is no checkpoint of more bits.
  bool IsPublishedForm() const {
    return std::ranges::count(weights_.sizes.block_formats, "MXFP4") > 0;
  }

  std::vector<std::string> WriteAdapterFolder() {
    if (values_.base_model_name_or_path.empty()) {
      values_.base_model_name_or_path = RepositoryOf(options_.model_name_or_path);
    }
    std::vector<std::string> files;
    NamingTarget(options_.output, [&] {
      files = options_.format == "mlx-adapter"
                  ? ExportMlxAdapter(values_, config_, adapters_.first(), target_)
                  : ExportPeftAdapter(values_, config_, adapters_.first(), target_);
    });
    return files;
  }

  const DecisionSource* decision() const { return decision_ ? &*decision_ : nullptr; }

  std::vector<std::string> WriteHf() {
    decision_ = DecisionToWrite(options_, adapters_, model_dir_);
    std::vector<std::string> files;
    NamingTarget(options_.output, [&] {
      files = ExportHf(context_, backend_.memory(),
                       {.folder = model_dir_,
                        .config_json = config_json_,
                        .config = config_,
                        .weights = weights_,
                        .adapter = adapter(),
                        .prompts = FindPrompts(model_dir_, adapters_.first(), decision())},
                       target_, progress_, notes_);
    });
    return files;
  }

  // Compares the written model with the source. Errors: Runtime, since InvalidInput would say that
  // nothing was written.
  void Verify(ExportReport& report) {
    const VerifyReport found = VerifyOutput({.context = context_,
                                             .backend = backend_,
                                             .options = options_,
                                             .adapters = adapters_,
                                             .model_dir = model_dir_,
                                             .config = config_,
                                             .weights = weights_,
                                             .adapter = adapter(),
                                             .type = target_.outtype,
                                             .text = verify_text_,
                                             .prefix_space = prefix_space_,
                                             .progress = progress_});
    report.mean_logprob_difference = found.mean_logprob_difference;
    report.max_logprob_difference = found.max_logprob_difference;
    report.verification = found;
    report.verified = found.passed();
    WriteVerifyReport(options_, report);
    if (!report.verified) {
      ThrowRuntime("{} was written, but {}; do not use the output", options_.output,
                   DescribeFailure(found, report.outtype));
    }
  }

  Tokenizer LoadTokenizer() const {
    return Tokenizer::Load(model_dir_, adapters_.first(), TemplateUse::kShow);
  }

  Context& context_;
  Backend& backend_;
  const ExportOptions& options_;
  const AdapterSet& adapters_;
  const ProgressFn& progress_;
  fs::path model_dir_;
  DecoderConfig config_;
  Json config_json_;  // of format hf
  ExportTarget target_;
  const GgufFileType* file_type_ = nullptr;
  AdapterValues values_;  // of writes_values()
  std::optional<LoraAdapter> adapter_;
  std::vector<TableChange> table_changes_;  // of the adapter
  DecoderWeights weights_;
  std::string verify_text_;
  std::optional<DecisionSource> decision_;
  bool prefix_space_ = true;  // of the written tokenizer, where the model's has one
  std::vector<std::string> notes_;
};

}  // namespace

ExportReport Export(Context& context, const ExportOptions& options, const ProgressFn& progress) {
  const Stopwatch watch;
  const BackendFactory::Ptr backends = BackendFactory::ForJob(context, options.device);
  ExportOptions resolved = options;
  const AdapterSet adapters = ResolveAdapters(options.adapter, options.adapter_rank);
  const auto gguf = FindGguf(ResolveModelDir(options.model_name_or_path));
  // Beside a GGUF file, the adapter is all that is new.
  if (options.format == "auto") {
    resolved.format = gguf && !adapters.empty() ? "gguf-adapter" : "gguf";
  }
  CheckExportOptions(resolved);
  CheckExportOutput(resolved, adapters);
  // Products in float32: the comparison shall measure the output, not the backend.
  const std::unique_ptr<Backend> backend = backends->Make(context, DType::kF32);
  ExportReport report = Exporter(context, *backend, resolved, adapters, progress).Run();
  report.format = resolved.format;
  report.seconds = watch.seconds();
  return report;
}

}  // namespace qlora
