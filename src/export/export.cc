// Export: reads the model, merges the adapter, writes the output.
#include "qlora/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "backend/backend_factory.h"
#include "base/check.h"
#include "base/file.h"
#include "base/stopwatch.h"
#include "base/text.h"
#include "convert/model_folder.h"
#include "convert/verify.h"
#include "convert/verify_output.h"
#include "convert/verify_report.h"
#include "decision/decision_template.h"
#include "export/export_adapter.h"
#include "export/export_checks.h"
#include "export/export_hf.h"
#include "export/export_output.h"
#include "export/export_source.h"
#include "export/gguf/export_gguf.h"
#include "export/gguf/export_gguf_adapter.h"
#include "export/gguf/gguf_decision_keys.h"
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
#include "prompt/chat_template_load.h"
#include "tokenizer/adapter_files.h"
#include "tokenizer/chat_template_files.h"
#include "tokenizer/tokenizer.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

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
        source_(context, backend, options, adapters, progress),
        target_{.path = options.output,
                .mode = options.overwrite ? OpenMode::kReplace : OpenMode::kCreate},
        // Files that are needed late are read before minutes of work.
        verify_text_(options.verify_text.empty() ? std::string(BuiltInText())
                                                 : ReadTextFile(options.verify_text)) {}

  ExportReport Run() {
    if (source_.adapter_only()) source_.CheckAdapterOnly();
    const bool verifies = Verifies();
    notes_ = source_.Load(verifies);
    file_type_ = &source_.ChooseFileType();
    target_.outtype = file_type_->base;
    ExportReport report;
    report.outtype = LowerCase(options_.outtype == "auto" ? file_type_->name : options_.outtype);
    report.merge_base = source_.merge_base();
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
  // By default small models are verified, which takes seconds.
  bool Verifies() const {
    if (options_.verify != "auto") return options_.verify == "true";
    if (!options_.verify_text.empty()) return true;
    constexpr std::size_t kSmall = 1'000'000'000;
    std::size_t bytes = 0;
    const std::unique_ptr<TensorReader> reader = OpenStoredTensors(source_.model_dir());
    for (const TensorInfo& tensor : reader->tensors()) {
      bytes += BytesOf(tensor.dtype, tensor.elements());
    }
    return bytes < kSmall;
  }

  // Returns the files that were written.
  std::vector<std::string> Write(ExportReport& report) {
    if (options_.format == "hf") return WriteHf();
    if (source_.writes_values()) return WriteAdapterFolder();
    const GgufSource source = source_.Names();
    const std::string& name = source.name;
    decision_ = DecisionToWrite();
    if (source_.adapter_only()) {
      if (decision_) {
        notes_.push_back(
            "the adapter was trained to decide, and llama.cpp reads template and temperatures from "
            "the file of the model: write one of the base with --decision-template, or merge");
      }
      ExportGgufAdapter(context_, source_.config(), source_.weights(), *source_.adapter(),
                        source_.table_changes(), {name, source.repository, source_.Fingerprint()},
                        target_);
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
    const auto gguf = FindGguf(source_.model_dir());
    if (gguf && !source_.replaces()) stored = OpenGguf(*gguf);
    const auto check_kept = [&](const std::vector<KeptChange>& kept) {
      notes_.push_back(CheckKeptChange(
          kept, options_, source_.keeps_types() ? "the types of the file" : file_type_->name,
          source_.is_published_form(), report));
      std::erase(notes_, "");
    };
    target_.outtype = ExportGgufModel(context_, backend_.memory(),
                                      {.config = source_.config(),
                                       .tokenizer = tokenizer,
                                       .weights = source_.weights(),
                                       .adapter = source_.adapter(),
                                       .merged_before = HoldsMergedWeights(source_.model_dir()),
                                       .name = name,
                                       .repository = source.repository,
                                       .folder = source_.model_dir(),
                                       .file = *file_type_,
                                       .importance = importance ? &*importance : nullptr,
                                       .importance_file = options_.imatrix,
                                       .check = check_kept,
                                       .decision = decision(),
                                       .stored = stored.get(),
                                       .keeps_types = source_.keeps_types()},
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
    const fs::path file = OtherChatTemplate(source_.model_dir(), adapters_.first());
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
    model.context = source_.config().max_position_embeddings;
    if (source_.adapter_only()) {
      model.gguf = *FindGguf(source_.model_dir());
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
                : CollectImatrix(context_, backend_, source_.model_dir(),
                                 LoadDecoderConfig(source_.model_dir()), source_.weights(),
                                 options_.imatrix, options_.imatrix_tokens, progress_);
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

  std::vector<std::string> WriteAdapterFolder() {
    std::vector<std::string> files;
    NamingTarget(options_.output, [&] {
      files =
          options_.format == "mlx-adapter"
              ? ExportMlxAdapter(source_.values(), source_.config(), adapters_.first(), target_)
              : ExportPeftAdapter(source_.values(), source_.config(), adapters_.first(), target_);
    });
    return files;
  }

  // The template and temperatures of the options, where given, in the place of those of the adapter
  // or the model; nothing for a model that does not decide.
  std::optional<DecisionSource> DecisionToWrite() const {
    std::optional<DecisionSource> decision =
        FindDecisionSource(adapters_.first(), source_.model_dir());
    if (!options_.decision_template.empty()) {
      const Tokenizer tokenizer = LoadTokenizer();
      const auto chat = LoadChatTemplate({}, tokenizer, ChatClock::kFixed);
      const DecisionTokenizer letters(tokenizer);
      // Temperatures are of one template.
      decision.emplace();
      decision->file.labels = letters.LabelTexts();
      decision->file.decision_template =
          LoadDecisionTemplate(options_.decision_template, letters, chat.get()).text();
    }
    if (options_.decision_temperature.empty()) return decision;
    if (!decision) {
      ThrowInvalidInput("decision_temperature: the model does not decide; give decision_template");
    }
    decision->file.temperatures =
        ParseTemperatures(options_.decision_temperature, "decision_temperature");
    decision->file.fitted_on.clear();
    return decision;
  }

  const DecisionSource* decision() const { return decision_ ? &*decision_ : nullptr; }

  std::vector<std::string> WriteHf() {
    decision_ = DecisionToWrite();
    std::vector<std::string> files;
    NamingTarget(options_.output, [&] {
      files = ExportHf(context_, backend_.memory(),
                       {.folder = source_.model_dir(),
                        .config_json = source_.config_json(),
                        .config = source_.config(),
                        .weights = source_.weights(),
                        .adapter = source_.adapter(),
                        .prompts = FindPrompts(source_.model_dir(), adapters_.first(), decision())},
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
                                             .model_dir = source_.model_dir(),
                                             .config = source_.config(),
                                             .weights = source_.weights(),
                                             .adapter = source_.adapter(),
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
    return Tokenizer::Load(source_.model_dir(), adapters_.first(), TemplateUse::kShow);
  }

  Context& context_;
  Backend& backend_;
  const ExportOptions& options_;
  const AdapterSet& adapters_;
  const ProgressFn& progress_;
  ExportSource source_;
  ExportTarget target_;
  const GgufFileType* file_type_ = nullptr;
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
